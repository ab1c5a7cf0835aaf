"""replay.parquet as tables: how likely ids are by their place, and how much less likely behind a change.

A table holds ids of the captured output alone; in another version an id counts where it survives there. A row without
another version reads the same in it and counts with its captured scores. This module asks no server and draws nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

VERSIONS = ("captured", "retokenised", "rerendered")
_BINS = 16
_DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2**31)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class _Scored(NamedTuple):
    """One line of replay.parquet."""

    ids: list[int]
    logprobs: Floats
    places: Integers


class Change(NamedTuple):
    """Neighbouring output ids that a version does not have, and what stands in their place."""

    key: str
    position: int
    was: list[int]
    becomes: list[int]
    loss: float  # nats by which the new ids are less likely than the old ones, all together


def likelihood_by_position(table: pa.Table) -> pd.DataFrame:
    """Mean log-likelihood (nats an id) by position in the output: columns `position`, `ids` and one a version.

    Positions are cut so that each line holds about as many ids; null where no id survives.
    """
    found = [_by_version(versions) for versions in _rows(table).values()]
    ids = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    if ids.empty:
        return pd.DataFrame(columns=["position", "ids", *VERSIONS])
    edges = np.unique(np.quantile(ids["position"], np.linspace(0, 1, _BINS + 1)[1:-1]).round())
    bins = np.searchsorted(edges, ids["position"], side="left")
    means = ids.groupby(bins)[["position", *VERSIONS]].mean()
    means.insert(1, "ids", ids.groupby(bins).size())
    return means.reset_index(drop=True)


def loss_behind_changes(table: pa.Table) -> pd.DataFrame:
    """How much less likely surviving ids became, by distance in ids behind the last change before them.

    Columns `version`, `distance` (the least of the bin), `ids`, `loss` (nats an id, above 0 where an id is less
    likely). Ids before a row's first change have the same ids before them and are left out.
    """
    lines = [
        _losses(name, versions["captured"], versions[name])
        for versions in _rows(table).values()
        for name in VERSIONS[1:]
        if name in versions
    ]
    if not lines:
        return pd.DataFrame(columns=["version", "distance", "ids", "loss"])
    ids = pd.concat(lines)
    ids["distance"] = np.array(_DISTANCES)[np.searchsorted(_DISTANCES, ids["distance"], side="right") - 1]
    made = ids.groupby(["version", "distance"])["loss"].agg(["size", "mean"]).reset_index()
    return made.rename(columns={"size": "ids", "mean": "loss"})


def changes(table: pa.Table) -> list[Change]:
    """Every place where a re-tokenised output has other ids, with what that costs: both spell the same text."""
    return [
        change
        for key, versions in _rows(table).items()
        if "retokenised" in versions
        for change in _changes(key, versions["captured"], versions["retokenised"])
    ]


def _rows(table: pa.Table) -> dict[str, dict[str, _Scored]]:
    """Each row's versions by name; rows whose captured version was not scored are left out."""
    rows: dict[str, dict[str, _Scored]] = {}
    for line in table.to_pylist():
        scored = _Scored(line["ids"], np.array(line["logprobs"], dtype=float), np.array(line["places"], dtype=np.int64))
        rows.setdefault(line["key"], {})[line["version"]] = scored
    return {key: versions for key, versions in rows.items() if "captured" in versions}


def _by_version(versions: dict[str, _Scored]) -> pd.DataFrame:
    """A line an id of the captured output: its position and its log-likelihood in each version."""
    own = versions["captured"]
    columns = {"position": np.arange(len(own.ids), dtype=float)}
    for name in VERSIONS:
        scored = versions.get(name, own)
        columns[name] = np.where(scored.places >= 0, scored.logprobs[scored.places], np.nan)
    return pd.DataFrame(columns)


def _losses(name: str, own: _Scored, other: _Scored) -> pd.DataFrame:
    changed_last = np.maximum.accumulate(np.where(other.places < 0, np.arange(len(other.places)), -1))
    use = (other.places >= 0) & (changed_last >= 0)
    loss = own.logprobs[use] - other.logprobs[other.places[use]]
    return pd.DataFrame({"version": name, "distance": (np.arange(len(use)) - changed_last - 1)[use], "loss": loss})


def _changes(key: str, own: _Scored, other: _Scored) -> Iterator[Change]:
    gone = np.append(other.places < 0, False)
    starts = np.flatnonzero(gone & ~np.append(False, gone[:-1]))
    for start in starts.tolist():
        stop = start + int(np.argmin(gone[start:]))
        first = int(other.places[start - 1]) + 1 if start else 0
        last = int(other.places[stop]) if stop < len(other.places) else len(other.ids)
        loss = own.logprobs[start:stop].sum() - other.logprobs[first:last].sum()
        yield Change(key, start, own.ids[start:stop], other.ids[first:last], float(loss))
