"""Alpaca: {"instruction", "input", "output"}; some files have `system`, `tools`, `history` ([[asked, answered], ..]).

Instruction and input, where there is one, become one user turn with an empty line between them; no sentence is
put around them. Dolly's `context` is read where `input` is empty. `output` is an old answer and is not read.
This module does not know what the columns hold.
"""

from collections.abc import Iterator, Mapping

from ..records import Conversation, Json
from .rows import BadRow, load_json, shown
from .tool_calls import Message, declarations
from .turns import Turns

NAME = "alpaca"
COLUMNS = ("instruction",)


def matches(row: Mapping[str, Json]) -> bool:
    return isinstance(row.get("instruction"), str)


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    instruction, system = _text(row, "instruction"), _text(row, "system")
    context = _text(row, "input") or _text(row, "context")
    if row.get("instruction") is None:
        raise BadRow("missing_field", "instruction must be text, found none")
    messages: list[Message] = [{"role": "system", "content": system}] if system.strip() else []
    messages += _history(row.get("history"))
    asked = f"{instruction}\n\n{context}" if instruction.strip() and context.strip() else instruction or context
    messages.append({"role": "user", "content": asked})
    return Conversation(source_id=source_id, line=line, messages=tuple(messages), tools=declarations(row.get("tools")))


def _text(row: Mapping[str, Json], name: str) -> str:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRow("missing_field", f"{name} must be text, found {shown(value)}")
    return value or ""


def _history(value: Json) -> Iterator[Message]:
    pairs = load_json(value, "history", "bad_turn") if isinstance(value, str) and value.strip() else value
    if not pairs:
        return
    if not isinstance(pairs, list):
        raise BadRow("bad_turn", f"history must be a list of pairs, found {shown(pairs)}")
    for pair in pairs:
        if not isinstance(pair, list) or [type(text) for text in pair] != [str, str]:
            raise BadRow("bad_turn", f"history must hold pairs of texts, found {shown(pair)}")
        yield {"role": "user", "content": pair[0]}
        yield {"role": "assistant", "content": pair[1]}
