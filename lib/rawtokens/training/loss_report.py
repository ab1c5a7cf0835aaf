"""What each trainer will drop or cut of an export, for each maximum length, before anything is trained.

How they do it was read in their sources and is held to their loading code by tests (TorchSpec's to its rule alone).
Only the rows of the train split count. This module does not know how a trainer trains.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..journal import write_atomically
from ..reporting.wording import counted
from .manifest import TRAINING
from .masks import MASKS, mask_runs
from .rows import Integers, TrainingRows
from .settings import TrainingSettings

LOSS_REPORT = "loss_report.json"
PARTS = ("reasoning", "answer", "tool_calls")
"""The masks that every sampled id is in one of; closers count as reasoning, stop ids as answer."""
_KEYS_TOLD = 100


class Trainer(NamedTuple):
    """`cuts`: keeps a row's first max_length ids; else a row of max_length ids and more is dropped whole.

    `fewest` is how many ids a kept row must have under the mask.
    """

    name: str
    cuts: bool
    fewest: int


TRAINERS = (
    Trainer("SpecForge (EAGLE-3)", True, 1),
    Trainer("SpecForge (DFlash)", True, 2),
    Trainer("speculators", True, 1),
    Trainer("TorchSpec or AngelSpec", False, 1),  # the engine that gives hidden states generates one id more
)


class TrainerLoss(msgspec.Struct, kw_only=True):
    """One trainer at one length; ids are those under the mask. Rows: `rows` = kept whole + `cut` + `dropped`."""

    trainer: str
    max_length: int
    rows: int = 0
    dropped: int = 0
    cut: int = 0
    supervised: dict[str, int] = {}
    lost: dict[str, int] = {}
    dropped_keys: list[str] = []  # the first hundred


class LossReport:
    """Gathers batch by batch what trainers will lose."""

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        none = dict.fromkeys(PARTS, 0)
        self.losses = [
            TrainerLoss(trainer=trainer.name, max_length=length, supervised=dict(none), lost=dict(none))
            for trainer in TRAINERS
            for length in settings.report_lengths
        ]

    def add(self, rows: TrainingRows) -> None:
        """Count the rows of a batch."""
        lengths, ones = rows.inputs.lengths, _by_part(rows, self._settings.mask)
        supervised = {part: _sums(rows, counts) for part, counts in ones.items()}
        for place, length in enumerate(self._settings.report_lengths):
            kept = {part: _within(rows, counts, length) for part, counts in ones.items()}
            under_mask = self._under_mask(rows, length)
            for number, trainer in enumerate(TRAINERS):
                loss = self.losses[number * len(self._settings.report_lengths) + place]
                dropped = (under_mask < trainer.fewest) | ((not trainer.cuts) & (lengths >= length))
                _add(loss, rows, dropped, ~dropped & (lengths > length), supervised, kept)

    def _under_mask(self, rows: TrainingRows, length: int) -> Integers:
        """Ones of each row's mask among its first `length` ids."""
        mask = mask_runs(rows.runs, self._settings.mask, boundary_shift=self._settings.boundary_shift)
        starts = np.cumsum(mask.lengths) - mask.lengths - rows.inputs.offsets[:-1][mask.rows]
        inside = np.clip(length - starts, 0, mask.lengths) * mask.values
        return np.bincount(mask.rows, inside, len(rows.numbers)).astype(np.int64)


def loss_table(report: LossReport) -> pd.DataFrame:
    """A line a trainer and length: rows, dropped, cut, supervised ids, and the lost ones by part, as ids and shares."""
    lines = []
    for loss in report.losses:
        supervised, lost = sum(loss.supervised.values()), sum(loss.lost.values())
        shares = {f"{part} lost": _share(loss.lost[part], loss.supervised[part]) for part in PARTS}
        lines.append(
            {
                "trainer": loss.trainer,
                "max length": loss.max_length,
                "rows": loss.rows,
                "dropped": loss.dropped,
                "cut": loss.cut,
                "ids to train on": supervised,
                "lost": lost,
                "share lost": _share(lost, supervised),
                **shares,
            }
        )
    return pd.DataFrame(lines)


def loss_takeaway(report: LossReport) -> str:
    """One sentence: the least length at which no trainer loses an id, or what the longest still loses."""
    by_length: dict[int, int] = {}
    for loss in report.losses:
        by_length[loss.max_length] = max(by_length.get(loss.max_length, 0), sum(loss.lost.values()))
    rows = report.losses[0].rows if report.losses else 0
    if not rows:
        return "There is no row to train on."
    whole = [length for length, lost in sorted(by_length.items()) if not lost]
    worst = max(report.losses, key=lambda loss: sum(loss.lost.values()))
    share = sum(worst.lost.values()) / max(1, sum(worst.supervised.values()))
    most = max(worst.lost, key=lambda part: worst.lost[part])
    text = (
        f"With a length of {whole[0]:,} no trainer drops or cuts any of {counted(rows, 'row')}."
        if whole
        else f"Even at {max(by_length):,} ids a trainer loses some of {counted(rows, 'row')}."
    )
    if share:
        text += (
            f" At {worst.max_length:,} {worst.trainer} loses {share:.1%} of the ids to train on, most of them of the "
            f"{most.replace('_', ' ')}."
        )
    return text


def write_loss_report(folder: Path, report: LossReport) -> Path:
    """Write training/loss_report.json, whole or not at all. Returns its path."""
    path = folder / TRAINING / LOSS_REPORT
    write_atomically(path, msgspec.json.format(msgspec.json.encode(report.losses), indent=1) + b"\n")
    return path


def _by_part(rows: TrainingRows, mask: str) -> dict[str, Integers]:
    """The ids of each run that are under the mask, by the part that they are of."""
    wanted = {part: set(MASKS[part]) & set(MASKS[mask]) for part in PARTS}
    return {part: rows.runs.lengths * np.isin(rows.runs.labels, list(labels)) for part, labels in wanted.items()}


def _sums(rows: TrainingRows, counts: Integers) -> Integers:
    """The sum of each row's runs."""
    return np.bincount(rows.runs.rows, counts, len(rows.numbers)).astype(np.int64)


def _within(rows: TrainingRows, counts: Integers, length: int) -> Integers:
    """How many of the counted ids stand among the first `length` ids of each row."""
    starts = rows.runs.starts - rows.inputs.offsets[:-1][rows.runs.rows]
    return _sums(rows, np.clip(length - starts, 0, counts))


def _add(
    loss: TrainerLoss,
    rows: TrainingRows,
    dropped: NDArray[np.bool_],
    cut: NDArray[np.bool_],
    supervised: Mapping[str, Integers],
    kept: Mapping[str, Integers],
) -> None:
    loss.rows += len(dropped)
    loss.dropped += int(dropped.sum())
    loss.cut += int(cut.sum())
    for part in PARTS:
        loss.supervised[part] += int(supervised[part].sum())
        loss.lost[part] += int((supervised[part] - np.where(dropped, 0, kept[part])).sum())
    room = _KEYS_TOLD - len(loss.dropped_keys)
    if room > 0 and dropped.any():
        loss.dropped_keys += [rows.keys[row] for row in np.flatnonzero(dropped)[:room].tolist()]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
