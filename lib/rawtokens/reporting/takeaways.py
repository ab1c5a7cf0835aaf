"""What a figure says, in one sentence, computed from the same rows; a few rows are called a few rows.

Each function takes what its figure takes. This module does not know whether a number is good or bad, only what it
means for the data.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..records import Json
from .completion_bias import NEGLIGIBLE, PLACE, STATES, Lengths, bias_table, largest_shift, long_share
from .throughput import busy_intervals
from .token_statistics import NO_REASON, closer_shares, reason_table, segment_table, thinking_rows

FEW = 10
"""Below this many values there is no distribution to speak of; a sentence then names the values."""


def reasoning_length(rows: pd.DataFrame) -> str:
    """How long reasoning is, and how much of that is only a lower bound."""
    thinking = thinking_rows(rows)
    cut = int((thinking["shape"] == "truncated_in_thinking").sum())
    text = _lengths(thinking["reasoning_tokens"], "row that thinks", "rows that think", "reasoning ids")
    if not cut:
        return text
    bound = "the true median is not known" if cut * 2 >= len(thinking) else "the median holds, the tail is longer"
    return f"{text} {_share(cut, len(thinking))} were cut while thinking and count with their cut length: {bound}."


def closer_position(rows: pd.DataFrame) -> str:
    """Where the answer starts."""
    return _lengths(
        rows["closer_position"].dropna(), "row with a closer", "rows with a closer", "ids before the closer"
    )


def closer_share(rows: pd.DataFrame) -> str:
    """How much of an output is reasoning."""
    shares = closer_shares(rows)
    if shares.empty:
        return "No row has a closer, so no share can be given."
    most = int((shares > 0.5).sum())
    return (
        f"In {_share(most, len(shares))} with a closer more than half of the output stands before it; "
        f"the median share is {shares.median():.0%}{_few(len(shares))}."
    )


def output_length(rows: pd.DataFrame) -> str:
    """How long outputs are, and how many ran into the limit."""
    cut = rows[rows["finish_reason"] == "length"]["output_tokens"]
    text = _lengths(rows["output_tokens"], "row", "rows", "output ids")
    if cut.empty:
        return f"{text} None reached the length limit." if len(rows) else text
    at = f"{cut.min():,}" if cut.min() == cut.max() else f"{cut.min():,} to {cut.max():,}"
    return f"{text} {_share(len(cut), len(rows))} were cut by the length limit, at {at} ids."


def prompt_length(prompts: pd.DataFrame) -> str:
    """How long prompts are."""
    return _lengths(prompts["prompt_tokens"], "prompt", "prompts", "ids")


def shapes(rows: pd.DataFrame) -> str:
    """How many rows have thinking, closer and answer; what is the most frequent other shape."""
    if rows.empty:
        return "No row was generated."
    counts = rows["shape"].value_counts()
    others = counts.drop("closed", errors="ignore")
    text = f"{_share(int(counts.get('closed', 0)), len(rows))} are closed: thinking, closer, answer"
    if others.empty:
        return f"{text}; there is no other shape."
    return f"{text}; the most frequent other shape is {others.index[0]} ({others.iloc[0]:,})."


def verdict_reasons(rows: pd.DataFrame) -> str:
    """How many rows are accepted, flagged and rejected, and the most frequent reason."""
    if rows.empty:
        return "No row was verified."
    verdicts = rows["verdict"].value_counts()
    flagged, rejected = int(verdicts.get("flag", 0)), int(verdicts.get("reject", 0))
    text = (
        f"{_share(int(verdicts.get('accept', 0)), len(rows))} are accepted, {flagged:,} flagged, {rejected:,} rejected"
    )
    reasons = reason_table(rows).drop(index=NO_REASON, errors="ignore")
    if reasons.empty:
        return f"{text}; no row carries a reason."
    return f"{text}; the most frequent reason is {reasons.index[0]} ({reasons['rows'].iloc[0]:,})."


def segments(rows: pd.DataFrame) -> str:
    """How the output ids divide."""
    total = segment_table(rows).loc["all rows"]
    if not total["ids"]:
        return "There are no output ids."
    names = [("reasoning", "reasoning"), ("answer", "answer"), ("tool calls", "tool calls")]
    parts = [f"{total[column] / total['ids']:.0%} {name}" for column, name in names]
    return f"Of {total['ids']:,} output ids {', '.join(parts)}; the rest are closers and stop ids."


def tool_calls(rows: pd.DataFrame) -> str:
    """How many rows call tools, and how often."""
    if rows.empty:
        return "No row was generated."
    calls = rows["tool_calls"]
    calling = calls[calls > 0]
    if calling.empty:
        return f"None of {len(rows):,} rows calls a tool."
    return (
        f"{_share(len(calling), len(rows))} call tools: {calling.sum():,} calls, "
        f"at most {calling.max():,} in one response{_few(len(calling))}."
    )


def ids_per_second(timings: pd.DataFrame, line: pd.DataFrame) -> str:
    """How fast ids came, over the whole time and at best."""
    if line.empty:
        return "No response is on record, so there is no rate."
    seconds = float(line["width_s"].sum())
    ids = int(timings["completion_tokens"].sum())
    return (
        f"{ids:,} ids came in {_duration(seconds)}: {ids / seconds:,.0f} a second on average, "
        f"{line['ids_per_second'].max():,.0f} in the best {_duration(float(line['width_s'].iloc[0]))}.{_idle(timings)}"
    )


def in_flight(timings: pd.DataFrame, line: pd.DataFrame) -> str:
    """How many requests were in flight, and how long the end took."""
    if line.empty:
        return "No response is on record, so nothing was in flight."
    peak = float(line["in_flight"].max())
    busy = float((line["in_flight"] >= peak / 2).mean())
    return (
        f"{line['in_flight'].mean():,.1f} requests were in flight on average and {peak:,.1f} at the peak; "
        f"{busy:.0%} of the time at least half of that.{_idle(timings)}"
    )


def flow(numbers: dict[str, Json]) -> str:
    """Whether every row that came in is accounted for, from `token_statistics.summary`."""
    before, at = numbers["rejected_before_generation"], numbers["rejected_at_generation"]
    text = (
        f"Rows that came in: {numbers['rows']:,}; rejected before generation: {before:,}, during it: {at:,}; "
        f"generated: {numbers['generated']:,}"
    )
    missing = numbers["not_generated"]
    if missing:
        return f"{text}; prompts without a response yet: {missing:,}. Run notebook 02_generate_responses again."
    return f"{text}; no prompt is without a response or a reason."


def completion(rows: pd.DataFrame, lengths: Lengths) -> str:
    """What is missing, and how what is generated differs from what was planned, from `completion_bias`."""
    counts = {state: int((rows["state"] == state).sum()) for state in STATES}
    if counts[STATES[0]] == len(rows):
        return f"Nothing is missing: all {len(rows):,} planned generations are there."
    lost = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    if not counts[STATES[0]]:
        return f"Nothing is generated yet; of {len(rows):,} planned generations: {lost}."
    return f"Of {len(rows):,} planned generations: {lost}. {_shift(rows)}{_cut_off(lengths)}"


def _shift(rows: pd.DataFrame) -> str:
    table = bias_table(rows)
    name, difference = largest_shift(table)
    if not name:
        text = "All prompts are alike in what is known of them."
    elif abs(difference) < NEGLIGIBLE:
        text = f"The prompts of what is generated are those planned: the largest shift, in {name}, is negligible "
        text += f"({difference:+.2f} standard deviations)."
    else:
        planned, generated = (table[column].astype("float64").loc[name] for column in ("planned", "generated"))
        text = f"What is generated differs most in {name}: {generated:,.3g} against {planned:,.3g} planned "
        text += f"({difference:+.2f} standard deviations)."
    place = float(table["standardised difference"].astype("float64").loc[PLACE])
    if abs(place) >= NEGLIGIBLE:
        text += f" It is more the {'beginning' if place < 0 else 'end'} of the file than the whole of it."
    return text


def _cut_off(lengths: Lengths) -> str:
    long = long_share(lengths)
    if not long:
        return ""
    return (
        f" What was in flight at the stop ({len(lengths.reached):,}) had been for "
        f"{_duration(float(np.median(lengths.seconds)))} in the median, at least {long.ids:,.0f} ids at the pace of "
        f"the others: {long.generated:.1%} of the generated outputs are longer, and an estimated {long.estimated:.1%} "
        "of all."
    )


def finish_reasons(timings: pd.DataFrame) -> str:
    """How many generations were cut by the length limit, how many came at a later try, what the prefix cache had."""
    if timings.empty:
        return "No response is on record."
    cut, again = int((timings["finish_reason"] == "length").sum()), int((timings["attempt"] > 1).sum())
    whole, cached = int(timings["prompt_tokens"].sum()), int(timings["cached_tokens"].sum())
    return (
        f"{_share(cut, len(timings))} were cut by the length limit, {again:,} came at a later try; of {whole:,} prompt "
        f"ids the servers had {cached:,} ({cached / max(1, whole):.1%}) in their prefix cache."
    )


def failures(counts: Mapping[str, int]) -> str:
    """How often requests failed, by reason; what was tried again with success is among them."""
    if not counts:
        return "No request failed."
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
    return f"{sum(counts.values()):,} requests failed and were tried again or rejected: {reasons}."


def _lengths(lengths: pd.Series, one: str, many: str, unit: str) -> str:
    if lengths.empty:
        return f"There are no {many}."
    if len(lengths) == 1:
        return f"There is one {one}, with {int(lengths.iloc[0]):,} {unit}."
    if len(lengths) < FEW:
        values = ", ".join(f"{int(value):,}" for value in sorted(lengths))
        return f"Only {len(lengths)} {many}, too few for a distribution: {values} {unit}."
    low, middle, high = (float(lengths.astype("float64").quantile(share)) for share in (0.1, 0.5, 0.9))
    return (
        f"Half of {len(lengths):,} {many} have at most {middle:,.0f} {unit}; "
        f"eight in ten lie between {low:,.0f} and {high:,.0f}, the longest has {int(lengths.max()):,}."
    )


def _share(part: int, whole: int) -> str:
    """`3 of 12 rows (25%)`; no percentage where the whole is small."""
    return f"{part:,} of {whole:,} rows" + (f" ({part / whole:.1%})" if whole >= FEW else "")


def _few(count: int) -> str:
    return "" if count >= FEW else f" (of only {count})"


def _duration(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} seconds" if seconds >= 1 else f"{seconds * 1000:,.0f} milliseconds"


def _idle(timings: pd.DataFrame) -> str:
    """What was cut out between runs of the stage, so that a rate is one of working time."""
    _, ends = busy_intervals(timings)
    since = (timings["started_at"] - timings["started_at"].iloc[0]).dt.total_seconds()
    idle = float((since + timings["latency_s"]).max() - ends.max())
    return f" Pauses of {_duration(idle)} in all, with nothing in flight, are left out." if idle > 1 else ""
