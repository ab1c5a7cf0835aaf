"""ShareGPT: {"id", "conversations": [{"from": "human", "value": ".."}, {"from": "gpt", "value": ".."}]}.

Calls are turns of their own (`function_call`, `function-call`) whose value is JSON, {"name", "arguments"} or a list
of such; results are `observation`, `tool`, `function_response`, `function-response`. A `system` column becomes the
first turn where no system turn stands there; a `tools` column is declared. This module does not know Hermes, where
tools and calls stand inside the text: such rows are refused, for they would declare their tools twice or not at all.
"""

from collections.abc import Mapping

from ..records import Conversation, Json
from .rows import BadRow, load_json, shown
from .tool_calls import Message, call, declarations, linked
from .turns import last_turn

NAME = "sharegpt"
COLUMNS = ("conversations",)
_ROLES = {
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
_CALLS = ("function_call", "function-call")
_HERMES = {"system": "<tools>", "assistant": "<tool_call>"}


def matches(row: Mapping[str, Json]) -> bool:
    turns = _listed(row)
    return turns is not None and all("from" in turn for turn in turns if isinstance(turn, dict))


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int) -> Conversation:
    """Raises BadRow."""
    listed = _listed(row)
    if listed is None:
        raise BadRow("missing_field", f"conversations must be a list of turns, found {shown(row.get('conversations'))}")
    turns = [_turn(turn) for turn in listed]
    system = row.get("system")
    if isinstance(system, str) and system.strip() and [speaker for speaker, _ in turns[:1]] != ["system"]:
        turns.insert(0, ("system", system))
    count, notices = last_turn([_ROLES[speaker] for speaker, _ in turns])
    messages, more = linked(_message(speaker, value) for speaker, value in turns[:count])
    return Conversation(
        source_id=source_id,
        line=line,
        messages=messages,
        tools=declarations(row.get("tools")),
        notices=(*notices, *more),
    )


def _listed(row: Mapping[str, Json]) -> list[Json] | None:
    found = row.get("conversations")
    if isinstance(found, str) and found.lstrip().startswith("["):
        found = load_json(found, "conversations", "missing_field")
    return found if isinstance(found, list) else None


def _turn(turn: Json) -> tuple[str, Json]:
    if not isinstance(turn, dict):
        raise BadRow("bad_turn", f"a turn must be an object with from and value, found {shown(turn)}")
    speaker = turn.get("from")
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise BadRow("unknown_role", f"from must be one of {', '.join(_ROLES)}; found {shown(speaker)}")
    return speaker, turn.get("value")


def _message(speaker: str, text: Json) -> Message:
    role = _ROLES[speaker]
    if not isinstance(text, str):
        raise BadRow("bad_turn", f"the value of a {speaker} turn must be text, found {shown(text)}")
    if role in _HERMES and _HERMES[role] in text:
        raise BadRow("tools_in_text", f"{_HERMES[role]} in a {speaker} turn: Hermes-style tools are not read")
    if speaker not in _CALLS:
        return {"role": role, "content": text}
    found = load_json(text, "a call", "bad_tool_call")
    calls = found if isinstance(found, list) else [found]
    return {"role": role, "content": "", "tool_calls": [_call(entry) for entry in calls]}


def _call(entry: Json) -> Message:
    if not isinstance(entry, dict):
        raise BadRow("bad_tool_call", f"a call must be an object with name and arguments, found {shown(entry)}")
    return call(entry.get("name"), entry.get("arguments"))
