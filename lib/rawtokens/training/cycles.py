"""Turns that go on from one another as one row, with everything in it marked that the target sampled.

Turn T+1 goes on with turn T where its prompt begins with T's prompt and output, id by id: in a tool cycle always,
behind a new question only where the template renders the earlier answer as it was sampled. Such turns are held whole
by the last one's row. A turn that is not trained on, or a prompt that begins otherwise, begins a row of its own. This
module does not look at text, and does not know why a row is kept.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..markers import Markers
from ..response_checks.response_columns import IdLists
from ..turns.keys import TurnKey, split_key
from .policies import Selection
from .rows import PROMPT, Integers, Runs, TrainingRows, read_training_rows, verified_batches

RunsOfRow = tuple[Integers, NDArray[np.int8]]
"""Lengths and labels of one row's runs, in order."""


def earlier_turns(folder: Path, kept: NDArray[np.bool_]) -> dict[int, tuple[int, ...]]:
    """For each kept row that goes on from others the rows that it holds, in order; rows by place in verified.parquet.

    Reads ids only where a conversation has several turns. Raises InputError where verified.parquet can't be read.
    """
    later, lengths = _next_turns(folder, kept)
    if not later:
        return {}
    holds = _going_on(folder, later, lengths)
    before = _before(holds)
    found: dict[int, tuple[int, ...]] = {}
    for row in sorted(set(before) - set(holds)):  # the last of each chain
        chain = [row]
        while chain[-1] in before:
            chain.append(before[chain[-1]])
        found[row] = tuple(reversed(chain[1:]))
    return found


def read_rows(folder: Path, markers: Markers, selection: Selection) -> Iterator[TrainingRows]:
    """The kept rows of a selection, as `read_training_rows` gives them, earlier turns' samples marked where held."""
    held = np.zeros(len(selection.kept), dtype=np.bool_)
    held[[row for rows in selection.earlier.values() for row in rows]] = True
    runs: dict[int, RunsOfRow] = {}
    if held.any():
        for batch in read_training_rows(folder, markers, held):
            runs |= dict(zip(batch.numbers.tolist(), _by_row(batch), strict=True))
    for batch in read_training_rows(folder, markers, selection.kept):
        yield _marked(batch, selection.earlier, runs)


def _next_turns(folder: Path, kept: NDArray[np.bool_]) -> tuple[dict[int, int], dict[int, int]]:
    """For each kept row the kept row of the next turn, where there is one, and the length of its prompt and output."""
    turns: dict[TurnKey, tuple[int, int]] = {}
    row = 0
    for batch in verified_batches(folder, ["key", "prompt_tokens", "output_tokens"]):
        for key, prompt, output in zip(*(batch[name].to_pylist() for name in batch.schema.names), strict=True):
            if kept[row]:
                turns[split_key(key)] = row, prompt + output
            row += 1
    later = {
        place: turns[following][0]
        for key, (place, _) in turns.items()
        if (following := key._replace(turn=key.turn + 1)) in turns
    }
    return later, dict(turns.values())


def _going_on(folder: Path, later: Mapping[int, int], lengths: Mapping[int, int]) -> dict[int, int]:
    """Those of `later` where the next turn's prompt begins with the turn's prompt and output."""
    before = _before(later)
    whole: dict[int, bytes] = {}
    begins: dict[int, bytes] = {}
    row = 0
    for batch in verified_batches(folder, ["prompt_ids", "output_ids"]):
        prompts, outputs = (IdLists.from_arrow(batch[name]) for name in ("prompt_ids", "output_ids"))
        for place in range(batch.num_rows):
            if row in later:
                whole[row] = _digest(prompts.row(place), outputs.row(place))
            if row in before:
                start = prompts.row(place)[: lengths[before[row]]]
                begins[row] = _digest(start)
            row += 1
    return {row: following for row, following in later.items() if whole[row] == begins[following]}


def _before(later: Mapping[int, int]) -> dict[int, int]:
    return {following: row for row, following in later.items()}


def _digest(*parts: NDArray[np.int32]) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        found.update(np.ascontiguousarray(part).data)
    return found.digest()


def _by_row(rows: TrainingRows) -> list[RunsOfRow]:
    edges = np.searchsorted(rows.runs.rows, np.arange(len(rows.numbers) + 1))
    return [
        (rows.runs.lengths[start:end], rows.runs.labels[start:end])
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]


def _marked(rows: TrainingRows, earlier: Mapping[int, tuple[int, ...]], runs: Mapping[int, RunsOfRow]) -> TrainingRows:
    """The rows with the runs of the turns that they hold in place of the prompts that repeat them."""
    numbers = rows.numbers.tolist()
    if not any(number in earlier for number in numbers):
        return rows
    made = [
        _joined([*(runs[held] for held in earlier.get(number, ())), own])
        for number, own in zip(numbers, _by_row(rows), strict=True)
    ]
    lengths = np.concatenate([found for found, _ in made])
    counts = np.array([len(found) for found, _ in made])
    return TrainingRows(
        numbers=rows.numbers,
        inputs=rows.inputs,
        runs=Runs(
            np.repeat(np.arange(len(numbers)), counts),
            np.cumsum(lengths) - lengths,
            lengths,
            np.concatenate([labels for _, labels in made]),
        ),
        facts=rows.facts,
    )


def _joined(turns: list[RunsOfRow]) -> RunsOfRow:
    """Each turn's prompt shortened by what the turns before it cover."""
    lengths, labels = turns[0]
    for own_lengths, own_labels in turns[1:]:
        assert own_labels[0] == PROMPT
        gap = int(own_lengths[0]) - int(lengths.sum())
        assert gap >= 0
        skipped = gap == 0
        lengths = np.concatenate([lengths, [] if skipped else [gap], own_lengths[1:]]).astype(np.int64)
        labels = np.concatenate([labels, own_labels[skipped:]]).astype(np.int8)
    return lengths, labels
