"""A text file, one prompt a line; `containers` gives a line as {"text_line": ".."}.

The line becomes one user turn, unchanged. This module does not know prompts of several lines: they need a format
with rows.
"""

from collections.abc import Mapping

from ..records import Conversation, Json
from .rows import BadRow, shown
from .turns import Turns

NAME = "text_lines"
COLUMNS = ("text_line",)


def matches(row: Mapping[str, Json]) -> bool:
    return isinstance(row.get("text_line"), str)


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    text = row.get("text_line")
    if not isinstance(text, str):
        raise BadRow("missing_field", f"a line must be text, found {shown(text)}")
    return Conversation(source_id=source_id, line=line, messages=({"role": "user", "content": text},))
