"""Training rows: the ids of a prompt and its output as one list, and what each stretch of them is.

A row is a list of ids and the runs that cover it: prompt, reasoning, closer, answer, tool calls, stop id. One row is
one generated turn here; a row of several turns would have several prompt runs and needs nothing else. Runs come from
the lengths in verified.parquet and from marker ids, never from text, and must give the lengths that were verified.
This module does not know which rows are wanted (policies does), nor which ids are trained on (masks does).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import InputError, one_line
from ..markers import Markers, thinking_mode
from ..records import open_parquet
from ..response_checks import pieces
from ..response_checks.channel_segments import segment_outputs
from ..response_checks.response_columns import NO_ID, IdLists
from ..response_checks.segments import Segments

VERIFIED = "verified.parquet"
FACTS = (
    "key",
    "verdict",
    "shape",
    "finish_reason",
    "prompt_tokens",
    "output_tokens",
    "reasoning_tokens",
    "answer_tokens",
    "tool_tokens",
)
"""What goes with a row into every export: strings and ints without null, for `datasets` guesses a column's type from
its first block (10 MB) and breaks where a later one differs."""
REASONING, CLOSER, ANSWER, TOOL = pieces.REASONING, pieces.CLOSER, pieces.ANSWER, pieces.TOOL
STOP, PROMPT = TOOL + 1, TOOL + 2
LABELS = ("reasoning", "closer", "answer", "tool calls", "stop id", "prompt")
_BATCH_ROWS = 1024

Integers = NDArray[np.int64]


class Runs(NamedTuple):
    """Stretches of ids of one label, in order; together they cover every id of a batch once."""

    rows: Integers
    starts: Integers  # flat position in the batch's ids
    lengths: Integers
    labels: NDArray[np.int8]  # a place in LABELS


class TrainingRows(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Some rows of verified.parquet; `numbers` are their places in it, counted from 0, and `facts` has FACTS."""

    numbers: Integers
    inputs: IdLists  # prompt and output ids
    runs: Runs
    facts: pa.RecordBatch

    @property
    def keys(self) -> list[str]:
        """The key of each row."""
        keys: list[str] = self.facts["key"].to_pylist()
        return keys

    def take(self, chosen: NDArray[np.bool_]) -> "TrainingRows":
        """The rows that `chosen` names."""
        if chosen.all():
            return self
        places = np.flatnonzero(chosen)
        ids = [self.inputs.row(row) for row in places.tolist()]
        offsets = np.concatenate([[0], np.cumsum(self.inputs.lengths[places])]).astype(np.int64)
        of_chosen = chosen[self.runs.rows]
        lengths = self.runs.lengths[of_chosen]
        starts = np.cumsum(lengths) - lengths
        rows = (np.cumsum(chosen) - 1)[self.runs.rows[of_chosen]]
        return TrainingRows(
            numbers=self.numbers[places],
            inputs=IdLists(np.concatenate(ids) if ids else self.inputs.ids[:0], offsets),
            runs=Runs(rows, starts, lengths, self.runs.labels[of_chosen]),
            facts=self.facts.filter(pa.array(chosen)),
        )


def read_training_rows(folder: Path, markers: Markers, kept: NDArray[np.bool_]) -> Iterator[TrainingRows]:
    """The rows of a data set's verified.parquet that `kept` names, in its order, some hundred at a time.

    Raises InputError where the file is missing, unreadable or has another number of rows than `kept`, and where the
    tokenizer's markers cut an output otherwise than verification did.
    """
    first = 0
    for batch in verified_batches(folder, [*FACTS, "prompt_ids", "output_ids", "ends_with_stop"]):
        here = kept[first : first + batch.num_rows]
        if len(here) < batch.num_rows:
            break
        if here.any():
            wanted = batch if here.all() else batch.filter(pa.array(here))
            yield _training_rows(wanted, np.flatnonzero(here) + first, markers)
        first += batch.num_rows
    if first != len(kept):
        raise InputError(f"{folder / VERIFIED} changed while it was read; run the export again")


