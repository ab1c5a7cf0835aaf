"""How many different ids the outputs hold, and which share of them a draft vocabulary of a size covers.

An EAGLE-3 drafter predicts the most frequent ids alone; what is outside its vocabulary it can't propose. Here ids
are read, block by block, into counts. Rejected rows do not count: nobody trains on them. This module does not know
how a trainer writes its vocabulary, nor tool calls from an answer: it tells thinking from what comes behind it.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..errors import InputError
from ..records import open_parquet
from ..response_checks.response_columns import IdLists

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SIZES = (8_000, 16_000, 32_000, 64_000, 128_000)
"""Sizes of draft vocabularies; SpecForge and speculators take 32,000 unless told otherwise."""

PARTS = ("thinking", "behind the thinking")
FORMATS = dict.fromkeys(("all", *PARTS, "other half"), "{:.2%}")
"""How a table shows the columns of `coverage_table`."""

_ROWS = 256  # a block; of 4,000 ids each they take 4 MB
_COLUMNS = ["verdict", "shape", "reasoning_tokens", "output_ids"]


class IdCounts(NamedTuple):
    """How often each id occurs: int64 (2, 2, largest id + 1), by half of the rows (every other one), part and id.

    Parts are PARTS: ids of the thinking, and everything behind it, its closer and stop ids included. Rows that speak
    on channels count as behind the thinking.
    """

    counts: npt.NDArray[np.int64]
    rows: int

    @property
    def total(self) -> Integers:
        """Occurrences by id, over both halves and parts."""
        total: Integers = self.counts.sum(axis=(0, 1))
        return total


def count_ids(folder: Path) -> IdCounts:
    """Count the output ids of verified.parquet's rows that are not rejected, in bounded memory.

    Raises InputError where the file is missing or can't be read.
    """
    path = folder / "verified.parquet"
    if not path.exists():
        raise InputError(f"{path} is missing; run notebook 03_verify_responses for this data set first")
    counts, rows = np.zeros((2, 2, 0), dtype=np.int64), 0
    try:
        with open_parquet(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS, columns=_COLUMNS):
                counts = _add(counts, batch, rows)
                rows += batch.num_rows
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read ({error}); run notebook 03_verify_responses again") from error
    return IdCounts(counts, rows)


def coverage_curve(found: IdCounts, *, points: int = 200) -> pd.DataFrame:
    """The share of ids that the n most frequent of all cover: columns ids (n), all, PARTS, `other half`.

    `other half` is of half of the rows with the n most frequent ids of the other half, for what is counted and
    covered by the same rows looks better than it will be. NaN where a part has no ids.
    """
    total = found.total
    order = np.argsort(-total, kind="stable")[: int((total > 0).sum())]
    if not len(order):
        return pd.DataFrame({name: [] for name in ("ids", "all", *PARTS, "other half")}, dtype="float64")
    sizes = np.unique(np.concatenate([np.geomspace(1, len(order), points).astype(int), SIZES]))
    parts = found.counts.sum(axis=0)
    return pd.DataFrame(
        {
            "ids": sizes,
            "all": _covered(total, order, sizes),
            **{name: _covered(parts[place], order, sizes) for place, name in enumerate(PARTS)},
            "other half": _covered_in_other_half(found, sizes),
        }
    )


def coverage_table(found: IdCounts) -> pd.DataFrame:
    """`coverage_curve` at SIZES, a line each"""
    curve = coverage_curve(found).set_index("ids")
    lines = curve.loc[list(SIZES)] if len(curve) else curve
    lines.index = pd.Index([f"{size:,} most frequent" for size in lines.index])
    return lines


def distinct(found: IdCounts) -> dict[str, int]:
    """How many different ids occur in all, and by part."""
    parts = found.counts.sum(axis=0)
    return {
        "all": int((found.total > 0).sum()),
        **{name: int((parts[n] > 0).sum()) for n, name in enumerate(PARTS)},
    }


def _covered(counts: Integers, order: Integers, sizes: Integers) -> Floats:
    reached = np.cumsum(counts[order])
    whole = int(counts.sum())
    if not whole:
        return np.full(len(sizes), np.nan)
    shares: Floats = reached[np.minimum(sizes, len(order)) - 1] / whole
    return shares


def _covered_in_other_half(found: IdCounts, sizes: Integers) -> Floats:
    halves = found.counts.sum(axis=1)
    shares = []
    for ranked, covered in (halves, halves[::-1]):
        order = np.argsort(-ranked, kind="stable")[: int((ranked > 0).sum())]
        shares.append(_covered(covered, order, sizes) if len(order) else np.full(len(sizes), np.nan))
    mean: Floats = np.mean(shares, axis=0)
    return mean


def _add(counts: npt.NDArray[np.int64], batch: pa.RecordBatch, rows: int) -> npt.NDArray[np.int64]:
    outputs = IdLists.from_arrow(batch["output_ids"])
    lengths = outputs.lengths
    thinking = np.from_dlpack(batch["reasoning_tokens"]).astype(np.int64)
    thinking[np.array(batch["shape"].to_pylist()) == "channels"] = 0
    kept = np.array(batch["verdict"].to_pylist()) != "reject"
    # Which of the four counts a row's ids go to, its thinking first, then the rest; -1: none, and such a row may
    # hold any number.
    first = (rows + np.arange(len(lengths))) % 2 * 2
    bins = np.where(kept[:, None], np.stack([first, first + 1], axis=1), -1).ravel()
    place = np.repeat(bins.astype(np.int8), np.stack([thinking, lengths - thinking], axis=1).ravel())
    found = [np.bincount(outputs.ids[place == number]) for number in range(4)]
    size = max(counts.shape[2], *(len(each) for each in found))
    counts = np.pad(counts, ((0, 0), (0, 0), (0, size - counts.shape[2])))
    for total, each in zip(counts.reshape(4, -1), found, strict=True):
        total[: len(each)] += each
    return counts
