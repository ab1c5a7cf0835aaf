"""ToolACE: {"system", "conversations": [{"from", "value"}]}; tools in the system text, calls like `[Get Time(n=2)]`.

The JSON array in the system text is declared as tools; the text before it stays; the text after it, where it says
how to write a call, is taken out, with the notice tools_out_of_text: the model's own template says it. A call's
name runs to its first parenthesis, spaces included; values are Python or JSON literals. A result turn after N calls
that is a JSON array of N items answers each call with its item, as the file spells it.
An assistant turn that begins like a call and can't be read as one refuses the row.
This module does not know whether a call fits its tool.
"""

import json
import re
from collections.abc import Iterator, Mapping

from ..records import Conversation, Json
from . import sharegpt
from .rows import BadRow, load_literal, shown
from .schemas import with_standard_types
from .tool_calls import Message, call, declarations, linked
from .turns import Turns

NAME = "toolace"
COLUMNS = ("conversations",)
_HOW_TO_CALL = re.compile(r"\[\s*\w+\(")
_CALL = re.compile(r"\[\s*[^\[\](){}\"'=,]+\(")
_KEY = re.compile(r"[^()\[\]{}\"'=]+")
_GAP = re.compile(r"[\s,]*")
_OPENERS, _CLOSERS = "([{", ")]}"


def matches(row: Mapping[str, Json]) -> bool:
    turns = row.get("conversations")
    if not sharegpt.matches(row) or not isinstance(turns, list):
        return False
    first = turns[0] if turns else None
    texts = [row.get("system"), first.get("value") if isinstance(first, dict) and first.get("from") == "system" else ""]
    return any(isinstance(text, str) and sharegpt.lists_tools(text) for text in texts)


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    asked, notices = sharegpt.asked_turns(row, turns)
    messages: list[Message] = []
    declared: tuple[Message, ...] = ()
    found: tuple[str, ...] = ()
    for place, (speaker, text) in enumerate(asked):
        if speaker == "system" and place == 0 and sharegpt.lists_tools(text):
            text, declared = _system(text)
            found = ("tools_out_of_text",)
        if speaker in sharegpt.CALLS:
            messages.append({"role": "assistant", "content": "", "tool_calls": sharegpt.called(text)})
        elif speaker != "system" or text.strip():
            messages += _messages(sharegpt.ROLES[speaker], text, messages[-1:])
    tools, odd = with_standard_types(declared)
    linked_messages, more = linked(messages)
    return Conversation(
        source_id=source_id,
        line=line,
        messages=linked_messages,
        tools=tools,
        notices=(*notices, *more, *found, *odd),
    )


def _system(text: str) -> tuple[str, tuple[Message, ...]]:
    start = sharegpt.TOOL_LIST.search(text)
    assert start is not None
    try:
        found, end = json.JSONDecoder().raw_decode(text, start.start())
    except (ValueError, RecursionError) as error:
        raise BadRow(
            "bad_tools", f"the functions in system are no JSON array: {shown(text[start.start() :])}"
        ) from error
    rest = text[end:]
    kept = "" if _HOW_TO_CALL.search(rest) else rest.rstrip()
    return text[: start.start()].rstrip() + kept, declarations(found)


def _messages(role: str, text: str, before: list[Message]) -> Iterator[Message]:
    if role == "assistant" and _CALL.match(text.strip()):
        yield {"role": role, "content": "", "tool_calls": [_call(part) for part in _calls(text.strip())]}
        return
    calls = before[0].get("tool_calls") if before else None
    items = _items(text) if role == "tool" and isinstance(calls, list) else []
    if isinstance(calls, list) and len(calls) == len(items):
        for item in items:
            yield {"role": role, "content": item}
    else:
        yield {"role": role, "content": text}


def _calls(text: str) -> list[str]:
    if not text.endswith("]"):
        raise BadRow("bad_tool_call", f"a call ends with ], and nothing after it; found {shown(text)}")
    return _parts(text[1:-1])


def _call(text: str) -> Message:
    name, _, rest = text.partition("(")
    if not rest.endswith(")"):
        raise BadRow("bad_tool_call", f"a call must be NAME(argument=value, ..), found {shown(text)}")
    arguments: dict[str, Json] = {}
    for part in _parts(rest[:-1]):
        written, equals, value = part.partition("=")
        key = written.strip()
        if not equals or not _KEY.fullmatch(key) or key in arguments:
            raise BadRow("bad_arguments", f"an argument must be name=value, each name once; found {shown(part)}")
        arguments[key] = load_literal(value.strip(), f"argument {shown(key)}", "bad_arguments")
    return call(name.strip(), arguments)


def _parts(text: str) -> list[str]:
    """The parts between commas that stand outside of strings and brackets."""
    parts, start, depth, quote = [], 0, 0, ""
    place = 0
    while place < len(text):
        sign = text[place]
        if quote:
            place += sign == "\\"
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
        else:
            depth += (sign in _OPENERS) - (sign in _CLOSERS)
            if depth < 0:
                break
        place += 1
    if quote or depth:
        raise BadRow("bad_tool_call", f"a string or a bracket is left open: {shown(text)}")
    last = text[start:].strip()
    return [*parts, last] if parts or last else []


def _items(text: str) -> list[str]:
    """The items of a JSON array as the text spells them; none where it is no array."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return []
    decoder, items, place = json.JSONDecoder(), [], 1
    try:
        while (place := _GAP.match(text, place).end()) < len(text) - 1:  # type: ignore[union-attr]
            start, (_, place) = place, decoder.raw_decode(text, place)
            items.append(text[start:place])
    except (ValueError, RecursionError):
        return []
    return items
