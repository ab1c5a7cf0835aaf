"""One row as a trainer gets it: decoded ids in blocks, coloured where the loss mask is 1, grey where it is 0.

Inert HTML; ids are decoded to look at and never encoded again. This module does not know why an id is masked.
"""

from collections.abc import Collection
from html import escape
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from IPython.display import display

from ..reporting.decoded import Decoder, block_html, ids_html
from ..reporting.display import printable
from ..reporting.wording import counted
from .masks import mask_runs
from .rows import LABELS, TrainingRows
from .settings import TrainingSettings

_ON, _OFF = ("#1845fb", "#eef2ff"), ("#656364", "#f4f4f5")  # border, background; text is near black on both


class Block(NamedTuple):
    """Consecutive ids of one label and one mask value."""

    label: str
    mask: int
    ids: tuple[int, ...]


def blocks_of(rows: TrainingRows, row: int, settings: TrainingSettings) -> list[Block]:
    """The row's ids in order, cut where the label or the mask changes."""
    mask = mask_runs(rows.runs, settings.mask, boundary_shift=settings.boundary_shift).per_id()
    labels = np.repeat(rows.runs.labels, rows.runs.lengths)
    start, end = rows.inputs.offsets[row : row + 2].tolist()
    changes = np.flatnonzero(np.diff(labels[start:end]) | np.diff(mask[start:end])) + 1
    bounds = [start, *(changes + start).tolist(), end]
    return [
        Block(LABELS[labels[first]], int(mask[first]), tuple(rows.inputs.ids[first:last].tolist()))
        for first, last in pairwise(bounds)
        if last > first
    ]


def mask_html(key: str, blocks: list[Block], decoder: Decoder, *, special_ids: Collection[int] = ()) -> str:
    """A `<figure>` without script, link or style sheet; all text is escaped."""
    parts = [
        block_html(
            f"{label} · {counted(len(ids), 'id')} · loss mask {mask}",
            ids_html(ids, decoder, special_ids=special_ids),
            colours=_ON if mask else _OFF,
        )
        for label, mask, ids in blocks
    ]
    ones = sum(len(block.ids) for block in blocks if block.mask)
    caption = f"key {key}: {counted(sum(len(block.ids) for block in blocks), 'id')}, {ones:,} of them trained on"
    return f"<figure><figcaption>{escape(printable(caption))}</figcaption>{''.join(parts)}</figure>"


def show_mask(
    rows: TrainingRows | None, settings: TrainingSettings, decoder: Decoder, *, special_ids: Collection[int]
) -> None:
    """Show the row of `rows` that has most different parts, the shortest of those; without rows say so."""
    if rows is None:
        display({"text/plain": "No row is left to train on."}, raw=True)  # type: ignore[no-untyped-call]
        return
    kinds = np.array([len(set(rows.runs.labels[rows.runs.rows == row].tolist())) for row in range(len(rows.numbers))])
    row = int(np.lexsort((rows.inputs.lengths, -kinds))[0])
    key, blocks = rows.keys[row], blocks_of(rows, row, settings)
    plain = "\n".join(f"[{block.label}: {counted(len(block.ids), 'id')}, loss mask {block.mask}]" for block in blocks)
    html = mask_html(key, blocks, decoder, special_ids=special_ids)
    display({"text/html": html, "text/plain": f"{printable(key)}\n{plain}"}, raw=True)  # type: ignore[no-untyped-call]
