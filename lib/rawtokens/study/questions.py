"""The study's prompts: the demo's dialogues of training and, for the evaluation, problems that training never saw.

A prompt's id is its number; the number finds the dialogue again, whose reply is the corpus' answer. This module does
not know how a prompt becomes ids.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from ..demo.dialogue_record import Dialogue
from ..demo.dialogues import CLOSINGS, GREETINGS, dialogues

SEED = 41_000
EVALUATION_SEED = 42_000


def training_dialogues(count: int) -> list[Dialogue]:
    """The first `count` dialogues of problems that are not held out, no prompt twice."""
    return list(islice(_distinct(dialogues(seed=SEED)), count))


def evaluation_dialogues(count: int, *, apart_from: Sequence[Dialogue]) -> list[Dialogue]:
    """The first `count` dialogues of held-out problems, no problem twice, none asking what one of `apart_from` asks.

    An earlier turn of a training dialogue may ask a held-out problem, so every user's text is compared.
    """
    asked = {text for dialogue in apart_from for text in _questions(dialogue)}
    found: dict[tuple[str, str], Dialogue] = {}
    for dialogue in _distinct(dialogues(seed=EVALUATION_SEED, held_out=True)):
        if len(found) == count:
            break
        if not asked.intersection(_questions(dialogue)):
            found.setdefault((dialogue.kind, dialogue.problem), dialogue)
    return list(found.values())


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


def _distinct(stream: Iterable[Dialogue]) -> Iterator[Dialogue]:
    seen = set()
    for dialogue in stream:
        prompt = json.dumps([dialogue.messages, dialogue.tools])
        if prompt not in seen:
            seen.add(prompt)
            yield dialogue


def _questions(dialogue: Dialogue) -> Iterator[str]:
    """What the user says, without the greeting or the thanks that a dialogue may be decorated with."""
    for message in dialogue.messages:
        if message["role"] == "user":
            text = str(message["content"])
            for greeting in GREETINGS:
                text = text.removeprefix(greeting)
            for closing in CLOSINGS:
                text = text.removesuffix(closing)
            yield text
