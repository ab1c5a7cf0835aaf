"""Bars of the report's figures: stacked, from the left, their parts named in them where the names fit.

This module does not know what a row is; figures says what is drawn.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from .drawing import COLOURS, GREY, INK, count_axis, legend, new_axes, nothing_to_draw, short_name


def stacked_bars(table: pd.DataFrame, total: str, *, xlabel: str, nothing: str) -> Figure:
    """Horizontal stacked bars: a line of `table` a bar, a column a part; the column `total` is their sum."""
    if table.empty or not table[total].sum():
        return nothing_to_draw(nothing)
    parts = [name for name in table.columns if name != total and table[name].sum()]
    figure, axes = new_axes(height=1.5 + 0.36 * len(table))
    draw_bars(axes, table[parts])
    totals = table[total].to_numpy("float64")
    for place, end in enumerate(totals):
        inside = [f"{int(table[part].iloc[place]):,} {part}" for part in parts if table[part].iloc[place]]
        text = f"{int(end):,}" if len(inside) != 1 else inside[0]
        axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center")
    axes.set(xlabel=xlabel, xlim=(0, totals.max() * 1.35))
    count_axis(axes.xaxis, most=5)
    legend(figure, {f"{part}: {int(table[part].sum()):,}": COLOURS.get(part, GREY) for part in parts})
    return figure


def draw_bars(axes: Axes, table: pd.DataFrame) -> None:
    """Horizontal stacked bars, a line of `table` a bar from the top, a column a part in its colour of COLOURS.

    A part's name stands in its longest bar where it fits.
    """
    names, left = [short_name(str(name)) for name in table.index], np.zeros(len(table))
    places = np.arange(len(table))
    whole = float(table.sum(axis=1).max()) or 1.0
    for part in table.columns:
        counts = table[part].to_numpy("float64")
        colour = COLOURS.get(part, GREY)
        axes.barh(places, counts, left=left, height=0.7, color=colour, edgecolor="white")
        longest = int(counts.argmax())
        if counts[longest] / whole > 0.03 * len(str(part)):
            middle = float(left[longest] + counts[longest] / 2)
            axes.text(middle, longest, str(part), ha="center", va="center", color=_readable_on(colour))
        left = left + counts
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def _readable_on(colour: str) -> str:
    red, green, blue = to_rgb(colour)
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.42 else INK
