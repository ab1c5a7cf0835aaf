"""What a data set's ids amount to: verified.parquet and its neighbours in, DataFrames and the summary out.

Ids are never read here: lengths and positions stand in columns of their own, so 100,000 rows cost the same whatever
their length. Every row of verified.parquet counts, rejected ones too, unless a function says otherwise. This
module does not know why a row got its verdict (verification does), nor how a table is drawn (figures) or put in
words (takeaways).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec
import pandas as pd
import pyarrow.parquet as pq

from .. import journal
from ..capture.rejections import each_rejection
from ..errors import InputError
from ..records import VERIFIED_SCHEMA, Json, Rejection, Shape, Stage, Verdict
from . import throughput
from .completion_bias import read_completion
from .throughput import share

SHAPES: tuple[str, ...] = get_args(Shape)
VERDICTS: tuple[str, ...] = get_args(Verdict)
FINISH_REASONS = ("stop", "length")
CLOSED: tuple[Shape, ...] = ("closed", "tool_closed", "truncated_in_answer")
"""Shapes of rows whose thinking came to its end: by a closer, or by a tool section that opened without one."""
NO_REASON = "(none)"
SEGMENTS = ("reasoning", "closer", "answer", "tool calls", "stop id")
_ID_COLUMNS = ("prompt_ids", "output_ids")
_QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9, "p99": 0.99}


def read_verified(folder: Path) -> pd.DataFrame:
    """verified.parquet without its ids, one row a generation; `reasons` as lists of str.

    Raises InputError where the file is missing or is not of records.VERIFIED_SCHEMA.
    """
    path = folder / "verified.parquet"
    if not path.exists():
        raise InputError(f"{path} is missing; run notebook 03_verify_responses for this data set first")
    columns = [name for name in VERIFIED_SCHEMA.names if name not in _ID_COLUMNS]
    try:
        frame: pd.DataFrame = pq.ParquetFile(path).read(columns=columns).to_pandas()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read ({error}); run notebook 03_verify_responses again") from error
    missing = [name for name in columns if name not in frame]
    if missing:
        raise InputError(f"{path} has no column {', '.join(missing)}; run notebook 03_verify_responses again")
    frame["closer_position"] = frame["closer_position"].astype("Int32")
    return frame


def read_prompts(folder: Path) -> pd.DataFrame:
    """prompts.parquet without ids and messages: key, source_id, turn, prompt_tokens, thinking, template_kwargs.

    Raises InputError where the file is missing.
    """
    path = folder / "prompts.parquet"
    if not path.exists():
        raise InputError(f"{path} is missing; run notebook 01_tokenize_prompts for this data set first")
    columns = ["key", "source_id", "turn", "prompt_tokens", "thinking", "template_kwargs"]
    frame: pd.DataFrame = pq.ParquetFile(path).read(columns=columns).to_pandas()
    return frame


def thinking_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose output holds reasoning: all but `thinking_off` and `channels`.

    A model that never thinks has rows of `thinking_off` alone, so none here.
    """
    return rows[~rows["shape"].isin(["thinking_off", "channels"])]


def length_table(rows: pd.DataFrame, column: str, *, by: str = "shape") -> pd.DataFrame:
    """Percentiles of a length, in ids, one line a value of `by` and one for all rows. Empty cells (null) don't count.

    Columns: rows, ids (their sum), min, p10, median, p90, p99, max.
    """
    known = rows[rows[column].notna()]
    lines = {str(name): _length_line(group[column]) for name, group in known.groupby(by, sort=False)}
    ordered = {name: lines[name] for name in _in_order(lines, SHAPES)}
    return pd.DataFrame.from_dict({**ordered, "all rows": _length_line(known[column])}, orient="index")


def closer_shares(rows: pd.DataFrame) -> pd.Series:
    """Where the closer stands as a share of the output, 0 to 1; rows without a closer are left out."""
    closed = rows[rows["closer_position"].notna() & (rows["output_tokens"] > 0)]
    share: pd.Series = closed["closer_position"].astype("float64") / closed["output_tokens"]
    return share


