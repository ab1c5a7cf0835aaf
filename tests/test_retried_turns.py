"""A row of a conversation that is generated again takes the turns behind it along."""

from pathlib import Path

from rawtokens.journal import append_rejections
from rawtokens.records import Rejection
from rawtokens.turns.retried import with_later_turns

KEYS = ["a#0/0", "b#0/0", "a#1/0", "a#0/1", "a#2/0", "a#1/1", "b#1/0"]


def rejection(key: str) -> Rejection:
    return Rejection(stage="generate", key=key, line=None, reason="timeout", detail="")


def test_later_turns_of_the_same_conversation_go_along_and_no_others(tmp_path: Path) -> None:
    one, two = tmp_path / "raw_responses.1-of-2.jsonl", tmp_path / "raw_responses.2-of-2.jsonl"
    one.write_text("".join(f'{{"key":"{key}","prompt_ids":[]}}\n' for key in KEYS))
    two.write_text('{"key":"c#0/0","prompt_ids":[]}\n')
    append_rejections(tmp_path, [rejection(key) for key in ("a#3/0", "a#2/1", "b#2/0")])
    lines, rejections = with_later_turns(tmp_path, {one: {2, 1}, two: set()}, [])
    assert lines == {one: {1, 2, 4, 6}, two: set()}
    assert {item.key for item in rejections} == {"a#3/0", "b#2/0"}


def test_the_last_turn_goes_alone(tmp_path: Path) -> None:
    path = tmp_path / "raw_responses.jsonl"
    path.write_text("".join(f'{{"key":"{key}","prompt_ids":[]}}\n' for key in KEYS))
    given = [rejection("z#0/0")]
    assert with_later_turns(tmp_path, {path: {4}}, given) == ({path: {4}}, given)
    assert with_later_turns(tmp_path, {}, given) == ({}, given)
