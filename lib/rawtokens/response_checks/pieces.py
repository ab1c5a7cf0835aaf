"""The pieces of outputs in order: where each begins, and whether it is reasoning, a closer, the answer or tool ids.

What segments and channel_segments count, as places. Together the pieces of a row cover its body once; no loop over ids
or rows. This module does not know how a marker is found.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

REASONING, CLOSER, ANSWER, TOOL = range(4)


class Pieces(NamedTuple):
    """One entry a piece, in order; it ends where the next piece of its row begins, or with the body."""

    starts: Integers  # flat positions in the outputs' ids
    rows: Integers
    labels: NDArray[np.int8]


class Changes(NamedTuple):
    """Places from which on ids have a label; a place may have several, of which the last named counts."""

    starts: Integers
    rows: Integers
    labels: NDArray[np.int8] | int


def pieces_of(changes: Sequence[Changes], body_ends: Integers) -> Pieces:
    """Pieces from label changes; `body_ends` is where each row's body ends. Neighbours of one label become one."""
    starts = np.concatenate([change.starts for change in changes])
    rows = np.concatenate([change.rows for change in changes])
    labels = np.concatenate([np.broadcast_to(np.int8(change.labels), len(change.starts)) for change in changes])
    order = np.argsort(starts, kind="stable")
    starts, rows, labels = starts[order], rows[order], labels[order]
    inside = starts < body_ends[rows]
    starts, rows, labels = starts[inside], rows[inside], labels[inside]
    counts = np.ones(len(starts), dtype=np.bool_)
    counts[:-1] = starts[1:] != starts[:-1]
    starts, rows, labels = starts[counts], rows[counts], labels[counts]
    begins = np.ones(len(starts), dtype=np.bool_)
    begins[1:] = (rows[1:] != rows[:-1]) | (labels[1:] != labels[:-1])
    return Pieces(starts[begins], rows[begins], labels[begins])
