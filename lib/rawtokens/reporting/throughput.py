"""When the ids came: the journal's start times and latencies in, ids a second and requests in flight out.

Only a request's start, length and count are on record, so its ids are taken to have come evenly. This module does
not know what happened inside the server, nor about requests that failed and were tried again: a record tells of its
last attempt alone.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from .. import journal
from ..errors import InputError

Floats = npt.NDArray[np.float64]

_IDLE_SECONDS = 5.0  # with work to do, no client leaves its servers without a request for so long
_CHUNK = 1 << 16
_SHORTEST_SECONDS = 1e-3  # latencies are measured to the millisecond; none may be an infinite rate


class _Timing(msgspec.Struct, frozen=True):
    """The fields of a journal line that tell when; msgspec skips the ids of the rest."""

    key: str
    started_at: str
    latency_s: float
    completion_tokens: int
    prompt_tokens: int
    cached_tokens: int
    server: str
    attempt: int
    finish_reason: str


def read_timings(folder: Path) -> pd.DataFrame:
    """When each response of the journal (all shards) was asked for and how long it took, in the order of asking.

    Columns: key, started_at (datetime, UTC), latency_s, completion_tokens, prompt_tokens, cached_tokens, server,
    attempt, finish_reason. Raises InputError for a line that is no record.
    """
    timings, parts = _timings(folder), []
    while chunk := list(islice(timings, _CHUNK)):  # a row takes 80 bytes as columns, and 600 as an object
        parts.append(_frame(chunk))
    frame = pd.concat(parts, ignore_index=True) if parts else _frame([])
    return frame.sort_values("started_at", kind="stable", ignore_index=True)


def _timings(folder: Path) -> Iterator[_Timing]:
    decoder = msgspec.json.Decoder(_Timing)
    for path in journal.journal_paths(folder):
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    continue  # being written, or torn: no record yet (see journal.repair_tail)
                try:
                    yield decoder.decode(line)
                except msgspec.MsgspecError as error:
                    raise InputError(f"{path}: line {number} is no record of this kit ({error})") from error


def _frame(timings: list[_Timing]) -> pd.DataFrame:
    columns = list(_Timing.__struct_fields__)
    frame = pd.DataFrame([msgspec.structs.astuple(timing) for timing in timings], columns=columns)
    frame["started_at"] = pd.to_datetime(frame["started_at"], utc=True, format="ISO8601")
    return frame


def timeline(timings: pd.DataFrame, *, bins: int = 120) -> pd.DataFrame:
    """Ids a second and requests in flight, averaged over equal bins, of a second or more
    from ten seconds on: columns seconds (a bin's middle), width_s,
    ids_per_second, in_flight.

    Each request's ids are spread evenly from started_at to started_at + latency_s, so the sums are exact and the
    shape within a request is not known. Stretches of over 5 seconds with nothing in flight (between two runs of
    the stage) are cut out.
    """
    if timings.empty:
        return pd.DataFrame({"seconds": [], "width_s": [], "ids_per_second": [], "in_flight": []}, dtype="float64")
    starts, ends = busy_intervals(timings)
    bins = min(bins, max(10, int(ends.max())))
    edges = np.linspace(0.0, ends.max(), bins + 1)
    width = edges[1]
    ids = timings["completion_tokens"].to_numpy("float64")
    return pd.DataFrame(
        {
            "seconds": (edges[:-1] + edges[1:]) / 2,
            "width_s": width,
            "ids_per_second": np.diff(_integral(edges, starts, ends, ids / (ends - starts))) / width,
            "in_flight": np.diff(_integral(edges, starts, ends, np.ones_like(ids))) / width,
        }
    )


def cache_line(timings: pd.DataFrame, *, bins: int = 40) -> pd.DataFrame:
    """The share of prompt ids from the servers' prefix caches over time, by when requests were sent: columns
    seconds (a bin's middle), width_s, cached_share (0 to 1; NaN where no request was sent).

    Time runs as in `timeline`.
    """
    if timings.empty:
        return pd.DataFrame({"seconds": [], "width_s": [], "cached_share": []}, dtype="float64")
    starts, ends = busy_intervals(timings)
    edges = np.linspace(0.0, ends.max(), min(bins, max(10, int(ends.max()))) + 1)
    cached, whole = (
        np.histogram(starts, edges, weights=timings[name].to_numpy("float64"))[0]
        for name in ("cached_tokens", "prompt_tokens")
    )
    shares = np.divide(cached, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return pd.DataFrame({"seconds": (edges[:-1] + edges[1:]) / 2, "width_s": edges[1], "cached_share": shares})


def cached_share(timings: pd.DataFrame) -> float:
    """The share of all prompt ids that came from a prefix cache, 0 to 1; 0 where there are no prompt ids."""
    return float(timings["cached_tokens"].sum()) / max(1, int(timings["prompt_tokens"].sum()))


def busy_intervals(timings: pd.DataFrame) -> tuple[Floats, Floats]:
    """Start and end of each request, in seconds from the first start, idle stretches of over 5 seconds cut out.

    `timings` in the order of started_at, at least one row; float64 arrays of that length.
    """
    since = timings["started_at"] - timings["started_at"].iloc[0]
    starts = since.dt.total_seconds().to_numpy("float64")
    lengths = timings["latency_s"].to_numpy("float64").clip(_SHORTEST_SECONDS)
    gaps = starts[1:] - np.maximum.accumulate(starts + lengths)[:-1]
    idle = np.concatenate([[0.0], np.where(gaps > _IDLE_SECONDS, gaps, 0.0)])
    starts = starts - np.cumsum(idle)
    return starts, starts + lengths


def throughput_table(timings: pd.DataFrame) -> pd.DataFrame:
    """One line a server: requests, output ids, median and p99 latency (s), requests that came at a later try, those
    cut by the length limit, share of prompt ids from the server's prefix cache.
    """
    lines = {
        name: {
            "requests": len(group),
            "output ids": int(group["completion_tokens"].sum()),
            "median latency (s)": float(group["latency_s"].median()),
            "p99 latency (s)": float(group["latency_s"].quantile(0.99)),
            "tried again": int((group["attempt"] > 1).sum()),
            "cut at the limit": int((group["finish_reason"] == "length").sum()),
            "cached share of prompt ids": share(group["cached_tokens"].sum(), group["prompt_tokens"].sum()),
        }
        for name, group in timings.groupby("server")
    }
    return pd.DataFrame.from_dict(lines, orient="index")


def share(part: float, whole: float) -> float | None:
    """`part` of `whole`; null where there is no whole. Not rounded: who shows it rounds once."""
    return float(part) / float(whole) if whole else None


def _integral(edges: Floats, starts: Floats, ends: Floats, heights: Floats) -> Floats:
    """The integral from 0 to each edge of a sum of boxes: piecewise linear between starts and ends, so exact."""
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    slopes = np.cumsum(np.concatenate([heights, -heights])[order])
    knots = times[order]
    areas = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(knots))])
    integral: Floats = np.interp(edges, knots, areas)
    return integral