def closer_position_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`length_table` of the closer's position, with the median and p90 of `closer_shares` (0 to 1) beside."""
    table = length_table(rows, "closer_position").drop(columns="ids")
    shares = length_table(rows.assign(share=closer_shares(rows)), "share")
    return table.assign(**{"median share": shares["median"], "p90 share": shares["p90"]})


def count_table(rows: pd.DataFrame, column: str, by: str) -> pd.DataFrame:
    """Rows by `column` (lines) and `by` (columns), known values in their usual order, with the sum as `rows`."""
    counts = pd.crosstab(rows[column], rows[by])
    known = (*SHAPES, *VERDICTS, *FINISH_REASONS)
    counts = counts.reindex(index=_in_order(counts.index, known), columns=_in_order(counts.columns, known))
    counts["rows"] = counts.sum(axis=1).astype("int64")
    return counts.rename_axis(index=None, columns=None)


def reason_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows by verification reason and verdict, most frequent first; a row counts once for each of its reasons.

    Rows without a reason stand under `(none)`.
    """
    pairs = rows[["reasons", "verdict"]].rename(columns={"reasons": "reason"}).explode("reason", ignore_index=True)
    pairs["reason"] = pairs["reason"].astype("object").where(pairs["reason"].notna(), NO_REASON)
    by_name = count_table(pairs, "reason", "verdict").sort_index()
    return by_name.sort_values("rows", ascending=False, kind="stable")


def tool_call_table(rows: pd.DataFrame, *, most: int = 8) -> pd.DataFrame:
    """Rows by number of tool calls, every number from 0 to the largest; from `most` on in one line (`8+`).

    Columns: rows, calls.
    """
    calls = rows["tool_calls"]
    top = min(int(calls.max()), most) if len(calls) else 0
    bins = calls.clip(upper=most)
    table = pd.DataFrame({"rows": bins.value_counts(), "calls": calls.groupby(bins).sum()})
    table = table.reindex(range(top + 1), fill_value=0).astype("int64")
    table.index = pd.Index([f"{n}+" if n == most else str(n) for n in table.index])
    return table


def segment_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Output ids by segment (SEGMENTS), one line a shape and one for all rows, with their sum as `ids`.

    A closer of several ids counts with all of them.
    """
    parts = rows[["reasoning_tokens", "answer_tokens", "tool_tokens"]].astype("int64")
    stop = rows["ends_with_stop"].astype("int64")
    closer = rows["output_tokens"] - parts.sum(axis=1) - stop
    columns = [parts["reasoning_tokens"], closer, parts["answer_tokens"], parts["tool_tokens"], stop]
    ids = pd.DataFrame(dict(zip(SEGMENTS, columns, strict=True))).astype("int64")
    table = ids.groupby(rows["shape"]).sum()
    table = table.reindex(_in_order(table.index, SHAPES))
    table.loc["all rows"] = table.sum()
    table["ids"] = table.sum(axis=1)
    return table.rename_axis(index=None)


def rejection_table(folder: Path, *, stage: Stage | None = None) -> pd.DataFrame:
    """Rejected rows by stage and reason: columns stage, reason, rows, first line, first key, detail (of the first).

    Of one `stage`, or of all. A line is that of the prompt file, as text: it is a name, not an amount; generations have
    none. Read one at a time: a file of a million rows may be rejected whole.
    """
    counts: dict[tuple[str, str], int] = {}
    first: dict[tuple[str, str], Rejection] = {}
    for rejection in each_rejection(folder):
        if stage in (None, rejection.stage):
            kind = (rejection.stage, rejection.reason)
            counts[kind] = counts.get(kind, 0) + 1
            first.setdefault(kind, rejection)
    lines = [
        (*kind, count, None if (line := first[kind].line) is None else str(line), first[kind].key, first[kind].detail)
        for kind, count in counts.items()
    ]
    return pd.DataFrame(lines, columns=["stage", "reason", "rows", "first line", "first key", "detail"])


