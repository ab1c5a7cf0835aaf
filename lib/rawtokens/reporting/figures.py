"""What a report draws of one data set: DataFrame in, matplotlib Figure out; pure functions that touch no pyplot state.

Made for 0 rows, for one and for 100,000. This module does not know where the rows come from (token_statistics and
throughput), nor what there is to say about them (takeaways), nor how a bar is drawn (drawing, curves). Its titles
stand in figure_titles; figures over several data sets or runs in comparison_figures.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .bars import stacked_bars
from .completion_bias import Lengths, length_curves, state_table
from .curves import bars_and_curves, name_lines, over_time, share_curves, thinned
from .drawing import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    WIDTH,
    count_axis,
    length_histogram,
    log_axis,
    new_axes,
    nothing_to_draw,
    titled,
    values,
)
from .throughput import cached_share
from .token_statistics import count_table, reason_table, segment_table, thinking_rows, tool_call_table
from .truncation import estimate, thinking_curve
from .vocabulary_coverage import PARTS, SIZES, IdCounts, coverage_curve


@titled
def reasoning_length(rows: pd.DataFrame) -> Figure:
    """Histogram of reasoning_tokens over the rows that think, those cut while thinking apart, with percentiles of all;
    below it the share whose thinking has ended by a length, where cut rows count as longer."""
    thinking = thinking_rows(rows)
    cut = thinking["shape"] == "truncated_in_thinking"
    groups = {"thinking ended": thinking[~cut], "cut while thinking": thinking[cut]}
    lengths = {name: values(group["reasoning_tokens"]) for name, group in groups.items()}
    if not (thinking["reasoning_tokens"] > 0).any():
        return length_histogram(lengths, "", nothing="no row has reasoning")
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    xlabel = "reasoning ids in a response (log scale)"
    share_curves(lower, {"": thinking_curve(rows)}, "ended", xlabel=xlabel, ylabel="share that ended")
    length_histogram(lengths, "", nothing="", axes=upper)
    upper.tick_params(labelbottom=False)
    return figure


@titled
def truncation(rows: pd.DataFrame) -> Figure:
    """The share of rows still thinking by length, up to the limit, and the range of `truncation.estimate` at twice it.

    Marks stand at half the limit, at the limit and at twice the limit.
    """
    found = estimate(rows)
    if found is None:
        return nothing_to_draw("no row was cut while thinking")
    figure, axes = new_axes()
    limit = max(1, found.limit)
    curve = thinned(thinking_curve(rows))
    curve = curve[curve["ids"] <= limit]
    lengths = np.concatenate([[1.0], curve["ids"].clip(lower=1), [limit]])
    open_still = np.concatenate([[1.0], 1.0 - curve["ended"], [1.0 - curve["ended"].iloc[-1]]])
    axes.step(lengths, open_still, where="post", color=BLUE)
    left, first = float(open_still[-1]), limit / 5
    top = float(open_still[np.searchsorted(lengths, first, side="right") - 1]) * 1.1
    axes.annotate(f"{left:.1%}", (limit, left), (4, 4), textcoords="offset points")
    if found.low is not None and found.high is not None:
        possible = left * (found.cut - found.loops) / found.cut
        low, high = left - possible * found.high, left - possible * found.low
        axes.fill([limit, 2 * limit, 2 * limit], [left, high, low], color=ORANGE, alpha=0.6, lw=0)
        text = f"estimate\n{low:.1%} to\n{high:.1%}"
        axes.annotate(text, (2 * limit, high), (4, 0), textcoords="offset points", va="bottom")
    else:
        axes.annotate("no estimate", (2 * limit, left), (4, 4), textcoords="offset points")
    for share, name in ((0.5, "half"), (1, "limit"), (2, "twice")):
        axes.axvline(share * limit, color=INK, linewidth=1, linestyle="--")
        axes.annotate(
            name, (share * limit, top), (-3, -2), textcoords="offset points", ha="right", va="top", clip_on=True
        )
    log_axis(axes, max(1.0, first), limit * 3.4)
    axes.set(xlabel="reasoning ids (log scale)", ylabel="share still thinking", ylim=(0, top))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if top > 0.05 else 1))
    return figure


@titled
def closer_position(rows: pd.DataFrame) -> Figure:
    """Histogram of the closer's position in the output, counted from 0: the response starts behind it."""
    closed = rows[rows["closer_position"].notna()]
    cut = closed["finish_reason"] == "length"
    groups = {"stopped by itself": closed[~cut], "cut behind the closer": closed[cut]}
    positions = {name: values(group["closer_position"]) for name, group in groups.items()}
    return length_histogram(
        positions, "position of the closer in the output (ids, log scale)", nothing="no row has a closer"
    )


@titled
def answer_length(rows: pd.DataFrame) -> Figure:
    """Histogram of answer_tokens over the rows that have an answer, those that were cut in it apart."""
    answered = rows[rows["answer_tokens"] > 0]
    cut = answered["finish_reason"] == "length"
    groups = {"stopped by itself": answered[~cut], "cut at the length limit": answered[cut]}
    lengths = {name: values(group["answer_tokens"]) for name, group in groups.items()}
    return length_histogram(lengths, "answer ids in a response (log scale)", nothing="no row has an answer")


