"""What a report draws: DataFrame in, matplotlib Figure out; pure functions that touch no pyplot state.

Made for 0 rows, for one and for 100,000. This module does not know where the rows come from (token_statistics and
throughput), nor what there is to say about them (takeaways), nor how a bar is drawn (drawing).
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from .completion_bias import Lengths, length_curves, state_table
from .drawing import (
    bars_and_curves,
    length_histogram,
    mark_percentiles,
    new_axes,
    nothing_to_draw,
    over_time,
    stacked_bars,
    styled,
    values,
)
from .token_statistics import closer_shares, count_table, reason_table, segment_table, thinking_rows, tool_call_table


@styled
def reasoning_length(rows: pd.DataFrame) -> Figure:
    """Histogram of reasoning_tokens over the rows that think, those cut while thinking apart; percentiles of all."""
    thinking = thinking_rows(rows)
    cut = thinking["shape"] == "truncated_in_thinking"
    groups = {"thinking came to its end": thinking[~cut], "cut while thinking": thinking[cut]}
    lengths = {name: values(group["reasoning_tokens"]) for name, group in groups.items()}
    return length_histogram(lengths, "reasoning ids in a response (log scale)", nothing="no row has reasoning")


@styled
def closer_position(rows: pd.DataFrame) -> Figure:
    """Histogram of the closer's position in the output, counted from 0: the answer starts behind it."""
    closed = rows[rows["closer_position"].notna()]
    cut = closed["finish_reason"] == "length"
    groups = {"stopped by itself": closed[~cut], "cut behind the closer": closed[cut]}
    positions = {name: values(group["closer_position"]) for name, group in groups.items()}
    return length_histogram(
        positions, "position of the closer in the output (ids, log scale)", nothing="no row has a closer"
    )


@styled
def closer_share(rows: pd.DataFrame) -> Figure:
    """Histogram of the closer's position as a share of the output, in steps of 5 %."""
    shares = values(closer_shares(rows))
    if not len(shares):
        return nothing_to_draw("no row has a closer")
    figure, axes = new_axes()
    axes.hist(shares, bins=np.linspace(0, 1, 21).tolist(), edgecolor="white")
    axes.set(xlim=(0, 1), xlabel="share of the output that stands before the closer", ylabel="rows")
    mark_percentiles(axes, shares, form="{:.0%}")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


@styled
def output_length(rows: pd.DataFrame) -> Figure:
    """Histogram of output_tokens, rows that were cut by the length limit apart; percentiles of all."""
    cut = rows["finish_reason"] == "length"
    groups = {"stopped by itself": rows[~cut], "cut at the length limit": rows[cut]}
    lengths = {name: values(group["output_tokens"]) for name, group in groups.items()}
    return length_histogram(lengths, "output ids in a response (log scale)", nothing="no row was generated")


@styled
def prompt_length(prompts: pd.DataFrame) -> Figure:
    """Histogram of prompt_tokens; takes the rows of prompts.parquet or of verified.parquet."""
    lengths = {"prompts": values(prompts["prompt_tokens"])}
    return length_histogram(lengths, "prompt ids (log scale)", nothing="there are no prompts")


@styled
def prompt_modes(prompts: pd.DataFrame, *, most: int = 12) -> Figure:
    """A bar a set of template arguments, stacked by thinking mode, with counts; beyond `most` sets one bar."""
    kept = list(prompts["template_kwargs"].value_counts().index[:most])
    sets = prompts["template_kwargs"].where(prompts["template_kwargs"].isin(kept), "others")
    table = count_table(prompts.assign(template_kwargs=sets), "template_kwargs", "thinking")
    table = table.reindex([name for name in [*kept, "others"] if name in table.index])
    return stacked_bars(table, "rows", xlabel="prompts", nothing="there are no prompts")


@styled
def shapes(rows: pd.DataFrame) -> Figure:
    """A bar a shape, stacked by finish reason, with counts."""
    return stacked_bars(
        count_table(rows, "shape", "finish_reason"), "rows", xlabel="rows", nothing="no row was generated"
    )


@styled
def verdict_reasons(rows: pd.DataFrame) -> Figure:
    """A bar a reason, stacked by verdict, with counts; a row counts once for each of its reasons."""
    label = "rows (a row counts once for each of its reasons)"
    return stacked_bars(reason_table(rows), "rows", xlabel=label, nothing="no row was verified")


@styled
def segments(rows: pd.DataFrame) -> Figure:
    """A bar a shape: its output ids by segment (reasoning, closer, answer, tool calls, stop id)."""
    table = segment_table(rows).drop(index="all rows")
    return stacked_bars(table, "ids", xlabel="output ids", nothing="no row was generated")


@styled
def tool_calls(rows: pd.DataFrame) -> Figure:
    """A bar a number of tool calls in one response, with counts."""
    if rows.empty:
        return nothing_to_draw("no row was generated")
    table = tool_call_table(rows)
    figure, axes = new_axes()
    bars = axes.bar(table.index.astype(str).tolist(), table["rows"].tolist(), width=0.7)
    axes.bar_label(bars, labels=[f"{count:,}" for count in table["rows"]], padding=2, fontsize=9)
    axes.set(xlabel="tool calls in one response", ylabel="rows")
    axes.margins(y=0.12)
    axes.set_xlim(-0.75, max(len(table), 4) - 0.25)
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure


@styled
def ids_per_second(line: pd.DataFrame) -> Figure:
    """Output ids a second over time, from `throughput.timeline`."""
    return over_time(line, "ids_per_second", ylabel="output ids a second")


@styled
def in_flight(line: pd.DataFrame) -> Figure:
    """Requests in flight over time, from `throughput.timeline`."""
    return over_time(line, "in_flight", ylabel="requests in flight")


@styled
def completion(rows: pd.DataFrame, lengths: Lengths) -> Figure:
    """What is generated and what is missing by length of prompt; and output lengths with and without what was cut off.

    Takes `completion_bias.read_planned` and `output_lengths`; the second half only where something was in flight.
    """
    curves = length_curves(lengths).set_index("ids") if len(lengths.reached) else None
    return bars_and_curves(
        state_table(rows).drop(columns="rows"),
        curves,
        bars=("prompt ids", "generations"),
        lines=("output ids (log scale)", "share of outputs that are longer"),
    )
