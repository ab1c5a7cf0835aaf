"""Data sets and runs side by side: counts, shares, lengths, and the settings that differ.

A sample is one data set of one run. Lengths are compared by the difference of their medians with a bootstrap
interval. This module does not know which run is right, nor why they differ; single answers are compared by
greedy_answers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import InputError
from ..records import Json
from ..runs import read_manifest
from .token_statistics import CLOSED, length_table, read_verified, thinking_rows

Floats = npt.NDArray[np.float64]

LENGTHS = {"reasoning": "reasoning_tokens", "answer": "answer_tokens", "output": "output_tokens"}
FEWEST = 10
"""Rows that each side needs for a difference of medians."""

_NO_SETTING = ("fingerprint", "server")  # what a run found, not what it was asked for
_RESAMPLES = 2_000


class Sample(NamedTuple):
    """One data set of one run: its names, its folder and `read_verified` of it."""

    run: str
    dataset: str
    folder: Path
    rows: pd.DataFrame


def read_samples(run: Path) -> list[Sample]:
    """Every verified data set of a run's folder, by name; or the one whose own folder it is.

    Raises InputError where there is none.
    """
    own = (run / "verified.parquet").is_file()
    folders = [run] if own else sorted(path.parent for path in run.glob("*/verified.parquet"))
    if not folders:
        raise InputError(f"{run} holds no verified.parquet, nor does a folder in it; give the folder of a verified run")
    name = run.resolve().parent.name if own else run.resolve().name
    return [Sample(name, folder.resolve().name, folder, read_verified(folder)) for folder in folders]


def pairs(first: Sequence[Sample], second: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """The data sets that both runs have, by name; two single ones are a pair whatever their names."""
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    by_name = {sample.dataset: sample for sample in second}
    return [(sample, by_name[sample.dataset]) for sample in first if sample.dataset in by_name]


def side_by_side(*runs: Sequence[Sample]) -> dict[str, Sample]:
    """All samples by a name of their own, the runs of a data set next to each other; empty ones too."""
    every = [(sample.dataset, place, sample) for place, run in enumerate(runs) for sample in run]
    several = sum(bool(run) for run in runs) > 1
    same = len({sample.run for _, _, sample in every}) == 1  # two folders of the same name
    named = {}
    for dataset, place, sample in sorted(every, key=lambda entry: entry[:2]):
        run = f"{sample.run} ({place + 1})" if same else sample.run
        named[f"{dataset} · {run}" if several else dataset] = sample
    return named


def sample_table(samples: Mapping[str, Sample]) -> pd.DataFrame:
    """A line a sample: rows by verdict, the share of the rows that think whose thinking ended, median lengths and the
    sum of output ids. Shares and medians of nothing are null."""
    lines = {}
    for name, sample in samples.items():
        verdicts, thinking = sample.rows["verdict"].value_counts(), thinking_rows(sample.rows)
        lines[name] = {
            "rows": len(sample.rows),
            "accepted": int(verdicts.get("accept", 0)),
            "flagged": int(verdicts.get("flag", 0)),
            "rejected": int(verdicts.get("reject", 0)),
            "thinking ended": float(thinking["shape"].isin(CLOSED).mean()) if len(thinking) else None,
            **{f"median {kind} (ids)": median_of(lengths_of(sample.rows, kind)) for kind in LENGTHS},
            "output ids": int(sample.rows["output_tokens"].sum()),
        }
    return pd.DataFrame.from_dict(lines, orient="index")


def lengths_of(rows: pd.DataFrame, kind: str) -> Floats:
    """The lengths that LENGTHS names, in ids: reasoning of the rows that think, answers of those that have one."""
    chosen = thinking_rows(rows) if kind == "reasoning" else rows
    lengths = chosen[LENGTHS[kind]].to_numpy("float64")
    return lengths[lengths > 0] if kind == "answer" else lengths


def length_tables(samples: Mapping[str, Sample], kind: str) -> pd.DataFrame:
    """`token_statistics.length_table` of a kind of LENGTHS, a line a sample; empty samples are left out."""
    parts = [pd.DataFrame({"ids": lengths_of(s.rows, kind), "sample": name}) for name, s in samples.items()]
    table = length_table(pd.concat(parts, ignore_index=True), "ids", by="sample")
    return table.drop(index="all rows", columns="ids")


def median_of(lengths: Floats) -> float | None:
    """The median; None of nothing."""
    return float(np.median(lengths)) if len(lengths) else None


def share_table(samples: Mapping[str, Sample], column: str, known: Sequence[str]) -> pd.DataFrame:
    """The rows of each sample (lines) by the values of a column, as shares 0 to 1; known values first, in their order.

    Samples without rows are left out.
    """
    counts = {n: s.rows[column].value_counts(normalize=True) for n, s in samples.items() if len(s.rows)}
    found = {str(value) for each in counts.values() for value in each.index}
    order = [*(value for value in known if value in found), *sorted(found.difference(known))]
    lines = [[float(each.get(value, 0.0)) for value in order] for each in counts.values()]
    return pd.DataFrame(lines, index=pd.Index(list(counts)), columns=pd.Index(order))


def median_differences(found: Sequence[tuple[Sample, Sample]], *, seed: int = 0) -> pd.DataFrame:
    """A line a data set and kind of length (LENGTHS) of which both runs have at least FEWEST rows.

    Columns: data set, length, first, second (medians in ids), first rows, second rows, difference (second - first),
    low, high (its 95 % bootstrap interval, rows of the two runs resampled apart). `seed` makes it repeatable.
    """
    random = np.random.default_rng(seed)
    columns = ["data set", "length", "first", "second", "first rows", "second rows", "difference", "low", "high"]
    lines = []
    for one, other in found:
        for kind in LENGTHS:
            first, second = lengths_of(one.rows, kind), lengths_of(other.rows, kind)
            if min(len(first), len(second)) < FEWEST:
                continue
            resampled = resampled_medians(second, random) - resampled_medians(first, random)
            low, high = np.quantile(resampled, [0.025, 0.975])
            medians = float(np.median(first)), float(np.median(second))
            sizes = len(first), len(second)
            lines.append((one.dataset, kind, *medians, *sizes, medians[1] - medians[0], float(low), float(high)))
    return pd.DataFrame(lines, columns=columns)


def resampled_medians(lengths: Floats, random: np.random.Generator, *, times: int = _RESAMPLES) -> Floats:
    """Medians of `times` resamples with replacement, float64 (times,), without drawing the resamples.

    The k-th smallest of n uniform numbers is Beta(k, n + 1 - k), and a resample's k-th smallest value stands at that
    share of the sorted values: 2,000 medians of 25,000 values take a millisecond.
    """
    ordered, size = np.sort(lengths), len(lengths)
    middle = (size + 1) // 2
    lower = random.beta(middle, size + 1 - middle, times)
    upper = lower if size % 2 else lower + (1.0 - lower) * random.beta(1, size - middle, times)
    at_lower, at_upper = ((size * share).astype(np.int64).clip(max=size - 1) for share in (lower, upper))
    medians: Floats = (ordered[at_lower] + ordered[at_upper]) / 2
    return medians


def settings_table(found: Sequence[tuple[Sample, Sample]]) -> pd.DataFrame:
    """Settings in which the manifests of two runs differ: columns data set, setting, first, second; `–` where one has
    none. A folder on this machine is told by its name alone."""
    lines = []
    for one, other in found:
        first, second = (_flat(read_manifest(sample.folder)) for sample in (one, other))
        for name in {**first, **second}:
            if name.split(".")[0] not in _NO_SETTING and first.get(name) != second.get(name):
                lines.append((one.dataset, name, first.get(name, "–"), second.get(name, "–")))
    return pd.DataFrame(lines, columns=["data set", "setting", "first", "second"])


def _flat(values: Mapping[str, Json], before: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{before}{name}."))
        elif isinstance(value, str):
            flat[before + name] = Path(value).name if Path(value).is_absolute() else value
        else:
            flat[before + name] = msgspec.json.encode(value).decode()
    return flat
