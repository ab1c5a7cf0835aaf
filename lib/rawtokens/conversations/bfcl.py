"""BFCL: {"id", "question": [[messages], ..], "function": [..]}, the prompts of a function-calling benchmark.

Each inner list is one turn of the asker; the answers between them are not in the file. So the first turn is the one to
be answered, and a row that has more carries the notice later_turns_without_answers, unless every turn is generated.
`"type": "dict"` and its like become JSON Schema. A row without `function` whose functions stand in other files
(`involved_classes`) is refused. This module does not know the right answers.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from ..records import Conversation, Json
from . import openai_messages
from .rows import BadRow, load_json, shown
from .schemas import with_standard_types
from .tool_calls import declarations
from .turns import Turns

NAME = "bfcl"
COLUMNS = ("question",)


def matches(row: Mapping[str, Json]) -> bool:
    question = row.get("question")
    listed = isinstance(question, list) or (isinstance(question, str) and question.lstrip().startswith("[["))
    return listed and ("function" in row or "involved_classes" in row)


def to_conversation(row: Mapping[str, Json], *, source_id: str, line: int, turns: Turns = "last") -> Conversation:
    """Raises BadRow."""
    question = row.get("question")
    if isinstance(question, str) and question.lstrip().startswith("["):
        question = load_json(question, "question", "missing_field")
    if isinstance(question, list) and question and all(isinstance(message, dict) for message in question):
        question = [question]  # one turn, not wrapped
    if not isinstance(question, list) or not question or not isinstance(question[0], list):
        raise BadRow("missing_field", f"question must be a list of lists of messages, found {shown(question)}")
    functions = row.get("function")
    if functions is None and row.get("involved_classes"):
        raise BadRow("missing_field", "function is missing: the functions of this row stand in other files of BFCL")
    declared = declarations([functions] if isinstance(functions, dict) else functions)
    tools, notices = with_standard_types(declared)
    spoken = question[0]
    if turns == "each":
        if not all(isinstance(turn, list) for turn in question):
            raise BadRow("missing_field", f"question must be a list of lists of messages, found {shown(question)}")
        spoken = [message for turn in question for message in [*turn, {"role": "assistant", "content": ""}]]
    asked = openai_messages.to_conversation({"messages": spoken}, source_id=source_id, line=line, turns=turns)
    if len(question) > 1 and turns != "each":
        notices = (*notices, "later_turns_without_answers")
    return replace(asked, tools=tools, notices=(*asked.notices, *notices))
