"""The study's prompts: the demo's dialogues of training and, for the evaluation, problems that training never saw.

A prompt's id is its number; the number finds the dialogue again, whose reply is the corpus' answer. This module does
not know how a prompt becomes ids.
"""

import json
from pathlib import Path

from ..demo.dialogue_record import Dialogue
from ..demo.dialogues import dialogues

SEED = 41_000
EVALUATION_SEED = 42_000


def training_dialogues(count: int) -> list[Dialogue]:
    """The first `count` dialogues of problems that are not held out, no prompt twice."""
    return _distinct(SEED, count, held_out=False)


def evaluation_dialogues(count: int) -> list[Dialogue]:
    """The first `count` dialogues of held-out problems, no prompt twice."""
    return _distinct(EVALUATION_SEED, count, held_out=True)


def write_questions(path: Path, chosen: list[Dialogue]) -> None:
    """A prompt file of OpenAI messages, a line a dialogue; left alone where it says the same already."""
    lines = (
        json.dumps({"id": str(number), "messages": each.messages, "tools": each.tools}) + "\n"
        for number, each in enumerate(chosen)
    )
    text = "".join(lines)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def number_of(key: str) -> int:
    """The number of the dialogue that a generation's key belongs to."""
    return int(key.partition("#")[0])


def _distinct(seed: int, count: int, *, held_out: bool) -> list[Dialogue]:
    found: dict[str, Dialogue] = {}
    for dialogue in dialogues(seed=seed, held_out=held_out):
        found.setdefault(json.dumps([dialogue.messages, dialogue.tools]), dialogue)
        if len(found) == count:
            break
    return list(found.values())
