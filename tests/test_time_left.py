"""The range of the time left, held against runs that are played through on paper: exact schedules, heavy tails."""

import heapq
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawtokens.capture.progress import Progress, latency_bin
from rawtokens.capture.time_left import (
    Pace,
    kaplan_meier,
    recent_ids_per_second,
    recent_rates,
    shares_longer,
    time_left,
)

LIMIT = 16_384
SECONDS_AN_ID = 0.02


def schedule(seed: int, *, rows: int = 2000, window: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each generation of a run over lengths with a heavy tail; a new one starts when one ends."""
    lengths = np.clip(np.random.default_rng(seed).lognormal(6.8, 1.0, rows), 20, LIMIT)
    free, starts = [0.0] * window, np.empty(rows)
    for row, seconds in enumerate(lengths * SECONDS_AN_ID):
        starts[row] = heapq.heappop(free)
        heapq.heappush(free, starts[row] + seconds)
    return starts, starts + lengths * SECONDS_AN_ID


def seen_at(now: float, starts: np.ndarray, ends: np.ndarray) -> tuple[Progress, list[Pace]]:
    """What a run knows at a moment of that schedule."""
    ended, out = ends <= now, (starts <= now) & (ends > now)
    seconds = (ends - starts)[ended]
    progress = Progress(
        planned=len(ends),
        present=0,
        done=int(ended.sum()),
        rejected=0,
        in_flight=int(out.sum()),
        seconds=now,
        ids=int(seconds.sum() / SECONDS_AN_ID),
        asked={str(row): float(now - starts[row]) for row in np.flatnonzero(out)},
        latencies=Counter(latency_bin(second) for second in seconds),
        request_seconds=float(seconds.sum()),
        max_new_tokens=LIMIT,
    )
    moments = np.linspace(0.0, now, 50)
    return progress, [Pace(moment, int((ends <= moment).sum()), 0) for moment in moments]


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.75])
def test_the_range_holds_what_comes_in_four_of_five_runs_or_more(share: float) -> None:
    held = 0
    for seed in range(20):
        starts, ends = schedule(seed)
        low, high = time_left(*seen_at(share * ends.max(), starts, ends)) or (0.0, 0.0)
        held += low <= (1 - share) * ends.max() <= high
    assert held >= 16


def test_the_range_is_wide_at_first_and_narrows() -> None:
    starts, ends = schedule(0)
    spans = []
    for share in (0.02, 0.1, 0.5):
        low, high = time_left(*seen_at(share * ends.max(), starts, ends)) or (0.0, 0.0)
        spans.append((high - low) / ends.max())
    assert spans == sorted(spans, reverse=True)


def test_the_slowest_few_decide_at_the_end() -> None:
    starts, ends = schedule(1)
    now = float(np.sort(ends)[-4]) + 1e-6  # three are left
    progress, paces = seen_at(now, starts, ends)
    assert progress.in_flight == progress.remaining == 3
    low, high = time_left(progress, paces) or (0.0, 0.0)
    rate_alone = 3 / (progress.done / now)
    assert high > 10 * rate_alone
    assert low < ends.max() - now < high


def test_a_server_that_became_slower_widens_the_range() -> None:
    starts, ends = schedule(2)
    progress, steady = seen_at(0.5 * ends.max(), starts, ends)
    two_minutes_ago = steady[-1].seconds - 120
    slower = [Pace(pace.seconds, pace.finished, 0) for pace in steady if pace.seconds < two_minutes_ago]
    slower.append(Pace(steady[-1].seconds, slower[-1].finished + 10, 0))
    usual, widened = time_left(progress, steady), time_left(progress, slower)
    assert usual is not None
    assert widened is not None
    assert widened[1] > 2 * usual[1]
    assert widened[0] <= usual[0]


def test_nothing_is_said_before_anything_is_known() -> None:
    progress, _ = seen_at(100.0, *schedule(2))
    few = Progress(planned=10, present=0, done=2, rejected=0, in_flight=4, seconds=1.0, ids=20)
    silent = Progress(planned=10, present=0, done=8, rejected=0, in_flight=0, seconds=1.0, ids=20)
    through = Progress(planned=10, present=4, done=5, rejected=1, in_flight=0, seconds=1.0)
    assert progress.done > 0
    assert time_left(few) is None
    assert time_left(silent) is None
    assert time_left(through) == (0.0, 0.0)


def test_what_is_still_out_counts_as_longer_than_it_is() -> None:
    # Kaplan and Meier by hand: of 4 at risk 1 ends at 1; one is censored at 2; of 2 at risk 1 ends at 3.
    times, shares, longer = kaplan_meier(np.array([1.0, 3.0]), np.array([1.0, 1.0]), np.array([2.0, 5.0]))
    assert times.tolist() == [1.0, 3.0]
    assert shares == pytest.approx([0.25, 0.375])
    assert longer == pytest.approx(0.375)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=30),
    st.lists(st.floats(0.0, 60.0), max_size=30),
)
def test_shares_are_a_distribution_whatever_is_out(lengths: list[int], out: list[float]) -> None:
    values, counts = np.unique(np.array(lengths, dtype="float64"), return_counts=True)
    times, shares, longer = kaplan_meier(values, counts.astype("float64"), np.array(out))
    assert (shares >= -1e-12).all()
    assert shares.sum() + longer == pytest.approx(1.0)
    assert shares_longer(times, shares, np.array([0.0]))[0] == pytest.approx(1.0 - longer)
    if not out:
        assert shares == pytest.approx(counts / counts.sum())


def test_recent_rates_are_of_the_last_ten_minutes() -> None:
    paces = [Pace(second, second if second <= 3000 else 3000 + 4 * (second - 3000), 0) for second in range(0, 3601, 10)]
    assert recent_rates(paces) == pytest.approx([4.0] * 5)
    assert recent_rates(paces[:1]) == []


def test_recent_ids_are_of_the_last_minute() -> None:
    paces = [Pace(0.0, 0, 0), Pace(50.0, 1, 1000), Pace(100.0, 2, 1600)]
    assert recent_ids_per_second(paces) == 12.0
    assert recent_ids_per_second(paces[:1]) == 0.0
    assert recent_ids_per_second([paces[0], Pace(1000.0, 9, 5000)]) == 5.0  # nothing was told in between
