"""Which turn is asked, and beginnings of answers that the model goes on with."""

from pathlib import Path

import pytest
from prompt_rows import chat, glaive, only, read_rows, reasons, said

from rawtokens.errors import InputError
from rawtokens.records import Rejection

BEGUN = "It is  noon. \n"
CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def messages(*turns: tuple[str, object], **last: object) -> dict[str, object]:
    made: list[dict[str, object]] = [{"role": role, "content": text} for role, text in turns]
    return {"messages": [*made[:-1], {**made[-1], **last}]}


@pytest.mark.parametrize(
    "row",
    [
        chat(("system", "Be brief."), ("human", "When?"), ("gpt", BEGUN)),
        messages(("system", "Be brief."), ("user", "When?"), ("assistant", BEGUN)),
        {"prompt": messages(("system", "Be brief."), ("user", "When?"), ("assistant", BEGUN))["messages"]},
        chat(("human", "When?"), ("gpt", BEGUN), system="Be brief."),
    ],
)
def test_the_beginning_of_an_answer_stays_to_the_letter_in_every_format(tmp_path: Path, row: dict[str, object]) -> None:
    found = only(read_rows(tmp_path, [row], turns="continue"))
    assert said(found) == [("system", "Be brief."), ("user", "When?"), ("assistant", BEGUN)]
    assert found.continue_final is True
    asked = only(read_rows(tmp_path, [row]))
    assert said(asked) == said(found)[:-1]
    assert asked.continue_final is False


def test_the_beginning_of_thinking_alone_is_a_beginning(tmp_path: Path) -> None:
    row = messages(("user", "When?"), ("assistant", None), reasoning_content="Hm.")
    found = only(read_rows(tmp_path, [row], turns="continue"))
    assert found.messages[-1] == {"role": "assistant", "content": "", "reasoning_content": "Hm."}


def test_glaive_and_toolace_and_hermes_keep_a_beginning_too(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [glaive("USER: When?\n\n\nASSISTANT: It is ")], turns="continue"))
    assert said(found) == [("user", "When?"), ("assistant", "It is ")]
    tools = '[{"name": "f", "parameters": {}}]'
    for system in (f"Use {tools}.", f"Use <tools>{tools}</tools>"):
        turns = [("human", "When?"), ("gpt", "It is ")]
        found = only(read_rows(tmp_path, [chat(("system", system), *turns)], turns="continue"))
        assert said(found)[-1] == ("assistant", "It is ")
        assert len(found.tools) == 1


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        (chat(("human", "When?")), "the last turn is by the user"),
        (messages(("user", "When?"), ("assistant", "It is"), ("system", "Stop.")), "by the system"),
        (messages(("user", "When?"), ("assistant", " \n")), "empty or whitespace"),
        (messages(("user", "When?"), ("assistant", None), reasoning_content=" "), "empty or whitespace"),
        (messages(("user", "When?"), ("assistant", " "), reasoning_content="Hm."), "empty or whitespace"),
        (messages(("user", "When?"), ("assistant", "I look."), tool_calls=[CALL]), "holds tool calls"),
        ({"instruction": "When?", "output": BEGUN}, "the last turn is by the user"),
        ({"prompt": "When?", "response": BEGUN}, "the last turn is by the user"),
    ],
)
def test_what_has_no_beginning_to_go_on_with_is_rejected_with_the_reason(
    tmp_path: Path, row: dict[str, object], detail: str
) -> None:
    (found,) = read_rows(tmp_path, [row], turns="continue")
    assert isinstance(found, Rejection)
    assert found.reason == "not_continuable"
    assert detail in found.detail


def test_a_beginning_without_a_question_is_rejected_and_two_answers_in_a_row_are_said(tmp_path: Path) -> None:
    assert reasons(read_rows(tmp_path, [chat(("gpt", "Hi"))], turns="continue")) == ["no_user_turn"]
    found = only(read_rows(tmp_path, [chat(("human", "Hi"), ("gpt", "a"), ("gpt", "b"))], turns="continue"))
    assert said(found) == [("user", "Hi"), ("assistant", "a"), ("assistant", "b")]
    assert found.notices == ("several_turns_after_the_last",)


