"""Tables, sentences and the summary against numbers counted by hand."""

import json
import shutil
import tracemalloc
from pathlib import Path

import pandas as pd
import pytest
import small_dataset
from small_dataset import response, write_lines

from rawtokens.errors import InputError
from rawtokens.records import VERIFIED_SCHEMA, Rejection
from rawtokens.reporting import display, takeaways, throughput, token_statistics
from rawtokens.reporting.wording import in_short

SENTENCES = (
    "reasoning_length",
    "closer_position",
    "closer_share",
    "answer_length",
    "truncation",
    "output_length",
    "prompt_length",
    "shapes",
    "verdict_reasons",
    "segments",
    "tool_calls",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_dataset.write(tmp_path / "set")


@pytest.fixture
def rows(folder: Path) -> pd.DataFrame:
    return token_statistics.read_verified(folder)


def timings(*requests: tuple[float, float, int], folder: Path) -> pd.DataFrame:
    """Requests as (start, seconds, ids), written to a journal and read back."""
    folder.mkdir(exist_ok=True)
    records = [
        response(f"{number}#0/0", [1] * ids, start=start, seconds=seconds)
        for number, (start, seconds, ids) in enumerate(requests)
    ]
    write_lines(folder / "raw_responses.jsonl", records)
    return throughput.read_timings(folder)


def test_verified_rows_are_read_without_their_ids(rows: pd.DataFrame) -> None:
    assert set(VERIFIED_SCHEMA.names) - set(rows.columns) == {"prompt_ids", "output_ids"}
    assert rows["closer_position"].tolist() == [3, 6, pd.NA, pd.NA, 1, pd.NA, pd.NA, pd.NA]


def test_a_missing_file_says_which_notebook_makes_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run notebook 03_verify_responses"):
        token_statistics.read_verified(tmp_path)
    with pytest.raises(InputError, match="run notebook 01_tokenize_prompts"):
        token_statistics.read_prompts(tmp_path)


def test_a_file_that_is_no_parquet_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "verified.parquet").write_bytes(b"not a table")
    with pytest.raises(InputError, match="can't be read"):
        token_statistics.read_verified(tmp_path)


def test_a_table_without_a_column_names_the_column(tmp_path: Path) -> None:
    pd.DataFrame({"key": ["a#0/0"]}).to_parquet(tmp_path / "verified.parquet")
    with pytest.raises(InputError, match="verdict"):
        token_statistics.read_verified(tmp_path)


def test_lengths_come_by_shape_and_for_all_rows(rows: pd.DataFrame) -> None:
    table = token_statistics.length_table(rows, "output_tokens")
    assert table.index.tolist() == [*token_statistics.SHAPES, "all rows"]
    assert table.columns.tolist() == ["rows", "ids", "min", "p10", "median", "p90", "p99", "max"]
    assert list(table.loc["closed"]) == pytest.approx([2, 22, 6, 7, 11, 15, 15.9, 16])
    assert list(table.loc["all rows", ["rows", "ids", "median", "max"]]) == [8, 80, 11, 16]


def test_rows_without_a_closer_are_left_out_of_its_table(rows: pd.DataFrame) -> None:
    table = token_statistics.length_table(rows, "closer_position")
    assert table["rows"].to_dict() == {"closed": 2, "truncated_in_answer": 1, "all rows": 3}
    assert token_statistics.closer_shares(rows).round(4).tolist() == [0.5, 0.375, 0.0625]
    assert token_statistics.closer_position_table(rows)["median share"].to_dict() == {
        "closed": 0.4375,
        "truncated_in_answer": 0.0625,
        "all rows": 0.375,
    }


def test_shapes_are_counted_by_finish_reason(rows: pd.DataFrame) -> None:
    table = token_statistics.count_table(rows, "shape", "finish_reason")
    assert table.loc["closed"].to_dict() == {"stop": 2, "length": 0, "rows": 2}
    assert table.loc["truncated_in_thinking"].to_dict() == {"stop": 0, "length": 1, "rows": 1}
    assert table["rows"].sum() == small_dataset.ROWS


def test_a_value_that_the_kit_does_not_know_is_counted_all_the_same(rows: pd.DataFrame) -> None:
    rows.loc[0, "shape"] = "spiral"
    assert token_statistics.count_table(rows, "shape", "verdict").index[-1] == "spiral"
    assert token_statistics.length_table(rows, "output_tokens").loc["spiral", "rows"] == 1
    assert token_statistics.segment_table(rows).loc["spiral", "ids"] == 6


def test_a_row_counts_once_for_each_of_its_reasons(rows: pd.DataFrame) -> None:
    table = token_statistics.reason_table(rows)
    assert table["rows"].to_dict() == {
        "(none)": 4,
        "loop": 1,
        "never_closed": 1,
        "stop_missing": 1,
        "truncated_in_answer": 1,
        "truncated_in_thinking": 1,
    }
    assert table.loc["stop_missing"].to_dict() == {"accept": 0, "flag": 0, "reject": 1, "rows": 1}


