"""The data set of a chaos run, the ids of an undisturbed run over it, and the comparison of a disturbed one with them.

Journals are read here with nothing of the kit's, so that a fault of its reader hides nothing.
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import cast

import msgspec
import pyarrow.parquet as pq

from rawtokens import prompts, runs
from rawtokens.demo.dialogue_record import Dialogue
from rawtokens.demo.dialogues import dialogues
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import load_tokenizer

MAX_NEW_TOKENS = 256
KINDS = {
    "small_talk": 0.3, "sum": 0.15, "difference": 0.1, "conversion": 0.1, "call": 0.1, "code": 0.1, "quiet": 0.05,
    "long_thinking": 0.06, "long_answer": 0.04,
}  # fmt: skip
JOURNAL = "raw_responses.jsonl"
SEED = 7_000


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a journal differs from the undisturbed one; all counts are of keys. `lengths_equal`: as multisets."""

    missing: int
    doubled: int
    altered: int
    rejected: int
    lengths_equal: bool

    @property
    def whole(self) -> bool:
        return not (self.missing or self.doubled or self.altered) and self.lengths_equal


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenized data set in `folder`: prompt ids by generation key, and the undisturbed journal's lines by key."""

    folder: Path
    prompt_ids: Mapping[str, tuple[int, ...]]
    lines: Mapping[str, bytes] = {}

    def copy_to(self, folder: Path) -> Path:
        """A run's folder before its first stage 02."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (prompts.PROMPTS, runs.MANIFEST):
            shutil.copy(self.folder / name, folder / name)
        return folder

    def output_ids(self, key: str) -> list[int]:
        """The ids of the undisturbed run."""
        return cast(list[int], json.loads(self.lines[key])["output_ids"])

    def compare(self, folder: Path) -> Outcome:
        """What the journal and the rejections of `folder` hold, against the undisturbed run."""
        truth = {key: self.output_ids(key) for key in self.lines}
        found: Counter[str] = Counter()
        altered, lengths = 0, []
        for line in whole_lines(folder):
            record = json.loads(line)
            key = record["key"]
            found[key] += 1
            right = record["output_ids"] == truth.get(key) and tuple(record["prompt_ids"]) == self.prompt_ids.get(key)
            altered += not right
            lengths.append(len(record["output_ids"]))
        rejected = {row["key"] for row in _rejected(folder)}
        return Outcome(
            missing=len(truth.keys() - found.keys() - rejected),
            doubled=sum(count - 1 for count in found.values()) + len(rejected & found.keys()),
            altered=altered,
            rejected=len(rejected),
            lengths_equal=Counter(lengths) == Counter(len(ids) for key, ids in truth.items() if key not in rejected),
        )


def make_ground(folder: Path, model: Path, rows: int) -> Ground:
    """Tokenize about `rows` held-out prompts of the demo's kinds; every fifth id is not ASCII."""
    folder.mkdir(parents=True)
    found = [each for kind, share in KINDS.items() for each in _distinct(kind, max(1, round(rows * share)))]
    texts = [
        json.dumps(
            {
                "id": f"数é{number}" if number % 5 == 0 else f"q{number}",
                "messages": dialogue.messages,
                **({"tools": dialogue.tools} if dialogue.tools else {}),
            }
        )
        for number, dialogue in enumerate(found)
    ]
    file = folder / "questions.jsonl"
    file.write_text("\n".join(texts) + "\n")
    tokenizer = load_tokenizer(str(model))
    counts = prompts.tokenize_file(file, folder, tokenizer, PromptOptions())
    assert (counts.prompts, counts.rejected) == (len(found), 0)
    runs.record_tokenizing(folder, tokenizer, PromptOptions())
    table = pq.read_table(folder / prompts.PROMPTS, columns=["key", "prompt_ids"]).to_pylist()
    return Ground(folder=folder, prompt_ids={f"{row['key']}/0": tuple(row["prompt_ids"]) for row in table})


def _distinct(kind: str, count: int) -> list[Dialogue]:
    """So many dialogues that ask different things, or fewer: some kinds have few prompts."""
    drawn = islice(dialogues(seed=SEED, held_out=True, kind=kind), 4 * count)
    return list({json.dumps([each.messages, each.tools]): each for each in drawn}.values())[:count]


def with_truth(ground: Ground, undisturbed: Path) -> Ground:
    """The same ground with the undisturbed journal. Raises AssertionError where that is not whole."""
    lines = {json.loads(line)["key"]: line for line in whole_lines(undisturbed)}
    assert lines.keys() == ground.prompt_ids.keys()
    return msgspec.structs.replace(ground, lines=lines)


def whole_lines(folder: Path) -> list[bytes]:
    """The journal's lines; a last one without newline is none."""
    path = folder / JOURNAL
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def _rejected(folder: Path) -> list[dict[str, str]]:
    path = folder / "rejected.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