@pytest.mark.parametrize(
    ("after", "notices"),
    [
        ([], ()),
        ([("gpt", "a")], ()),
        ([("gpt", "a"), ("gpt", "b")], ("several_turns_after_the_last",)),
        ([("system", "Stop.")], ("several_turns_after_the_last",)),
        ([("gpt", "a"), ("system", "Stop.")], ("several_turns_after_the_last",)),
    ],
)
def test_the_last_question_ends_the_prompt_whatever_follows(
    tmp_path: Path, after: list[tuple[str, str]], notices: tuple[str, ...]
) -> None:
    found = only(read_rows(tmp_path, [chat(("human", "a"), ("gpt", "b"), ("human", "c"), *after)]))
    assert said(found) == [("user", "a"), ("assistant", "b"), ("user", "c")]
    assert found.notices == notices


def test_a_result_of_a_tool_is_a_turn_to_be_answered(tmp_path: Path) -> None:
    called = messages(("user", "When?"), ("assistant", None), tool_calls=[CALL])
    listed = called["messages"]
    assert isinstance(listed, list)
    row = {"messages": [*listed, {"role": "tool", "content": "12"}, {"role": "assistant", "content": "Noon."}]}
    assert said(only(read_rows(tmp_path, [row])))[-1] == ("tool", "12")


def test_turns_that_are_not_known_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="turns is 'all'; expected one of last, continue, each"):
        read_rows(tmp_path, [chat(("human", "Hi"))], turns="all")


ANSWERED = ("assistant", "The file's own words")


def test_every_turn_is_generated_from_the_first_answer_on_and_old_answers_keep_their_calls_alone(
    tmp_path: Path,
) -> None:
    called = messages(("system", "Be brief."), ("user", "When?"), ANSWERED, tool_calls=[CALL])["messages"]
    assert isinstance(called, list)
    rest = messages(("tool", "12"), ANSWERED, ("user", "And now?"), ANSWERED)["messages"]
    assert isinstance(rest, list)
    found = only(read_rows(tmp_path, [{"messages": [*called, *rest]}], turns="each"))
    assert said(found) == [("system", "Be brief."), ("user", "When?")]
    assert found.later == (
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "12", "tool_call_id": "functions.f:0"},
        {"role": "assistant"},
        {"role": "user", "content": "And now?"},
    )


@pytest.mark.parametrize(
    ("turns", "prompt", "later"),
    [
        ([("human", "a")], ["a"], []),
        ([("human", "a"), ("gpt", "b")], ["a"], []),
        ([("gpt", "Hi"), ("human", "a"), ("gpt", "b"), ("human", "c")], ["Hi", "a"], ["assistant", "user"]),
        ([("human", "a"), ("human", "b"), ("gpt", "c"), ("human", "d")], ["a", "b"], ["assistant", "user"]),
    ],
)
def test_what_stands_before_the_first_answer_to_a_question_is_the_first_prompt(
    tmp_path: Path, turns: list[tuple[str, str]], prompt: list[str], later: list[str]
) -> None:
    found = only(read_rows(tmp_path, [chat(*turns)], turns="each"))
    assert [text for _, text in said(found)] == prompt
    assert [message["role"] for message in found.later or ()] == later


def test_an_empty_later_question_is_a_notice_and_an_empty_first_one_a_rejection(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [chat(("human", "a"), ("gpt", "b"), ("human", " "))], turns="each"))
    assert found.notices == ("empty_turn",)
    assert reasons(read_rows(tmp_path, [chat(("human", " "), ("gpt", "b"), ("human", "c"))], turns="each")) == [
        "empty_prompt"
    ]


def test_nothing_stands_behind_the_prompt_where_one_turn_is_generated(tmp_path: Path) -> None:
    assert only(read_rows(tmp_path, [chat(("human", "a"), ("gpt", "b"), ("human", "c"))])).later is None