def test_tool_calls_have_a_line_for_every_number_up_to_the_largest(rows: pd.DataFrame) -> None:
    table = token_statistics.tool_call_table(rows)
    assert table.to_dict("index") == {
        "0": {"rows": 6, "calls": 0},
        "1": {"rows": 1, "calls": 1},
        "2": {"rows": 1, "calls": 2},
    }


def test_many_tool_calls_share_the_last_line(rows: pd.DataFrame) -> None:
    rows["tool_calls"] = [8, 30, *([0] * 6)]
    table = token_statistics.tool_call_table(rows)
    assert table.index.tolist() == ["0", "1", "2", "3", "4", "5", "6", "7", "8+"]
    assert table.loc["8+"].to_dict() == {"rows": 2, "calls": 38}
    assert table.loc["5"].to_dict() == {"rows": 0, "calls": 0}
    assert table["rows"].sum() == small_dataset.ROWS


def test_every_output_id_stands_in_one_segment(rows: pd.DataFrame) -> None:
    table = token_statistics.segment_table(rows)
    assert list(table.loc["closed"]) == [9, 2, 2, 7, 2, 22]
    assert list(table.loc["all rows"]) == [31, 3, 20, 21, 5, 80]
    assert table.loc["all rows", "ids"] == rows["output_tokens"].sum()


def test_rejected_rows_are_counted_by_stage_and_reason(folder: Path, tmp_path: Path) -> None:
    table = token_statistics.rejection_table(folder)
    assert list(table.columns) == ["stage", "reason", "rows", "first line", "first key", "detail"]
    assert table.fillna("").to_numpy().tolist() == [
        ["tokenize", "template_error", 1, "11", "z#0", "no messages"],
        ["generate", "count_mismatch", 1, "", "i#0/0", "five tries"],
    ]
    html = display.table_html(table, caption="a")
    assert ("<td>11</td>" in html, ">–</td>" in html) == (True, True)
    assert token_statistics.rejection_table(tmp_path / "nothing").empty


def test_the_summary_accounts_for_every_row(folder: Path) -> None:
    numbers = token_statistics.summary(folder, "small")
    assert numbers == {
        "dataset": "small",
        "rows": 11,
        "prompts": 10,
        "rejected_before_generation": 1,
        "rejected_at_generation": 1,
        "not_generated": 1,
        "generated": 8,
        "accepted": 4,
        "flagged": 3,
        "rejected": 1,
        "median_reasoning_tokens": 3.5,
        "share_closed": 4 / 6,  # not rounded: a page rounds once
        "shapes": {**dict.fromkeys(token_statistics.SHAPES, 1), "closed": 2},
        "finish_reasons": {"stop": 6, "length": 2},
        "reasons": {
            "loop": 1,
            "truncated_in_thinking": 1,
            "truncated_in_answer": 1,
            "never_closed": 1,
            "stop_missing": 1,
        },
        "tool_calls": 3,
        "prompt_ids": 40,
        "output_ids": 80,
        "reasoning_ids": 31,
        "cached_prompt_ids": 16,
        "busy_seconds": 9.0,
        "ids_per_second": 80 / 9,
        "completion": None,
    }
    assert "prompts without a response yet: 1" in takeaways.flow(numbers)


