"""The study's page, figures and executed report, small enough to be committed; written from numbers alone."""

import os
import platform
import shutil
from pathlib import Path

import pandas as pd
from matplotlib import rc_context

from . import figures, takeaways
from .environment import requirements
from .forms import ARMS
from .results import Study, acceptance_table, confirmed_table, data_table, part_table, position_table

NAME = "drafter_study"
PAGE = """\
# What infidelity costs a draft model

EAGLE-3 heads, trained by {trainer} on captures by this kit of the demo reasoner (1.1 million parameters) on the real
SGLang, and on what others would have made of the same answers: {prompts:,} prompts at temperature 1, {ids:,} supervised
ids an arm seen {epochs} times, {seeds} seeds, a draft vocabulary of {vocabulary:,} ids. Measured on {sequences} greedy
answers of {asked} held-out prompts, four ids a draft. Acceptance length is ids a verification step; 1 is no help.
Intervals are 95 % ones over seeds and prompts.

{acceptance}

![Acceptance length by arm]({name}.svg)

{lengths}

{parts_said}

{parts}

{positions_said}

![Share of steps in which each position was accepted]({name}_positions.svg)

{positions}

{data_said}

{data}

vLLM's own speculative decoding with the same heads, where drafts beyond an answer's end count too: {confirmed_said}

{confirmed}

The target is a toy and the heads see tens of thousands of ids where a real one sees billions: directions, not
percentages. Where no difference was measured there may be one inside the interval. The answers to train on are one
draw of the target: another capture moves the lengths, which the intervals do not cover. Learning rate and steps were
chosen among three settings by one verbatim head on these same prompts, which favours that arm.

Made by `{command}` on {ran_on}. The whole report: [{name}.html]({name}.html).
"""


def write_page(folder: Path, study: Study, report: Path, *, command: str) -> Path:
    """Write page, figures and report into `folder`; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    lengths, positions = acceptance_table(study), position_table(study)
    shown = lengths.drop(columns="seeds").rename(index=ARMS)
    form, confirmed = study.form, confirmed_table(study)
    text = PAGE.format(
        name=NAME,
        trainer=requirements("speculators"),
        prompts=form.prompts,
        ids=study.arms[0].supervised_ids,
        epochs=form.epochs,
        seeds=len(form.seeds),
        vocabulary=form.draft_vocabulary,
        sequences=study.sequences,
        asked=form.evaluation_prompts,
        acceptance=takeaways.acceptance(study),
        lengths=markdown(shown, "{:.2f}"),
        parts_said=takeaways.parts(study),
        parts=markdown(part_table(study).rename(index=ARMS), "{:.2f}"),
        positions_said=takeaways.positions(study),
        positions=markdown(positions.rename(index=ARMS), "{:.1%}"),
        data_said=takeaways.data(study),
        data=markdown(data_table(study), "{:.0f}"),
        confirmed_said=takeaways.confirmed(study),
        confirmed=markdown(confirmed.set_index("arm"), "{:.3f}") if len(confirmed) else "",
        command=command,
        ran_on=f"{len(os.sched_getaffinity(0))} CPU cores ({platform.machine()}, Python {platform.python_version()})",
    )
    page = folder / f"{NAME}.md"
    page.write_text(text, "utf-8")
    drawn = {NAME: figures.arms(lengths), f"{NAME}_positions": figures.positions(positions)}
    with rc_context({"svg.hashsalt": NAME}):  # the same file from the same numbers
        for name, figure in drawn.items():
            figure.savefig(folder / f"{name}.svg", facecolor="white", metadata={"Date": None})
    shutil.copyfile(report, folder / f"{NAME}.html")
    return page


def markdown(table: pd.DataFrame, form: str) -> str:
    """A Markdown table with the index in front; fractions by `form`, whole numbers with separators, NaN as a dash."""

    def cell(value: object) -> str:
        if isinstance(value, str):
            return value
        number = float(str(value))
        if pd.isna(number):
            return "–"
        return form.format(number) if isinstance(value, float) else f"{int(number):,}"

    head = [str(table.index.name or ""), *map(str, table.columns)]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * len(table.columns)]
    columns = [table[name].tolist() for name in table.columns]
    for place, name in enumerate(table.index):
        lines.append("| " + " | ".join([str(name), *(cell(column[place]) for column in columns)]) + " |")
    return "\n".join(lines)
