"""One column that is the prompt: `prompt`, `question`, `query` or `problem`, the first of them that the row holds.

The text becomes one user turn, unchanged; a list is read as OpenAI messages. `system` or `system_prompt` becomes the
system turn, `tools` are declared. All other columns are not read: `text` is none of these, for it mostly holds a
whole document or a rendered chat. This module does not know whether a prompt asks anything.
"""

from collections.abc import Mapping

from ..records import Conversation, Json
from . import openai_messages
from .rows import BadRow, shown
from .tool_calls import Message, declarations
from .turns import Turns

NAME = "plain"
COLUMNS = ("prompt", "question", "query", "problem")


def matches(row: Mapping[str, Json]) -> bool:
    return isinstance(_prompt(row), str | list)


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    found = _prompt(row)
    if isinstance(found, list):
        listed = {"messages": found, "tools": row.get("tools")}
        return openai_messages.to_conversation(listed, source_id=source_id, line=line, turns=turns)
    if not isinstance(found, str):
        raise BadRow("missing_field", f"expected text in one of {', '.join(COLUMNS)}; found {shown(found)}")
    system = row.get("system") or row.get("system_prompt") or ""
    if not isinstance(system, str):
        raise BadRow("missing_field", f"system must be text, found {shown(system)}")
    messages: list[Message] = [{"role": "system", "content": system}] if system.strip() else []
    messages.append({"role": "user", "content": found})
    return Conversation(source_id=source_id, line=line, messages=tuple(messages), tools=declarations(row.get("tools")))


def _prompt(row: Mapping[str, Json]) -> Json:
    return next((row[name] for name in COLUMNS if row.get(name) is not None), None)
