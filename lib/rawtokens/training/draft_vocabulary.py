"""The draft model's vocabulary: the ids that the target samples most, chosen by count, and what a size covers.

A draft model proposes the ids of its own vocabulary alone: d2t (int64, draft size) holds target id minus draft id, t2d
(bool, target size) whether a target id is in it. Ids are counted under the loss mask, in the train split; at equal
counts the smaller id is taken, and where fewer ids occur than are wanted, the smallest others fill up (speculators
0.9.0 does the same). This module does not know what an id means.
"""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import InputError
from ..journal import write_atomically
from ..reporting.wording import counted, either
from .loss_report import PARTS
from .manifest import TRAINING
from .masks import MASKS
from .rows import Integers, TrainingRows
from .torch_archive import Value, write_archive

DRAFT_VOCABULARY = "draft_vocabulary"
SIZES = (8_000, 16_000, 32_000, 48_000, 64_000, 96_000, 128_000)
HELD_OUT = "held out"


class IdCounts:
    """How often each id is trained on: `train` (3, vocabulary) by PARTS, `held_out` (vocabulary,) in all."""

    def __init__(self, vocabulary_size: int, mask: str) -> None:
        self.train = np.zeros((len(PARTS), vocabulary_size), dtype=np.int64)
        self.held_out = np.zeros(vocabulary_size, dtype=np.int64)
        self._mask = mask

    def add(self, rows: TrainingRows, *, held_out: bool) -> None:
        """Count a batch. Raises InputError for an id outside the vocabulary."""
        size = len(self.held_out)
        part_of_label = np.full(max(MASKS[self._mask]) + 2, -1, dtype=np.int8)
        for number, part in enumerate(PARTS):
            part_of_label[[label for label in MASKS[part] if label in MASKS[self._mask]]] = number
        parts = np.repeat(part_of_label[np.minimum(rows.runs.labels, len(part_of_label) - 1)], rows.runs.lengths)
        for number in range(len(PARTS)):
            found = np.bincount(rows.inputs.ids[parts == number], minlength=size)
            if len(found) > size:
                raise InputError(
                    f"id {len(found) - 1} is outside the vocabulary of {size} ids; use the tokenizer that the rows "
                    "were captured with"
                )
            if held_out:
                self.held_out += found
            else:
                self.train[number] += found

    @property
    def total(self) -> Integers:
        """Counts of the train split over all parts, (vocabulary,)."""
        total: Integers = self.train.sum(axis=0)
        return total


class DraftVocabulary(NamedTuple):
    """The mapping as trainers read it."""

    d2t: NDArray[np.int64]
    t2d: NDArray[np.bool_]


def by_frequency(counts: Integers) -> Integers:
    """All ids, most frequent first, at equal counts the smaller first."""
    return np.argsort(-counts, kind="stable")


def choose(counts: IdCounts, size: int) -> DraftVocabulary:
    """The `size` most frequent ids; all ids where the target has no more. Raises InputError for a size below 1."""
    if size < 1:
        raise InputError(f"draft vocabulary of {size} ids; expected 1 or more")
    chosen = np.sort(by_frequency(counts.total)[:size])
    t2d = np.zeros(len(counts.total), dtype=np.bool_)
    t2d[chosen] = True
    return DraftVocabulary(d2t=chosen - np.arange(len(chosen)), t2d=t2d)


def coverage_table(counts: IdCounts, sizes: tuple[int, ...] = SIZES) -> pd.DataFrame:
    """The share of occurrences that a draft vocabulary of each size covers: columns ids, all, PARTS, `held out`.

    `held out` is of rows that the choice did not see. NaN where there is nothing to cover.
    """
    order = by_frequency(counts.total)
    sizes = tuple(sorted({min(size, len(order)) for size in sizes}))
    columns = {"all": counts.total, **dict(zip(PARTS, counts.train, strict=True)), HELD_OUT: counts.held_out}
    shares = {name: _covered(found[order], sizes) for name, found in columns.items()}
    return pd.DataFrame({"ids": sizes, **shares})


def coverage_curve(counts: IdCounts, *, points: int = 200) -> pd.DataFrame:
    """`coverage_table` at sizes evenly spaced on a log axis, up to 128,000 or the whole vocabulary."""
    most = min(len(counts.total), SIZES[-1])
    return coverage_table(counts, tuple(np.unique(np.geomspace(1, most, points).astype(int)).tolist()))


def coverage_takeaway(counts: IdCounts, size: int) -> str:
    """What the chosen size covers, in words."""
    if not counts.total.sum():
        return "There is no id to train on."
    line = coverage_table(counts, (size,)).iloc[0]
    parts = ", ".join(f"{name.replace('_', ' ')} {line[name]:.2%}" for name in PARTS if not np.isnan(line[name]))
    unseen = "" if np.isnan(line[HELD_OUT]) else f"; {line[HELD_OUT]:.2%} of the held-out rows' ids"
    different = int((counts.total > 0).sum())
    return (
        f"{counted(different, 'different id')} {either(different, 'is', 'are')} trained on. A draft "
        f"vocabulary of {int(line['ids']):,} "
        f"covers {line['all']:.2%} of their occurrences ({parts}){unseen}."
    )


def write_draft_vocabulary(folder: Path, counts: IdCounts, size: int) -> list[Path]:
    """Write the mapping as SpecForge (one .pt), speculators (two .npy, and the counts to choose anew) read it.

    speculators finds d2t-SIZE.npy, t2d-SIZE.npy and token_freq.pt in its data folder, or takes their paths.
    """
    place = folder / TRAINING / DRAFT_VOCABULARY
    place.mkdir(parents=True, exist_ok=True)
    made = choose(counts, size)
    draft = len(made.d2t)
    seen = np.flatnonzero(counts.total)
    frequencies: dict[str | int, Value] = dict(zip(seen.tolist(), counts.total[seen].tolist(), strict=True))
    paths = [place / f"d2t-{draft}.npy", place / f"t2d-{draft}.npy"]
    for path, array in zip(paths, made, strict=True):
        content = io.BytesIO()
        np.save(content, array)
        write_atomically(path, content.getvalue())
    archives: dict[str, Value] = {"vocab_mapping.pt": {"d2t": made.d2t, "t2d": made.t2d}, "token_freq.pt": frequencies}
    for name, value in archives.items():
        temporary = place / f".{name}.tmp"
        write_archive(temporary, value)
        temporary.replace(place / name)
        paths.append(place / name)
    return paths


def _covered(counts: Integers, sizes: tuple[int, ...]) -> NDArray[np.float64]:
    whole = int(counts.sum())
    if not whole:
        return np.full(len(sizes), np.nan)
    return np.cumsum(counts)[np.array(sizes, dtype=np.int64) - 1] / whole
