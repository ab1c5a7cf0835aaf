"""Glaive function-calling v2: {"system", "chat"}, both plain text.

`system` is "SYSTEM: " and a sentence, then function objects one after another (no array), or none. The sentence
stays, word for word, as the system message; the functions are declared as tools. `chat` holds turns that begin with
`USER: `, `ASSISTANT: ` or `FUNCTION RESPONSE: ` at the start, after three newlines, or on a new line after
`<|endoftext|>`: the same words elsewhere are text. `<|endoftext|>` ends a turn and is no part of it; a turn that has
it in the middle is refused. A call is `<functioncall> {"name": "f", "arguments": '{"a": "it's"}'}`: JSON inside
single quotes inside JSON, with apostrophes as they come. This module does not know whether a reply was any good.
"""

import json
import re
from collections.abc import Iterator, Mapping

from ..records import Conversation, Json
from .rows import BadRow, shown
from .tool_calls import Message, call, declarations, linked
from .turns import Turns, last_turn

NAME = "glaive"
COLUMNS = ("chat",)
_END = "<|endoftext|>"
_CALL = "<functioncall>"
_ROLES = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
# Look-behinds, so that a megabyte of newlines is read in linear time.
_TURN = re.compile(
    r"(?:\A\s*|(?<=\n\n\n)|(?<=\n\r\n\r\n)|(?<=<\|endoftext\|>)\s*\n)(USER|ASSISTANT|FUNCTION RESPONSE):(?: |(?=\s|\Z))"
)
_FUNCTIONS = re.compile(r"^[ \t]*(?:\{|\[\s*\{)", re.MULTILINE)
_QUOTED_CALL = re.compile(r"""\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*'(.*)'\s*\}""", re.DOTALL)


def matches(row: Mapping[str, Json]) -> bool:
    chat = row.get("chat")
    return isinstance(chat, str) and _TURN.match(chat) is not None


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    chat, system = row.get("chat"), row.get("system") or ""
    if not isinstance(chat, str) or not isinstance(system, str):
        raise BadRow("missing_field", f"chat and system must be text, found {shown(chat)} and {shown(system)}")
    spoken = _turns(chat)
    count, notices = last_turn([role for role, _ in spoken], turns)
    prompt, tools = _system(system)
    messages, more = linked([*prompt, *(_message(role, text) for role, text in spoken[:count])])
    return Conversation(source_id=source_id, line=line, messages=messages, tools=tools, notices=(*notices, *more))


def _turns(chat: str) -> list[tuple[str, str]]:
    """(role, text) of each turn."""
    before, *parts = _TURN.split(chat)
    if before.strip():
        raise BadRow("bad_turn", f"chat must begin with USER: or ASSISTANT:, found {shown(before.lstrip())}")
    return [(_ROLES[word], text) for word, text in zip(parts[::2], parts[1::2], strict=True)]


def _message(role: str, text: str) -> Message:
    text = _ended(text)
    if role != "assistant" or _CALL not in text:
        return {"role": role, "content": _without_end(text)}
    content, *calls = text.split(_CALL)
    return {"role": role, "content": _without_end(content.rstrip()), "tool_calls": [_call(found) for found in calls]}


def _ended(text: str) -> str:
    """A turn's text without what separates turns: `<|endoftext|>` with the space around it, and newlines."""
    while text.rstrip().endswith(_END):
        text = text.rstrip().removesuffix(_END).rstrip()
    return text.rstrip("\r\n")


def _without_end(text: str) -> str:
    if _END in text:
        raise BadRow("end_inside_turn", f"{_END} stands in the middle of a turn: {shown(text)}")
    return text


def _call(text: str) -> Message:
    text = _ended(text).strip()
    quoted = _QUOTED_CALL.fullmatch(text)
    if quoted:
        name, arguments = quoted.groups()
        return call(name, arguments if _is_json(arguments) else _unquoted(arguments))
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadRow("bad_tool_call", f"a call must be {{name, arguments}} and nothing after it, found {shown(text)}")
    return call(found.get("name"), found.get("arguments"))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _unquoted(text: str) -> str:
    r"""`\'` is no JSON: where it occurs it escapes the single quotes around the arguments."""
    return re.sub(r"\\(.)", lambda found: "'" if found[1] == "'" else found[0], text, flags=re.DOTALL)


def _system(system: str) -> tuple[list[Message], tuple[Message, ...]]:
    text = re.sub(r"\A\s*SYSTEM: ?", "", system)
    start = _FUNCTIONS.search(text)
    sentence = text[: start.start()] if start else text
    tools = declarations(list(_functions(text[start.start() :]))) if start else ()
    message: Message = {"role": "system", "content": sentence.rstrip()}
    return ([message] if sentence.strip() else []), tools


def _functions(text: str) -> Iterator[Json]:
    """The function objects that stand one after another."""
    decoder = json.JSONDecoder()
    text = text.strip()
    while text:
        try:
            found, end = decoder.raw_decode(text)
        except (ValueError, RecursionError) as error:
            raise BadRow("bad_tools", f"the functions in system are no JSON objects at {shown(text)}") from error
        yield from found if isinstance(found, list) else [found]
        text = text[end:].lstrip().removeprefix(_END).lstrip()
