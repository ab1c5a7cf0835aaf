"""The demo's two prompt files, in the layouts of Glaive function-calling v2 and of OpenCodeInstruct.

All problems are held out from training, and all texts are made up here. `python -m rawtokens.demo.prompts` writes
the files anew. This module does not know how the kit reads them.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from rawtokens.demo.dialogue_record import Dialogue, Message
from rawtokens.demo.dialogues import dialogues

PROMPTS = Path(__file__).with_name("prompts")
GLAIVE = "B1_glaive.json"
OPENCODEINSTRUCT = "B2_opencodeinstruct.parquet"
SEED = 3_000
GLAIVE_COUNTS = {
    "sum": 9, "difference": 4, "conversion": 8, "small_talk": 2, "quiet": 3, "long_thinking": 6, "long_answer": 3,
    "call": 18, "parallel_calls": 4, "tool_result": 7, "unserved": 4,
}  # fmt: skip
CODE_COUNTS = {"code": 50, "long_thinking_code": 5, "long_answer_code": 5, "quiet_code": 4}
LONG_STEPS = 110
"""Numbers in the reply of a long dialogue: at three ids or more each it outlasts 256 new ids."""
WITH_FUNCTIONS = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
WITHOUT_FUNCTIONS = "SYSTEM: You are a helpful assistant, with no access to external functions."
END = "<|endoftext|>"
NO_END_EVERY = 6
"""In every so-many-th Glaive row the last turn lacks its <|endoftext|>, as in the real data set."""


def glaive_rows() -> list[dict[str, str]]:
    """Rows of {"system", "chat"}; about half declare functions."""
    chosen = _chosen(GLAIVE_COUNTS, single_turn=False)
    return [
        {"system": _system(dialogue), "chat": _chat(dialogue, ended=place % NO_END_EVERY > 0)}
        for place, dialogue in enumerate(chosen)
    ]


def code_rows() -> list[dict[str, str]]:
    """Rows with OpenCodeInstruct's nine text columns; `input` is the prompt."""
    return [_code_row(dialogue) for dialogue in _chosen(CODE_COUNTS, single_turn=True)]


def write_demo_prompts(directory: Path = PROMPTS) -> None:
    """Write both files into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(glaive_rows(), indent=1, ensure_ascii=False)
    (directory / GLAIVE).write_text(text + "\n", "utf-8")
    pq.write_table(pa.Table.from_pylist(code_rows()), directory / OPENCODEINSTRUCT)


def _chosen(counts: dict[str, int], *, single_turn: bool) -> list[Dialogue]:
    """So many held-out dialogues of each kind, no prompt twice, the kinds dealt out in turn."""
    piles = [_distinct(kind, count, single_turn=single_turn) for kind, count in counts.items()]
    spread = [((place + 0.5) / len(pile), dialogue) for pile in piles for place, dialogue in enumerate(pile)]
    return [dialogue for _, dialogue in sorted(spread, key=lambda each: each[0])]


def _distinct(kind: str, count: int, *, single_turn: bool) -> list[Dialogue]:
    found: dict[str, Dialogue] = {}
    for dialogue in _without_system(dialogues(seed=SEED, held_out=True, kind=kind)):
        if single_turn and len(dialogue.messages) > 1:
            continue
        if kind.startswith("long") and _steps(dialogue) < LONG_STEPS:
            continue
        found.setdefault(str(dialogue.messages[-1]["content"]), dialogue)
        if len(found) == count:
            return list(found.values())
    raise AssertionError("dialogues() never ends")


def _without_system(source: Iterator[Dialogue]) -> Iterator[Dialogue]:
    for dialogue in source:
        if dialogue.messages[0]["role"] == "system":
            del dialogue.messages[0]
        yield dialogue


def _steps(dialogue: Dialogue) -> int:
    return sum(len(re.findall(r"\d+", piece)) for piece in dialogue.reply if isinstance(piece, str))


def _system(dialogue: Dialogue) -> str:
    if not dialogue.tools:
        return WITHOUT_FUNCTIONS
    return WITH_FUNCTIONS + "\n\n".join(json.dumps(tool["function"], indent=4) for tool in dialogue.tools) + "\n"


def _chat(dialogue: Dialogue, *, ended: bool) -> str:
    turns = [_turn(message) for message in dialogue.messages]
    if dialogue.calls:
        last = " ".join(_call(call.name, json.dumps(call.arguments)) for call in dialogue.calls)
    else:
        last = _answer(dialogue)
    turns.append(f"ASSISTANT: {last}" + (f" {END}" if ended else ""))
    return "\n\n\n".join(turns)


def _turn(message: Message) -> str:
    if message["role"] == "user":
        return f"USER: {message['content']}"
    if message["role"] == "tool":
        return f"FUNCTION RESPONSE: {message['content']}"
    calls = cast(list[dict[str, dict[str, object]]], message.get("tool_calls") or [])
    for call in calls:
        return f"ASSISTANT: {_call(str(call['function']['name']), json.dumps(call['function']['arguments']))} {END}"
    return f"ASSISTANT: {message['content']} {END}"


def _call(name: str, arguments: str) -> str:
    """Glaive's spelling: JSON in single quotes inside JSON, apostrophes as they come."""
    return f'<functioncall> {{"name": "{name}", "arguments": \'{arguments}\'}}'


def _answer(dialogue: Dialogue) -> str:
    """The last text of the reply; an old answer, which the kit generates anew."""
    return next(piece for piece in reversed(dialogue.reply) if isinstance(piece, str))


def _code_row(dialogue: Dialogue) -> dict[str, str]:
    prompt = str(dialogue.messages[-1]["content"])
    tests = [f"assert {dialogue.function}({case!r}) == {result!r}" for case, result in dialogue.cases]
    return {
        "id": hashlib.sha256(prompt.encode()).hexdigest()[:32],
        "input": prompt,
        "output": _answer(dialogue),
        "domain": "generic",
        "generation_algorithm": "self-instruct",
        "llm_judgement": "{}",
        "unit_tests": json.dumps(tests),
        "tests_execution_status": json.dumps(["pass"] * len(tests)),
        "average_test_score": "1.0",
    }


if __name__ == "__main__":
    write_demo_prompts()
