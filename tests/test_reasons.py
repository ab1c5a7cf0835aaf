"""Every reason and every notice that the package names is given by a row, and no row gives another."""

import ast
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prompt_rows import chat, glaive, listed, read, reasons

import rawtokens.conversations
from rawtokens.conversations import read_conversations
from rawtokens.records import Conversation

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "a"}
CALL = {"function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "1"}
ACE = 'Use [{"name": "f", "parameters": {}}].'

REASONS: dict[str, object] = {
    "bad_json": '{"prompt": ',
    "not_an_object": "[1]",
    "bad_value": {"prompt": [{**USER, "weight": float("nan")}]},
    "bad_id": {"id": True, "prompt": "Hi"},
    "duplicate_id": {"id": "good", "prompt": "Hi"},
    "missing_field": {"prompt": 7},
    "bad_turn": {"conversations": ["Hi"]},
    "unknown_role": chat(("robot", "Hi")),
    "no_user_turn": {"messages": [ANSWER]},
    "empty_prompt": {"prompt": " "},
    "not_text": {"prompt": "Hi", "image": "a.png"},
    "bad_tools": {"prompt": "Hi", "tools": "hammer"},
    "bad_tool_call": {"messages": [USER, {**CALLED, "tool_calls": ["f"]}, USER]},
    "bad_arguments": {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, USER]},
    "bad_template_kwargs": {"prompt": "Hi", "template_kwargs": "thinking"},
    "tools_in_text": chat(("system", ACE), ("human", "Hi")),
    "tool_result_without_call": {"messages": [USER, RESULT]},
    "end_inside_turn": glaive("USER: a <|endoftext|> b"),
    "lone_surrogate": {"prompt": "\ud83d"},
    "not_continuable": {"prompt": "Hi"},
}
OPTIONS = {"tools_in_text": {"format": "sharegpt"}, "not_continuable": {"turns": "continue"}}

NOTICES: dict[str, object] = {
    "leading_assistant": {"messages": [ANSWER, USER]},
    "several_turns_after_the_last": {"messages": [USER, ANSWER, ANSWER]},
    "empty_turn": {"messages": [{"role": "system", "content": ""}, USER]},
    "nul_character": {"prompt": "a\0"},
    "unanswered_call": {"messages": [USER, CALLED, USER]},
    "call_ids_of_the_file": {"messages": [USER, {**CALLED, "tool_calls": [{**CALL, "id": "c"}]}, RESULT]},
    "developer_as_system": {"messages": [{"role": "developer", "content": "a"}, USER]},
    "system_column_unread": chat(("system", "a"), ("human", "Hi"), system="b"),
    "tools_out_of_text": chat(("system", ACE), ("human", "Hi")),
    "tools_differ": chat(("system", '<tools>[{"name": "f"}]</tools>'), ("human", "Hi"), tools='[{"name": "g"}]'),
    "parameter_type_of_the_file": {"query": "Hi", "tools": '[{"name": "f", "parameters": {"a": {"type": "any"}}}]'},
    "later_turns_without_answers": {"question": [[USER], [USER]], "function": []},
    "format_of_the_row": chat(("human", "Hi")),
}

GOOD = json.dumps({"id": "good", "prompt": "Good"}) + "\n"
PACKAGE = Path(rawtokens.conversations.__file__).parent


def written(row: object) -> str:
    return (row if isinstance(row, str) else json.dumps(row)) + "\n"


@pytest.mark.parametrize("reason", REASONS)
def test_a_row_gives_its_reason(tmp_path: Path, reason: str) -> None:
    lines = written(REASONS[reason])
    if reason not in OPTIONS:
        lines = GOOD + lines
    assert reasons(read(tmp_path / "rows", lines, **OPTIONS.get(reason, {})))[-1:] == [reason]


@pytest.mark.parametrize("notice", NOTICES)
def test_a_row_gives_its_notice(tmp_path: Path, notice: str) -> None:
    lines = GOOD * 2 if notice == "format_of_the_row" else ""
    found = read(tmp_path / "rows", lines + written(NOTICES[notice]))[-1]
    assert isinstance(found, Conversation), found
    assert notice in [name.partition(":")[0] for name in found.notices]


def test_padding_is_said(tmp_path: Path) -> None:
    tools = [{"name": name, "parameters": {"properties": {name: {"type": "string"}}}} for name in ("f", "g")]
    pq.write_table(pa.Table.from_pylist([{"prompt": "Hi", "tools": tools}]), tmp_path / "rows")
    (found,) = read_conversations(tmp_path / "rows")
    assert isinstance(found, Conversation)
    assert found.notices == ("null_padding",)


def test_the_package_names_each_reason_and_each_notice() -> None:
    assert set(listed("Reasons")) == set(REASONS)
    assert set(listed("Notices")) == {*NOTICES, "null_padding", "revision_not_pinned"}  # the last: test_hub_datasets


def test_no_other_reason_stands_in_the_code() -> None:
    found: set[str] = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                found |= codes_of(node)
    assert found == set(REASONS)


def codes_of(node: ast.Call) -> set[str]:
    """The reason that a call gives: BadRow("..", ..), fault=("..", ..), or the last text of a helper's arguments."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    given = {"BadRow": node.args[:1], "load_json": node.args[2:], "load_literal": node.args[2:]}.get(name, [])
    given += node.args[2:] if name == "_refuse_between" else []
    given += [word.value.elts[0] for word in node.keywords if word.arg == "fault" and isinstance(word.value, ast.Tuple)]
    return {str(part.value) for part in given if isinstance(part, ast.Constant)}
