"""xLAM function calling: {"id", "query", "answers", "tools"}; `tools` and `answers` are JSON as text.

`query` becomes one user turn; `answers` are old calls and are not read. A tool's parameters stand without a schema,
{NAME: {"type": "str, optional", "default", ..}}, and become one. This module does not know whether a call was right.
"""

from collections.abc import Mapping

from ..records import Conversation, Json
from .rows import BadRow, shown
from .schemas import from_flat
from .tool_calls import declarations
from .turns import Turns

NAME = "xlam"
COLUMNS = ("query",)


def matches(row: Mapping[str, Json]) -> bool:
    return isinstance(row.get("query"), str) and "tools" in row


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    query = row.get("query")
    if not isinstance(query, str):
        raise BadRow("missing_field", f"query must be text, found {shown(query)}")
    tools, notices = from_flat(declarations(row.get("tools")))
    return Conversation(
        source_id=source_id, line=line, messages=({"role": "user", "content": query},), tools=tools, notices=notices
    )
