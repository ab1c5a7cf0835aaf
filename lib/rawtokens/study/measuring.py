"""Train and measure what is missing: a program an arm, two at a time; a line a head in `ARM/results.jsonl`.

A head is known by its digest, over all that decides it: rows, draft vocabulary, evaluation and settings. Heads on
record are not trained again, so a study that was stopped goes on. This module does not know what results mean.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ..demo.model import STAMP
from .datasets import ArmFacts, prepare, vocabulary_files
from .environment import REQUIREMENTS, called, find_speculators
from .forms import DRAFT_LENGTH, LAYERS, Form

PART_POSITIONS = 192
"""Positions of a head's batch at most: attention over four draft steps grows with their square. Rows here have some 140
ids; 3,300 positions a second and core."""


CODE = [path for path in sorted(Path(__file__).with_name("heads").glob("*.py")) if path.name != "vllm_counts.py"]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """One trained head. `counts` by evaluation sequence and part: steps, then those with at least 1, 2, .. accepted."""

    arm: str
    digest: str
    seed: int
    rows: int
    steps: int
    positions: int
    supervised_ids: int
    loss: float
    train_seconds: float
    evaluate_seconds: float
    counts: list[list[list[int]]]


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """Where a form's data lie: its own folder, the target model, the data set that was captured."""

    place: Path
    model: Path
    captured: Path


def measure(
    ground: Ground, arms: Sequence[ArmFacts], form: Form, on_line: Callable[[str], None], *, workers: int = 0
) -> list[Head]:
    """Train and measure every head of the form that has no result yet; returns all of them. Raises RunStopped."""
    missing = [(arm, lacking) for arm in arms if (lacking := missing_seeds(ground, arm, form))]
    on_line(f"{sum(len(seeds) for _, seeds in missing)} of {len(arms) * len(form.seeds)} heads to train")
    with ThreadPoolExecutor(workers or min(2, len(os.sched_getaffinity(0)))) as pool:
        waiting = [pool.submit(_measure, ground, arm, seeds, form) for arm, seeds in missing]
        for (arm, seeds), done in zip(missing, waiting, strict=True):
            done.result()
            on_line(f"{arm.arm}: {len(seeds)} heads trained and measured")
    return [head for arm in arms for head in read_heads(ground, arm, form)]


def read_heads(ground: Ground, arm: ArmFacts, form: Form) -> list[Head]:
    """The results on record of an arm as it stands now, by seed."""
    path, digest = ground.place / arm.arm / "results.jsonl", head_digest(ground, arm, form)
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = {head.seed: head for line in lines if (head := _head(line)) and head.digest == digest}
    return [found[seed] for seed in form.seeds if seed in found]


def head_folder(place: Path, arm: str, digest: str, seed: int) -> Path:
    """Where the head of the first seed of a confirmed arm is kept."""
    return place / arm / f"head-{digest}-{seed}"


def _head(line: bytes) -> Head | None:
    """None for a line that a kill tore: its head is trained again."""
    try:
        return msgspec.json.decode(line, type=Head)
    except msgspec.MsgspecError:
        return None


def missing_seeds(ground: Ground, arm: ArmFacts, form: Form) -> list[int]:
    done = {head.seed for head in read_heads(ground, arm, form)}
    kept = head_folder(ground.place, arm.arm, head_digest(ground, arm, form), form.seeds[0])
    if arm.arm in form.confirmed and not (kept / "model.safetensors").exists():
        done.discard(form.seeds[0])
    return [seed for seed in form.seeds if seed not in done]


def _measure(ground: Ground, arm: ArmFacts, seeds: Sequence[int], form: Form) -> None:
    place, model = ground.place, ground.model
    vocabulary = vocabulary_files(ground.captured, form.draft_vocabulary)
    job = {
        "arm": arm.arm,
        "digest": head_digest(ground, arm, form),
        "model": str(model),
        "prepared": str(prepare(place, model, arm)),
        "vocabulary": {name: str(path) for name, path in vocabulary.items()},
        "evaluation": str(place / "evaluation.jsonl"),
        "results": str(place / arm.arm / "results.jsonl"),
        "seeds": seeds,
        "saved_seeds": form.seeds[:1] if arm.arm in form.confirmed else [],
        "head": str(place / arm.arm / f"head-{head_digest(ground, arm, form)}"),  # and the seed: head_folder
        **_settings(form),
    }
    path = place / arm.arm / "job.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(job), indent=1))
    called([find_speculators(), "-m", "rawtokens.study.heads", path], log=place / arm.arm / "train.log")


def _settings(form: Form) -> dict[str, object]:
    training = {
        "epochs": form.epochs,
        "step_ids": form.step_ids,
        "part_positions": PART_POSITIONS,
        "learning_rate": form.learning_rate,
    }
    return {"draft_length": DRAFT_LENGTH, "layers": LAYERS, "training": training}


def head_digest(ground: Ground, arm: ArmFacts, form: Form) -> str:
    """Over rows, vocabulary, evaluation, settings, the target, the trainer's pins and the heads' own code."""
    digest = hashlib.sha256(arm.digest.encode() + msgspec.json.encode(_settings(form)))
    vocabulary = vocabulary_files(ground.captured, form.draft_vocabulary)["d2t"]
    for path in (ground.place / "evaluation.jsonl", vocabulary, ground.model / STAMP, REQUIREMENTS, *CODE):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
