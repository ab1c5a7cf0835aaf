"""Masks by hand, for every name, and what a boundary shift does."""

from pathlib import Path

import numpy as np
import pytest
import training_data
from hypothesis import given
from hypothesis import strategies as st
from training_data import KIMI, MASKS, ROWS

from rawtokens.errors import InputError
from rawtokens.training.masks import MASKS as NAMES
from rawtokens.training.masks import mask_runs
from rawtokens.training.rows import LABELS, PROMPT, Runs, TrainingRows, read_training_rows


def read(folder: Path) -> TrainingRows:
    (rows,) = read_training_rows(folder, KIMI, np.ones(len(ROWS), dtype=np.bool_))
    return rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> TrainingRows:
    return read(training_data.write(tmp_path_factory.mktemp("masks")))


@pytest.mark.parametrize(("place", "name"), list(enumerate(training_data.NAMES)))
def test_a_mask_has_a_one_on_each_id_of_its_part_and_on_no_prompt_id(rows: TrainingRows, place: int, name: str) -> None:
    mask = mask_runs(rows.runs, name).per_id()
    for row, (key, prompt, output, _) in enumerate(ROWS):
        start, end = rows.inputs.offsets[row : row + 2]
        assert rows.inputs.row(row).tolist() == [*prompt, *output]
        if key in MASKS:
            assert mask[start:end].tolist() == [0] * len(prompt) + [int(one) for one in MASKS[key][place]]


def test_every_sampled_id_is_in_one_of_the_three_parts(rows: TrainingRows) -> None:
    parts = [mask_runs(rows.runs, name).per_id().tolist() for name in ("reasoning", "answer", "tool_calls")]
    assert [sum(ones) for ones in zip(*parts, strict=True)] == mask_runs(rows.runs, "sampled").per_id().tolist()


def test_a_boundary_shift_starts_each_span_one_id_earlier(rows: TrainingRows) -> None:
    plain, shifted = (mask_runs(rows.runs, "tool_calls", boundary_shift=shift).per_id() for shift in (False, True))
    first, end = rows.inputs.offsets[1:3]
    tools = "0" * 8 + "1" * 7 + "0"
    assert "".join(map(str, plain[first:end].tolist())) == tools
    assert "".join(map(str, shifted[first:end].tolist())) == tools.replace("01", "11")
    sampled = mask_runs(rows.runs, "sampled", boundary_shift=True).per_id()
    assert [int(sampled[start : start + 4].sum()) for start in rows.inputs.offsets[:3]] == [0, 0, 0]
    assert [int(sampled[start : start + 5].sum()) for start in rows.inputs.offsets[:3]] == [1, 1, 1]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, len(LABELS) - 2), st.integers(1, 4)), max_size=6), max_size=4),
    st.sampled_from(sorted(NAMES)),
    st.booleans(),
)
def test_runs_and_plain_reading_agree(drawn: list[list[tuple[int, int]]], name: str, shift: bool) -> None:
    listed = [(row, label, length) for row, runs in enumerate(drawn) for label, length in [(PROMPT, 2), *runs]]
    rows, labels, lengths = (
        (np.array(values, dtype=np.int64) for values in zip(*listed, strict=True))
        if listed
        else (np.zeros(0, dtype=np.int64),) * 3
    )
    runs = Runs(rows, np.cumsum(lengths) - lengths, lengths, labels.astype(np.int8))
    expected: list[int] = []
    for parts in drawn:
        row = [int(label in NAMES[name]) for label, length in [(PROMPT, 2), *parts] for _ in range(length)]
        expected += [int(one or (shift and following)) for one, following in zip(row, [*row[1:], 0], strict=True)]
    mask = mask_runs(runs, name, boundary_shift=shift)
    assert mask.per_id().tolist() == expected
    assert (mask.lengths > 0).all()
    same_row = mask.rows[1:] == mask.rows[:-1]
    assert (mask.values[1:] != mask.values[:-1])[same_row].all()


def test_other_markers_than_those_at_verification_are_refused(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path)
    from family_tokens import markers_of

    with pytest.raises(InputError, match=r"row 'a#0/0' falls into other parts than those in verified\.parquet; use"):
        list(read_training_rows(folder, markers_of("qwen3"), np.ones(len(ROWS), dtype=np.bool_)))


def test_taken_rows_are_rows_of_their_own(rows: TrainingRows) -> None:
    chosen = np.arange(len(ROWS)) % 2 == 1
    taken = rows.take(chosen)
    assert taken.numbers.tolist() == [1, 3, 5, 7]
    assert taken.keys == [ROWS[number][0] for number in (1, 3, 5, 7)]
    mask = mask_runs(rows.runs, "sampled").per_id()
    bounds = [slice(*rows.inputs.offsets[number : number + 2]) for number in (1, 3, 5, 7)]
    assert mask_runs(taken.runs, "sampled").per_id().tolist() == np.concatenate([mask[b] for b in bounds]).tolist()
    assert taken.inputs.ids.tolist() == np.concatenate([rows.inputs.ids[b] for b in bounds]).tolist()
    assert taken.runs.starts.tolist() == (np.cumsum(taken.runs.lengths) - taken.runs.lengths).tolist()
