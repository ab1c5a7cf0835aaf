"""Prompt files become conversations, and every row that can't is said, with the reason."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prompt_rows import chat, glaive, only, read, read_rows, reasons, said
from transformers import PreTrainedTokenizerBase

from rawtokens.conversations import FORMATS, detect_format, read_conversations
from rawtokens.errors import InputError
from rawtokens.records import Conversation, Rejection

FUNCTIONS = """{
    "name": "get_time",
    "description": "Get the time in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}}
    }
}

{
    "name": "add_note",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}
}
"""
SENTENCE = "You are a helpful assistant with access to the following functions. Use them if required -"
ORDER = {"input": "Sort a list.", "output": "sorted(x)", "unit_tests": "[]", "average_test_score": "1"}


# ShareGPT


def test_sharegpt_drops_the_final_answer_and_keeps_the_history(tmp_path: Path) -> None:
    row = chat(
        ("system", "Be brief."), ("human", "Hi"), ("gpt", "Hello."), ("human", "Bye"), ("gpt", "Bye."), id="ab_0"
    )
    found = only(read_rows(tmp_path, [row]))
    assert said(found) == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")]
    assert (found.source_id, found.line, found.tools, found.notices) == ("ab_0", 1, (), ())


def test_leading_assistant_turns_are_kept_with_a_notice(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [chat(("gpt", "Welcome."), ("gpt", "Ask."), ("human", "Hi"))]))
    assert said(found) == [("assistant", "Welcome."), ("assistant", "Ask."), ("user", "Hi")]
    assert found.notices == ("leading_assistant",)


def test_more_than_one_turn_after_the_last_question_is_said(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [chat(("human", "Hi"), ("gpt", "a"), ("gpt", "b"))]))
    assert said(found) == [("user", "Hi")]
    assert found.notices == ("several_turns_after_the_last",)


def test_sharegpt_calls_get_ids_in_order_and_results_the_oldest_open_one(tmp_path: Path) -> None:
    call = '{"name": "get_time", "arguments": {"city": "Tromsø"}}'
    turns = [("human", "When?"), ("function_call", f"[{call}, {call}]"), ("observation", "12"), ("observation", "13")]
    more = [("gpt", "Noon."), ("human", "Now?"), ("function-call", call), ("function-response", "14")]
    found = only(read_rows(tmp_path, [chat(*turns, *more, tools='[{"name": "get_time"}]')]))
    function = {"name": "get_time", "arguments": '{"city": "Tromsø"}'}
    assert found.messages[1]["tool_calls"] == [
        {"id": "functions.get_time:0", "type": "function", "function": function},
        {"id": "functions.get_time:1", "type": "function", "function": function},
    ]
    assert found.messages[2] == {"role": "tool", "content": "12", "tool_call_id": "functions.get_time:0"}
    assert [message["tool_call_id"] for message in found.messages if message["role"] == "tool"] == [
        "functions.get_time:0",
        "functions.get_time:1",
        "functions.get_time:2",
    ]
    assert found.tools == ({"type": "function", "function": {"name": "get_time"}},)
    assert found.notices == ()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"conversations": []}, "no_user_turn"),
        ({"conversations": ["Hi"]}, "bad_turn"),
        ({"conversations": [{"from": "human", "value": None}]}, "bad_turn"),
        ({"conversations": [{"from": "robot", "value": "Hi"}]}, "unknown_role"),
        ({"conversations": {"from": "human"}}, "missing_field"),
        (chat(("gpt", "Hello.")), "no_user_turn"),
        (chat(("human", " \n\u2028")), "empty_prompt"),
        (chat(("human", "Hi"), ("observation", "12")), "tool_result_without_call"),
        (chat(("human", "Hi"), ("function_call", "get_time()"), ("observation", "12")), "bad_tool_call"),
        (chat(("human", "Hi"), tools="[{"), "bad_tools"),
        (chat(("human", "Hi"), tools=[{"description": "nameless"}]), "bad_tools"),
        (chat(("system", "<tools>{}</tools>"), ("human", "Hi")), "tools_in_text"),
    ],
)
def test_a_bad_sharegpt_row_costs_itself_alone(tmp_path: Path, row: dict[str, object], reason: str) -> None:
    outcomes = read_rows(tmp_path, [row, chat(("human", "Good"), id=2)], format="sharegpt")
    assert reasons(outcomes) == [reason, ""]


def test_a_system_column_beside_another_system_turn_is_said(tmp_path: Path) -> None:
    turns = [("system", "Be brief."), ("human", "Hi")]
    found = only(read_rows(tmp_path, [chat(*turns, system="Be long.")]))
    assert (said(found)[0], found.notices) == (("system", "Be brief."), ("system_column_unread",))
    assert only(read_rows(tmp_path, [chat(*turns, system="Be brief.")])).notices == ()


def test_a_broken_old_answer_costs_no_prompt(tmp_path: Path) -> None:
    assert said(only(read_rows(tmp_path, [chat(("human", "Hi"), ("function_call", "{broken"))]))) == [("user", "Hi")]


# Glaive


def test_glaive_declares_its_functions_and_keeps_the_sentence(tmp_path: Path) -> None:
    found = only(
        read_rows(
            tmp_path,
            [glaive("USER: Hi\n\n\nASSISTANT: Hello. <|endoftext|>\n\n\n", f"SYSTEM: {SENTENCE}\n{FUNCTIONS}")],
        )
    )
    assert said(found) == [("system", SENTENCE), ("user", "Hi")]
    assert [tool["function"]["name"] for tool in found.tools] == ["get_time", "add_note"]  # type: ignore[index,call-overload]
    assert found.tools[0] == {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "Get the time in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }


def test_glaive_without_functions_declares_none(tmp_path: Path) -> None:
    text = "You are a helpful assistant, with no access to external functions."
    found = only(read_rows(tmp_path, [glaive("USER: Hi", f"SYSTEM: {text}\n")]))
    assert (said(found), found.tools) == ([("system", text), ("user", "Hi")], ())


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("""'{"text": "it's Ann's"}'""", """{"text": "it's Ann's"}"""),
        (r"""'{"text": "it\'s"}'""", """{"text": "it's"}"""),
        (r"""'{"text": "a\\"}'""", r"""{"text": "a\\"}"""),
        ("""'{"text":   "spaces stay"}'""", """{"text":   "spaces stay"}"""),
        ("""{"text": "an object"}""", """{"text": "an object"}"""),
        (r'''"{\"text\": \"JSON text\"}"''', """{"text": "JSON text"}"""),
        ("'{}'", "{}"),
    ],
)
@pytest.mark.parametrize("end", [" <|endoftext|>", "<|endoftext|> <|endoftext|>", ""])
def test_glaive_arguments_are_the_files_own_json(tmp_path: Path, written: str, arguments: str, end: str) -> None:
    text = (
        f'USER: Note it.\n\n\nASSISTANT: Sure. <functioncall> {{"name": "add_note", "arguments": {written}}}{end}'
        f'\n\n\nFUNCTION RESPONSE: {{"ok": true}}\n\n\nASSISTANT: Done.{end}\n\n\n\n'
    )
    found = only(read_rows(tmp_path, [glaive(text)]))
    assert found.messages == (
        {"role": "user", "content": "Note it."},
        {
            "role": "assistant",
            "content": "Sure.",
            "tool_calls": [
                {
                    "id": "functions.add_note:0",
                    "type": "function",
                    "function": {"name": "add_note", "arguments": arguments},
                }
            ],
        },
        {"role": "tool", "content": '{"ok": true}', "tool_call_id": "functions.add_note:0"},
    )
    assert found.notices == ()


def test_user_inside_text_is_no_turn(tmp_path: Path) -> None:
    text = "USER: The log says\nUSER: bob\n\nASSISTANT: amy, then USER: x\n\n\n\n\nindeed. \n\n\nASSISTANT: I see."
    assert said(only(read_rows(tmp_path, [glaive(text)]))) == [
        ("user", "The log says\nUSER: bob\n\nASSISTANT: amy, then USER: x\n\n\n\n\nindeed. ")
    ]


@pytest.mark.parametrize("between", ["\n\n\n", "\r\n\r\n\r\n", " <|endoftext|>\n", "<|endoftext|>\n\n\n\n"])
def test_turns_of_glaive_end_at_three_newlines_or_the_end_marker(tmp_path: Path, between: str) -> None:
    text = f"USER: a{between}ASSISTANT: b{between}USER:   indented\n  code{between}"
    assert said(only(read_rows(tmp_path, [glaive(text)]))) == [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "  indented\n  code"),
    ]


@pytest.mark.parametrize(
    ("text", "system", "reason"),
    [
        ("Hello\n\n\nUSER: Hi", "", "bad_turn"),
        ("USER: a <|endoftext|> b", "", "end_inside_turn"),
        (
            'USER: a\n\n\nASSISTANT: <functioncall> {"name": "f", "arguments": \'{"a": }\'}\n\n\nUSER: b',
            "",
            "bad_arguments",
        ),
        (
            'USER: a\n\n\nASSISTANT: <functioncall> {"name": "f", "arguments": \'[1]\'}\n\n\nUSER: b',
            "",
            "bad_arguments",
        ),
        (
            'USER: a\n\n\nASSISTANT: <functioncall> {"name": "f", "arguments": \'{"a": NaN}\'}\n\n\nUSER: b',
            "",
            "bad_arguments",
        ),
        ('USER: a\n\n\nASSISTANT: <functioncall> {"name": "f"}\n\n\nUSER: b', "", "bad_arguments"),
        ("USER: a\n\n\nASSISTANT: <functioncall> f(1)\n\n\nUSER: b", "", "bad_tool_call"),
        ("USER: a\n\n\nASSISTANT: <functioncall> {} then more\n\n\nUSER: b", "", "bad_tool_call"),
        ("USER: a\n\n\nFUNCTION RESPONSE: 1", "", "tool_result_without_call"),
        ("USER: a", 'SYSTEM: Functions -\n{"name": "f"}\n\n{"name": ', "bad_tools"),
        ("USER: a", 'SYSTEM: Functions -\n{"name": "f"}\n\nand more', "bad_tools"),
        ("USER: ", "", "empty_prompt"),
        ("", "", "no_user_turn"),
    ],
)
def test_a_bad_glaive_row_costs_itself_alone(tmp_path: Path, text: str, system: str, reason: str) -> None:
    assert reasons(read_rows(tmp_path, [glaive(text, system), glaive("USER: Good")])) == [reason, ""]


def test_an_array_of_functions_is_declared_too(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [glaive("USER: Hi", 'SYSTEM: With -\n[{"name": "f"}, {"name": "g"}]')]))
    assert [tool["function"] for tool in found.tools] == [{"name": "f"}, {"name": "g"}]


def test_a_megabyte_of_newlines_is_read_at_once(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [glaive("USER: a" + "\n" * 1_000_000 + "b")]))
    assert found.messages[0]["content"] == "a" + "\n" * 1_000_000 + "b"


_glaive_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text.strip() and "\n\n\n" not in text and not text.endswith(("\n", "\r")) and "endoftext" not in text
)


@given(words=st.lists(_glaive_text, min_size=1, max_size=5), argument=st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_comes_out_of_glaive_unchanged(tmp_path: Path, words: list[str], argument: str) -> None:
    arguments = json.dumps({"text": argument}, ensure_ascii=False)
    call = f"""<functioncall> {{"name": "f", "arguments": '{arguments}'}} <|endoftext|>"""
    called = f"ASSISTANT: {call}\n\n\nFUNCTION RESPONSE: 1"
    text = "\n\n\n".join([part for word in words for part in (f"USER: {word}", called)])
    found = only(read_rows(tmp_path, [glaive(text)]))
    assert [content for role, content in said(found) if role == "user"] == words
    calls = [message["tool_calls"] for message in found.messages if "tool_calls" in message]
    assert [call[0]["function"]["arguments"] for call in calls] == [arguments] * len(words)  # type: ignore[index,call-overload]


# OpenCodeInstruct


def test_opencodeinstruct_takes_input_alone_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    row = {**ORDER, "id": "c1", "input": " Sort.\r\n", "domain": None}
    pq.write_table(
        pa.Table.from_pylist([row, {**row, "id": "c2", "input": "\t"}, {**row, "id": "c3", "input": None}]), path
    )
    good, empty, missing = read_conversations(path)
    assert isinstance(good, Conversation)
    assert (good.source_id, good.line, good.messages) == ("c1", 1, ({"role": "user", "content": " Sort.\r\n"},))
    assert reasons([empty, missing]) == ["empty_prompt", "missing_field"]


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"id": "1", "output": "x", "unit_tests": "[]"}]), path)
    with pytest.raises(InputError, match=r"rows\.parquet has no column input.*found: id, output, unit_tests"):
        read_conversations(path, format="opencodeinstruct")
    with pytest.raises(InputError, match=r"opencodeinstruct \(input\)"):
        read_conversations(path)


# OpenAI messages


def test_openai_messages_keep_what_a_template_may_read(tmp_path: Path) -> None:
    call = {"id": "call_9", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}],
            "name": "ann",
        },
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "call_9", "content": ""},
    ]
    found = only(
        read_rows(
            tmp_path, [{"id": 0, "messages": messages, "tools": [{"type": "function", "function": {"name": "f"}}]}]
        )
    )
    assert found.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What now?", "name": "ann"},
        {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_9", "content": ""},
    )
    assert found.source_id == "0"
    assert found.notices == ("developer_as_system", "call_ids_of_the_file", "empty_turn")


def test_arguments_as_object_become_the_text_that_tojson_writes(tmp_path: Path, kimi: PreTrainedTokenizerBase) -> None:
    def row(arguments: object) -> dict[str, object]:
        calls = [{"function": {"name": "f", "arguments": arguments}}]
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": calls}]
        return {"messages": [*turns, {"role": "tool", "content": "1"}]}

    arguments = {"b": "Tromsø <&'>", "a": [1, 2.0, None]}
    found = only(read_rows(tmp_path, [row(arguments)]))
    calls = found.messages[1]["tool_calls"]
    assert calls[0]["function"]["arguments"] == json.dumps(arguments, ensure_ascii=False)  # type: ignore[index,call-overload]
    as_object = [*found.messages]
    as_object[1] = {**as_object[1], "tool_calls": [{**calls[0], "function": {"name": "f", "arguments": arguments}}]}  # type: ignore[dict-item,index]
    rendered = [kimi.apply_chat_template(messages, tokenize=False) for messages in (list(found.messages), as_object)]
    assert rendered[0] == rendered[1]
    assert "## Return of functions.f:0\n1" in str(rendered[0])
    assert reasons(read_rows(tmp_path, [row("{'a': 1}"), row({})])) == ["bad_arguments", ""]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "not_text"),
        ({"role": "user", "content": 7}, "bad_turn"),
        ({"role": "critic", "content": "x"}, "unknown_role"),
        ({"role": "tool", "tool_call_id": "call_1", "content": "x"}, "tool_result_without_call"),
        ({"role": "assistant", "tool_calls": ["f"]}, "bad_tool_call"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "bad_arguments"),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, "bad_tool_call"),
        ("Hi", "bad_turn"),
    ],
)
def test_a_bad_message_costs_its_row_alone(tmp_path: Path, message: object, reason: str) -> None:
    good = {"role": "user", "content": "Hi"}
    rows = [{"messages": [good]}, {"messages": [message, good]}]
    assert reasons(read_rows(tmp_path, rows)) == ["", reason]


def test_null_padding_of_parquet_is_taken_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    tools = [{"name": name, "parameters": {"properties": {name: {"type": "string"}}}} for name in ("f", "g")]
    plain = {"id": "1", "messages": turns, "tools": tools}
    as_text = {"id": "2", "messages": turns, "tools": tools}
    pq.write_table(pa.Table.from_pylist([plain]), path)
    found = only(list(read_conversations(path)))
    assert found.tools == tuple({"type": "function", "function": tool} for tool in tools)
    assert found.notices == ("null_padding",)
    pq.write_table(pa.Table.from_pylist([{key: json.dumps(value) for key, value in as_text.items()}]), path)
    from_text = only(list(read_conversations(path)))
    assert (from_text.messages, from_text.tools, from_text.notices) == (found.messages, found.tools, ())


def test_a_call_that_nobody_answered_is_said(tmp_path: Path) -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    asked = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": calls}]
    for end in ({"role": "tool", "content": "1"}, {"role": "user", "content": "Well?"}):
        assert only(read_rows(tmp_path, [{"messages": [*asked, end]}])).notices == ("unanswered_call",)


# Ids


def test_7_and_text_7_are_reported_and_never_overwrite(tmp_path: Path) -> None:
    first, second, third = read_rows(
        tmp_path, [chat(("human", text), id=own) for text, own in (("a", 7), ("b", "7"), ("c", 7))]
    )
    assert isinstance(first, Conversation)
    assert (first.source_id, said(first)) == ("7", [("user", "a")])
    assert reasons([second, third]) == ["duplicate_id", "duplicate_id"]
    assert isinstance(second, Rejection)
    assert isinstance(third, Rejection)
    assert (second.stage, second.key, second.line) == ("tokenize", "7#row2", 2)
    assert third.key == "7#row3"


def test_a_rejected_row_holds_its_id_so_that_no_key_is_both(tmp_path: Path) -> None:
    outcomes = read_rows(
        tmp_path, [chat(("human", ""), id="a"), chat(("human", "Hi"), id="a"), chat(("human", "Hi"), id="b")]
    )
    assert reasons(outcomes) == ["empty_prompt", "duplicate_id", ""]


def test_an_id_from_content_is_the_same_everywhere(tmp_path: Path) -> None:
    row = {"conversations": [{"from": "human", "value": "Grüße"}], "id": None}
    turned = '{"conversations": [{"value": "Gr\\u00fc\\u00dfe", "from": "human"}]}'
    ids = [only(read_rows(tmp_path, [row])).source_id, only(read(tmp_path / "b", f"[{json.dumps(row)}]")).source_id]
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "c")
    ids.append(only(list(read_conversations(tmp_path / "c"))).source_id)
    ids.append(only(read(tmp_path / "d", turned)).source_id)
    assert ids == ["sha256-c109a4a865fc9c644192"] * 4
    assert reasons(read_rows(tmp_path, [row, row, chat(("human", "Other"))])) == ["", "duplicate_id", ""]


@pytest.mark.parametrize("own", [True, [1], {"a": 1}])
def test_an_id_that_is_no_name_is_refused(tmp_path: Path, own: object) -> None:
    assert reasons(read_rows(tmp_path, [chat(("human", "Hi"), id=own)])) == ["bad_id"]


# Containers and dirty bytes


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet", "rows", "rows.txt"])
@pytest.mark.parametrize("container", ["lines", "array", "parquet"])
def test_a_container_is_known_by_its_bytes(tmp_path: Path, name: str, container: str) -> None:
    rows = [chat(("human", "a"), id="1"), chat(("human", "b"), id="2")]
    if container == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        lines = [json.dumps(row) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) if container == "lines" else f"\n[{', '.join(lines)}]\n")
    found = list(read_conversations(tmp_path / name))
    assert [(row.source_id, row.line) for row in found if isinstance(row, Conversation)] == [("1", 1), ("2", 2)]
    assert detect_format(tmp_path / name) == "sharegpt"


def test_bom_crlf_blank_lines_and_odd_separators_are_no_trouble(tmp_path: Path) -> None:
    line = json.dumps(chat(("human", "a\u2028b\u0085c\x0bd\0")), ensure_ascii=False).encode()
    other = json.dumps(chat(("human", "x"), id=1)).encode()
    first, second = read(tmp_path / "rows", b"\xef\xbb\xbf" + line + b"\r\n\r\n" + other + b"\r\n\n")
    assert isinstance(first, Conversation)
    assert isinstance(second, Conversation)
    assert first.messages[0]["content"] == "a\u2028b\u0085c\x0bd\0"
    assert (first.notices, second.line) == (("nul_character",), 3)
    assert said(only(read(tmp_path / "array", b"\xef\xbb\xbf [" + line + b"]\r\n"))) == said(first)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"conversations": [{"from": "human", "value": "\\ud83d"}]}', "lone_surrogate"),
        (b'{"conversations": [{"from": "human", "value": "\xff"}]}', "lone_surrogate"),
        (b'{"id": "\\ud83d", "conversations": [{"from": "human", "value": "Hi"}]}', "lone_surrogate"),
        (b'{"conversations": [{"from": "human", "val', "bad_json"),
        (b"\0\0\0\0", "bad_json"),
        (b'{"conversations": [{"from": "human", "value": "raw \0 byte"}]}', "bad_json"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "bad_json"),
        (b"7" * 5000, "bad_json"),
        (b"[1, 2]", "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"null", "not_an_object"),
    ],
)
def test_a_dirty_line_costs_itself_alone(tmp_path: Path, line: bytes, reason: str) -> None:
    good = json.dumps(chat(("human", "Hi"), id=1)).encode()
    outcomes = read(tmp_path / "rows", good + b"\n" + line + b"\n" + line + b"\n" + good.replace(b"1}", b"2}"))
    assert reasons(outcomes)[1] == reason
    assert reasons(outcomes)[2] in (reason, "duplicate_id")
    keys = {row.key for row in outcomes if isinstance(row, Rejection)}
    assert len(keys) == sum(isinstance(row, Rejection) for row in outcomes)
    for outcome in outcomes:
        if isinstance(outcome, Rejection):
            (outcome.key + outcome.detail).encode()
    assert [row.line for row in outcomes] == [1, 2, 3, 4]


def test_a_surrogate_pair_is_one_character(tmp_path: Path) -> None:
    line = '{"conversations": [{"from": "human", "value": "\\ud83d\\ude00"}]}'
    assert said(only(read(tmp_path / "rows", line))) == [("user", "😀")]


def test_bytes_of_parquet_that_are_no_text_cost_their_row_alone(tmp_path: Path) -> None:
    text = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"]).buffers())
    table = pa.table({"id": ["1", "2", "3"], "input": text, "unit_tests": ["", "", ""]})
    pq.write_table(table, tmp_path / "rows")
    assert reasons(list(read_conversations(tmp_path / "rows"))) == ["", "bad_value", ""]


def test_limit_counts_rows_read(tmp_path: Path) -> None:
    rows = [chat(("human", ""), id=0), *(chat(("human", "Hi"), id=number) for number in range(1, 300))]
    assert reasons(read_rows(tmp_path, rows, limit=2)) == ["empty_prompt", ""]
    assert len(read_rows(tmp_path, rows, limit=150)) == 150
    assert len(read_rows(tmp_path, rows, limit=1000)) == 300
    assert len(read_rows(tmp_path, rows, limit=10**24)) == 300
    with pytest.raises(InputError, match="limit is 0"):
        read_rows(tmp_path, rows, limit=0)


def test_lines_are_streamed(tmp_path: Path) -> None:
    good = json.dumps(chat(("human", "Hi"))) + "\n"
    path = tmp_path / "rows"
    path.write_text(good * 5000)
    rows = read_conversations(path)
    assert isinstance(next(rows), Conversation)
    path.write_text("")
    assert len(list(rows)) < 4999


# What the user can get wrong


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read .No such file or directory"),
        (b"", "holds no rows"),
        (b"\n \r\n", "holds no rows"),
        (b"[]", "holds no rows"),
        (b'[{"conversations": []},', "JSON array that is broken"),
        (b"PAR1 but no footer", "can't be read"),
        (b"\x1f\x8b\x08\x00", "can't be read .Compressed file ended"),
        (b"\xff\xfe{\x00", "is UTF-16; convert it"),
        (b"\0\1\n\2", "is none of the files that are read"),
        (b"7\n[1]\n{}", r"no format that is known"),
        (b"[7, 8]", "none of the first 2 rows is a JSON object"),
        (b"id,text\n1,Hi\n", r"no format that is known; found the columns id, text; expected .*sharegpt"),
        (b'{"id": 1, "text": "Hi"}', r"no format that is known; found the columns id, text; expected .*sharegpt"),
    ],
)
def test_a_file_that_can_not_be_used_says_so_at_once_in_one_line(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "prompts.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_conversations(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_prompt_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a directory; expected a file, a pattern such as .*parquet, or hub:"):
        read_conversations(tmp_path)


def test_an_unknown_format_names_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'sharegtp' is not known; expected auto or one of hermes, toolace"):
        read_rows(tmp_path, [chat(("human", "Hi"))], format="sharegtp")


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (chat(("human", "Hi")), "sharegpt"),
        (glaive("USER: Hi"), "glaive"),
        (ORDER, "opencodeinstruct"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, "openai_messages"),
        (chat(("system", "Call. <tools>[]</tools>"), ("human", "Hi")), "hermes"),
        (chat(("human", "Hi"), ("gpt", "<tool_call>{}</tool_call>")), "hermes"),
        (chat(("user", "Hi"), system='Functions: [{"name": "f", "description": "F."}]'), "toolace"),
        ({"query": "Hi", "answers": "[]", "tools": "[]"}, "xlam"),
        ({"question": [[{"role": "user", "content": "Hi"}]], "function": []}, "bfcl"),
        ({"instruction": "Hi", "input": "", "output": "a"}, "alpaca"),
        ({"prompt": "Hi"}, "plain"),
        ({"prompt": [{"role": "user", "content": "Hi"}], "answer": "a"}, "plain"),
        ({"question": "Hi", "answer": "a"}, "plain"),
        ({"text_line": "Hi"}, "text_lines"),
    ],
)
def test_each_format_is_known_by_its_rows_and_a_broken_first_row_misleads_nobody(
    tmp_path: Path, row: dict[str, object], name: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("{torn\n" + '{"input": 1}\n' + json.dumps(row) + "\n" + json.dumps(row) + "\n")
    assert detect_format(path) == name


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_calls = st.sampled_from(
    [
        "<tools>[{'name': 'f'}]</tools>",
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        "<tool_response>1</tool_response>",
        "[Get Time(a=1, b='x')]",
        "[f(a=",
        "[1, 2]",
    ]
)
_turns = st.lists(
    st.fixed_dictionaries(
        {"from": st.sampled_from(["human", "gpt", "system", "tool", "function_call"]) | _json, "value": _json | _calls},
        optional={"role": st.sampled_from(["user", "assistant", "tool"]), "content": _json, "tool_calls": _json},
    )
    | _json,
    max_size=4,
)
_rows = st.fixed_dictionaries(
    {},
    optional={
        "id": _json,
        "conversations": _turns,
        "messages": _turns,
        "tools": _json | st.just('[{"name": "f", "parameters": {"a": {"type": "str"}}}]'),
        "chat": _json,
        "input": _json,
        "system": _json | st.just('With [{"name": "f", "parameters": {}}].'),
        "question": _json | st.lists(_turns, max_size=2),
        "function": _json,
        "instruction": _json,
        "history": _json,
        "prompt": _json | _turns,
        "query": _json,
        "text_line": _json,
    },
)


@given(rows=st.lists(_rows | _json, max_size=6), form=st.sampled_from(list(FORMATS)))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_in_are_rows_out_plus_rejections_whatever_they_hold(tmp_path: Path, rows: list[object], form: str) -> None:
    probe = dict.fromkeys(FORMATS[form].COLUMNS, "USER: Hi")
    outcomes = read_rows(tmp_path, [probe, *rows], format=form)
    assert [row.line for row in outcomes] == list(range(1, len(rows) + 2))
    keys = [row.key if isinstance(row, Rejection) else f"{row.source_id}#0" for row in outcomes]
    assert len(set(keys)) == len(keys)
    for row in outcomes:
        if isinstance(row, Conversation):
            json.dumps([row.messages, row.tools], ensure_ascii=False, allow_nan=False).encode()
            assert row.messages[-1]["role"] in ("user", "tool")
        else:
            (row.key + row.detail).encode()


@pytest.mark.parametrize("column", ["image", "images", "video", "audio"])
def test_a_row_with_a_picture_or_a_sound_beside_its_text_is_rejected(tmp_path: Path, column: str) -> None:
    turns = [{"from": "human", "value": "<image>\nWhat is in this picture?"}]
    path = tmp_path / "rows.json"
    path.write_text(
        json.dumps([{"id": "a", "conversations": turns, column: "a.png"}, {"id": "b", "conversations": turns}])
    )
    first, second = read_conversations(path)
    assert isinstance(first, Rejection)
    assert (first.key, first.reason) == ("a#0", "not_text")
    assert isinstance(second, Conversation)
