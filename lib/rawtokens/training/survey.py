"""One pass over the rows of an export: what trainers will lose of them, and how often each id is trained on.

This module does not write anything.
"""

from pathlib import Path
from typing import NamedTuple

from ..markers import Markers
from .cycles import read_rows
from .draft_vocabulary import IdCounts
from .loss_report import LossReport
from .policies import Selection
from .settings import TrainingSettings


class Survey(NamedTuple):
    """The loss report of the train split, and counts of ids of both splits."""

    losses: LossReport
    counts: IdCounts


def survey(
    folder: Path, selection: Selection, *, markers: Markers, vocabulary_size: int, settings: TrainingSettings
) -> Survey:
    """Look at every kept row once. Raises InputError where verified.parquet can't be read."""
    found = Survey(LossReport(settings), IdCounts(vocabulary_size, settings.mask))
    for batch in read_rows(Path(folder), markers, selection):
        out = selection.held_out[batch.numbers]
        train = batch.take(~out)
        found.losses.add(train)
        found.counts.add(train, held_out=False)
        found.counts.add(batch.take(out), held_out=True)
    return found
