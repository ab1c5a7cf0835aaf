"""ShareGPT: {"id", "conversations": [{"from": "human", "value": ".."}, {"from": "gpt", "value": ".."}]}.

Calls are turns of their own (`function_call`, `function-call`) whose value is JSON, {"name", "arguments"} or a list
of such; results are `observation`, `tool`, `function_response`, `function-response`. A `system` column becomes the
first turn where no system turn stands there; a `tools` column is declared. This module does not know what stands
inside a text: a row with Hermes-style tools or calls in it is refused, for it would declare its tools twice or not
at all; `hermes` and `toolace` read such rows.
"""

import re
from collections.abc import Mapping

from ..records import Conversation, Json
from .rows import BadRow, load_json, shown
from .tool_calls import Message, call, declarations, linked
from .turns import Turns, last_turn

NAME = "sharegpt"
COLUMNS = ("conversations",)
ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "function-call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function-response": "tool",
}
CALLS = ("function_call", "function-call")
_HERMES = {"system": "<tools>", "assistant": "<tool_call>"}
TOOL_LIST = re.compile(r"\[\s*\{\s*\"name\"\s*:")


def matches(row: Mapping[str, Json]) -> bool:
    turns = _listed(row)
    return turns is not None and all("from" in turn for turn in turns if isinstance(turn, dict))


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    asked, notices = asked_turns(row, turns)
    messages, more = linked(_message(speaker, text) for speaker, text in asked)
    return Conversation(
        source_id=source_id,
        line=line,
        messages=messages,
        tools=declarations(row.get("tools")),
        notices=(*notices, *more),
    )


def asked_turns(row: Mapping[str, Json], turns: Turns) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """(speaker, text) of the turns up to the one to be answered or continued, the system column first, and the notices.

    Raises BadRow.
    """
    listed = _listed(row)
    if listed is None:
        raise BadRow("missing_field", f"conversations must be a list of turns, found {shown(row.get('conversations'))}")
    spoken = [_turn(turn) for turn in listed]
    system = row.get("system")
    unread = False
    if isinstance(system, str) and system.strip():
        unread = bool(spoken) and spoken[0][0] == "system"
        spoken = spoken if unread else [("system", system), *spoken]
    count, notices = last_turn([ROLES[speaker] for speaker, _ in spoken], turns)
    if unread and spoken[0][1] != system:
        notices = (*notices, "system_column_unread")
    return [(speaker, _text(speaker, value)) for speaker, value in spoken[:count]], notices


def lists_tools(text: str) -> bool:
    """Whether a system text holds a list of functions, as ToolACE's does."""
    return TOOL_LIST.search(text) is not None and ('"parameters"' in text or '"description"' in text)


def called(text: str) -> list[Json]:
    """The calls of a call turn: JSON, one call or a list. Raises BadRow."""
    found = load_json(text, "a call", "bad_tool_call")
    return [call_entry(entry) for entry in (found if isinstance(found, list) else [found])]


def call_entry(entry: Json) -> Message:
    """{"name", "arguments"} as one entry of `tool_calls`. Raises BadRow."""
    if not isinstance(entry, dict):
        raise BadRow("bad_tool_call", f"a call must be an object with name and arguments, found {shown(entry)}")
    return call(entry.get("name"), entry.get("arguments"))


def _listed(row: Mapping[str, Json]) -> list[Json] | None:
    found = row.get("conversations")
    if isinstance(found, str) and found.lstrip().startswith("["):
        found = load_json(found, "conversations", "missing_field")
    return found if isinstance(found, list) else None


def _turn(turn: Json) -> tuple[str, Json]:
    if not isinstance(turn, dict):
        raise BadRow("bad_turn", f"a turn must be an object with from and value, found {shown(turn)}")
    speaker = turn.get("from")
    if not isinstance(speaker, str) or speaker not in ROLES:
        raise BadRow("unknown_role", f"from must be one of {', '.join(ROLES)}; found {shown(speaker)}")
    return speaker, turn.get("value")


def _text(speaker: str, value: Json) -> str:
    if not isinstance(value, str):
        raise BadRow("bad_turn", f"the value of a {speaker} turn must be text, found {shown(value)}")
    return value


def _message(speaker: str, text: str) -> Message:
    role = ROLES[speaker]
    if role in _HERMES and _HERMES[role] in text:
        raise BadRow("tools_in_text", f"{_HERMES[role]} in a {speaker} turn: set the format to hermes")
    if role == "system" and lists_tools(text):
        raise BadRow("tools_in_text", "a list of functions in a system turn: set the format to toolace")
    if speaker not in CALLS:
        return {"role": role, "content": text}
    return {"role": role, "content": "", "tool_calls": called(text)}
