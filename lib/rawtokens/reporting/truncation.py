"""Thinking that was cut: how much of it there is, and how many rows more would close at twice the limit.

Of a row that was cut while thinking only a lower bound is known. What a larger limit would bring is estimated from
the rows that got half as far: of those that were still thinking at half the limit, the share that closed by the limit.
This module does not know what is being thought; a row that verification calls a loop is taken never to close.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from ..capture.time_left import kaplan_meier
from .token_statistics import CLOSED, thinking_rows

FEWEST = 30
"""Rows that must have thought longer than half the limit; of fewer the range would be nearly all from none to all."""

_TWO_SIDED_95 = 1.96


class Truncation(NamedTuple):
    """Rows cut while thinking, and the range of those that would close at twice the limit.

    `limit` in ids is where most of them were cut; `elsewhere` were cut at another length (a full context) and are
    not estimated. `half` counts the rows that thought longer than half the limit, `closed` those of them that closed
    by it; loops are in neither. `low` and `high` are shares of `cut - loops`, None where `half` is below FEWEST or
    nothing is left to close.
    """

    thinking: int
    limit: int
    cut: int
    loops: int
    elsewhere: int
    half: int
    closed: int
    low: float | None
    high: float | None


def estimate(rows: pd.DataFrame) -> Truncation | None:
    """What a second limit's worth of ids would bring; None where no row was cut while thinking.

    The low end takes it that between one and two limits as many close as between a half and one, as on a tail that is
    straight on logarithmic axes; the high end that as many close with each further id, which is twice as much
    time. Each end is moved outward by the 95 % interval of a share of `half` rows (Wilson 1927).
    """
    thinking = thinking_rows(rows)
    cut = thinking[thinking["shape"] == "truncated_in_thinking"]
    if cut.empty:
        return None
    limit = int(cut["output_tokens"].mode().iloc[-1])
    at_limit = cut[cut["output_tokens"] == limit]
    loops = int(_in_loop(at_limit).sum())
    known = thinking[~_in_loop(thinking) & (thinking["reasoning_tokens"] > limit / 2)]
    closed = int((known["shape"].isin(CLOSED) & (known["reasoning_tokens"] <= limit)).sum())
    open_still = known["output_tokens"].eq(limit) & known["shape"].eq("truncated_in_thinking")
    stopped = known["shape"].eq("never_closed") & (known["reasoning_tokens"] <= limit)
    half = closed + int(open_still.sum()) + int(stopped.sum())
    ends = _range(closed, half) if half >= FEWEST and len(at_limit) > loops else (None, None)
    return Truncation(
        len(thinking), limit, len(at_limit), loops, len(cut) - len(at_limit), half, closed, ends[0], ends[1]
    )


def truncation_table(found: Truncation | None) -> pd.DataFrame:
    """The numbers of `estimate`, a line each, in its column `value`; empty where nothing was cut."""
    if found is None:
        return pd.DataFrame({"value": pd.Series(dtype="object")})
    rows = [None, None] if found.low is None or found.high is None else [*more_rows(found)]
    lines = {
        "rows that think": found.thinking,
        "limit (ids)": found.limit,
        "cut while thinking at the limit": found.cut,
        "of these in a loop, taken never to close": found.loops,
        "cut while thinking at another length": found.elsewhere,
        "still thinking at half the limit, no loop": found.half,
        "of these closed by the limit": found.closed,
        "would close at twice the limit, low (rows)": rows[0],
        "would close at twice the limit, high (rows)": rows[1],
    }
    return pd.DataFrame({"value": pd.Series(lines, dtype="object")})


def more_rows(found: Truncation) -> tuple[int, int]:
    """How many of the cut rows would close, low and high, rounded outward. Only where `found` has a range."""
    assert found.low is not None
    assert found.high is not None
    left = found.cut - found.loops
    return int(np.floor(found.low * left)), int(np.ceil(found.high * left))


def thinking_curve(rows: pd.DataFrame) -> pd.DataFrame:
    """The share of rows whose thinking has ended by a length: columns ids (ascending), ended (0 to 1).

    Rows cut while thinking count as longer than they became (the estimator of Kaplan and Meier), so the curve ends
    below 1 where some were cut last. Empty where no row thinks; one point with 0 where all were cut.
    """
    thinking = thinking_rows(rows)
    if thinking.empty:
        return pd.DataFrame({"ids": [], "ended": []}, dtype="float64")
    lengths = thinking["reasoning_tokens"].to_numpy("float64")
    cut = (thinking["shape"] == "truncated_in_thinking").to_numpy()
    ids, counts = np.unique(lengths[~cut], return_counts=True)
    _, shares, _ = kaplan_meier(ids, counts.astype("float64"), lengths[cut])
    ended = np.cumsum(shares)
    longest = lengths.max()
    if not len(ids) or longest > ids[-1]:
        ids, ended = np.append(ids, longest), np.append(ended, ended[-1] if len(ended) else 0.0)
    return pd.DataFrame({"ids": ids, "ended": ended.clip(0.0, 1.0)})


def _in_loop(rows: pd.DataFrame) -> pd.Series:
    return rows["reasons"].map(lambda reasons: "loop" in reasons).astype(bool)


def _range(closed: int, of: int) -> tuple[float, float]:
    low, high = _wilson(closed, of)
    return low, 1.0 - (1.0 - high) ** 2


def _wilson(part: int, of: int) -> tuple[float, float]:
    share, square = part / of, _TWO_SIDED_95**2 / of
    middle = share + square / 2
    spread = _TWO_SIDED_95 * np.sqrt(share * (1 - share) / of + square / (4 * of))
    low, high = ((middle + sign * spread) / (1 + square) for sign in (-1, 1))
    return max(0.0, float(low)), min(1.0, float(high))  # rounding may leave 1e-17 on the wrong side
