"""The formats with tools of their own kind (Hermes, ToolACE, xLAM, BFCL), and those that are one prompt a row."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prompt_rows import chat, only, read, read_rows, reasons, said

from rawtokens.conversations import detect_format, read_conversations
from rawtokens.records import Conversation

TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
HERMES = (
    "You are a calling model. Be kind. You are given signatures within <tools></tools> XML tags. Here they are:\n"
    "<tools>\n{tools}\n</tools>\nFor each call return an object with this schema: {'title': 'Call'}\n"
    "Put it in <tool_call></tool_call> tags as follows:\n<tool_call>\n{tool_call}\n</tool_call>"
)
HERMES_CALL = """<tool_call>\n{"name": "get_time", "arguments": {"city": "Tromsø"}}\n</tool_call>"""


def hermes(*turns: tuple[str, str], tools: object = (TOOL,), column: bool = True) -> dict[str, object]:
    system = HERMES.replace("{tools}", json.dumps(tools))
    return chat(("system", system), *turns, **({"tools": json.dumps(tools)} if column else {}))


def calls_of(conversation: Conversation) -> list[object]:
    calls = [message["tool_calls"] for message in conversation.messages if "tool_calls" in message]
    return [call["function"] for listed in calls for call in listed]  # type: ignore[union-attr,index,call-overload]


def functions(conversation: Conversation) -> list[object]:
    return [tool["function"] for tool in conversation.tools]


# Hermes


@pytest.mark.parametrize("column", [True, False])
def test_hermes_tools_are_declared_once_and_what_declared_them_in_text_is_out(tmp_path: Path, column: bool) -> None:
    found = only(read_rows(tmp_path, [hermes(("human", "Hi"), ("gpt", HERMES_CALL), column=column)]))
    assert said(found) == [("system", "You are a calling model. Be kind."), ("user", "Hi")]
    assert found.tools == (TOOL,)
    assert found.notices == ("tools_out_of_text",)


def test_text_after_the_declaration_stays_and_an_empty_system_turn_goes(tmp_path: Path) -> None:
    system = 'Use <tools>[{"name": "f"}]</tools> with <tool_call> tags.\nToday is Monday.\n'
    found = only(read_rows(tmp_path, [chat(("system", system), ("human", "Hi"))]))
    assert said(found) == [("system", "\nToday is Monday."), ("user", "Hi")]
    found = only(read_rows(tmp_path, [chat(("system", "<tools>[]</tools>"), ("human", "Hi"))]))
    assert (said(found), found.tools) == ([("user", "Hi")], ())


def test_hermes_calls_and_results_come_out_of_the_text(tmp_path: Path) -> None:
    python = "<tool_call>\n{'arguments': {'city': \"Ann's\", 'late': True}, 'name': 'get_time'}\n</tool_call>"
    results = '<tool_response>\n{"t": 12}\n</tool_response>\n<tool_response>13</tool_response>\n'
    turns = [("human", "When?"), ("gpt", f"I look.\n{HERMES_CALL}\n{python}"), ("tool", results), ("gpt", "Noon.")]
    found = only(read_rows(tmp_path, [hermes(*turns)]))
    assert said(found)[1:] == [("user", "When?"), ("assistant", "I look."), ("tool", '{"t": 12}'), ("tool", "13")]
    assert calls_of(found) == [
        {"name": "get_time", "arguments": '{"city": "Tromsø"}'},
        {"name": "get_time", "arguments": '{"city": "Ann\'s", "late": true}'},
    ]
    ids = [message["tool_call_id"] for message in found.messages if message["role"] == "tool"]
    assert ids == ["functions.get_time:0", "functions.get_time:1"]
    assert found.notices == ("tools_out_of_text",)


def test_a_column_that_names_other_tools_than_the_text_is_said(tmp_path: Path) -> None:
    row = {**hermes(("human", "Hi")), "tools": '[{"name": "other"}]'}
    found = only(read_rows(tmp_path, [row]))
    assert (functions(found), found.notices) == ([{"name": "other"}], ("tools_differ", "tools_out_of_text"))


@pytest.mark.parametrize(
    ("turns", "tools", "reason"),
    [
        ([("gpt", "<tool_call>{'name': f}</tool_call>")], None, "bad_tool_call"),
        ([("gpt", "<tool_call>{'name': 'f', 'arguments': {}}")], None, "bad_tool_call"),
        ([("gpt", HERMES_CALL + " Done.")], None, "bad_tool_call"),
        ([("gpt", "<tool_call>{'name': 'f', 'arguments': [1]}</tool_call>")], None, "bad_arguments"),
        ([("gpt", "<tool_call>" + "[" * 100_000 + "</tool_call>")], None, "bad_tool_call"),
        ([("gpt", HERMES_CALL), ("tool", "<tool_response>1")], None, "bad_turn"),
        ([("tool", "<tool_response>1</tool_response>")], None, "tool_result_without_call"),
        ([], "[{'name': ]", "bad_tools"),
    ],
)
def test_a_bad_hermes_row_costs_itself_alone(
    tmp_path: Path, turns: list[tuple[str, str]], tools: str | None, reason: str
) -> None:
    bad = chat(("system", f"<tools>{tools or '[]'}</tools>"), ("human", "Hi"), *turns, ("human", "And?"))
    assert reasons(read_rows(tmp_path, [bad, hermes(("human", "Good"))])) == [reason, ""]


def test_a_few_hermes_rows_among_plain_ones_are_read_as_such(tmp_path: Path) -> None:
    rows = [chat(("human", str(number))) for number in range(5)]
    assert reasons(read_rows(tmp_path, [*rows, hermes(("human", "Hi"))])) == [""] * 6
    assert reasons(read_rows(tmp_path, [*rows, hermes(("human", "Hi"))], format="sharegpt"))[5] == "tools_in_text"


# ToolACE

TOOLACE = (
    "You are an expert. Today is Monday.\nHere is a list of functions in JSON format:\n{tools}. \nShould you decide to "
    "call, put it in the format of [func1(params_name=params_value), func2(params)]\nNO other text MUST be included."
)
ACE_TOOL = {
    "name": "Market Trends API",
    "parameters": {
        "type": "dict",
        "properties": {
            "type": {"type": "string"},
            "sizes": {"type": "array", "items": {"type": "float"}},
            "deep": {"type": "dict", "properties": {"a": {"type": "int"}}},
        },
        "required": ["type"],
    },
    "required": None,
}


def toolace(*turns: tuple[str, str], tools: str = json.dumps([ACE_TOOL])) -> dict[str, object]:
    return chat(*turns, system=TOOLACE.replace("{tools}", tools))


def test_toolace_declares_what_the_system_text_lists(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [toolace(("user", "Hi"), ("assistant", "[Market Trends API()]"))]))
    sentence = "You are an expert. Today is Monday.\nHere is a list of functions in JSON format:"
    assert said(found) == [("system", sentence), ("user", "Hi")]
    parameters = {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "sizes": {"type": "array", "items": {"type": "number"}},
            "deep": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
        "required": ["type"],
    }
    assert functions(found) == [{**ACE_TOOL, "parameters": parameters}]
    assert found.notices == ("tools_out_of_text",)


@pytest.mark.parametrize(
    ("written", "calls"),
    [
        ("[Market Trends API(n=2)]", [("Market Trends API", {"n": 2})]),
        ("[get.time()]", [("get.time", {})]),
        (' [f(from="a, b)", in=\'it\\\'s\'),  g(x=[1, {"k": (2, 3)}])] ', None),
        ("[f(flag=true, no=None, low=-1.5)]", [("f", {"flag": True, "no": None, "low": -1.5})]),
        ('[f(q="a=b")]', [("f", {"q": "a=b"})]),
    ],
)
def test_toolace_calls_are_read(
    tmp_path: Path, written: str, calls: list[tuple[str, dict[str, object]]] | None
) -> None:
    calls = calls or [("f", {"from": "a, b)", "in": "it's"}), ("g", {"x": [1, {"k": [2, 3]}]})]
    found = only(read_rows(tmp_path, [toolace(("user", "Hi"), ("assistant", written), ("user", "And?"))]))
    assert calls_of(found) == [
        {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)} for name, arguments in calls
    ]
    assert found.messages[2]["content"] == ""


def test_one_result_turn_answers_several_calls_with_the_files_own_text(tmp_path: Path) -> None:
    turns = [("user", "Hi"), ("assistant", "[f(a=1), f(a=2)]"), ("tool", '[{"name": "f",  "r": 1.0}, {"r":"ø"}]\n')]
    found = only(read_rows(tmp_path, [toolace(*turns)]))
    assert said(found)[3:] == [("tool", '{"name": "f",  "r": 1.0}'), ("tool", '{"r":"ø"}')]
    assert found.notices == ("tools_out_of_text",)
    found = only(read_rows(tmp_path, [toolace(*turns[:2], ("tool", '[{"r": 1}]'))]))
    assert said(found)[3:] == [("tool", '[{"r": 1}]')]
    assert found.notices == ("unanswered_call", "tools_out_of_text")


@pytest.mark.parametrize("text", ["[see above] for more", "[1, 2, 3]", "Use [f(a=1)]"])
def test_text_in_brackets_is_no_call(tmp_path: Path, text: str) -> None:
    rows = [toolace(("user", "Hi"), ("assistant", text), ("user", "And?"))]
    assert said(only(read_rows(tmp_path, rows)))[2] == ("assistant", text)


@pytest.mark.parametrize(
    ("call", "tools", "reason"),
    [
        ("[f(a=1)] Done.", "", "bad_tool_call"),
        ("[f(a=1]", "", "bad_tool_call"),
        ("[f(a='1)]", "", "bad_tool_call"),
        ("[f(a=1), ]", "", "bad_tool_call"),
        ("[Foo (v2)(a=1)]", "", "bad_tool_call"),
        ("[f(1)]", "", "bad_arguments"),
        ("[Note: (a) or (b)]", "", "bad_tool_call"),
        ("[f(a=b)]", "", "bad_arguments"),
        ("[f(a=1, a=2)]", "", "bad_arguments"),
        ("[f()]", '[{"name": "f", "parameters": {}}, {]', "bad_tools"),
    ],
)
def test_a_bad_toolace_row_costs_itself_alone(tmp_path: Path, call: str, tools: str, reason: str) -> None:
    bad = toolace(
        ("user", "Hi"), ("assistant", call), ("user", "And?"), tools=tools or '[{"name": "f", "parameters": {}}]'
    )
    assert reasons(read_rows(tmp_path, [bad, toolace(("user", "Good"))])) == [reason, ""]


_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(arguments=st.dictionaries(st.from_regex(r"\A[a-z_-]{1,8}\Z"), _value, max_size=4), as_json=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_arguments_come_out_of_a_toolace_call_unchanged(
    tmp_path: Path, arguments: dict[str, object], as_json: bool
) -> None:
    written = ", ".join(f"{key}={json.dumps(value) if as_json else repr(value)}" for key, value in arguments.items())
    found = only(
        read_rows(tmp_path, [toolace(("user", "Hi"), ("assistant", f"[Get It({written})]"), ("user", "And?"))])
    )
    assert calls_of(found) == [{"name": "Get It", "arguments": json.dumps(arguments, ensure_ascii=False)}]


# xLAM


def xlam(parameters: object, **members: object) -> dict[str, object]:
    return {"query": "Hi", "answers": "[]", "tools": json.dumps([{"name": "f", "parameters": parameters}]), **members}


def test_xlam_parameters_become_a_schema(tmp_path: Path) -> None:
    flat = {
        "type": {"description": "Kind.", "type": "str", "default": "game"},
        "n": {"description": "How many.", "type": "int"},
        "rate": {"type": "float, optional"},
        "names": {"type": "List[str]"},
        "grid": {"type": "List[List[float]], optional"},
        "pair": {"type": "Tuple[int, int]"},
        "extra": {"type": "Dict[str, int]"},
        "maybe": {"type": "Optional[bool]"},
        "free": {"description": "Anything."},
    }
    found = only(read_rows(tmp_path, [xlam(flat, id=0)]))
    assert (found.source_id, said(found), found.notices) == ("0", [("user", "Hi")], ())
    strings, numbers = ({"type": "array", "items": {"type": kind}} for kind in ("string", "number"))
    assert functions(found) == [
        {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "type": {"description": "Kind.", "type": "string", "default": "game"},
                    "n": {"description": "How many.", "type": "integer"},
                    "rate": {"type": "number"},
                    "names": strings,
                    "grid": {"type": "array", "items": numbers},
                    "pair": {"type": "array"},
                    "extra": {"type": "object"},
                    "maybe": {"type": "boolean"},
                    "free": {"description": "Anything."},
                },
                "required": ["n", "names", "pair", "extra", "free"],
            },
        }
    ]


def test_a_type_that_json_schema_lacks_stays_and_is_said(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [xlam({"g": {"type": "Callable[[float], float]"}})]))
    assert functions(found)[0]["parameters"]["properties"] == {"g": {"type": "Callable[[float], float]"}}  # type: ignore[index]
    assert found.notices == ("parameter_type_of_the_file",)


@pytest.mark.parametrize(
    "schema",
    [{"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": []}, {"type": "object"}],
)
def test_a_schema_that_is_one_already_stays(tmp_path: Path, schema: dict[str, object]) -> None:
    assert functions(only(read_rows(tmp_path, [xlam(schema)]))) == [{"name": "f", "parameters": schema}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (xlam([1]), "bad_tools"),
        (xlam({"a": "str"}), "bad_tools"),
        (xlam({}, tools="[{"), "bad_tools"),
        (xlam({}, query=None), "missing_field"),
        (xlam({}, query=" "), "empty_prompt"),
    ],
)
def test_a_bad_xlam_row_costs_itself_alone(tmp_path: Path, row: dict[str, object], reason: str) -> None:
    assert reasons(read_rows(tmp_path, [row, xlam({}), xlam({}, query="Other")])) == [reason, "", ""]


# BFCL


def bfcl(*turns: object, **members: object) -> dict[str, object]:
    function = {"name": "math.area", "parameters": {"type": "dict", "properties": {"type": {"type": "float"}}}}
    return {"id": "simple_0", "question": list(turns), "function": [function], **members}


ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How big?"}]


def test_bfcl_types_become_those_of_json_schema(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [bfcl(ASKED)]))
    assert (found.source_id, said(found)) == ("simple_0", [("system", "Be brief."), ("user", "How big?")])
    parameters = {"type": "object", "properties": {"type": {"type": "number"}}}
    assert found.tools == ({"type": "function", "function": {"name": "math.area", "parameters": parameters}},)
    assert found.notices == ()


def test_later_turns_of_bfcl_wait_for_answers_that_are_not_there(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [bfcl(ASKED, [{"role": "user", "content": "And now?"}])]))
    assert said(found)[-1] == ("user", "How big?")
    assert found.notices == ("later_turns_without_answers",)


def test_later_turns_of_bfcl_follow_where_every_turn_is_generated(tmp_path: Path) -> None:
    found = only(read_rows(tmp_path, [bfcl(ASKED, [{"role": "user", "content": "And now?"}])], turns="each"))
    assert said(found) == [(message["role"], message["content"]) for message in ASKED]
    assert found.later == ({"role": "assistant"}, {"role": "user", "content": "And now?"})
    assert found.notices == ()


def test_bfcl_in_parquet_with_lists_as_text_reads_the_same(tmp_path: Path) -> None:
    row = {key: json.dumps(value) if isinstance(value, list) else value for key, value in bfcl(ASKED).items()}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    assert only(list(read_conversations(tmp_path / "rows.parquet"))) == only(read_rows(tmp_path, [bfcl(ASKED)]))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"id": "m", "question": [ASKED], "involved_classes": ["FileSystem"]}, "missing_field"),
        (bfcl(id="m"), "missing_field"),
        (bfcl([], id="m"), "no_user_turn"),
        (bfcl(ASKED, id="m", function=["f"]), "bad_tools"),
    ],
)
def test_a_bad_bfcl_row_costs_itself_alone(tmp_path: Path, row: dict[str, object], reason: str) -> None:
    assert reasons(read_rows(tmp_path, [row, bfcl(ASKED)])) == [reason, ""]


# One prompt a row


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, [("user", "Add.\n\n1 2")]),
        ({"instruction": " Add.\n", "input": "", "output": "3"}, [("user", " Add.\n")]),
        ({"instruction": "Add.", "context": "1 2", "response": "3"}, [("user", "Add.\n\n1 2")]),
        ({"instruction": "Add.", "input": None, "system": "Be brief."}, [("system", "Be brief."), ("user", "Add.")]),
        (
            {"instruction": "And?", "history": [["a", "b"]]},
            [("user", "a"), ("assistant", "b"), ("user", "And?")],
        ),
    ],
)
def test_alpaca_joins_instruction_and_input(
    tmp_path: Path, row: dict[str, object], turns: list[tuple[str, str]]
) -> None:
    assert said(only(read_rows(tmp_path, [row]))) == turns


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"instruction": "", "input": ""}, "empty_prompt"),
        ({"instruction": None, "input": "x"}, "missing_field"),
        ({"instruction": "Hi", "input": 7}, "missing_field"),
        ({"instruction": "Hi", "history": [["a"]]}, "bad_turn"),
        ({"instruction": "Hi", "history": 7}, "bad_turn"),
        ({"instruction": "Hi", "tools": "hammer"}, "bad_tools"),
    ],
)
def test_a_bad_alpaca_row_costs_itself_alone(tmp_path: Path, row: dict[str, object], reason: str) -> None:
    assert reasons(read_rows(tmp_path, [row, {"instruction": "Good"}])) == [reason, ""]


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"prompt": " Hi\r\n", "response": "a"}, [("user", " Hi\r\n")]),
        ({"system_prompt": "Be brief.", "question": "Hi"}, [("system", "Be brief."), ("user", "Hi")]),
        ({"query": "Hi"}, [("user", "Hi")]),
        ({"problem": "Hi", "prompt": None}, [("user", "Hi")]),
        ({"prompt": "first", "question": "second"}, [("user", "first")]),
        ({"prompt": ASKED}, [("system", "Be brief."), ("user", "How big?")]),
    ],
)
def test_one_column_is_the_prompt(tmp_path: Path, row: dict[str, object], turns: list[tuple[str, str]]) -> None:
    assert said(only(read_rows(tmp_path, [row]))) == turns


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": 7}, "missing_field"),
        ({"prompt": ""}, "empty_prompt"),
        ({"other": "x"}, "missing_field"),
        ({"prompt": "Hi", "system": [1]}, "missing_field"),
        ({"prompt": "Hi", "tools": "hammer"}, "bad_tools"),
        ({"prompt": [{"role": "critic", "content": "x"}]}, "unknown_role"),
    ],
)
def test_a_bad_plain_row_costs_itself_alone(tmp_path: Path, row: dict[str, object], reason: str) -> None:
    assert reasons(read_rows(tmp_path, [row, {"prompt": "Good"}])) == [reason, ""]


def test_a_text_file_is_one_prompt_a_line(tmp_path: Path) -> None:
    found = read(tmp_path / "rows.txt", "\ufeffHello, how are you?\r\n\n  \n {not JSON\u2028either}\t\n[INST] 1\n\xff")
    assert [said(row)[0][1] for row in found if isinstance(row, Conversation)] == [
        "Hello, how are you?",
        " {not JSON\u2028either}\t",
        "[INST] 1",
        "ÿ",
    ]
    assert [row.line for row in found] == [1, 4, 5, 6]
    assert detect_format(tmp_path / "rows.txt") == "text_lines"


@pytest.mark.parametrize("text", ['{"prompt": "Hi"}', "[1, 2]", "prompt,id"])
def test_a_file_is_read_as_text_lines_where_that_is_asked(tmp_path: Path, text: str) -> None:
    assert said(only(read(tmp_path / "rows", text, format="text_lines"))) == [("user", text)]
    assert reasons(read(tmp_path / "rows", text + "\n" + text + "\nother", format="text_lines")) == [
        "",
        "duplicate_id",
        "",
    ]