@titled
def output_length(rows: pd.DataFrame) -> Figure:
    """Histogram of output_tokens, rows that were cut by the length limit apart; percentiles of all."""
    cut = rows["finish_reason"] == "length"
    groups = {"stopped by itself": rows[~cut], "cut at the length limit": rows[cut]}
    lengths = {name: values(group["output_tokens"]) for name, group in groups.items()}
    return length_histogram(lengths, "output ids in a response (log scale)", nothing="no row was generated")


@titled
def prompt_length(prompts: pd.DataFrame) -> Figure:
    """Histogram of prompt_tokens; takes the rows of prompts.parquet or of verified.parquet."""
    lengths = {"prompts": values(prompts["prompt_tokens"])}
    return length_histogram(lengths, "prompt ids (log scale)", nothing="there are no prompts")


@titled
def prompt_modes(prompts: pd.DataFrame, *, most: int = 12) -> Figure:
    """A bar a set of template arguments, stacked by thinking mode, with counts; beyond `most` sets one bar."""
    kept = list(prompts["template_kwargs"].value_counts().index[:most])
    sets = prompts["template_kwargs"].where(prompts["template_kwargs"].isin(kept), "others")
    table = count_table(prompts.assign(template_kwargs=sets), "template_kwargs", "thinking")
    table = table.reindex([name for name in [*kept, "others"] if name in table.index])
    return stacked_bars(table, "rows", xlabel="prompts", nothing="there are no prompts")


@titled
def shapes(rows: pd.DataFrame) -> Figure:
    """A bar a shape, stacked by finish reason, with counts."""
    return stacked_bars(
        count_table(rows, "shape", "finish_reason"), "rows", xlabel="rows", nothing="no row was generated"
    )


@titled
def verdict_reasons(rows: pd.DataFrame) -> Figure:
    """A bar a reason, stacked by verdict, with counts; a row counts once for each of its reasons."""
    label = "rows (a row counts once for each of its reasons)"
    return stacked_bars(reason_table(rows), "rows", xlabel=label, nothing="no row was verified")


@titled
def segments(rows: pd.DataFrame) -> Figure:
    """A bar a shape: its output ids by segment (reasoning, closer, answer, tool calls, stop id)."""
    table = segment_table(rows).drop(index="all rows")
    return stacked_bars(table, "ids", xlabel="output ids", nothing="no row was generated")


@titled
def tool_calls(rows: pd.DataFrame) -> Figure:
    """A bar a number of tool calls in one response, with counts."""
    if rows.empty:
        return nothing_to_draw("no row was generated")
    table = tool_call_table(rows)
    figure, axes = new_axes(height=2.9)
    bars = axes.bar(table.index.astype(str).tolist(), table["rows"].tolist(), width=0.7, color=BLUE)
    axes.bar_label(bars, labels=[f"{count:,}" for count in table["rows"]], padding=2)
    axes.set(xlabel="tool calls in one response", ylabel="rows")
    axes.margins(y=0.15)
    axes.set_xlim(-0.75, max(len(table), 4) - 0.25)
    axes.grid(axis="x", visible=False)
    count_axis(axes.yaxis)
    return figure


@titled
def ids_per_second(line: pd.DataFrame) -> Figure:
    """Output ids a second over time, from `throughput.timeline`."""
    return over_time(line, "ids_per_second", ylabel="output ids a second")


@titled
def in_flight(line: pd.DataFrame) -> Figure:
    """Requests in flight over time, from `throughput.timeline`."""
    return over_time(line, "in_flight", ylabel="requests in flight")


@titled
def cache_hits(timings: pd.DataFrame, line: pd.DataFrame) -> Figure:
    """The share of prompt ids that the servers had in their prefix cache, over time, from `throughput.cache_line`."""
    ylabel = "share of prompt ids"
    return over_time(line, "cached_share", ylabel=ylabel, mean=cached_share(timings), percent=True)


@titled
def coverage(found: IdCounts) -> Figure:
    """The share of output ids that the n most frequent ids cover, of all and by part; marks at SIZES."""
    curve = coverage_curve(found)
    if curve.empty:
        return nothing_to_draw("no row that is not rejected has output ids")
    figure, axes = new_axes(height=3.6)
    names = [name for name in ("all", *PARTS, "other half") if curve[name].notna().any()]
    share_curves(
        axes,
        {name: curve[["ids", name]].rename(columns={name: "share"}) for name in names},
        "share",
        xlabel="most frequent ids taken (log scale)",
        ylabel="share of output ids covered",
    )
    name_lines(figure, axes)
    at = curve.set_index("ids").loc[list(SIZES), "all"]
    axes.plot(at.index, at, "o", color=BLUE, markersize=4)
    axes.axvline(32_000, color=GREY, linewidth=1, linestyle=":")
    axes.annotate(f"32,000: {at[32_000]:.1%}", (32_000, 0.62), (-3, 0), textcoords="offset points", ha="right")
    return figure


@titled
def completion(rows: pd.DataFrame, lengths: Lengths) -> Figure:
    """What is generated and what is missing by length of prompt; and output lengths with and without what was cut off.

    Takes `completion_bias.read_planned` and `output_lengths`; the second half only where something was in flight.
    """
    curves = length_curves(lengths).set_index("ids") if len(lengths.reached) else None
    return bars_and_curves(
        state_table(rows).drop(columns="rows"),
        curves,
        bar_labels=("prompt ids", "generations"),
        line_labels=("output ids (log scale)", "share that are longer"),
    )