def verified_batches(folder: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Columns of verified.parquet, some hundred rows at a time. Raises InputError where it can't be read."""
    path = folder / VERIFIED
    if not path.exists():
        raise InputError(f"{path} is missing; run notebook 03_verify_responses for this data set first")
    try:
        with open_parquet(path) as file:
            absent = [name for name in columns if name not in file.schema_arrow.names]
            if absent:
                raise InputError(f"{path} has no column {absent[0]}; run notebook 03_verify_responses again")
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} can't be read ({one_line(error)}); run notebook 03_verify_responses again") from error


def integers(column: pa.Array) -> Integers:
    """An int32 column without nulls as int64."""
    return np.from_dlpack(column).astype(np.int64)


def joined(prompts: IdLists, outputs: IdLists) -> IdLists:
    """Each row's prompt ids and its output ids behind them."""
    lengths = prompts.lengths + outputs.lengths
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    parts = [ids.row(row) for row in range(len(lengths)) for ids in (prompts, outputs)]
    ids = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
    return IdLists(ids, offsets)


def _training_rows(batch: pa.RecordBatch, numbers: Integers, markers: Markers) -> TrainingRows:
    prompts, outputs = IdLists.from_arrow(batch["prompt_ids"]), IdLists.from_arrow(batch["output_ids"])
    stops = np.array(batch["ends_with_stop"].to_pylist(), dtype=np.bool_)
    found = segment_outputs(
        outputs,
        markers=markers,
        thinking=[thinking_mode(prompts.row(row).tolist(), markers) for row in range(len(numbers))],
        matched_ids=np.where(stops, outputs.last_ids(), NO_ID),
    )
    facts = batch.select(list(FACTS))
    _check_lengths(facts, found, stops)
    inputs = joined(prompts, outputs)
    return TrainingRows(numbers=numbers, inputs=inputs, runs=_runs(prompts, outputs, inputs, found), facts=facts)


def _check_lengths(facts: pa.RecordBatch, found: Segments, stops: NDArray[np.bool_]) -> None:
    """Raise InputError where an output falls into other parts than those in verified.parquet."""
    pairs = (
        (found.reasoning_tokens, integers(facts["reasoning_tokens"])),
        (found.answer_tokens, integers(facts["answer_tokens"])),
        (found.tool_tokens, integers(facts["tool_tokens"])),
        (found.ends_with_stop, stops),
    )
    differs = np.logical_or.reduce([own != verified for own, verified in pairs])
    if differs.any():
        key = facts["key"][int(np.argmax(differs))].as_py()
        raise InputError(
            f"row {key!r} falls into other parts than those in {VERIFIED}; use the tokenizer that it was verified "
            "with, or run notebook 03_verify_responses again"
        )


def _runs(prompts: IdLists, outputs: IdLists, inputs: IdLists, found: Segments) -> Runs:
    """The prompts, the outputs' pieces and the stop ids, in order."""
    every = np.arange(len(inputs.lengths))
    behind_prompt = inputs.offsets[:-1] + prompts.lengths  # where the output begins
    pieces_at, piece_rows, piece_labels = found.pieces
    moved = pieces_at + (behind_prompt - outputs.offsets[:-1])[piece_rows]
    stopped = np.flatnonzero(found.ends_with_stop)
    starts = np.concatenate([inputs.offsets[:-1], moved, inputs.offsets[1:][stopped] - 1])
    rows = np.concatenate([every, piece_rows, stopped])
    labels = np.concatenate([np.full(len(every), PROMPT), piece_labels, np.full(len(stopped), STOP)])
    order = np.lexsort((starts, rows))
    starts, rows, labels = starts[order], rows[order], labels[order]
    lengths = np.diff(np.append(starts, inputs.offsets[-1]))
    filled = lengths > 0
    return Runs(rows[filled], starts[filled], lengths[filled], labels[filled].astype(np.int8))
