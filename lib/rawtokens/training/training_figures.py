"""What notebook 05 draws: coverage by a draft vocabulary, and what trainers lose; tables in, Figures out.

This module does not know where the numbers come from.
"""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ..reporting.curves import name_lines, share_axis, share_curves
from ..reporting.drawing import GREY, new_axes, nothing_to_draw, titled
from .draft_vocabulary import HELD_OUT, IdCounts, coverage_curve
from .loss_report import PARTS, LossReport, loss_table

_MARKS = ("o", "s", "^", "D")


@titled
def draft_coverage(counts: IdCounts, size: int) -> Figure:
    """The share of trained ids that the n most frequent cover, by part and in the held-out rows; `size` is marked."""
    if not counts.total.sum():
        return nothing_to_draw("there is no id to train on")
    curve = coverage_curve(counts)
    figure, axes = new_axes(height=3.6)
    names = {"all": "all", **{part: part.replace("_", " ") for part in PARTS}, HELD_OUT: "held-out rows"}
    share_curves(
        axes,
        {
            words: curve[["ids", name]].rename(columns={name: "share"})
            for name, words in names.items()
            if curve[name].notna().any()
        },
        "share",
        xlabel="most frequent ids taken (log scale)",
        ylabel="share of trained ids covered",
    )
    name_lines(figure, axes)
    axes.axvline(size, color=GREY, linewidth=1, linestyle=":")
    return figure


@titled
def trainer_losses(report: LossReport) -> Figure:
    """The share of the ids to train on that each trainer loses, over its maximum length."""
    table = loss_table(report)
    if table.empty or not table["ids to train on"].sum():
        return nothing_to_draw("there is no id to train on")
    figure, axes = new_axes(height=3.2)
    for mark, (name, lines) in zip(_MARKS, table.groupby("trainer", sort=False), strict=False):
        axes.plot(lines["max length"], lines["share lost"], marker=mark, markersize=4, label=str(name))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(table["max length"])))
    axes.set_xlabel("a trainer's maximum length, in ids (log scale; k is 1,024)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    share_axis(axes, "share of ids lost")
    name_lines(figure, axes)
    return figure
