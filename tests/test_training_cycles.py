"""One row a tool cycle: which turns it holds, its ids and its masks by hand, and what is never joined."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import training_data
from small_dataset import CLOSER, END, OPENER
from test_training_loaders import digest
from test_training_loaders import run as run_trainer
from training_data import CALLS, KIMI, Row, prompt_of

from rawtokens.errors import InputError
from rawtokens.training.cycles import earlier_turns, read_rows
from rawtokens.training.export import export
from rawtokens.training.masks import mask_runs
from rawtokens.training.policies import IN_A_LATER_ROW, select_rows
from rawtokens.training.rows import LABELS
from rawtokens.training.settings import TrainingSettings, training_settings

RESULT = [163594, 40, 41, END, 163588, OPENER]
"""What a template puts behind a call: the result and the generation prompt."""
CALL_ONE, CALL_TWO = [1, 2, CLOSER, *CALLS, END], [3, *CALLS, END]
FIRST = prompt_of(100)
SECOND = [*FIRST, *CALL_ONE, *RESULT]
THIRD = [*SECOND, *CALL_TWO, *RESULT]
ANSWER = [5, CLOSER, 6, END]
QUESTION = [*FIRST, CLOSER, 6, END, *prompt_of(101)]
ROWS: list[Row] = [
    ("a#0/0", FIRST, CALL_ONE, "stop"),
    ("b#0/0", FIRST, CALL_ONE, "stop"),
    ("a#1/0", SECOND, CALL_TWO, "stop"),
    ("a#0/1", FIRST, [9, CLOSER, 9, END], "stop"),  # another sample
    ("a#2/0", THIRD, ANSWER, "stop"),
    ("a#3/0", QUESTION, ANSWER, "stop"),  # a new question: the template dropped reasoning
    ("b#1/0", [*FIRST, *CALL_ONE[:-1], END, *RESULT[:-1], 7, OPENER], ANSWER, "stop"),
    ("c#1/0", SECOND, ANSWER, "stop"),  # its first turn is not there
]
SPANS = {
    "a#2/0": [CALL_ONE, RESULT, CALL_TWO, RESULT, ANSWER],
    "a#0/1": [[9, CLOSER, 9, END]],
    "a#3/0": [ANSWER],
    "b#1/0": [CALL_ONE, [*RESULT[:-1], 7, OPENER], ANSWER],
    "c#1/0": [ANSWER],
}
"""Behind each row's (first) prompt: what was sampled and what was not, in turn."""


def settings(**asked: object) -> TrainingSettings:
    return TrainingSettings(**{"held_out": 0.0, "rows": "cycle", **asked})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_data.write(tmp_path_factory.mktemp("cycles"), ROWS)


def test_rows_of_one_cycle_are_found_by_their_ids(folder: Path) -> None:
    selection = select_rows(folder, settings())
    assert selection.earlier == {4: (0, 2), 6: (1,)}
    assert [ROWS[row][0] for row in selection.kept.nonzero()[0]] == ["a#0/1", "a#2/0", "a#3/0", "b#1/0", "c#1/0"]
    assert selection.left_out == {IN_A_LATER_ROW: 3}
    assert selection.counts() == {"rows": 8, "train": 5, "held_out": 0, "left_out": 3}


@pytest.mark.parametrize("form", ["parquet", "specforge"])
def test_a_cycle_is_one_row_with_every_sampled_span_marked(folder: Path, form: str) -> None:
    (done,) = export(folder, markers=KIMI, settings=settings(formats=(form,)), on_line=lambda _: None)
    (path,) = (folder / "training" / form).glob("train*")
    if form == "parquet":
        rows = pq.read_table(path).to_pylist()
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    ids = {key: [*prompt, *output] for key, prompt, output, _ in ROWS}
    assert [row.get("key", row.get("id")) for row in rows] == ["a#0/1", "a#2/0", "a#3/0", "b#1/0", "c#1/0"]
    for row in rows:
        key = str(row.get("key", row.get("id")))
        marks = [1 - place % 2 for place, span in enumerate(SPANS[key]) for _ in span]
        assert list(row["input_ids"]) == ids[key]
        assert list(row["loss_mask"]) == [0] * (len(ids[key]) - len(marks)) + marks
    assert done.checked_rows == 5
    assert "a row holds turns that go on from one another" in done.mask_convention
    assert done.ids["prompt"] + sum(done.ids[label] for label in LABELS if label != "prompt") == sum(
        len(ids[key]) for key in SPANS
    )


@pytest.mark.trainers
def test_the_trainers_own_loaders_give_every_span_back(folder: Path) -> None:
    asked = settings(formats=("specforge", "speculators"))
    export(folder, markers=KIMI, settings=asked, on_line=lambda _: None)
    paths = [next((folder / "training" / name).glob("train*")) for name in asked.formats]
    ids = {key: [*prompt, *output] for key, prompt, output, _ in ROWS}
    wanted = []
    for key in ("a#0/1", "a#2/0", "a#3/0", "b#1/0", "c#1/0"):
        marks = [1 - place % 2 for place, span in enumerate(SPANS[key]) for _ in span]
        wanted.append(digest(ids[key], [*[0] * (len(ids[key]) - len(marks)), *marks]))
    assert run_trainer(".venv-specforge", "specforge_rows.py", paths[0], 4_096, 1) == wanted
    questions = [["rows", str(paths[1]), 4_096]]
    assert run_trainer(".venv-speculators", "speculators_rows.py", questions=questions) == [wanted]


@pytest.mark.parametrize(
    ("mask", "key", "ones"), [("answer", "a#2/0", 4), ("tool_calls", "a#1/0", 14), ("reasoning", "a#2/0", 6)]
)
def test_other_masks_are_those_of_every_turn(folder: Path, mask: str, key: str, ones: int) -> None:
    """A turn that such a mask has nothing of is left out, and then the cycle ends before it."""
    (batch,) = read_rows(folder, KIMI, select_rows(folder, settings(mask=mask)))
    marked = mask_runs(batch.runs, mask)
    assert int((marked.lengths * marked.values)[marked.rows == batch.keys.index(key)].sum()) == ones


def test_a_turn_that_is_left_out_cuts_the_cycle(tmp_path: Path) -> None:
    rows = [
        (key, prompt, [*output[:-1], 8] if key == "a#1/0" else output, finish) for key, prompt, output, finish in ROWS
    ]
    rows[2] = ("a#1/0", SECOND, CALL_TWO, "length")
    found = select_rows(training_data.write(tmp_path, rows), settings(truncated_in_answer="drop"))
    assert found.earlier == {6: (1,)}
    assert found.left_out == {"truncated_in_answer": 1, IN_A_LATER_ROW: 1}
    assert found.kept[[0, 4]].all()


def test_a_row_a_turn_stays_the_default(folder: Path) -> None:
    found = select_rows(folder, TrainingSettings(held_out=0.0))
    assert found.kept.all()
    assert found.earlier == {}
    assert earlier_turns(folder, found.kept & False) == {}


def test_another_kind_of_row_is_refused() -> None:
    with pytest.raises(InputError, match="Invalid enum value 'conversation'"):
        training_settings('{"rows": "conversation"}')
