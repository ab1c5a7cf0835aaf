"""What the audits draw: tables in, matplotlib Figures out.

This module does not know where the tables come from (audits, replay_losses), nor what to say of them
(audit_takeaways).
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from ..reporting.drawing import new_axes, nothing_to_draw, titled
from .audit_records import Audits

NAMES = {"captured": "as captured", "retokenised": "re-tokenised", "rerendered": "re-rendered"}
_COLOURS = {"captured": "#1845fb", "retokenised": "#ff5e02", "rerendered": "#c91f16"}
_MARKS = {"captured": "o", "retokenised": "^", "rerendered": "s"}
_KINDS = {"reasoning": "reasoning", "answer": "answer", "tool_call": "tool calls"}


@titled
def lost_ids(audits: Audits) -> Figure:
    """A pair of bars a kind of text: the share of its ids that re-tokenising changes, and that re-rendering loses."""
    groups = {"retokenised": audits.drift, "rerendered": audits.rerendering}
    rates = {name: [found[f"{kind}_ids_lost"] for kind in _KINDS] for name, found in groups.items()}
    if not any(each.of for found in rates.values() for each in found):
        return nothing_to_draw("no row was compared")
    figure, axes = new_axes(height=2.9)
    places = np.arange(len(_KINDS))
    for shift, (name, found) in zip((-0.2, 0.2), rates.items(), strict=True):
        shares = [each.share or 0.0 for each in found]
        bars = axes.barh(places + shift, shares, height=0.36, color=_COLOURS[name], label=NAMES[name])
        texts = [f"{each.count:,} of {each.of:,} ids" if each.of else "no ids" for each in found]
        axes.bar_label(bars, labels=texts, padding=4)
    axes.set_yticks(places, list(_KINDS.values()))
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.45), xlabel="share of the captured ids that are not there any more")
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    figure.legend(loc="outside upper left", ncols=2)
    return figure


@titled
def likelihood_by_position(table: pd.DataFrame) -> Figure:
    """Mean log-likelihood over the output, a line a version, from `replay_losses.likelihood_by_position`."""
    if table.empty:
        return nothing_to_draw("no row was scored")
    figure, axes = new_axes()
    # Where two versions read the same their lines lie on each other: the widest is drawn first.
    for width, name in zip((5.0, 2.4, 1.4), NAMES, strict=True):
        line = table[["position", name]].dropna()
        shade = 0.3 if name == "captured" else 1.0
        axes.plot(
            line["position"],
            line[name],
            color=_COLOURS[name],
            linewidth=width,
            alpha=shade,
            marker=_MARKS[name],
            markersize=4,
            label=NAMES[name],
        )
    axes.set(xlabel="position in the captured output (ids)", ylabel="log-likelihood (nats an id)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    figure.legend(loc="outside upper left", ncols=3)
    return figure


@titled
def loss_behind_changes(table: pd.DataFrame) -> Figure:
    """Loss of log-likelihood by distance behind a change, a line a version; from the same function of replay_losses."""
    if table.empty:
        return nothing_to_draw("no scored row changes")
    figure, axes = new_axes()
    for name in list(NAMES)[1:]:
        line = table[table["version"] == name]
        if line.empty:
            continue
        label = f"{NAMES[name]}: {line['ids'].sum():,} ids"
        axes.plot(line["distance"] + 1, line["loss"], color=_COLOURS[name], marker=_MARKS[name], label=label)
    axes.axhline(0, color="#27272a", linewidth=1)
    axes.set(xscale="log", xlabel="ids behind the last change (log scale)", ylabel="loss (nats an id)")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    figure.legend(loc="outside upper left", ncols=2)
    return figure