def test_rejections_are_counted_one_at_a_time(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "many"
    shutil.copytree(folder, copy)
    many = [
        Rejection(stage="tokenize", key=f"{n}#0", line=n, reason="template_error", detail=f"{n} {'x' * 1_000}")
        for n in range(20_000)
    ]
    write_lines(copy / "rejected.jsonl", many)
    rows, timings = token_statistics.read_verified(copy), throughput.read_timings(copy)
    token_statistics.summary(copy, "small", rows=rows, timings=timings)  # imports
    tracemalloc.start()
    numbers = token_statistics.summary(copy, "small", rows=rows, timings=timings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (numbers["rejected_before_generation"], numbers["rejected_at_generation"]) == (20_000, 0)
    assert peak < 5_000_000  # their file has 21 MB


def test_thinking_ended_where_a_closer_or_a_tool_section_came(rows: pd.DataFrame, folder: Path) -> None:
    def share(shape: str) -> object:
        return token_statistics.summary(folder, "small", rows=rows.assign(shape=shape))["share_closed"]

    assert {shape: share(shape) for shape in token_statistics.SHAPES} == {
        "closed": 1.0,
        "tool_closed": 1.0,
        "truncated_in_thinking": 0.0,
        "truncated_in_answer": 1.0,
        "thinking_off": None,
        "never_closed": 0.0,
        "channels": None,
    }


def test_a_model_that_never_thinks_is_told_as_one(rows: pd.DataFrame, folder: Path) -> None:
    off = rows.assign(shape="thinking_off", reasoning_tokens=0, closer_position=pd.Series([None] * 8, dtype="Int32"))
    numbers = token_statistics.summary(folder, "small", rows=off)
    assert (numbers["share_closed"], numbers["median_reasoning_tokens"]) == (None, None)
    assert takeaways.shapes(off) == ("None of 8 rows thinks: the prompt asks for no thinking, or the model knows none.")
    assert takeaways.truncation(off) == "No row thinks, so none was cut at it."
    assert takeaways.reasoning_length(off) == "There are no rows that think."


def test_answers_are_told_apart_from_rows_without_one(rows: pd.DataFrame) -> None:
    assert takeaways.answer_length(rows) == (
        "Only 5 rows with an answer, too few for a distribution: 1, 1, 2, 2, 14 answer ids. 3 of 8 rows have none."
    )


def test_the_summary_is_written_whole_and_can_be_written_again(folder: Path) -> None:
    numbers = token_statistics.summary(folder, "small")
    for _ in range(2):
        path = token_statistics.write_summary(folder, numbers)
        assert json.loads(path.read_text("utf-8")) == numbers
    assert not list(folder.glob("*.tmp"))


def test_a_journal_that_grew_since_verification_is_refused(folder: Path) -> None:
    journal = folder / "raw_responses.jsonl"
    journal.write_bytes(journal.read_bytes() + journal.read_bytes())
    with pytest.raises(InputError, match="8 rows and the journal 16"):
        token_statistics.summary(folder, "small")


def test_a_data_set_with_no_verified_row_has_a_summary(folder: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(VERIFIED_SCHEMA.empty_table(), folder / "verified.parquet")
    (folder / "raw_responses.jsonl").write_bytes(b"")
    numbers = token_statistics.summary(folder, "small")
    assert (numbers["generated"], numbers["median_reasoning_tokens"], numbers["share_closed"]) == (0, None, None)
    assert json.loads(token_statistics.write_summary(folder, numbers).read_text("utf-8"))["ids_per_second"] is None


def test_ids_are_spread_evenly_over_their_request(tmp_path: Path) -> None:
    line = throughput.timeline(timings((0, 4, 40), (1, 2, 20), folder=tmp_path), bins=4)
    assert line["ids_per_second"].tolist() == pytest.approx([10, 20, 20, 10])
    assert line["in_flight"].tolist() == pytest.approx([1, 2, 2, 1])
    assert line["seconds"].tolist() == pytest.approx([0.5, 1.5, 2.5, 3.5])


def test_no_id_is_lost_in_the_timeline(tmp_path: Path) -> None:
    requests = [(number * 0.37, 0.2 + number % 7, 3 + number) for number in range(50)]
    line = throughput.timeline(timings(*requests, folder=tmp_path))
    assert (line["ids_per_second"] * line["width_s"]).sum() == pytest.approx(sum(ids for *_, ids in requests))
    assert (line["in_flight"] * line["width_s"]).sum() == pytest.approx(sum(seconds for _, seconds, _ in requests))


def test_a_pause_between_two_runs_of_the_stage_is_cut_out_and_named(tmp_path: Path) -> None:
    asked = timings((0, 10, 100), (3600, 10, 100), folder=tmp_path)
    line = throughput.timeline(asked)
    assert line["width_s"].sum() == pytest.approx(20)
    assert line["ids_per_second"].tolist() == pytest.approx([10] * 20)
    assert "Pauses of 59.8 minutes" in takeaways.ids_per_second(asked, line)


def test_a_wait_of_less_than_five_seconds_stays(tmp_path: Path) -> None:
    asked = timings((0, 10, 100), (14, 10, 100), folder=tmp_path)
    line = throughput.timeline(asked)
    assert line["width_s"].sum() == pytest.approx(24)
    assert "Pauses" not in takeaways.ids_per_second(asked, line)


def test_a_response_without_measurable_latency_has_a_finite_rate(tmp_path: Path) -> None:
    line = throughput.timeline(timings((0, 0.0, 5), folder=tmp_path))
    assert line["ids_per_second"].max() == pytest.approx(5000)


def test_the_cached_share_is_that_of_the_prompts_sent_in_each_stretch(tmp_path: Path) -> None:
    asked = timings((0, 1, 5), (0.5, 1, 5), (3, 1, 5), folder=tmp_path)
    asked["prompt_tokens"], asked["cached_tokens"] = [10, 30, 20], [0, 20, 5]
    line = throughput.cache_line(asked, bins=4)
    assert line["cached_share"].tolist() == pytest.approx([0.5, float("nan"), float("nan"), 0.25], nan_ok=True)
    assert line["width_s"].tolist() == [1.0] * 4
    assert takeaways.cache_hits(asked) == (
        "Of 60 prompt ids the servers had 25 (41.7%) in their prefix cache; 2 of 3 rows had some of theirs there."
    )
    assert takeaways.cache_hits(asked.assign(cached_tokens=0)).startswith("None of 60 prompt ids came from a prefix")


def test_a_line_that_is_being_written_is_no_record_yet(folder: Path) -> None:
    with (folder / "raw_responses.jsonl").open("ab") as file:
        file.write(b'{"key":"torn')
    assert len(throughput.read_timings(folder)) == small_dataset.ROWS


def test_a_foreign_line_of_the_journal_is_named(folder: Path) -> None:
    with (folder / "raw_responses.jsonl").open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(InputError, match="line 9"):
        throughput.read_timings(folder)


def test_shards_are_read_together(folder: Path) -> None:
    record = response("k#0/0", [1, 2], start=0.5, seconds=1)
    write_lines(folder / "raw_responses.1-of-2.jsonl", [record])
    assert throughput.read_timings(folder)["key"].tolist()[:2] == ["a#0/0", "k#0/0"]


def test_throughput_is_told_by_server(folder: Path) -> None:
    table = throughput.throughput_table(throughput.read_timings(folder))
    assert table.loc["http://127.0.0.1:30000"].to_dict() == {
        "requests": 8,
        "output ids": 80,
        "median latency (s)": 2.0,
        "p99 latency (s)": 2.0,
        "tried again": 0,
        "cut at the limit": 2,
        "cached share of prompt ids": 0.4,
    }


def test_a_few_rows_are_named_and_not_made_a_distribution(rows: pd.DataFrame) -> None:
    assert takeaways.output_length(rows) == (
        "Only 8 rows, too few for a distribution: 2, 3, 5, 6, 16, 16, 16, 16 output ids. "
        "2 of 8 rows were cut by the length limit, at 16 ids."
    )
    assert takeaways.closer_position(rows.head(1)) == "There is one row with a closer, with 3 ids before the closer."
    assert takeaways.closer_share(rows) == (
        "In 0 of 3 rows with a closer more than half of the output stands before it; "
        "the median share is 38% (of only 3)."
    )


def test_rows_cut_while_thinking_are_called_a_lower_bound(rows: pd.DataFrame) -> None:
    cut = rows[rows["shape"] == "truncated_in_thinking"]
    many = pd.concat([rows] * 4 + [cut] * 30)
    assert takeaways.reasoning_length(many).startswith("Half of 54 rows that think have at most 16 reasoning ids;")
    assert takeaways.reasoning_length(many).endswith("the true median is not known.")
    assert takeaways.reasoning_length(pd.concat([rows] * 4)).endswith("the median holds, the tail is longer.")


def test_a_median_between_two_lengths_keeps_its_half(rows: pd.DataFrame) -> None:
    many = pd.concat([rows] * 4).assign(output_tokens=[28] * 16 + [29] * 16)
    assert takeaways.output_length(many).startswith("Half of 32 rows have at most 28.5 output ids;")
    assert [in_short(value) for value in (28.0, 29.5, 1234.5)] == ["28", "29.5", "1,234.5"]


def test_verdicts_and_shapes_are_put_in_words(rows: pd.DataFrame) -> None:
    assert takeaways.verdict_reasons(rows) == (
        "4 of 8 rows are accepted, 3 flagged, 1 rejected; the most frequent reason is loop (1)."
    )
    assert takeaways.shapes(rows).startswith("2 of 8 rows are closed: thinking, closer, an answer or tool calls")
    assert takeaways.tool_calls(rows) == "2 of 8 rows call tools: 3 calls, at most 2 in one response (of only 2)."
    assert takeaways.segments(rows).startswith("Of 80 output ids 39% reasoning, 25% answer, 26% tool calls")


@pytest.mark.parametrize("name", SENTENCES)
@pytest.mark.parametrize("count", [0, 1])
def test_every_sentence_is_true_of_no_row_and_of_one(rows: pd.DataFrame, name: str, count: int) -> None:
    sentence = getattr(takeaways, name)(rows.head(count))
    assert "nan" not in sentence
    assert sentence.endswith(".")
    assert count or sentence.startswith(("There are no", "No row", "There is no"))


def test_nothing_on_record_has_no_rate(tmp_path: Path) -> None:
    empty = throughput.read_timings(tmp_path)
    line = throughput.timeline(empty)
    assert takeaways.ids_per_second(empty, line) == "No response is on record, so there is no rate."
    assert takeaways.in_flight(empty, line) == "No response is on record, so nothing was in flight."
    assert throughput.throughput_table(empty).empty
    assert throughput.cache_line(empty).empty
    assert takeaways.cache_hits(empty) == "No response is on record, so nothing is known of the prefix cache."
