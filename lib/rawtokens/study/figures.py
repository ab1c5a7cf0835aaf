"""What the study draws: tables in, matplotlib Figures out. It does not know where the tables come from."""

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..reporting.drawing import BLUE, INK, ORANGE, SKY, new_axes, nothing_to_draw, styled
from .forms import ARMS, VERBATIM

MARKS = "osD^vPX"
_LONGEST = 160  # ids of a strip


@styled
def arms(table: pd.DataFrame) -> Figure:
    """Acceptance length by arm from `acceptance_table`: each seed a dot, the mean a bar with its interval."""
    figure, axes = new_axes(height=1.1 + 0.45 * len(table))
    for place, (_, line) in enumerate(table.iterrows()):
        spread = [[line["length"] - line["low"]], [line["high"] - line["length"]]]
        axes.errorbar(line["length"], place, xerr=spread, fmt="|", color=BLUE, markersize=14, capsize=4)
        axes.scatter(line["seeds"], np.full(len(line["seeds"]), place), color=ORANGE, s=18, zorder=3)
        axes.annotate(f"{line['length']:.2f}", (line["high"], place), (6, 0), textcoords="offset points", va="center")
    axes.axvline(float(table["length"][VERBATIM]), color=INK, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(table)), [ARMS[str(name)] for name in table.index])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)
    axes.set(xlabel="ids a verification step")
    return figure


@styled
def positions(table: pd.DataFrame) -> Figure:
    """Share of steps in which a draft's position was accepted, a line an arm, from `position_table`."""
    figure, axes = new_axes(height=3.6)
    for number, (name, line) in enumerate(table.iterrows()):
        mark, width = MARKS[number % len(MARKS)], 2.6 if name == VERBATIM else 1.3
        axes.plot(table.columns, line.to_numpy("float64"), marker=mark, linewidth=width, label=ARMS[str(name)])
    axes.set(xlabel="position in the draft", ylabel="accepted, share of steps", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.legend(loc="outside upper left", ncols=2, fontsize=8)
    return figure


@styled
def conversation(rows: dict[str, tuple[list[int], list[int]]]) -> Figure:
    """One prompt's row in each arm, a cell an id, from the prompt's last ids on; blue and orange is trained on."""
    if VERBATIM not in rows:
        return nothing_to_draw("no conversation is in every arm")
    captured, mask = rows[VERBATIM]
    start = max(0, mask.index(1) - 6)
    own = captured[start:]
    longest = min(_LONGEST, max(len(ids) - start for ids, _ in rows.values()))
    cells = np.full((len(rows), longest), np.nan)
    for line, (ids, ones) in enumerate(rows.values()):
        for place, (each, one) in enumerate(zip(ids[start:][:longest], ones[start:], strict=False)):
            same = place < len(own) and own[place] == each
            cells[line, place] = 0 if not one else (1 if same else 2)
    figure, axes = new_axes(height=1.2 + 0.36 * len(rows))
    axes.pcolormesh(np.arange(longest + 1), np.arange(len(rows) + 1), cells, cmap=ListedColormap([SKY, BLUE, ORANGE]),
                    vmin=0, vmax=2, edgecolors="white", linewidth=0.4)  # fmt: skip
    axes.set_yticks(np.arange(len(rows)) + 0.5, [ARMS[name] for name in rows])
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set(xlabel="ids, from the prompt's end on")
    labels = {"not trained on": SKY, "as captured, in its place": BLUE, "another id, or another place": ORANGE}
    figure.legend(handles=[Patch(color=each, label=text) for text, each in labels.items()], loc="outside upper left")
    return figure
