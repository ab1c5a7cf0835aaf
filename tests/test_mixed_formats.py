"""Rows of several formats in one file: each is read by its own, and says so where that is not the file's."""

import json
from pathlib import Path

import pytest
from prompt_rows import chat, glaive, only, read, read_rows, reasons, said

from rawtokens.records import Conversation, Rejection

USER = {"role": "user", "content": "Hi"}
ACE = chat(("user", "Hi"), ("assistant", "[f(a=1)]"), ("user", "And?"), system='Use [{"name": "f", "parameters": {}}].')
HERMES = chat(
    ("system", '<tools>[{"name": "f"}]</tools>'),
    ("human", "Hi"),
    ("gpt", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'),
    ("human", "And?"),
)
KINDS: dict[str, dict[str, object]] = {
    "sharegpt": chat(("human", "Hi")),
    "toolace": ACE,
    "hermes": HERMES,
    "glaive": glaive("USER: Hi"),
    "openai_messages": {"messages": [USER]},
    "opencodeinstruct": {"input": "Hi", "unit_tests": "[]"},
    "alpaca": {"instruction": "Add.", "input": "1 2"},
    "xlam": {"query": "Hi", "tools": '[{"name": "f", "parameters": {"a": {"type": "str"}}}]'},
    "bfcl": {"question": [[USER]], "function": [{"name": "f", "parameters": {"type": "dict"}}]},
    "plain": {"prompt": "Hi"},
}
GENERAL = {("hermes", "sharegpt"), ("toolace", "sharegpt"), ("xlam", "plain")}


@pytest.mark.parametrize("late", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_a_late_row_is_read_by_its_own_format_and_says_so(tmp_path: Path, first: str, late: str) -> None:
    alone = only(read_rows(tmp_path, [KINDS[late]]))
    found = read_rows(tmp_path, [*({**KINDS[first], "id": str(place)} for place in range(120)), KINDS[late]])
    assert reasons(found) == [""] * 121
    last = found[-1]
    assert isinstance(last, Conversation)
    assert (last.messages, last.tools) == (alone.messages, alone.tools)
    said_so = first != late and (first, late) not in GENERAL
    assert [notice for notice in last.notices if notice.startswith("format_of")] == (
        [f"format_of_the_row: {late}"] if said_so else []
    )
    assert all("format_of" not in str(row) for row in found[:-1])


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ({"conversations": [{"value": "Hi"}]}, "unknown_role", "from must be one of"),
        ({"messages": [{"content": "Hi"}]}, "unknown_role", "role must be one of"),
        ({"messages": 5}, "missing_field", "messages must be a list"),
        ({"chat": "Hi"}, "bad_turn", "chat must begin with USER:"),
        ({"instruction": 5}, "missing_field", "instruction must be text"),
        ({"prompt": 5}, "missing_field", "expected text in one of prompt"),
        ({"nothing": "Hi"}, "missing_field", ""),
    ],
)
def test_a_row_of_no_formats_shape_is_refused_in_the_words_of_its_own_column(
    tmp_path: Path, first: str, row: dict[str, object], reason: str, detail: str
) -> None:
    *_, last = read_rows(tmp_path, [KINDS[first], row])
    assert isinstance(last, Rejection)
    assert last.reason == reason
    assert detail in last.detail


@pytest.mark.parametrize("first", sorted(set(KINDS) - {"opencodeinstruct"}))
def test_a_column_that_says_nothing_of_its_format_is_not_guessed_to_be_the_prompt(tmp_path: Path, first: str) -> None:
    assert reasons(read_rows(tmp_path, [KINDS[first], {"input": "Hi"}])) == ["", "missing_field"]


@pytest.mark.parametrize("tools", ["", "  ", "\n", None, "[]", []])
@pytest.mark.parametrize("kind", ["sharegpt", "openai_messages", "alpaca", "plain", "xlam"])
def test_a_blank_tools_column_declares_none(tmp_path: Path, kind: str, tools: object) -> None:
    assert only(read_rows(tmp_path, [{**KINDS[kind], "tools": tools}])).tools == ()


def test_a_toolace_row_is_known_by_a_system_turn_too(tmp_path: Path) -> None:
    system = 'Be kind.\n[{"name": "f", "description": "F."}]\nShould you call, write [func(a=b)].'
    turns = [("user", "Hi"), ("assistant", "[f(a=1)]"), ("tool", "1")]
    found = only(read_rows(tmp_path, [chat(("system", system), *turns)]))
    assert said(found)[0] == ("system", "Be kind.")
    assert found.messages[2]["tool_calls"] == [
        {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ]


def test_a_call_turn_among_toolace_turns_is_a_call(tmp_path: Path) -> None:
    row = chat(("user", "Hi"), ("function_call", '{"name": "f", "arguments": {}}'), ("tool", "1"), system=ACE["system"])
    assert [call["function"] for call in only(read_rows(tmp_path, [row])).messages[2]["tool_calls"]] == [  # type: ignore[union-attr,index,call-overload]
        {"name": "f", "arguments": "{}"}
    ]


def test_a_list_of_names_in_a_system_text_declares_no_tools(tmp_path: Path) -> None:
    row = chat(("human", "Hi"), system='Guests: [{"name": "Ann"}].')
    found = only(read_rows(tmp_path, [row]))
    assert (said(found)[0], found.tools) == (("system", 'Guests: [{"name": "Ann"}].'), ())


def test_a_named_format_reads_no_row_of_another(tmp_path: Path) -> None:
    rows = [KINDS["sharegpt"], ACE, HERMES, {"prompt": "Hi"}, {"messages": [USER]}]
    assert reasons(read_rows(tmp_path, rows, format="sharegpt")) == [
        "",
        "tools_in_text",
        "tools_in_text",
        "missing_field",
        "missing_field",
    ]


def test_a_row_of_no_format_is_rejected_by_that_of_the_file(tmp_path: Path) -> None:
    rows = [*[{**KINDS["alpaca"], "id": str(place)} for place in range(3)], {"text": "a document"}]
    assert reasons(read_rows(tmp_path, rows)) == ["", "", "", "missing_field"]


def test_turns_as_json_text_are_read_by_every_format_of_turns(tmp_path: Path) -> None:
    for name in ("sharegpt", "hermes", "toolace", "openai_messages"):
        row = KINDS[name]
        as_text = {key: json.dumps(value) if isinstance(value, list) else value for key, value in row.items()}
        found = only(read(tmp_path / "rows", json.dumps({"id": 1, **as_text})))
        plain = only(read(tmp_path / "rows", json.dumps({"id": 1, **row})))
        assert found == plain
