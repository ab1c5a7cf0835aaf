"""What a report draws of several data sets or runs side by side: tables of run_comparison in, Figures out.

This module does not know where the samples come from, nor what there is to say about them (comparison_takeaways).
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from .bars import draw_bars
from .curves import MOST_LINES, name_lines, share_curves
from .drawing import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    legend,
    length_histogram,
    new_axes,
    nothing_to_draw,
    short_name,
    titled,
)
from .greedy_answers import Agreement
from .run_comparison import Sample, share_table
from .token_statistics import SHAPES, VERDICTS, thinking_rows
from .truncation import thinking_curve
from .wording import counted


@titled
def shapes_by_sample(samples: Mapping[str, Sample]) -> Figure:
    """A bar a sample, divided by shape."""
    return _shares(share_table(samples, "shape", SHAPES))


@titled
def verdicts_by_sample(samples: Mapping[str, Sample]) -> Figure:
    """A bar a sample, divided by verdict."""
    return _shares(share_table(samples, "verdict", VERDICTS))


@titled
def reasoning_by_sample(samples: Mapping[str, Sample]) -> Figure:
    """The share whose thinking has ended by a length, a line a sample; of more than eight samples the largest."""
    thinking = {name: thinking_rows(sample.rows) for name, sample in samples.items()}
    wanted = sorted((name for name in thinking if len(thinking[name])), key=lambda name: -len(thinking[name]))
    if not wanted:
        return nothing_to_draw("no row has reasoning")
    drawn = [name for name in samples if name in wanted[:MOST_LINES]]
    figure, axes = new_axes(height=3.4 + 0.1 * len(drawn))
    share_curves(
        axes,
        {short_name(name, 32): thinking_curve(thinking[name]) for name in drawn},
        "ended",
        xlabel="reasoning ids (log scale)",
        ylabel="share whose thinking ended",
    )
    name_lines(figure, axes)
    if len(wanted) > len(drawn):
        axes.annotate(
            f"{len(wanted) - len(drawn)} smaller ones not drawn", (1, 0.02), xycoords="axes fraction", ha="right"
        )
    return figure


@titled
def median_differences(table: pd.DataFrame) -> Figure:
    """A mark and its 95 % interval a line of `run_comparison.median_differences`, in ids; a line stands at 0."""
    if table.empty:
        return nothing_to_draw("no data set has enough rows in both runs")
    figure, axes = new_axes(height=1.3 + 0.36 * len(table))
    places = np.arange(len(table))
    middle, low, high = (table[name].to_numpy("float64") for name in ("difference", "low", "high"))
    axes.axvline(0, color=INK, linewidth=1)
    axes.hlines(places, low, high, color=BLUE, linewidth=2.5)
    axes.plot(middle, places, "o", color=BLUE, markersize=6)
    for place, value in enumerate(middle):
        axes.annotate(f"{value:+,.0f}", (1.01, place), xycoords=("axes fraction", "data"), va="center")
    names = [
        f"{short_name(dataset, 14)} {kind}" for dataset, kind in zip(table["data set"], table["length"], strict=True)
    ]
    axes.set_yticks(places, names)
    axes.set_ylim(len(table) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("second minus first (ids)")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.locator_params(axis="x", nbins=5)
    return figure


@titled
def first_differences(found: Mapping[str, Agreement]) -> Figure:
    """Histogram of the first id that differs, counted from 1, over the answers that differ."""
    parted = np.concatenate([each.parted for each in found.values()]) if found else np.zeros(0)
    if not len(parted):
        compared = sum(each.keys - each.other_prompts for each in found.values())
        none = f"none of {counted(compared, 'answer')} differs"
        return nothing_to_draw(none if compared else "no answer can be compared")
    places = parted.astype("float64") + 1
    return length_histogram({"": places}, "first id that differs, counted from 1 (log scale)", nothing="")


def _lines(table: pd.DataFrame) -> Iterable[tuple[str, str]]:
    return zip(table["data set"], table["length"], strict=True)


def _shares(table: pd.DataFrame) -> Figure:
    if table.empty:
        return nothing_to_draw("no row was generated")
    figure, axes = new_axes(height=1.5 + 0.36 * len(table))
    draw_bars(axes, table)
    _share_axis(axes)
    legend(figure, {name: COLOURS.get(name, GREY) for name in table.columns})
    return figure


def _share_axis(axes: Axes) -> None:
    axes.set(xlim=(0, 1), xlabel="share of the rows")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
