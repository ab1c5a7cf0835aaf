"""How the kit draws: the style, histograms of lengths on log axes, stacked bars, lines over time.

Made for no value, for one and for 100,000. Groups are told apart by their place and a label first, by colour second.
This module does not know what a row is; figures says what is drawn.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, PercentFormatter, StrMethodFormatter

STYLE = Path(__file__).with_name("rawtokens.mplstyle")
_BLUE, _ORANGE, _RED, _PINK, _SKY, _GREY = "C0", "C1", "C2", "C3", "C5", "C7"
_COLOURS = {
    "stop": _BLUE,
    "length": _ORANGE,
    "accept": _BLUE,
    "flag": _ORANGE,
    "reject": _RED,
    "reasoning": _BLUE,
    "closer": _RED,
    "answer": _SKY,
    "tool calls": _ORANGE,
    "stop id": _PINK,
    "generated": _BLUE,
    "estimated": _ORANGE,
    "in flight at the stop": _ORANGE,
    "rejected": _RED,
    "opened": _BLUE,
    "off": _SKY,
    "by_model": _ORANGE,
}
_MOST_BINS = 40

Values = npt.NDArray[np.float64]
P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw under the kit's style, whatever the notebook has set."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style.context(STYLE, after_reset=True):
            return draw(*args, **kwargs)

    return drawn


def length_histogram(groups: Mapping[str, Values], xlabel: str, *, nothing: str) -> Figure:
    """Stacked histogram over bins of equal width on the log axis. 0 has no place there: such rows are counted in
    the corner instead."""
    every = np.concatenate(list(groups.values()))
    drawn = {name: lengths[lengths > 0] for name, lengths in groups.items() if len(lengths)}
    positive = every[every > 0]
    if not len(positive):
        return nothing_to_draw(f"{nothing}: {len(every):,} rows have 0 ids" if len(every) else nothing)
    figure, axes = new_axes()
    colours = [_BLUE, _ORANGE] if len(groups) > 1 else [_BLUE]
    shown = [colour for colour, lengths in zip(colours, groups.values(), strict=True) if len(lengths)]
    edges = _log_edges(positive)
    axes.hist(list(drawn.values()), bins=edges.tolist(), stacked=True, color=shown, edgecolor="white", linewidth=0.5)
    _log_axis(axes, edges)
    axes.set(xlabel=xlabel, ylabel="rows")
    mark_percentiles(axes, every, form="{:,.0f}")
    labels = [f"{name}: {len(groups[name]):,}" for name in drawn]
    if len(groups) > 1:
        _legend(figure, dict(zip(labels, shown, strict=True)))
    zeros = len(every) - len(positive)
    if zeros:
        axes.text(0.0, 1.0, f"{zeros:,} with 0 ids not drawn", transform=axes.transAxes, va="top", fontsize=9)
    return figure


def stacked_bars(table: pd.DataFrame, total: str, *, xlabel: str, nothing: str) -> Figure:
    """Horizontal stacked bars: a line of `table` a bar, a column a part; the column `total` is their sum."""
    if table.empty or not table[total].sum():
        return nothing_to_draw(nothing)
    parts = [name for name in table.columns if name != total and table[name].sum()]
    figure, axes = new_axes(height=1.3 + 0.42 * len(table))
    names, totals = [str(name) for name in table.index], table[total].to_numpy("float64")
    left = np.zeros(len(table))
    for part in parts:
        counts = table[part].to_numpy("float64")
        axes.barh(names, counts, left=left, height=0.7, color=_COLOURS.get(part, _GREY), edgecolor="white")
        left = left + counts
    for place, end in enumerate(totals):
        inside = [f"{int(table[part].iloc[place]):,} {part}" for part in parts if table[part].iloc[place]]
        text = f"{int(end):,}" if len(inside) != 1 else inside[0]
        axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set(xlabel=xlabel, xlim=(0, totals.max() * 1.25))
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _legend(figure, {f"{part}: {int(table[part].sum()):,}": _COLOURS.get(part, _GREY) for part in parts})
    return figure


def bars_and_curves(
    table: pd.DataFrame, curves: pd.DataFrame | None, *, bars: tuple[str, str], lines: tuple[str, str]
) -> Figure:
    """Stacked bars of `table` (a line a bar, a column a part) and, beside them, the columns of `curves` as steps.

    `bars` labels the vertical and the horizontal axis of the bars, `lines` the horizontal and the vertical one of the
    curves, over their index on a log axis.
    """
    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    left, *right = figure.subplots(1, 1 if curves is None else 2, squeeze=False)[0]
    parts = [name for name in table.columns if table[name].sum()]
    start = np.zeros(len(table))
    for part in parts:
        counts = table[part].to_numpy("float64")
        left.barh(table.index.tolist(), counts, left=start, height=0.7, color=_COLOURS.get(part, _GREY), edgecolor="w")
        start = start + counts
    left.invert_yaxis()
    left.set(ylabel=bars[0], xlabel=bars[1])
    left.grid(axis="y", visible=False)
    left.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    left.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _legend(figure, {f"{part}: {int(table[part].sum()):,}": _COLOURS.get(part, _GREY) for part in parts})
    if curves is None:
        return figure
    (axes,) = right
    for place, name in enumerate(curves.columns):
        colour = to_hex(_COLOURS.get(name, _GREY))  # a text looks C0 up when it is drawn, outside the style
        axes.step(curves.index, curves[name], where="post", color=colour)
        axes.text(0.04, 0.04 + 0.08 * place, name, color=colour, transform=axes.transAxes)
    axes.set(xscale="log", xlabel=lines[0], ylabel=lines[1], ylim=(0, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    return figure


def over_time(line: pd.DataFrame, column: str, *, ylabel: str) -> Figure:
    """A column of `throughput.timeline` as steps, with its mean over time."""
    if line.empty:
        return nothing_to_draw("no response is on record")
    figure, axes = new_axes()
    end = float(line["width_s"].sum())
    unit, seconds = next(
        (u, s) for u, s in (("hours", 3600), ("minutes", 60), ("seconds", 1)) if end >= 2 * s or s == 1
    )
    edges = np.append(0.0, np.cumsum(line["width_s"].to_numpy("float64"))) / seconds
    heights = line[column].to_numpy("float64")
    axes.stairs(heights, edges, fill=True, color=_BLUE, alpha=0.25)
    axes.stairs(heights, edges, color=_BLUE, linewidth=1.4)
    mean = float(heights.mean())
    axes.axhline(mean, color="#27272a", linewidth=1, linestyle="--")
    axes.annotate(f"mean {mean:,.1f}", (edges[-1], mean), (0, 3), textcoords="offset points", ha="right", fontsize=9)
    axes.set(xlabel=f"{unit} since the first request", ylabel=ylabel, xlim=(0, edges[-1]))
    axes.set_ylim(0, float(heights.max()) * 1.1)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}" if heights.max() >= 5 else "{x:g}"))
    return figure


def mark_percentiles(axes: Axes, values: Values, *, form: str) -> None:
    """Lines at the median, the 90th and the 99th percentile, each with its value; a few values get a median alone."""
    marks = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    needed = {"median": 1, "p90": 10, "p99": 100}
    axes.margins(y=0.3)
    for place, (name, share) in enumerate(marks.items()):
        if len(values) < needed[name]:
            continue
        value = float(np.quantile(values, share))
        axes.axvline(value, color="#27272a", linewidth=1, linestyle="--")
        on_the_right = axes.transLimits.transform(axes.transScale.transform((value, 0)))[0] > 0.8
        axes.annotate(
            f"{name} {form.format(value)}",
            (value, 0.99 - 0.075 * place),
            (-3 if on_the_right else 3, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if on_the_right else "left",
            va="top",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
        )


def _log_edges(lengths: Values) -> Values:
    """Bin edges between whole numbers, evenly spaced on a log axis as far as whole numbers allow."""
    low, high = float(lengths.min()), float(lengths.max())
    bins = int(np.clip(2 * np.sqrt(len(lengths)), 8, _MOST_BINS))
    edges: Values = np.unique(np.round(np.geomspace(low, high + 1, bins + 1))) - 0.5
    return edges


def _log_axis(axes: Axes, edges: Values) -> None:
    axes.set_xscale("log")
    low, high = edges[0], edges[-1]
    if high / low < 4:  # one decade mark at the most would be in sight
        middle = np.sqrt(low * high)
        low, high = min(low, middle / 2), max(high, middle * 2)
    decades = np.log10(high / low)
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 3.5 else (1,), numticks=20))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _legend(figure: Figure, labels: Mapping[str, str]) -> None:
    """Labels in a line above the axes, in the order of the parts."""
    patches = [Patch(color=colour, label=label) for label, colour in labels.items()]
    figure.legend(handles=patches, loc="outside upper left", ncols=len(labels), columnspacing=1.5)


def new_axes(height: float = 3.6) -> tuple[Figure, Axes]:
    """A figure of the report's width, `height` in inches, with one pair of axes."""
    figure = Figure(figsize=(7.6, height), layout="constrained")
    return figure, figure.add_subplot()


def nothing_to_draw(message: str) -> Figure:
    """A figure that says that there is nothing to draw."""
    figure, axes = new_axes(height=1.2)
    axes.set_axis_off()
    axes.text(0.5, 0.5, message, ha="center", va="center", transform=axes.transAxes)
    return figure


def values(column: pd.Series) -> Values:
    """A column as float64, null as NaN."""
    return column.to_numpy("float64")
