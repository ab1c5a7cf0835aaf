from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small_dataset

from rawtokens.capture.progress import Progress
from rawtokens.capture.progress_reports import ProgressReports
from rawtokens.errors import InputError
from rawtokens.reporting import completion_takeaways, figures, throughput
from rawtokens.reporting.completion_bias import (
    EARLIER,
    PLACE,
    STATES,
    Lengths,
    bias_table,
    largest_shift,
    length_curves,
    long_share,
    output_lengths,
    read_completion,
    read_planned,
    state_table,
    write_completion,
)

NOTHING = Lengths(np.array([4.0]), np.array([]), np.array([]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten prompts, of which eight are generated, one is rejected, and one was in flight at the stop."""
    folder = small_dataset.write(tmp_path / "A")
    facts: dict[str, object] = {"planned": 10, "present": 0, "done": 8, "rejected": 1, "in_flight": 2, "seconds": 10.0}
    facts |= {"asked": {"j#0/0": 9.0, "a#0/0": 1.0}, "max_new_tokens": 40}  # a#0/0 came while the run was stopped
    ProgressReports(folder)(Progress(**facts))  # type: ignore[arg-type]
    return folder


def planned(**columns: Sequence[object]) -> pd.DataFrame:
    """Planned generations with these columns, and dull values in the others."""
    count = len(columns["state"])
    dull: dict[str, object] = {"key": [f"{row}#0/0" for row in range(count)], "prompt_tokens": 10, "turn": 0}
    dull |= {"thinking": "opened", "template_kwargs": "{}", "tools": False}
    frame = pd.DataFrame({**dull, "place": (np.arange(count) + 0.5) / count, **columns})
    return frame.assign(state=pd.Categorical(frame["state"], categories=STATES))


def line(table: pd.DataFrame, name: str) -> list[float]:
    return table.T[name].tolist()


def test_every_planned_generation_has_its_state(folder: Path) -> None:
    rows = read_planned(folder, 1)
    assert rows["key"].tolist() == [f"{name}#0/0" for name in "abcdefghij"]
    assert rows["state"].tolist() == ["generated"] * 8 + ["rejected", "in flight at the stop"]
    assert rows["place"].tolist()[:2] == pytest.approx([0.05, 0.15])
    assert not rows["tools"].any()


def test_a_response_to_an_earlier_prompt_is_told_and_counts_as_missing(folder: Path) -> None:
    small_dataset.change_prompts(folder, "b#0", "c#0", "j#0")  # j has no response yet
    rows = read_planned(folder, 1)
    assert rows["key"][rows["state"] == EARLIER].tolist() == ["b#0/0", "c#0/0"]
    said = completion_takeaways.completion(rows, NOTHING)
    assert said.startswith(
        "Of 10 planned generations: 6 generated, 2 to an earlier prompt, 1 in flight at the stop, 1 rejected. Those to "
        "an earlier prompt are rejected by stage 03 (prompt_changed); `rawtokens retry` with that reason has them "
        "generated again. "
    )
    kept = rows.head(2)
    said = completion_takeaways.completion(kept, NOTHING)
    assert said.startswith(
        "Of 2 planned generations: 1 generated, 1 to an earlier prompt. The one to an earlier prompt"
    )
    assert "Nothing is missing" not in said
    said = completion_takeaways.completion(kept.tail(1), NOTHING)
    assert said.startswith("Nothing is generated yet; of 1 planned generation: 1 to an earlier prompt. The one to")


def test_prompt_ids_that_are_none_are_named_by_their_file(folder: Path) -> None:
    with (folder / "raw_responses.jsonl").open("ab") as file:
        file.write(b'{"key":"j#0/0","prompt_ids":[1,"2"],"output_ids":[]}\n')
    with pytest.raises(InputError, match=r"raw_responses\.jsonl has prompt ids that are none"):
        read_planned(folder, 1)


def test_samples_of_a_prompt_are_planned_each(folder: Path) -> None:
    rows = read_planned(folder, 2)
    assert rows["key"].tolist()[:3] == ["a#0/0", "a#0/1", "b#0/0"]
    assert rows["state"].value_counts().to_dict() == {
        "generated": 8,
        EARLIER: 0,
        "in flight at the stop": 1,
        "not asked": 10,
        "rejected": 1,
    }


def test_what_was_in_flight_is_as_long_as_it_has_been(folder: Path) -> None:
    rows = read_planned(folder, 1)
    timings = throughput.read_timings(folder)
    lengths = output_lengths(rows, timings, folder)
    pace = float((timings["completion_tokens"] / 2.0).median())  # each took two seconds
    assert lengths.seconds.tolist() == [9.0]
    assert lengths.reached.tolist() == [min(40.0, 9.0 * pace)]
    assert lengths.generated.tolist() == sorted(timings["completion_tokens"])


def test_a_shift_of_the_prompts_is_measured_in_standard_deviations() -> None:
    states = ["generated"] * 5 + ["not asked"] * 5
    rows = planned(prompt_tokens=[1] * 5 + [3] * 5, tools=[True, False] * 5, state=states)
    table = bias_table(rows)
    assert line(table, "mean prompt ids") == [2.0, 1.0, 3.0, -1.0]
    assert line(table, "share with tools") == pytest.approx([0.5, 0.6, 0.4, 0.2])
    assert line(table, PLACE)[3] < -0.8
    assert largest_shift(table) == ("mean prompt ids", -1.0)
    said = completion_takeaways.completion(rows, NOTHING)
    assert said.startswith("Of 10 planned generations: 5 generated, 5 not asked. ")
    assert "differs most in mean prompt ids: 1 against 2 planned (-1.00 standard deviations)" in said
    assert said.endswith("It is more the beginning of the file than the whole of it.")


def test_thinking_modes_and_arguments_are_compared_value_by_value() -> None:
    states = ["generated", "generated", "rejected", "rejected"]
    rows = planned(
        thinking=["opened", "opened", "off", "opened"], template_kwargs=["{}", "{}", "{}", "[]"], state=states
    )
    table = bias_table(rows)
    assert line(table, "share of thinking opened")[:3] == [0.75, 1.0, 0.5]
    assert line(table, "share of thinking off")[:3] == [0.25, 0.0, 0.5]
    assert line(table, "share of template_kwargs {}")[:3] == [0.75, 1.0, 0.5]
    assert not any(name.startswith("share of turn") for name in table.index)


def test_an_unbiased_stop_is_said_to_be_one() -> None:
    states = ["generated", "not asked"] * 50
    rows = planned(prompt_tokens=[*np.repeat(np.arange(50), 2)], state=states)
    said = completion_takeaways.completion(rows, NOTHING)
    assert "those planned: the largest shift, in mean prompt ids, is negligible (+0.00 standard deviations)" in said
    assert "beginning" not in said


def test_nothing_missing_is_one_sentence() -> None:
    rows = planned(state=["generated"] * 3)
    assert completion_takeaways.completion(rows, NOTHING) == "Nothing is missing: all 3 planned generations are there."
    one = completion_takeaways.completion(rows.head(1), NOTHING, unit="conversation")
    assert one == "Nothing is missing: the 1 planned conversation is there."
    said = completion_takeaways.completion(rows.assign(state="not asked"), NOTHING)
    assert said.startswith("Nothing is generated yet; of 3")


def test_long_outputs_that_are_cut_off_are_estimated() -> None:
    # A run over 1,000 lengths from 1 to 1,000 that is stopped when everything over 500 is at 500 still.
    lengths = Lengths(np.arange(1.0, 501.0), np.full(500, 500.0), np.full(500, 25.0))
    long = long_share(lengths)
    assert long is not None
    assert (long.ids, long.generated) == (500.0, 0.0)
    assert long.estimated == pytest.approx(0.5, abs=0.002)
    curve = length_curves(lengths)
    at_250 = curve[curve["ids"] == 250.0].iloc[0]
    assert at_250["generated"] == pytest.approx(0.5)
    assert at_250["estimated"] == pytest.approx(0.75)
    said = completion_takeaways.completion(planned(state=["generated", "not asked"]), lengths)
    assert "at the stop (500) had been for 25.0 seconds in the median, at least 500 ids" in said
    assert "0.0% of the generated outputs are longer, and an estimated 50.0% of all" in said


def test_what_was_in_flight_shorter_than_everything_tells_nothing_new() -> None:
    lengths = Lengths(np.array([10.0, 20.0]), np.array([5.0]), np.array([1.0]))
    assert long_share(lengths) == (5.0, 1.0, 1.0)
    assert long_share(NOTHING) is None


def test_fifths_of_the_prompts_hold_every_row() -> None:
    rows = planned(prompt_tokens=[*range(1, 11)], state=["generated"] * 9 + ["rejected"])
    table = state_table(rows)
    assert table["rows"].sum() == 10
    assert table["rejected"].tolist()[-1] == 1
    assert len(table) == 5
    assert state_table(planned(state=["generated"] * 4)).index.tolist() == ["10 to 10"]


@pytest.mark.parametrize("lengths", [NOTHING, Lengths(np.array([1.0, 9.0]), np.array([4.0]), np.array([2.0]))])
def test_the_figure_has_a_second_half_where_something_was_in_flight(lengths: Lengths) -> None:
    figure = figures.completion(planned(state=["generated", "rejected"]), lengths)
    assert len(figure.axes) == 1 + bool(len(lengths.reached))


def test_later_stages_read_the_numbers(folder: Path) -> None:
    assert read_completion(folder) == {}
    rows = read_planned(folder, 1)
    write_completion(folder, rows, output_lengths(rows, throughput.read_timings(folder), folder))
    found = read_completion(folder)
    assert found["planned"] == 10
    assert found["states"] == {"generated": 8, EARLIER: 0, "in flight at the stop": 1, "not asked": 0, "rejected": 1}
    assert set(found) == {"planned", "states", "largest_shift", "standardised_difference", "long_outputs"}
