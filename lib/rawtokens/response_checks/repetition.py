"""Outputs that only repeat themselves: loops at the end, and one id over and over.

Exact repetition of ids only. This module does not know why a model loops, and near-repetition (a list that counts
up) is none.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .response_columns import IdLists

WINDOW = 256
LONGEST_PERIOD = 64
LOOP_SHARE = 0.75
SHORTEST_EQUAL = 8


def repeated_share(outputs: IdLists, body_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """How much of an output's end repeats one n-gram, 0 to 1, (rows,).

    The share of the body's last 256 ids that equal the id n places before them among those 256, for the n of 1 to
    64 that gives most. Endless repetition gives (256 - n) / 256; every second id a comma gives 0.5.
    """
    return _best_share(_windows(outputs, body_tokens, np.arange(len(body_tokens))))


def loops(outputs: IdLists, body_tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows whose `repeated_share` is at least 0.75, (rows,); one of fewer than 193 ids can't be."""
    looping = np.zeros(len(body_tokens), dtype=np.bool_)
    rows = np.flatnonzero(body_tokens > WINDOW * LOOP_SHARE)
    windows = _windows(outputs, body_tokens, rows)
    # A repeated id is no new one, so a loop has at most 64 distinct ids in 256: sorting is a cheap first sieve.
    ordered = np.sort(windows, axis=1)
    few = np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1) + 1 <= WINDOW * (1 - LOOP_SHARE)
    looping[rows[few]] = _best_share(windows[few]) >= LOOP_SHARE
    return looping


def all_equal(outputs: IdLists, body_tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows whose body is one id over and over, at least 8 times, (rows,)."""
    equal = np.zeros(len(body_tokens), dtype=np.bool_)
    rows = np.flatnonzero(body_tokens >= SHORTEST_EQUAL)
    starts, tokens = outputs.offsets[:-1][rows], body_tokens[rows]
    first = outputs.ids[starts]
    suspects = (first == outputs.ids[starts + tokens - 1]) & (first == outputs.ids[starts + tokens // 2])
    for row in rows[suspects].tolist():  # seen on a server with NaN weights: every id is 0
        body = outputs.row(row)[: body_tokens[row]]
        equal[row] = (body == body[0]).all()
    return equal


def _windows(outputs: IdLists, body_tokens: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int32]:
    """The last 256 ids of each body, (rows, 256), filled up in front with numbers that equal no id and no other."""
    starts, tokens = outputs.offsets[:-1][rows], body_tokens[rows]
    long = tokens >= WINDOW
    windows = np.empty((len(rows), WINDOW), dtype=np.int32)
    if long.any():  # copied row by row, 4 times as fast as id by id
        windows[long] = sliding_window_view(outputs.ids, WINDOW)[(starts + tokens - WINDOW)[long]]
    if not long.all():
        windows[~long] = _padded(outputs, starts[~long, None], tokens[~long, None])
    return windows


def _padded(outputs: IdLists, starts: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int32]:
    places = starts + tokens + np.arange(-WINDOW, 0)
    padding = np.iinfo(np.int32).min + np.arange(WINDOW, dtype=np.int32)
    if len(outputs.ids) == 0:
        return np.broadcast_to(padding, places.shape)
    return np.where(places >= starts, outputs.ids[np.maximum(places, 0)], padding)


def _best_share(windows: NDArray[np.int32]) -> NDArray[np.float64]:
    best = np.zeros(len(windows), dtype=np.int64)
    for period in range(1, LONGEST_PERIOD + 1):
        best = np.maximum(best, np.count_nonzero(windows[:, period:] == windows[:, :-period], axis=1))
    share: NDArray[np.float64] = best / WINDOW
    return share
