"""Tool declarations, calls and results in OpenAI's form, whatever the file's form.

`arguments` are a JSON **string**, as the file spells it: Kimi's template takes a string verbatim (and an object
through `tojson`), so no byte changes on the way to the ids. An object in the file becomes the string that
transformers' `tojson` would write. Where a template wants objects, `json.loads` of it gives them.

A call without an id gets Kimi's, `functions.NAME:IDX`, IDX counted over the conversation from 0; ids of the file
stay. A result gets the id of the oldest call that has none yet, and no `name` unless the file gives one: Kimi's
template puts a `name` in place of the role word. This module does not know what a template makes of them.
"""

import json
import re
from collections.abc import Iterable
from typing import cast

from ..records import Json
from .rows import BadRow, load_json, shown, without_nulls

Message = dict[str, Json]
_KIMI_ID = re.compile(r"functions\..+:\d+")


def call(name: Json, arguments: Json, call_id: Json = None) -> Message:
    """One entry of `tool_calls`. Raises BadRow: "bad_tool_call", or "bad_arguments" where they are no JSON object."""
    if not isinstance(name, str) or not name:
        raise BadRow("bad_tool_call", f"a call needs a name, found {shown(name)}")
    if not (call_id is None or isinstance(call_id, str)):
        raise BadRow("bad_tool_call", f"the id of a call must be text, found {shown(call_id)}")
    what = f"arguments of {shown(name)}"
    found = load_json(arguments, what, "bad_arguments") if isinstance(arguments, str) else arguments
    if not isinstance(found, dict):
        raise BadRow("bad_arguments", f"{what} must be a JSON object, found {shown(arguments)}")
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    except (TypeError, RecursionError) as error:  # Arrow has dates and bytes
        raise BadRow("bad_arguments", f"{what} hold what JSON can't: {str(error)[:80]}") from error
    entry: Message = {"type": "function", "function": {"name": name, "arguments": text}}
    return {"id": call_id, **entry} if call_id else entry


def declarations(value: Json) -> tuple[Message, ...]:
    """Tools as a list or as JSON text, each wrapped as {"type": "function", "function": {..}} or flat."""
    tools = value
    if isinstance(value, str):
        tools = load_json(value, "tools", "bad_tools") if value.strip() else None
    if not isinstance(tools or [], list):
        raise BadRow("bad_tools", f"tools must be a list, found {shown(tools)}")
    return tuple(_declaration(tool) for tool in cast(list[Json], tools or []))


def linked(messages: Iterable[Message]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The messages with every call and every result carrying its id, and the notices.

    Raises BadRow("tool_result_without_call").
    """
    made: list[Message] = []
    notices: set[str] = set()
    waiting: list[Json] = []
    count = 0
    for message in messages:
        if message["role"] == "user" and waiting:
            notices.add("unanswered_call")
            waiting = []
        if "tool_calls" in message:
            calls = [_with_id(entry, count + place) for place, entry in enumerate(_calls(message))]
            count += len(calls)
            waiting += [entry["id"] for entry in calls]
            if not all(_KIMI_ID.fullmatch(str(entry["id"])) for entry in calls):
                notices.add("call_ids_of_the_file")
            message = {**message, "tool_calls": calls}
        if message["role"] == "tool":
            answered = message.get("tool_call_id") or (waiting[0] if waiting else None)
            if answered not in waiting:
                raise BadRow(
                    "tool_result_without_call", f"turn {len(made) + 1} answers no open call ({shown(answered)})"
                )
            waiting.remove(answered)
            message = {**message, "tool_call_id": answered}
        made.append(message)
    if waiting:
        notices.add("unanswered_call")
    return tuple(made), tuple(sorted(notices))


def without_padding(tools: tuple[Message, ...]) -> tuple[Message, ...]:
    """The tools without null members where a null stands among `properties`.

    No schema has one there: it is Arrow's, which gives every nested object the union of all keys, and which JSON
    written from Arrow keeps.
    """
    if not any(_has_null_property(tool) for tool in tools):
        return tools
    return tuple(cast(Message, without_nulls(tool)) for tool in tools)


def _has_null_property(value: Json) -> bool:
    if isinstance(value, list):
        return any(_has_null_property(item) for item in value)
    if not isinstance(value, dict):
        return False
    properties = value.get("properties")
    if isinstance(properties, dict) and None in properties.values():
        return True
    return any(_has_null_property(member) for member in value.values())


def _calls(message: Message) -> list[Message]:
    return cast(list[Message], message["tool_calls"])


def _with_id(entry: Message, index: int) -> Message:
    function = cast(Message, entry["function"])
    return {"id": f"functions.{function['name']}:{index}", **entry}


def _declaration(tool: Json) -> Message:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow("bad_tools", f"a tool needs a name, found {shown(tool)}")
    return {"type": "function", "function": function}
