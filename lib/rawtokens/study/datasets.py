"""From a capture to what heads train on and are measured by: the export, every arm's rows, the draft vocabulary.

Each arm's rows go to a JSONL file of the shape that the export has and from there through `speculators prepare-data`,
as a user's would. All arms have the same number of supervised ids and one draft vocabulary, the export's: what differs
is the rows alone. This module does not know how a head is trained.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..journal import write_atomically
from ..target.target_tokenizer import Tokenizer
from ..training.draft_vocabulary import DRAFT_VOCABULARY, choose, write_draft_vocabulary
from ..training.export import export
from ..training.masks import MASKS
from ..training.policies import select_rows
from ..training.rows import read_training_rows
from ..training.settings import TrainingSettings
from ..training.survey import survey
from .arms import Arm, ArmRow, Source, cut_to, make_arm, read_exported
from .environment import called, find_speculators
from .forms import ARMS, Form
from .questions import training_dialogues

SETTINGS = TrainingSettings(
    formats=("speculators",), held_out=0.0, truncated_in_thinking="drop", truncated_in_answer="drop"
)
"""Whole answers alone: a truncated one, rendered again, would get a closer and a stop id that nobody sampled, which is
another fault than the one an arm is to show."""
EVALUATION_SETTINGS = TrainingSettings(held_out=0.0, flagged="keep")
"""All that the target says is to be drafted."""
LONGEST = 4_096


class ArmFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's data: `available_ids` before the cut to equal `supervised_ids`; `uncovered_ids` of those that the draft
    vocabulary lacks; `changed_rows` whose ids are not those of the verbatim arm's row, `reasoning_ids` of the
    supervised ones, the closer among them."""

    arm: str
    digest: str
    rows: int
    positions: int
    supervised_ids: int
    available_ids: int
    uncovered_ids: int
    changed_rows: int
    reasoning_ids: int
    left_out: dict[str, int]


def export_rows(folder: Path, tokenizer: Tokenizer, on_line: Callable[[str], None]) -> list[ArmRow]:
    """Export the capture; returns the rows as training/ has them."""
    export(folder, markers=tokenizer.markers, settings=SETTINGS, on_line=on_line)
    return read_exported(folder)


def write_arms(
    place: Path, captured: Path, tokenizer: Tokenizer, form: Form, on_line: Callable[[str], None]
) -> list[ArmFacts]:
    """Write `ARM/rows.jsonl` of every arm, `arms.json` into `place`; returns what each arm holds.

    The supervised ids are the form's, or those of the arm that has fewest. Raises InputError.
    """
    exported = export_rows(captured, tokenizer, on_line)
    source = Source(
        folder=captured,
        exported=exported,
        tokenizer=tokenizer,
        dialogues=training_dialogues(form.prompts),
    )
    arms = {name: make_arm(name, source) for name in ARMS if name in form.arms}
    available = {name: sum(row.supervised for row in arm.rows) for name, arm in arms.items()}
    fewest = min(available, key=lambda name: available[name])
    wanted = min(form.unique_ids, available[fewest])
    on_line(f"{wanted:,} supervised ids an arm; {fewest} has {available[fewest]:,}, the form asks {form.unique_ids:,}")
    rows = {name: cut_to(arm, wanted) for name, arm in arms.items()}
    kept = write_vocabulary(captured, tokenizer, form.draft_vocabulary)
    verbatim = {row.id: row.input_ids for row in exported}
    (closer,) = tokenizer.markers.closer
    facts = []
    for name, arm in arms.items():
        content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows[name])
        write_atomically(place / name / "rows.jsonl", content)
        facts.append(_facts(name, arm, rows[name], content, kept, verbatim, available[name], closer))
    write_atomically(place / "arms.json", msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")
    return facts


def write_vocabulary(captured: Path, tokenizer: Tokenizer, size: int) -> NDArray[np.bool_]:
    """The export's draft vocabulary of `size` ids, in training/; returns which ids are in it."""
    size_of_target, settings = tokenizer.vocabulary_size, SETTINGS
    selection = select_rows(captured, settings)
    found = survey(captured, selection, markers=tokenizer.markers, vocabulary_size=size_of_target, settings=settings)
    write_draft_vocabulary(captured, found.counts, size)
    return choose(found.counts, size).t2d


def vocabulary_files(captured: Path, size: int) -> dict[str, Path]:
    """Where the export keeps d2t and t2d of a draft vocabulary."""
    folder = captured / "training" / DRAFT_VOCABULARY
    return {name: folder / f"{name}-{size}.npy" for name in ("d2t", "t2d")}


def write_evaluation(path: Path, captured: Path, tokenizer: Tokenizer) -> int:
    """The greedy rows as lines of `key`, `ids`, `prompt` (its length) and `parts` (of each output id, in PARTS).

    Rows with fewer than two output ids have nothing to draft. Returns how many sequences there are.
    """
    rows = select_rows(captured, EVALUATION_SETTINGS).kept
    places = {label: place for place, name in enumerate(("reasoning", "answer", "tool_calls")) for label in MASKS[name]}
    lines = []
    for batch in read_training_rows(captured, tokenizer.markers, rows):
        prompts = batch.facts["prompt_tokens"].to_pylist()
        labels = np.repeat(batch.runs.labels, batch.runs.lengths)
        for row, (key, prompt) in enumerate(zip(batch.keys, prompts, strict=True)):
            ids = batch.inputs.row(row).tolist()
            own = labels[batch.inputs.offsets[row] : batch.inputs.offsets[row + 1]][prompt:].tolist()
            if len(own) >= 2:
                lines.append(
                    json.dumps({"key": key, "ids": ids, "prompt": prompt, "parts": [places[each] for each in own]})
                )
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())
    return len(lines)


def prepare(place: Path, model: Path, arm: ArmFacts) -> Path:
    """An arm's rows through `speculators prepare-data`; returns the folder, made again where its rows are others."""
    prepared, stamp = place / arm.arm / "prepared", place / arm.arm / "prepared.digest"
    if stamp.exists() and stamp.read_text("utf-8") == arm.digest and prepared.is_dir():
        return prepared
    stamp.unlink(missing_ok=True)
    shutil.rmtree(prepared, ignore_errors=True)
    options = ["--model", str(model), "--data", str(place / arm.arm / "rows.jsonl"), "--output", str(prepared)]
    options += ["--seq-length", str(LONGEST), "--num-preprocessing-workers", "1"]
    called([find_speculators(), "-m", "speculators", "prepare-data", *options], log=place / arm.arm / "prepare.log")
    stamp.write_text(arm.digest, "utf-8")
    return prepared


def _facts(
    name: str,
    arm: Arm,
    rows: Sequence[ArmRow],
    content: bytes,
    kept: NDArray[np.bool_],
    verbatim: Mapping[str, list[int]],
    available: int,
    closer: int,
) -> ArmFacts:
    trained = [[each for each, one in zip(row.input_ids, row.loss_mask, strict=True) if one] for row in rows]
    supervised = [each for ids in trained for each in ids]
    return ArmFacts(
        arm=name,
        digest=hashlib.sha256(content).hexdigest()[:16],
        rows=len(rows),
        positions=sum(len(row.input_ids) for row in rows),
        supervised_ids=len(supervised),
        available_ids=available,
        uncovered_ids=int((~kept[supervised]).sum()),
        changed_rows=sum(row.input_ids != verbatim[row.id] for row in rows),
        reasoning_ids=sum(ids.index(closer) + 1 if closer in ids else len(ids) for ids in trained),
        left_out=arm.left_out,
    )
