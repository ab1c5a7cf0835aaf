"""The demo's conversations of several turns: questions that need a tool, its recorded results, and a closing turn.

In OpenAI's layout, {"id", "messages", "tools"} a line. All problems are held out from training, and all texts are made
up here. `python -m rawtokens.demo.tool_cycles` writes the file anew. This module does not know how the kit reads it,
nor what the model will say.
"""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from rawtokens.demo.dialogue_record import Dialogue, Message, Tool, assistant, user
from rawtokens.demo.dialogues import dialogues
from rawtokens.demo.prompts import PROMPTS, SEED
from rawtokens.demo.tool_catalogue import CATALOGUE

TOOL_CYCLES = "B3_tool_cycles.jsonl"
TOOLS = ("get_weather", "get_time", "get_stock_price", "search_books", "calculate_tip", "roll_dice")
ROUNDS = (2, 2, 1, 2, 3, 2)
"""Questions of the conversations, in turn; each needs the tool."""
CONVERSATIONS = 36
PARALLEL_EVERY, THANKS_EVERY = 5, 6
THANKS = "Thank you!"
"""What some conversations close with, behind the question that closes the others."""


def conversation_rows() -> list[dict[str, object]]:
    """Rows of {"id", "messages", "tools"}; a conversation keeps to one tool, and calls have the ids that Kimi gives."""
    chooser = random.Random(SEED)
    waiting: dict[str, list[Dialogue]] = {}
    pairs = _questions("parallel_calls")
    rounds = [ROUNDS[place % len(ROUNDS)] for place in range(CONVERSATIONS)]
    rows: list[dict[str, object]] = []
    for dialogue in _questions("tool_result"):
        place, tool = len(rows), _called_name(dialogue)
        if tool not in TOOLS:
            continue
        same = waiting.setdefault(tool, [])
        same.append(dialogue)
        if len(same) < rounds[place]:
            continue
        chosen = [next(pairs)] if place % PARALLEL_EVERY == 0 else []
        chosen += same[len(chosen) :]
        same.clear()
        rows.append(_row(f"cycles-{place:02}", chosen, "" if place % THANKS_EVERY else THANKS, chooser))
        if len(rows) == CONVERSATIONS:
            return rows
    raise AssertionError("dialogues() never ends")


def write_tool_cycles(directory: Path = PROMPTS) -> None:
    """Write the file into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in conversation_rows()]
    (directory / TOOL_CYCLES).write_text("".join(lines), "utf-8")


def _questions(kind: str) -> Iterator[Dialogue]:
    """Held-out dialogues of a kind that begin with their question, no question twice."""
    seen = set()
    roles = ["user", "assistant", "tool"] if kind == "tool_result" else ["user"]
    for dialogue in dialogues(seed=SEED + 1, held_out=True, kind=kind):
        asked = dialogue.messages[0]["content"]
        if [message["role"] for message in dialogue.messages] == roles and asked not in seen:
            seen.add(asked)
            yield dialogue


def _row(source_id: str, questions: Sequence[Dialogue], closing: str, chooser: random.Random) -> dict[str, object]:
    messages: list[Message] = []
    tools: dict[str, Tool] = {}
    calls = 0
    for dialogue in questions:
        tools |= {_name(tool): tool for tool in dialogue.tools}
        called, results = _called(dialogue, calls, chooser)
        calls += len(results)
        messages += [dialogue.messages[0], called, *results, assistant(_said(dialogue))]
    if closing:
        messages += [user(closing), assistant("You're welcome!")]
    return {"id": source_id, "messages": messages, "tools": list(tools.values())}


def _called(dialogue: Dialogue, first: int, chooser: random.Random) -> tuple[Message, list[Message]]:
    """The recorded calls of a question, with ids, and their results."""
    functions: list[dict[str, object]]
    if dialogue.calls:
        kinds = {kind.name: kind for kind in CATALOGUE}
        functions = [{"name": call.name, "arguments": json.dumps(call.arguments)} for call in dialogue.calls]
        contents = [json.dumps(kinds[call.name].result(chooser, call.arguments)) for call in dialogue.calls]
    else:
        made = cast("list[dict[str, dict[str, object]]]", dialogue.messages[1]["tool_calls"])
        functions = [{**call["function"], "arguments": json.dumps(call["function"]["arguments"])} for call in made]
        contents = [str(dialogue.messages[2]["content"])]
    ids = [f"functions.{function['name']}:{first + place}" for place, function in enumerate(functions)]
    calls = [
        {"id": call_id, "type": "function", "function": function}
        for call_id, function in zip(ids, functions, strict=True)
    ]
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call_id, "content": content}
        for call_id, content in zip(ids, contents, strict=True)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}, results


def _said(dialogue: Dialogue) -> str:
    """The last text of the reply: an old answer, which the kit generates anew."""
    if dialogue.calls:
        return "Here is what I found."
    return str(next(piece for piece in reversed(dialogue.reply) if isinstance(piece, str)))


def _called_name(dialogue: Dialogue) -> str:
    calls = cast("list[dict[str, dict[str, object]]]", dialogue.messages[1]["tool_calls"])
    return str(calls[0]["function"]["name"])


def _name(tool: Tool) -> str:
    return str(cast("dict[str, object]", tool["function"])["name"])


if __name__ == "__main__":
    write_tool_cycles()
