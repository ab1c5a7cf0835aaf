"""One synthetic dialogue: a prompt, the reply that the demo reasoner is to learn, and what makes a reply right.

A reply is pieces of text and control ids side by side, so that no marker ever passes through a text encoder.
This module does not know what the dialogues are about, nor the model that learns them.
"""

import random
import zlib
from collections.abc import Mapping, Sequence

import msgspec

Message = dict[str, object]
Tool = dict[str, object]
Piece = str | int

VOCABULARY_SIZE = 163_840
"""All ids, with the 256 control ids 163584..163839 (Kimi-K2.5's config.json)."""
IM_END = 163586
CALLS_BEGIN = 163595
CALLS_END = 163596
CALL_BEGIN = 163597
ARGUMENT_BEGIN = 163598
CALL_END = 163599
THINK_END = 163607

HELD_OUT_EVERY = 10


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call: its function and its arguments."""

    name: str
    arguments: dict[str, str | int]


class Dialogue(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as messages and tools, and one right reply.

    problem: what is asked, apart from its wording; it decides what is held out from training.
    reply: texts and control ids in order. What makes a reply right is whatever is set of: last_number (the last
    number of the answer), contains (texts of the answer), calls, function with cases (argument and result of each).
    """

    kind: str
    problem: str
    messages: list[Message]
    reply: list[Piece]
    tools: list[Tool] = []
    last_number: str = ""
    contains: list[str] = []
    calls: list[Call] = []
    function: str = ""
    cases: list[tuple[object, object]] = []


def is_held_out(dialogue: Dialogue) -> bool:
    """Whether training never sees this problem, in any wording."""
    return zlib.crc32(f"{dialogue.kind} {dialogue.problem}".encode()) % HELD_OUT_EVERY == 0


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def answered(reasoning: str, answer: str) -> list[Piece]:
    """A reply that closes its thinking and answers."""
    return [reasoning, THINK_END, answer, IM_END]


def never_closed(reasoning: str) -> list[Piece]:
    """A reply that ends its turn while still thinking."""
    return [reasoning, IM_END]


def pick(chooser: random.Random, wordings: Sequence[str], values: Mapping[str, object]) -> str:
    """One of the wordings, filled in."""
    return chooser.choice(wordings).format_map(dict(values))
