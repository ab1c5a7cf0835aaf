"""How the kit draws: the style, titles, legends, histograms of lengths on log axes.

Made for no value, for one and for 100,000. Groups are told apart by their place and a label first, by colour second.
This module does not know what a row is; figures says what is drawn, curves draws
lines and bars draws bars.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from .figure_titles import TITLES
from .wording import counted, either, in_short

STYLE = Path(__file__).with_name("rawtokens.mplstyle")
BLUE, ORANGE, RED, PINK, OLIVE, SKY, GREY = "#1845fb", "#ff5e02", "#c91f16", "#c849a9", "#adad7d", "#86c8dd", "#656364"
INK = "#27272a"
COLOURS = {
    "stop": BLUE,
    "length": ORANGE,
    "accept": BLUE,
    "flag": ORANGE,
    "reject": RED,
    "reasoning": BLUE,
    "closer": RED,
    "answer": SKY,
    "tool calls": ORANGE,
    "stop id": PINK,
    "generated": BLUE,
    "estimated": ORANGE,
    "to an earlier prompt": PINK,
    "in flight at the stop": ORANGE,
    "rejected": RED,
    "opened": BLUE,
    "off": SKY,
    "by_model": ORANGE,
    "closed": BLUE,
    "tool_closed": SKY,
    "truncated_in_thinking": ORANGE,
    "truncated_in_answer": PINK,
    "thinking_off": OLIVE,
    "never_closed": RED,
}
"""The colour of a part by its name; a part that is not here is grey."""

WIDTH = 5.2  # inches, of every figure: see the style sheet
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


def titled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """`styled`, with the title that TITLES has for the function's name, above the legend where there is one."""
    title = TITLES[draw.__name__]

    @styled
    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        figure = draw(*args, **kwargs)
        if not figure.legends:
            legend(figure, {})
        (labels,) = figure.legends
        labels.set_title(title, prop=FontProperties(size=11, weight="bold"))
        labels.set_alignment("left")
        return figure

    return drawn


def title_of(figure: Figure) -> str:
    """The title that `titled` gave a figure; "" where it has none."""
    return figure.legends[0].get_title().get_text() if figure.legends else ""


def short_name(name: str, limit: int = 24) -> str:
    """A name of at most `limit` characters, its middle left out where it is longer: both ends tell models apart."""
    if len(name) <= limit:
        return name
    head = (limit - 1) // 2
    return f"{name[:head]}…{name[len(name) - (limit - 1 - head) :]}"


def length_histogram(groups: Mapping[str, Values], xlabel: str, *, nothing: str, axes: Axes | None = None) -> Figure:
    """Stacked histogram over bins of equal width on the log axis. 0 has no place there: such rows are counted in
    the corner instead. Into `axes` where given, else into a figure of its own."""
    every = np.concatenate(list(groups.values()))
    drawn = {name: lengths[lengths > 0] for name, lengths in groups.items() if len(lengths)}
    positive = every[every > 0]
    if not len(positive):
        empty = f"{counted(len(every), 'row')} {either(len(every), 'has', 'have')} 0 ids"
        return nothing_to_draw(f"{nothing}: {empty}" if len(every) else nothing)
    axes = axes or new_axes()[1]
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    shown = [colour for colour, lengths in zip((BLUE, ORANGE), groups.values(), strict=False) if len(lengths)]
    edges = _log_edges(positive)
    axes.hist(list(drawn.values()), bins=edges.tolist(), stacked=True, color=shown, edgecolor="white", linewidth=0.5)
    log_axis(axes, edges[0], edges[-1])
    count_axis(axes.yaxis)
    axes.set(xlabel=xlabel, ylabel="rows")
    mark_percentiles(axes, every)
    if len(groups) > 1:
        legend(figure, {f"{name}: {len(groups[name]):,}": colour for name, colour in zip(drawn, shown, strict=True)})
    zeros = len(every) - len(positive)
    if zeros:
        axes.text(0.0, 1.0, f"{zeros:,} with 0 ids not drawn", transform=axes.transAxes, va="top")
    return figure


def mark_percentiles(axes: Axes, values: Values) -> None:
    """Lines at the median, the 90th and the 99th percentile, each with its value; a few values get a median alone."""
    marks = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    needed = {"median": 1, "p90": 10, "p99": 100}
    axes.margins(y=0.4)
    for place, (name, share) in enumerate(marks.items()):
        if len(values) < needed[name]:
            continue
        value = float(np.quantile(values, share))
        axes.axvline(value, color=INK, linewidth=1, linestyle="--")
        on_the_right = axes.transLimits.transform(axes.transScale.transform((value, 0)))[0] > 0.7
        axes.annotate(
            f"{name} {in_short(value) if name == 'median' else f'{value:,.0f}'}",
            (value, 0.99 - 0.095 * place),
            (-3 if on_the_right else 3, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if on_the_right else "left",
            va="top",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
        )


def log_axis(axes: Axes, low: float, high: float) -> None:
    """A log axis over lengths from `low` to `high`, with plain numbers at its marks."""
    axes.set_xscale("log")
    if high / low < 4:  # one decade mark at the most would be in sight
        middle = np.sqrt(low * high)
        low, high = min(low, middle / 2), max(high, middle * 2)
    decades = np.log10(high / low)
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1, 2, 5) if decades < 2.2 else (1, 3) if decades < 3.5 else (1,), numticks=20)
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def count_axis(axis: Axis, *, most: int = 6) -> None:
    """Whole numbers with thousands separators at up to `most` marks."""
    axis.set_major_locator(MaxNLocator(nbins=most, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def legend(figure: Figure, labels: Mapping[str, str]) -> None:
    """Labels (text to colour) above the axes, in the order of the parts, in as many lines as the width asks for."""
    legend_of([Patch(color=colour, label=label) for label, colour in labels.items()], figure)


def legend_of(handles: Sequence[Patch] | Sequence[Line2D], figure: Figure, *, handle_length: float = 0.9) -> None:
    """A legend of these handles above the axes, read line by line; a legend fills its columns one after the other."""
    size = FontProperties(size=10)  # points: the style's
    texts = [TextPath((0, 0), str(handle.get_label()), size=10, prop=size).get_extents().width for handle in handles]
    column = max(texts, default=0.0) + 10 * handle_length + 22  # the space after a handle, and between columns
    columns = max(1, min(len(handles), int(72 * WIDTH / column)))
    ordered = [handle for column in range(columns) for handle in handles[column::columns]]
    figure.legend(handles=ordered, loc="outside upper left", ncols=columns, handlelength=handle_length)


def new_axes(height: float = 3.2) -> tuple[Figure, Axes]:
    """A figure of the report's width, `height` in inches, with one pair of axes."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def nothing_to_draw(message: str) -> Figure:
    """A figure that says that there is nothing to draw."""
    figure, axes = new_axes(height=1.3)
    axes.set_axis_off()
    axes.text(0.5, 0.5, message, ha="center", va="center", transform=axes.transAxes, wrap=True)
    return figure


def values(column: pd.Series) -> Values:
    """A column as float64, null as NaN."""
    return column.to_numpy("float64")


def _log_edges(lengths: Values) -> Values:
    """Bin edges between whole numbers, evenly spaced on a log axis as far as whole numbers allow."""
    low, high = float(lengths.min()), float(lengths.max())
    bins = int(np.clip(2 * np.sqrt(len(lengths)), 8, _MOST_BINS))
    edges: Values = np.unique(np.round(np.geomspace(low, high + 1, bins + 1))) - 0.5
    return edges
