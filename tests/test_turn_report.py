"""What notebooks say of conversations: how far they came, why they ended, how prompts were made, what was cached."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import small_dataset
from test_following import ROWS, Model, prepare, run, speak

from rawtokens.errors import InputError, RunStopped
from rawtokens.fidelity.audit_rows import conversation_of, read_conversations
from rawtokens.reporting.completion_bias import EARLIER, output_lengths, read_planned
from rawtokens.reporting.completion_takeaways import completion
from rawtokens.reporting.throughput import read_timings
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.turns import report
from rawtokens.turns.derived import derive_turns
from rawtokens.turns.endings import read_endings
from rawtokens.verification import verify_journal


def odd(text: str) -> str:
    """A model that never closes its thinking on Oslo's result."""
    return (
        "Hm.<|im_end|>"
        if text.rpartition("## Return of")[2].startswith(" functions.get_weather:0\n3<")
        else speak(text)
    )


@pytest.fixture(scope="module")
def folder(target: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four conversations, of which one ended early, verified."""
    made = prepare(tmp_path_factory.mktemp("report"), target, ROWS)
    run(made, target, Model(target, odd))
    later = derive_turns(made, target)
    verify_journal(made, markers=target.markers, vocabulary_size=163840, later_prompts=later)
    return made


def test_what_the_file_foresees_is_counted(folder: Path) -> None:
    table = report.foreseen_table(folder)
    assert table.to_dict("list") == {
        "answers": [1, 3, 5],
        "conversations": [1, 2, 1],
        "recorded calls": [0, 2, 3],
    }
    assert report.foreseen_said(table).startswith("4 conversations foresee 12 answers, with 5 recorded tool calls;")


def test_one_turn_a_prompt_is_said_to_be_so(target: Tokenizer, tmp_path: Path) -> None:
    made = prepare(tmp_path / "last", target, ROWS[1:2], PromptOptions(turns="last"))
    table = report.foreseen_table(made)
    assert table.empty
    assert report.foreseen_said(table) == "One turn a prompt is generated."


def test_endings_are_told_with_their_reason(folder: Path) -> None:
    found = report.conversations(folder)
    table = report.ending_table(found)
    assert table[["end", "conversations", "turns", "turns foreseen"]].to_dict("list") == {
        "end": ["complete", "never_closed"],
        "conversations": [3, 1],
        "turns": [6, 2],
        "turns foreseen": [7, 5],
    }
    assert report.turn_table(found).to_dict("list") == {
        "turns": [1, 2, 3],
        "conversations": [1, 2, 1],
        "complete": [1, 1, 1],
        "never_closed": [0, 1, 0],
    }
    assert report.endings_said(found) == (
        "3 of 4 conversations came to their end; 1 ended early, most often by never_closed (1)."
    )


def test_what_goes_on_is_told_and_nothing_is_said_of_nothing(folder: Path, target: Tokenizer, tmp_path: Path) -> None:
    going = prepare(tmp_path / "going", target, ROWS)
    assert report.endings_said(report.conversations(going)) == "No conversation has begun."
    assert report.ending_table(report.conversations(going)).empty
    assert report.turn_table(report.conversations(going)).empty
    lines = (folder / "raw_responses.jsonl").read_bytes().splitlines(keepends=True)
    (going / "raw_responses.jsonl").write_bytes(lines[0])
    assert report.endings_said(report.conversations(going)) == (
        "0 of 1 conversation came to its end, 1 goes on; none ended early."
    )


def test_prompts_are_told_by_how_they_were_made(folder: Path) -> None:
    turns = report.read_turns(folder)
    assert report.made_table(turns)["turns"].tolist() == [4, 2, 2]
    assert report.cycles_said(turns) == ("In each of 2 cycles the template's own render is the prompt that was sent.")
    changed = turns.assign(differs_at=turns["differs_at"].where(turns["made"] != "cycle", 7))
    assert report.cycles_said(changed).startswith("In 2 of 2 cycles the template would have written")
    assert report.cycles_said(turns[turns["made"] == "first"]) == "There is no tool cycle."
    with pytest.raises(InputError, match="run notebook 03_verify_responses"):
        report.read_turns(folder / "nowhere")


def test_a_cycle_is_drawn_as_prompt_sampled_tool_result_sampled(
    folder: Path, target: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[list[tuple[str, tuple[int, ...]]]] = []
    monkeypatch.setattr(report, "show_segments", lambda segments, decoder, caption: shown.append(list(segments)))
    said = report.show_cycle(folder, report.read_turns(folder), target)
    (segments,) = shown
    assert [label for label, _ in segments] == ["prompt", "sampled", "tool result", "sampled"]
    rows = {row["key"]: row for row in pq.read_table(folder / "verified.parquet").to_pylist()}
    joined = [item for _, ids in segments for item in ids]
    last = rows["a#1/x#1/0"]
    assert joined == [*last["prompt_ids"], *last["output_ids"]]
    assert list(segments[1][1]) == rows["a#1/x#0/0"]["output_ids"]
    assert target.decode(segments[2][1]).startswith("<|im_system|>tool<|im_middle|>## Return of")
    assert said.startswith(f"Of the {len(joined):,} ids of this cycle the model sampled ")
    first = report.read_turns(folder).query("made == 'first'")
    assert report.show_cycle(folder, first, target) == "There is no tool cycle to show."


def test_what_the_servers_had_cached_is_told_by_turn(folder: Path) -> None:
    timings = read_timings(folder)
    timings["cached_tokens"] = [tokens // 2 if "#0/" not in key else 0 for key, tokens in zip(
        timings["key"], timings["prompt_tokens"], strict=True)]  # fmt: skip
    table = report.cache_table(timings)
    assert table["turn"].tolist() == [0, 1, 2]
    assert table["requests"].tolist() == [4, 3, 1]
    assert table["share cached"].round(1).tolist() == [0.0, 0.5, 0.5]
    assert report.cache_said(table).endswith("the servers had 50% in their prefix cache.")
    assert report.cache_said(table[:1]) == "There are no later turns yet."


def test_audits_find_the_conversation_of_every_turn(folder: Path) -> None:
    keys = ["a#1/x#0/0", "a#1/x#1/0", "b#2/0"]
    found = read_conversations(folder, keys)
    roles = {key: [message["role"] for message in getattr(conversation_of(found, key), "messages", ())] for key in keys}
    assert roles == {
        "a#1/x#0/0": ["user"],
        "a#1/x#1/0": ["user", "assistant", "tool"],
        "b#2/0": ["user", "assistant", "tool", "assistant", "user"],
    }
    assert conversation_of(found, "a#1/x#9/0") is None


def test_a_stopped_run_of_conversations_misses_those_that_go_on(target: Tokenizer, tmp_path: Path) -> None:
    stopped = prepare(tmp_path / "stopped", target, ROWS)
    with pytest.raises(RunStopped):
        run(stopped, target, Model(target, dies_at=4), window=1)
    rows = read_planned(stopped, 1)
    assert rows["key"].tolist() == ["a#1/x#0/0", "b#0/0", "c#0/0", "d#0/0"]
    over = [str(key) for key in read_endings(stopped)]
    assert rows["key"][rows["state"] == "generated"].tolist() == over
    assert (rows["state"] == "not asked").sum() == 4 - len(over) > 0
    lengths = output_lengths(rows, read_timings(stopped), stopped)
    said = completion(rows, lengths, unit="conversation")
    assert said.startswith("Of 4 planned conversations: " if over else "Nothing is generated yet; of 4 planned conv")
    run(stopped, target)
    assert (read_planned(stopped, 1)["state"] == "generated").all()
    small_dataset.change_prompts(stopped, "b#0")
    assert read_planned(stopped, 1)["state"].tolist() == ["generated", EARLIER, "generated", "generated"]


def test_what_the_template_would_write_is_shown_beside_what_was_sent(target: Tokenizer, tmp_path: Path) -> None:
    made = prepare(tmp_path / "straight", target, ROWS[1:2])
    run(made, target, Model(target, lambda text: speak(text).replace("I look.</think>", "I look.")))
    verify_journal(made, markers=target.markers, vocabulary_size=163840, later_prompts=derive_turns(made, target))
    turns = report.read_turns(made)
    (row,) = report.difference_table(made, turns, target).to_dict("records")
    assert row["key"] == "b#1/0"
    assert str(row["as sampled, and sent"]).startswith("<|tool_calls_section_begin|><|tool_call_begin|>")
    assert str(row["as the template writes it"]).startswith("</think><|tool_calls_section_begin|>")
    assert report.cycles_said(turns).startswith("In 1 of 1 cycle the template would have written")