def summary(
    folder: Path, dataset: str, *, rows: pd.DataFrame | None = None, timings: pd.DataFrame | None = None
) -> dict[str, Json]:
    """The numbers of a data set: counts in and out, lengths, shapes, reasons, throughput.

    `rows` and `timings` are `read_verified` and `read_timings` of the folder, read here where they are not given.

    `median_reasoning_tokens` is over the rows that think, cut ones with the length at which they were cut;
    `share_closed` is the part of them whose thinking came to its end, by a closer or by a tool section (CLOSED), null
    for a model that never thinks; `not_generated` counts prompts with neither a response nor a rejection,
    everything behind it counts generations. `completion` is `completion_bias.numbers` as stage 02 left them, or null.
    Shares and medians of nothing are null. Raises InputError where a stage is missing, or where the journal has grown
    since verification.
    """
    rows = read_verified(folder) if rows is None else rows
    timings = throughput.read_timings(folder) if timings is None else timings
    prompts = read_prompts(folder)
    if len(rows) != len(timings):
        raise InputError(
            f"{folder / 'verified.parquet'} holds {len(rows)} rows and the journal {len(timings)}; "
            "run notebook 03_verify_responses again"
        )
    before, failed = 0, list[str]()
    for rejection in each_rejection(folder):  # one at a time: a file of a million rows may be rejected whole
        before += rejection.stage == "tokenize"
        failed += [rejection.key] * (rejection.stage == "generate")
    tried = [*rows["key"], *failed]
    thinking = thinking_rows(rows)["reasoning_tokens"]
    line = throughput.timeline(timings)
    return {
        "dataset": dataset,
        "rows": len(prompts) + before,
        "prompts": len(prompts),
        "rejected_before_generation": before,
        "rejected_at_generation": len(failed),
        "not_generated": len(set(prompts["key"]) - {key.rpartition("/")[0] for key in tried}),
        "generated": len(rows),
        "accepted": int((rows["verdict"] == "accept").sum()),
        "flagged": int((rows["verdict"] == "flag").sum()),
        "rejected": int((rows["verdict"] == "reject").sum()),
        "median_reasoning_tokens": float(thinking.median()) if len(thinking) else None,
        "share_closed": share(rows["shape"].isin(CLOSED).sum(), len(thinking)),
        "shapes": _counts(rows["shape"], SHAPES),
        "finish_reasons": _counts(rows["finish_reason"], FINISH_REASONS),
        "reasons": _counts(rows["reasons"].explode().dropna(), ()),
        "tool_calls": int(rows["tool_calls"].sum()),
        "prompt_ids": int(rows["prompt_tokens"].sum()),
        "output_ids": int(rows["output_tokens"].sum()),
        "reasoning_ids": int(rows["reasoning_tokens"].sum()),
        "cached_prompt_ids": int(timings["cached_tokens"].sum()),
        "busy_seconds": round(float(line["width_s"].sum()), 3),
        "ids_per_second": share(timings["completion_tokens"].sum(), line["width_s"].sum()),
        "completion": read_completion(folder) or None,
    }


def summary_table(numbers: Mapping[str, Json]) -> pd.DataFrame:
    """The plain numbers of `summary`, one a line; its maps (shapes, reasons) have tables of their own."""
    plain = {name: value for name, value in numbers.items() if isinstance(value, int | float) or value is None}
    return pd.DataFrame({"value": pd.Series(plain, dtype="object")})


def write_summary(folder: Path, numbers: Mapping[str, Json]) -> Path:
    """Write summary.json into the data set's folder, whole or not at all. Returns its path; raises RunStopped."""
    path = folder / "summary.json"
    journal.write_atomically(path, msgspec.json.format(msgspec.json.encode(numbers), indent=2) + b"\n")
    return path


def _length_line(lengths: pd.Series) -> dict[str, float]:
    values = lengths.astype("float64")
    percentiles = {name: float(values.quantile(share)) for name, share in _QUANTILES.items()}
    ends = {"min": float(values.min()), **percentiles, "max": float(values.max())}
    return {"rows": len(values), "ids": int(values.sum()), **ends}


def _counts(values: pd.Series, known: Sequence[str]) -> dict[str, int]:
    """How often each value occurs; known values come first and always, with 0 where they don't occur."""
    found = values.value_counts()
    return {name: int(found.get(name, 0)) for name in [*known, *_in_order(found.index, known)]}


def _in_order(found: Iterable[object], known: Sequence[str]) -> list[str]:
    """The values found: the known ones in their order, then the others as they come, never lost."""
    names = [str(name) for name in found]
    return [*(name for name in known if name in names), *(name for name in names if name not in known)]
