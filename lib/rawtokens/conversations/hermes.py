"""Hermes function calling: ShareGPT turns with tools, calls and results inside the text, and a `tools` column.

The system turn declares tools in `<tools>[..]</tools>` and says how to call them; the model's own template does both,
so the text from the sentence that names `<tools>` to the line of the last tag is taken out, with the notice
tools_out_of_text, and the rest stays. The `tools` column (JSON as text) is declared; where it is empty, the block is;
where both declare other names, the notice is tools_differ. Calls are `<tool_call>{"name", "arguments"}</tool_call>`,
JSON or a Python literal, after any text; results are `<tool_response>..</tool_response>`, several in one turn.
Rows without any of it are read as ShareGPT. This module does not know what `<scratch_pad>` is: it stays text.
"""

import re
from collections.abc import Iterator, Mapping

from ..records import Conversation, Json
from . import sharegpt
from .rows import BadRow, load_literal, shown
from .tool_calls import Message, declarations, linked
from .turns import Turns

NAME = "hermes"
COLUMNS = ("conversations",)
_BLOCK = re.compile(r"<tools>\s*([\[{].*?)\s*</tools>", re.DOTALL)
_TAGS = ("<tools>", "</tools>", "<tool_call>", "</tool_call>")
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)


def matches(row: Mapping[str, Json]) -> bool:
    turns = row.get("conversations")
    if not sharegpt.matches(row) or not isinstance(turns, list):
        return False
    found = [(turn.get("from"), turn.get("value")) for turn in turns if isinstance(turn, dict)]
    texts = [
        (sharegpt.ROLES.get(str(speaker)), str(value)) for speaker, value in [("system", row.get("system")), *found]
    ]
    return any(
        (role == "system" and "<tools>" in text) or (role == "assistant" and "<tool_call>" in text)
        for role, text in texts
    )


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    asked, notices = sharegpt.asked_turns(row, turns)
    column = declarations(row.get("tools"))
    found: set[str] = set()
    block: tuple[Message, ...] = ()
    messages: list[Message] = []
    for speaker, text in asked:
        if speaker == "system" and "<tools>" in text:
            text, block = _system(text, needed=not column)
            found.add("tools_out_of_text")
            if column and block and _names(column) != _names(block):
                found.add("tools_differ")
            if not text.strip():
                continue
        messages += _messages(speaker, text)
    linked_messages, more = linked(messages)
    return Conversation(
        source_id=source_id,
        line=line,
        messages=linked_messages,
        tools=column or block,
        notices=(*notices, *more, *sorted(found)),
    )


def _system(text: str, *, needed: bool) -> tuple[str, tuple[Message, ...]]:
    """The text without what declares tools, and the tools; none where they can't be read and are not needed."""
    before = text[: text.index("<tools>")]
    start = max(before.rfind(sign) + 1 for sign in (".", "\n"))
    last_tag = max(text.rfind(tag) for tag in _TAGS)
    _, line_end, after = text[last_tag:].partition("\n")
    rest = (text[:start].rstrip() + line_end + after).rstrip()
    block = _BLOCK.search(text)
    if block is None:
        return rest, ()
    try:
        listed = load_literal(block[1], "<tools>", "bad_tools")
        return rest, declarations(listed if isinstance(listed, list) else [listed])
    except BadRow:
        if needed:
            raise
    return rest, ()


def _names(tools: tuple[Message, ...]) -> list[str]:
    return sorted(str(tool["function"]["name"]) for tool in tools if isinstance(tool["function"], dict))


def _messages(speaker: str, text: str) -> Iterator[Message]:
    role = sharegpt.ROLES[speaker]
    if speaker in sharegpt.CALLS and "<tool_call>" not in text:
        yield {"role": role, "content": "", "tool_calls": sharegpt.called(text)}
    elif role == "assistant" and "<tool_call>" in text:
        yield _call_message(text)
    elif role == "tool" and "<tool_response>" in text:
        _refuse_between(_RESULT, text, "bad_turn")
        for result in _RESULT.findall(text):
            yield {"role": role, "content": result}
    else:
        yield {"role": role, "content": text}


def _call_message(text: str) -> Message:
    content, tag, calls = text.partition("<tool_call>")
    _refuse_between(_CALL, tag + calls, "bad_tool_call")
    found = [load_literal(entry, "a call", "bad_tool_call") for entry in _CALL.findall(tag + calls)]
    made: list[Json] = [sharegpt.call_entry(entry) for entry in found]
    return {"role": "assistant", "content": content.rstrip(), "tool_calls": made}


def _refuse_between(pattern: re.Pattern[str], text: str, reason: str) -> None:
    """A tag left open, or text between or after the tags, would be lost or moved."""
    rest = pattern.sub("", text).strip()
    if rest:
        raise BadRow(reason, f"expected nothing between and after the tags, found {shown(rest)}")
