"""The whole hand-off of one data set, step by step as notebook 05 takes it: what the command `export` does.

This module does not know where the data set lies, nor what is done with the files.
"""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from ..reporting.wording import counted
from ..target.target_tokenizer import Tokenizer
from .contamination import Contamination, Overlap, contamination_takeaway, write_contamination
from .draft_vocabulary import coverage_takeaway, write_draft_vocabulary
from .export import export
from .loss_report import loss_takeaway, write_loss_report
from .manifest import ExportedFormat
from .policies import Selection, select_rows
from .rows import read_training_rows
from .settings import TrainingSettings
from .survey import survey


def hand_off(
    folder: Path, tokenizer: Tokenizer, settings: TrainingSettings, *, on_line: Callable[[str], None] = print
) -> list[ExportedFormat]:
    """Export a data set, report what trainers lose, choose the draft vocabulary, compare with evaluation prompts.

    Raises InputError and RunStopped as `export` does.
    """
    selection = select_rows(folder, settings)
    on_line(selection_takeaway(selection))
    exported = export(folder, markers=tokenizer.markers, settings=settings, selection=selection, on_line=on_line)
    found = survey(
        folder,
        selection,
        markers=tokenizer.markers,
        vocabulary_size=tokenizer.vocabulary_size,
        settings=settings,
    )
    write_loss_report(folder, found.losses)
    on_line(loss_takeaway(found.losses))
    write_draft_vocabulary(folder, found.counts, settings.draft_vocabulary)
    on_line(coverage_takeaway(found.counts, settings.draft_vocabulary))
    if settings.evaluation_prompts:
        on_line(contamination_takeaway(compare_with_evaluation(folder, selection, tokenizer, settings)))
    return exported


def compare_with_evaluation(
    folder: Path, selection: Selection, tokenizer: Tokenizer, settings: TrainingSettings
) -> list[Overlap]:
    """Compare the train split with each file of evaluation prompts, and write contamination.json.

    Without files nothing is read; an earlier contamination.json then is removed, for it speaks of other files.
    """
    checks = [Contamination(path, tokenizer.encode) for path in settings.evaluation_prompts]
    if checks:
        train = selection.kept & ~selection.held_out
        for batch in read_training_rows(folder, tokenizer.markers, train):
            for check in checks:
                check.add(batch)
    found = [check.overlap() for check in checks]
    path = write_contamination(folder, found)
    if not found:
        path.unlink()
    return found


def selection_table(selection: Selection) -> pd.DataFrame:
    """Rows in and rows out: a line for train, held out, each reason for leaving rows out, and their sum."""
    counts = selection.counts()
    lines = {"train": counts["train"], "held out": counts["held_out"]}
    lines |= {f"left out: {reason}": count for reason, count in selection.left_out.items()}
    return pd.DataFrame({"rows": pd.Series({**lines, "all rows": counts["rows"]}, dtype="int64")})


def selection_takeaway(selection: Selection) -> str:
    """Where every row went, in words."""
    counts = selection.counts()
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in selection.left_out.items())
    text = (
        f"{counted(counts['rows'], 'row')} verified = {counts['train']:,} to train on + "
        f"{counts['held_out']:,} held out + {counts['left_out']:,} left out" + (f" ({reasons})." if reasons else ".")
    )
    if selection.repeated:
        text += f" Rows with the prompt of an earlier one: {selection.repeated:,}."
    if selection.longer:
        text += f" The prompts of {counted(len(selection.longer), 'truncated row')} are in generate_longer.jsonl."
    return text
