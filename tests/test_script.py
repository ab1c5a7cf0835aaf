"""Scripts of recorded conversations: questions to come, calls and their results, and how many answers they foresee."""

import pytest
from turn_rows import called, user

from rawtokens.records import Json
from rawtokens.turns.keys import TurnKey, split_key
from rawtokens.turns.script import Part, RecordedCall, canonical, expected_turns, read_script, script_digest

ASSISTANT: dict[str, Json] = {"role": "assistant"}
ONE, TWO = called(('{"city": "Oslo"}', "3")), called(('{"city":"Rome"}', "25"), first=1)


def test_a_part_is_what_stands_behind_one_question() -> None:
    parts = read_script([*ONE, *TWO, ASSISTANT, user("And?"), ASSISTANT])
    assert [call.arguments for call in parts[0].calls] == ['{"city":"Oslo"}', '{"city":"Rome"}']
    assert [call.result for call in parts[0].calls] == [ONE[1], TWO[1]]
    assert parts[0].then == (user("And?"),)
    assert parts[1:] == (Part(),)


def test_nothing_recorded_is_one_empty_part() -> None:
    assert read_script([]) == (Part(),)
    assert read_script([ASSISTANT, user("a"), ASSISTANT, user("b")]) == (
        Part(then=(user("a"),)),
        Part(then=(user("b"),)),
        Part(),
    )


def test_a_call_without_a_result_is_kept_as_such() -> None:
    (part,) = read_script([ONE[0]])
    assert part.calls == (RecordedCall(name="get_weather", arguments='{"city":"Oslo"}', result=None),)


def test_results_stay_with_their_calls_where_a_file_uses_an_id_again() -> None:
    again = called(('{"city":"Rome"}', "25"))
    assert again[1]["tool_call_id"] == ONE[1]["tool_call_id"]
    for later in ([*ONE, *again], [*ONE, ASSISTANT, user("And?"), *again], [ONE[0], again[0], ONE[1], again[1]]):
        results = [call.result for part in read_script(later) for call in part.calls]
        assert results == [ONE[1], again[1]]
    unanswered, answered = read_script([ONE[0], user("And?"), *again])[0:2]
    assert [call.result for call in (*unanswered.calls, *answered.calls)] == [None, again[1]]


@pytest.mark.parametrize(
    ("later", "turns"),
    [
        ([], 1),
        ([ASSISTANT], 1),
        ([ASSISTANT, user("a")], 2),
        ([ASSISTANT, user("a"), user("b"), ASSISTANT], 2),
        ([*ONE, ASSISTANT], 2),
        ([*called(("{}", "1"), ("{}", "2")), ASSISTANT, user("a")], 3),
        ([*ONE, *TWO, ASSISTANT, user("a"), ASSISTANT], 4),
    ],
)
def test_answers_foreseen_are_the_first_and_one_a_question_or_round_of_results(
    later: list[dict[str, Json]], turns: int
) -> None:
    assert expected_turns(later) == turns


@pytest.mark.parametrize(
    ("arguments", "spelt"),
    [
        ('{"b": 1, "a": "\\u006f"}', '{"a":"o","b":1}'),
        ({"b": [1, {}], "a": None}, '{"a":null,"b":[1,{}]}'),
        ("[1]", None),
        ("{", None),
        ('{"a": NaN}', None),
        (None, None),
    ],
)
def test_arguments_have_one_spelling(arguments: Json, spelt: str | None) -> None:
    assert canonical(arguments) == spelt


def test_true_is_not_one_and_a_number_is_not_its_text() -> None:
    assert len({canonical({"a": value}) for value in (True, 1, "1", 1.5)}) == 4


def test_keys_are_read_from_their_end() -> None:
    assert split_key("a/b#2#3/4") == TurnKey("a/b#2", 3, 4)
    assert str(split_key("a/b#2#3/4")) == "a/b#2#3/4"
    assert str(split_key("a#3/4").conversation) == "a#0/4"


@pytest.mark.parametrize("key", ["", "a", "a/0", "a#0", "a#x/0", "a#0/x", "a#/0", "a#-1/0"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="expected SOURCE_ID#TURN/SAMPLE"):
        split_key(key)


def test_a_script_is_known_by_its_text() -> None:
    assert script_digest("[]") == script_digest("[]") != script_digest("[1]")
