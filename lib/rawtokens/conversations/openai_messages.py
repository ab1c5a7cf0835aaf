"""OpenAI messages: {"id", "messages": [{"role", "content", ..}], "tools": [..]}; either list may be JSON as text.

A null content is empty text, content parts of type text are joined (as Kimi's template does), other parts refuse
the row; `developer` becomes `system`, with a notice. Null members of a message are absent members; all others stay.
This module does not know which members a template reads.
"""

from collections.abc import Mapping

from ..records import Conversation, Json
from .rows import BadRow, load_json, shown
from .tool_calls import Message, call, declarations, linked
from .turns import ROLES, Turns, last_turn

NAME = "openai_messages"
COLUMNS = ("messages",)


def matches(row: Mapping[str, Json]) -> bool:
    turns = _listed(row)
    return turns is not None and all("role" in turn for turn in turns if isinstance(turn, dict))


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    listed = _listed(row)
    if listed is None:
        raise BadRow("missing_field", f"messages must be a list, found {shown(row.get('messages'))}")
    roles = [_role(turn) for turn in listed]
    count, notices = last_turn(roles, turns)
    kept = [turn for turn in listed[:count] if isinstance(turn, dict)]
    messages, more = linked(_message(role, turn) for role, turn in zip(roles, kept, strict=False))
    if any(turn["role"] == "developer" for turn in kept):
        notices = (*notices, "developer_as_system")
    return Conversation(
        source_id=source_id,
        line=line,
        messages=messages,
        tools=declarations(row.get("tools")),
        notices=(*notices, *more),
    )


def _listed(row: Mapping[str, Json]) -> list[Json] | None:
    found = row.get("messages")
    if isinstance(found, str) and found.lstrip().startswith("["):
        found = load_json(found, "messages", "missing_field")
    return found if isinstance(found, list) else None


def _role(turn: Json) -> str:
    if not isinstance(turn, dict):
        raise BadRow("bad_turn", f"a message must be an object with role and content, found {shown(turn)}")
    role = turn.get("role")
    if role == "developer":
        return "system"
    if not isinstance(role, str) or role not in ROLES:
        raise BadRow("unknown_role", f"role must be one of {', '.join(ROLES)}, developer; found {shown(role)}")
    return role


def _message(role: str, turn: Mapping[str, Json]) -> Message:
    message = {key: value for key, value in turn.items() if value is not None}
    calls = message.pop("tool_calls", None) or []
    if "function_call" in message:
        raise BadRow("bad_tool_call", "function_call is OpenAI's old form; expected tool_calls")
    if not isinstance(calls, list):
        raise BadRow("bad_tool_call", f"tool_calls must be a list, found {shown(calls)}")
    for name in ("name", "reasoning_content", "tool_call_id"):
        if not isinstance(message.get(name, ""), str):  # a template would write out whatever it is
            raise BadRow("bad_turn", f"{name} must be text, found {shown(message[name])}")
    made: Message = {**message, "role": role, "content": _text(message.get("content", ""))}
    return {**made, "tool_calls": [_call(entry) for entry in calls]} if calls else made


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRow("bad_turn", f"content must be text or a list of parts, found {shown(content)}")
    return "".join(_part(part) for part in content)


def _part(part: Json) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        kind = part.get("type") if isinstance(part, dict) else part
        raise BadRow("not_text", f"content parts must be of type text, found {shown(kind)}")
    return str(part["text"])


def _call(entry: Json) -> Message:
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(function, dict):
        raise BadRow("bad_tool_call", f"a call must be an object with a function, found {shown(entry)}")
    return call(function.get("name"), function.get("arguments"), entry.get("id"))
