"""How long the rest of a run will take, as a range; and how long its generations really are while many still run.

Finished generations are the short ones first, so their mean is too small. What is in flight counts as "at least as
long as it has been out" (censored), by the estimator of Kaplan and Meier (1958). What no finished generation has
shown yet, the tail beyond everything seen, ends at once at the low end of the range and at the length limit at the
high end. So a range is wide at first, narrows as long generations come in, and at the end is that of the slowest few.

This module does not know why a server becomes slower: a change shows in the spread of recent rates, no earlier.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .progress import Progress, bin_seconds

Floats = npt.NDArray[np.float64]

_LOW, _HIGH = 0.05, 0.95  # of the time until the last of those in flight has ended
_FEWEST = 5  # finished generations below which nothing is said
_RECENT_SECONDS = 600.0
_STRETCHES = 5
_GRID = 200


class Pace(NamedTuple):
    """A moment of a run: seconds since its start, generations finished (done or rejected), output ids."""

    seconds: float
    finished: int
    ids: int


def time_left(progress: Progress, paces: Sequence[Pace] = ()) -> tuple[float, float] | None:
    """The low and the high end of the seconds until the run is through; None where nothing can be said.

    What waits: its number times the mean time of a generation, over those in flight, with two standard errors to
    both sides, widened by the slowest and the fastest of the last stretches in `paces` (ten minutes at the most).
    What is in flight then: the time until the last of them has ended, its 5 % and 95 % quantile.
    """
    if not progress.remaining:
        return 0.0, 0.0
    if sum(progress.latencies.values()) < _FEWEST or not progress.in_flight or not progress.ids:
        return None
    waiting = max(0, progress.remaining - progress.in_flight)
    numbers = sorted(progress.latencies)
    ended = np.array([bin_seconds(number) for number in numbers])
    counts = np.array([progress.latencies[number] for number in numbers], dtype="float64")
    ages = np.fromiter(progress.asked.values(), dtype="float64", count=len(progress.asked))
    seen = max(ended.max(), ages.max(initial=0.0))
    longest = max(seen, progress.max_new_tokens * progress.request_seconds / progress.ids)
    times, shares, unseen = kaplan_meier(ended, counts, ages)
    ends = []
    for unseen_end, sign, quantile in ((seen, -1, _LOW), (longest, 1, _HIGH)):
        at, of = np.append(times, unseen_end), np.append(shares, unseen)
        mean = float(at @ of)
        error = float(np.sqrt(max(0.0, at**2 @ of - mean**2) / progress.done))
        bulk = waiting * max(0.0, mean + sign * 2 * error) / progress.in_flight
        tail = _until_last(at, of, ages if not waiting else None, progress.in_flight, quantile)
        ends.append((bulk, tail))
    rates = recent_rates(paces)
    bulks = [bulk for bulk, _ in ends] + [waiting / rate for rate in rates if rate > 0]
    return min(bulks) + ends[0][1], max(bulks) + ends[1][1]


def recent_rates(paces: Sequence[Pace]) -> list[float]:
    """Generations finished a second, over up to five equal stretches of the last ten minutes."""
    if len(paces) < 2:
        return []
    last = paces[-1].seconds
    first = max(paces[0].seconds, last - _RECENT_SECONDS)
    edges = np.linspace(first, last, _STRETCHES + 1)
    finished = np.interp(edges, [pace.seconds for pace in paces], [pace.finished for pace in paces])
    width = (last - first) / _STRETCHES
    return [float(count) / width for count in np.diff(finished)] if width > 0 else []


def recent_ids_per_second(paces: Sequence[Pace], seconds: float = 60.0) -> float:
    """Output ids a second over the last minute or so; ids count when their generation ends."""
    if len(paces) < 2:
        return 0.0
    last = paces[-1]
    since = next((pace for pace in paces[:-1] if pace.seconds >= last.seconds - seconds), paces[-2])
    return (last.ids - since.ids) / (last.seconds - since.seconds) if last.seconds > since.seconds else 0.0


def kaplan_meier(ended: Floats, counts: Floats, censored: Floats) -> tuple[Floats, Floats, float]:
    """The distribution of a length of which some are known only from below.

    `ended` are known lengths, ascending, `counts` how often each occurs, `censored` the lengths that others have
    reached so far. Returns the known lengths, the share of all at each, and the share that is longer than every
    known length.
    """
    before = np.concatenate([[0.0], np.cumsum(counts)[:-1]])
    below = np.searchsorted(np.sort(censored), ended, side="left")
    at_risk = (counts.sum() - before) + (len(censored) - below)
    survivors = np.cumprod(1.0 - counts / at_risk)
    shares = -np.diff(survivors, prepend=1.0)
    return ended, shares, float(survivors[-1]) if len(survivors) else 1.0


def shares_longer(at: Floats, of: Floats, than: Floats) -> Floats:
    """Which share of a distribution (`of` at `at`, ascending) is longer than each of `than`."""
    behind = np.append(np.cumsum(of[::-1])[::-1], 0.0)
    longer: Floats = behind[np.searchsorted(at, than, side="right")]
    return longer


def _until_last(at: Floats, of: Floats, ages: Floats | None, in_flight: int, quantile: float) -> float:
    """The quantile of the time until all in flight have ended: of `ages`, or where None as in the midst of a run."""
    grid = np.linspace(0.0, float(at[-1]), _GRID)
    if ages is None:
        mean = float(at @ of)
        longer = np.clip(at[None, :] - grid[:, None], 0.0, None) @ of / mean
        ended = in_flight * np.log1p(-np.minimum(longer, 1.0 - 1e-12))
    else:
        alive = shares_longer(at, of, ages)
        still = shares_longer(at, of, (ages[None, :] + grid[:, None]).ravel()).reshape(len(grid), len(ages))
        longer = np.divide(still, alive, out=np.zeros_like(still), where=alive > 0)
        ended = np.log1p(-np.minimum(longer, 1.0 - 1e-12)).sum(axis=1)
    return float(grid[np.searchsorted(ended, np.log(quantile))]) if ended[-1] >= np.log(quantile) else float(at[-1])
