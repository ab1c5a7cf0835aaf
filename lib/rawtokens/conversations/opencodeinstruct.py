"""OpenCodeInstruct: nine string columns, of which `input` is the prompt and the others are about an old answer.

`input` becomes one user turn, unchanged. This module does not know the other columns beyond their names.
"""

from collections.abc import Mapping

from ..records import Conversation, Json
from .rows import BadRow, shown
from .turns import Turns

NAME = "opencodeinstruct"
COLUMNS = ("input",)
_OTHERS = {"generation_algorithm", "llm_judgement", "unit_tests", "tests_execution_status", "average_test_score"}


def matches(row: Mapping[str, Json]) -> bool:
    return "input" in row and not _OTHERS.isdisjoint(row)


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    text = row.get("input")
    if not isinstance(text, str):
        raise BadRow("missing_field", f"input must be text, found {shown(text)}")
    return Conversation(source_id=source_id, line=line, messages=({"role": "user", "content": text},))
