"""Lines of the report's figures: shares over lengths, columns over time, bars beside curves.

A line is told by a label at the line itself, then by its dashes, then by its colour. This module does not know what
a row is; figures says what is drawn.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, PercentFormatter, StrMethodFormatter

from .bars import draw_bars
from .drawing import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    OLIVE,
    ORANGE,
    PINK,
    RED,
    SKY,
    WIDTH,
    Values,
    count_axis,
    legend,
    legend_of,
    log_axis,
    new_axes,
    nothing_to_draw,
)

_LINES: Sequence[tuple[str, str]] = (
    (BLUE, "-"),
    (ORANGE, "--"),
    (RED, "-."),
    (PINK, ":"),
    (GREY, "-"),
    (SKY, "--"),
    (OLIVE, "-."),
    (INK, ":"),
)
MOST_LINES = len(_LINES)
_POINTS = 300  # of a curve; more can't be told apart in print, and make an SVG heavy


def thinned(curve: pd.DataFrame) -> pd.DataFrame:
    """At most 300 points of a curve, evenly spaced on a log axis by its column `ids`, its ends among them."""
    if len(curve) <= _POINTS:
        return curve
    ids = curve["ids"].to_numpy("float64")
    wanted = np.searchsorted(ids, np.geomspace(max(ids[0], 1.0), ids[-1], _POINTS))
    return curve.iloc[np.unique(np.concatenate([[0], wanted.clip(max=len(ids) - 1)]))]


def share_axis(axes: Axes, ylabel: str) -> None:
    """A vertical axis from 0 to 100 %."""
    axes.set(ylabel=ylabel, ylim=(0, 1.02))
    axes.yaxis.set_major_locator(MultipleLocator(0.25))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def share_curves(axes: Axes, curves: Mapping[str, pd.DataFrame], column: str, *, xlabel: str, ylabel: str) -> None:
    """Steps of `column` over `ids` (log axis), a line a curve, told apart by its dashes.

    Every curve has at least one point; lengths of 0 stand at 1.
    """
    ends = [curve["ids"].clip(lower=1) for curve in curves.values()]
    low, high = min(end.min() for end in ends), max(end.max() for end in ends)
    log_axis(axes, float(low), float(high) * 1.02)
    for place, (name, curve) in enumerate(curves.items()):
        colour, dashes = _LINES[place % MOST_LINES]
        points = thinned(curve)
        ids = points["ids"].clip(lower=1)
        marker = "o" if len(points) == 1 else ""
        axes.step(ids, points[column], where="post", color=colour, linestyle=dashes, label=name, marker=marker)
    share_axis(axes, ylabel)
    axes.set_xlabel(xlabel)


def name_lines(figure: Figure, axes: Axes) -> None:
    """The names of `share_curves` above the axes, beside a piece of each line; one line alone needs no name."""
    if len(axes.lines) > 1:
        legend_of(axes.lines, figure, handle_length=2.2)


def over_time(
    line: pd.DataFrame, column: str, *, ylabel: str, mean: float | None = None, percent: bool = False
) -> Figure:
    """A column of a timeline (`width_s` and the column) as steps, with a dashed line at `mean`.

    `mean` is that of the column over time where not given. Bins without a value (NaN) stay empty.
    """
    if line.empty:
        return nothing_to_draw("no response is on record")
    figure, axes = new_axes(height=2.9)
    end = float(line["width_s"].sum())
    unit, seconds = next(
        (u, s) for u, s in (("hours", 3600), ("minutes", 60), ("seconds", 1)) if end >= 2 * s or s == 1
    )
    edges = np.append(0.0, np.cumsum(line["width_s"].to_numpy("float64"))) / seconds
    heights: Values = line[column].to_numpy("float64")
    axes.stairs(heights, edges, fill=True, color=BLUE, alpha=0.25)
    axes.stairs(heights, edges, color=BLUE, linewidth=1.4)
    middle = float(np.nanmean(heights)) if mean is None else mean
    axes.axhline(middle, color=INK, linewidth=1, linestyle="--")
    form = "{:.0%}" if percent else "{:,.0f}" if middle >= 10 else "{:,.1f}"
    axes.annotate(
        f"mean {form.format(middle)}",
        (edges[-1], middle),
        (0, 3),
        textcoords="offset points",
        ha="right",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8},
    )
    axes.set(xlabel=f"{unit} since the first request", ylabel=ylabel, xlim=(0, edges[-1]))
    if percent:
        share_axis(axes, ylabel)
        return figure
    top = float(np.nanmax(heights))
    axes.set_ylim(0, top * 1.15)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}" if top >= 5 else "{x:g}"))
    return figure


def bars_and_curves(
    table: pd.DataFrame, curves: pd.DataFrame | None, *, bar_labels: tuple[str, str], line_labels: tuple[str, str]
) -> Figure:
    """Stacked bars of `table` (a line a bar, a column a part) and, below them, the columns of `curves` as steps.

    `bar_labels` are the vertical and the horizontal axis of the bars, `line_labels` the horizontal and the vertical
    one of the curves, over their index on a log axis.
    """
    figure = Figure(figsize=(WIDTH, 3.4 if curves is None else 6.2), layout="constrained")
    upper, *lower = figure.subplots(1 if curves is None else 2, 1, squeeze=False)[:, 0]
    parts = [name for name in table.columns if table[name].sum()]
    draw_bars(upper, table[parts])
    upper.set(ylabel=bar_labels[0], xlabel=bar_labels[1])
    count_axis(upper.xaxis, most=5)
    legend(figure, {f"{part}: {int(table[part].sum()):,}": COLOURS.get(part, GREY) for part in parts})
    if curves is not None:
        named = {str(name): curves[name].rename("share").rename_axis("ids").reset_index() for name in curves.columns}
        share_curves(lower[0], named, "share", xlabel=line_labels[0], ylabel=line_labels[1])
        lower[0].legend(loc="lower left", frameon=True, framealpha=0.85, handlelength=2.2)
    return figure
