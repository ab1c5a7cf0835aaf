"""What a figure says, in one sentence, computed from the same rows; a few rows are called a few rows.

Each function takes what its figure takes. This module does not know whether a number is good or bad, only what it
means for the data.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..records import Json
from .throughput import busy_intervals, cached_share
from .token_statistics import NO_REASON, closer_shares, reason_table, segment_table, thinking_rows
from .truncation import FEWEST, estimate, more_rows
from .vocabulary_coverage import IdCounts, coverage_curve, distinct
from .wording import counted, duration, either, lengths_in_words, of_only, share_of_rows


def reasoning_length(rows: pd.DataFrame) -> str:
    """How long reasoning is, and how much of that is only a lower bound."""
    thinking = thinking_rows(rows)
    cut = int((thinking["shape"] == "truncated_in_thinking").sum())
    text = lengths_in_words(thinking["reasoning_tokens"], "row that thinks", "rows that think", "reasoning id")
    if not cut:
        return text
    bound = "the true median is not known" if cut * 2 >= len(thinking) else "the median holds, the tail is longer"
    many = either(cut, "was cut while thinking and counts", "were cut while thinking and count")
    return f"{text} {share_of_rows(cut, len(thinking))} {many} with that length: {bound}."


def truncation(rows: pd.DataFrame) -> str:
    """How many rows were cut while thinking, and how many of them twice the limit would close, and why."""
    found = estimate(rows)
    if found is None:
        return "No row was cut while thinking." if len(thinking_rows(rows)) else "No row thinks, so none was cut at it."
    were = either(found.cut, "was", "were")
    text = f"{share_of_rows(found.cut, found.thinking)} {were} cut while thinking, at {counted(found.limit, 'id')}"
    text += f", {found.loops:,} of them in a loop" if found.loops else ""
    text += f"; {found.elsewhere:,} more at another length" if found.elsewhere else ""
    left = found.cut - found.loops
    if not left:
        return f"{text}. A larger limit closes no loop."
    if found.low is None or found.high is None:
        return (
            f"{text}. Only {counted(found.half, 'row')} without a loop {either(found.half, 'was', 'were')} still "
            f"thinking at half of that; of fewer than "
            f"{FEWEST} nothing is said about a larger limit."
        )
    low, high = more_rows(found)
    return (
        f"{text}. Of {found.half:,} rows that were still thinking at half of that, {found.closed:,} "
        f"({found.closed / found.half:.0%}) closed by the limit. If those that were cut go on in the same way, "
        f"{low:,} to {high:,} of {left:,} would close by {2 * found.limit:,} ids: the low end takes it that as many "
        "close at each doubling, the high end that as many close with each further id. Loops are taken never to close."
    )


def closer_position(rows: pd.DataFrame) -> str:
    """Where the answer starts."""
    return lengths_in_words(
        rows["closer_position"].dropna(), "row with a closer", "rows with a closer", "id", where=" before the closer"
    )


def closer_share(rows: pd.DataFrame) -> str:
    """How much of an output is reasoning."""
    shares = closer_shares(rows)
    if shares.empty:
        return "No row has a closer, so no share can be given."
    most = int((shares > 0.5).sum())
    return (
        f"In {share_of_rows(most, len(shares))} with a closer more than half of the output stands before it; "
        f"the median share is {shares.median():.0%}{of_only(len(shares))}."
    )


def answer_length(rows: pd.DataFrame) -> str:
    """How long answers are, and how many rows have none."""
    if rows.empty:
        return "No row was generated."
    answers = rows["answer_tokens"][rows["answer_tokens"] > 0]
    text = lengths_in_words(answers, "row with an answer", "rows with an answer", "answer id")
    none = len(rows) - len(answers)
    return f"{text} {share_of_rows(none, len(rows))} {either(none, 'has', 'have')} none."


def output_length(rows: pd.DataFrame) -> str:
    """How long outputs are, and how many ran into the limit."""
    cut = rows[rows["finish_reason"] == "length"]["output_tokens"]
    text = lengths_in_words(rows["output_tokens"], "row", "rows", "output id")
    if cut.empty:
        return f"{text} None reached the length limit." if len(rows) else text
    at = counted(cut.min(), "id") if cut.min() == cut.max() else f"{cut.min():,} to {cut.max():,} ids"
    return f"{text} {_cut_by_the_limit(len(cut), len(rows))}, at {at}."


def prompt_length(prompts: pd.DataFrame) -> str:
    """How long prompts are."""
    return lengths_in_words(prompts["prompt_tokens"], "prompt", "prompts", "id")


def shapes(rows: pd.DataFrame) -> str:
    """How many rows are closed; what is the most frequent other shape."""
    if rows.empty:
        return "No row was generated."
    counts = rows["shape"].value_counts()
    if counts.get("thinking_off", 0) == len(rows):
        return f"None of {counted(len(rows), 'row')} thinks: the prompt asks for no thinking, or the model knows none."
    others = counts.drop("closed", errors="ignore")
    closed = int(counts.get("closed", 0))
    are = either(closed, "is", "are")
    text = f"{share_of_rows(closed, len(rows))} {are} closed: thinking, closer, an answer or tool calls"
    if others.empty:
        return f"{text}; there is no other shape."
    return f"{text}; the most frequent other shape is {others.index[0]} ({others.iloc[0]:,})."


def verdict_reasons(rows: pd.DataFrame) -> str:
    """How many rows are accepted, flagged and rejected, and the most frequent reason."""
    if rows.empty:
        return "No row was verified."
    verdicts = rows["verdict"].value_counts()
    accepted, flagged, rejected = (int(verdicts.get(name, 0)) for name in ("accept", "flag", "reject"))
    are = either(accepted, "is", "are")
    text = f"{share_of_rows(accepted, len(rows))} {are} accepted, {flagged:,} flagged, {rejected:,} rejected"
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
    return f"Of {counted(int(total['ids']), 'output id')} {', '.join(parts)}; the rest are closers and stop ids."


def tool_calls(rows: pd.DataFrame) -> str:
    """How many rows call tools, and how often."""
    if rows.empty:
        return "No row was generated."
    calls = rows["tool_calls"]
    calling = calls[calls > 0]
    if calling.empty:
        return f"None of {counted(len(rows), 'row')} calls a tool."
    return (
        f"{share_of_rows(len(calling), len(rows))} {either(len(calling), 'calls', 'call')} tools: "
        f"{counted(int(calling.sum()), 'call')}, "
        f"at most {calling.max():,} in one response{of_only(len(calling))}."
    )


def ids_per_second(timings: pd.DataFrame, line: pd.DataFrame) -> str:
    """How fast ids came, over the whole time and at best."""
    if line.empty:
        return "No response is on record, so there is no rate."
    seconds = float(line["width_s"].sum())
    ids = int(timings["completion_tokens"].sum())
    return (
        f"{counted(ids, 'id')} came in {duration(seconds)}: {ids / seconds:,.0f} a second on average, "
        f"{line['ids_per_second'].max():,.0f} in the best {duration(float(line['width_s'].iloc[0]))}.{_idle(timings)}"
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


def cache_hits(timings: pd.DataFrame) -> str:
    """How much of the prompts the servers had read before."""
    if timings.empty:
        return "No response is on record, so nothing is known of the prefix cache."
    cached, whole = int(timings["cached_tokens"].sum()), int(timings["prompt_tokens"].sum())
    if not cached:
        none = f"None of {counted(whole, 'prompt id')} came from a prefix cache"
        return f"{none}: it is off, or no two prompts begin alike."
    rows = int((timings["cached_tokens"] > 0).sum())
    return (
        f"Of {counted(whole, 'prompt id')} the servers had {cached:,} ({cached_share(timings):.1%}) in their prefix "
        f"cache; {share_of_rows(rows, len(timings))} had some of theirs there."
    )


def coverage(found: IdCounts) -> str:
    """How many different ids there are, and what 32,000 of them cover."""
    different = distinct(found)["all"]
    if not different:
        return "No row that is not rejected has output ids."
    line = coverage_curve(found).set_index("ids").loc[32_000]
    ids = int(found.total.sum())
    holds = either(ids, "holds", "hold")
    text = f"{counted(ids, 'output id')} (without rejected rows) {holds} {counted(different, 'different one')}"
    elsewhere = ""
    if not np.isnan(line["other half"]):
        elsewhere = (
            f" Chosen on half of the rows they cover {line['other half']:.2%} of the other half: nearer to what new "
            "text will find."
        )
    if different <= 32_000:
        return f"{text}: a draft vocabulary of 32,000 holds them all.{elsewhere}"
    return f"{text}; the 32,000 most frequent cover {line['all']:.2%} of them all.{elsewhere}"


def finish_reasons(timings: pd.DataFrame) -> str:
    """How many generations were cut by the length limit, how many came at a later try, what the prefix cache had."""
    if timings.empty:
        return "No response is on record."
    cut, again = int((timings["finish_reason"] == "length").sum()), int((timings["attempt"] > 1).sum())
    whole, cached = int(timings["prompt_tokens"].sum()), int(timings["cached_tokens"].sum())
    return (
        f"{_cut_by_the_limit(cut, len(timings))}, {again:,} came at a later try; of {counted(whole, 'prompt id')} "
        f"the servers had {cached:,} ({cached / max(1, whole):.1%}) in their prefix cache."
    )


def failures(counts: Mapping[str, int]) -> str:
    """How often requests failed, by reason; what was tried again with success is among them."""
    if not counts:
        return "No request failed."
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
    failed = sum(counts.values())
    were = either(failed, "was", "were")
    return f"{counted(failed, 'request')} failed and {were} tried again or rejected: {reasons}."


def _cut_by_the_limit(cut: int, rows: int) -> str:
    return f"{share_of_rows(cut, rows)} {either(cut, 'was', 'were')} cut by the length limit"


def _idle(timings: pd.DataFrame) -> str:
    """What was cut out between runs of the stage, so that a rate is one of working time."""
    _, ends = busy_intervals(timings)
    since = (timings["started_at"] - timings["started_at"].iloc[0]).dt.total_seconds()
    idle = float((since + timings["latency_s"]).max() - ends.max())
    return f" Pauses of {duration(idle)} in all, with nothing in flight, are left out." if idle > 1 else ""
