"""What a prompt file has behind the first prompt, as a script: the questions to come, and recorded calls with results.

A recorded answer's text is not in it: the model gives its own. This module does not know what the model said.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
from msgspec.structs import replace

from ..records import Json

Message = Mapping[str, Json]


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the file; `result` is the tool's message, None where the file has none."""

    name: str
    arguments: str  # as `canonical` spells them
    result: Message | None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What is there for one question: the calls recorded behind it, and the messages that are asked next.

    `then` is empty behind the last question.
    """

    calls: tuple[RecordedCall, ...] = ()
    then: tuple[Message, ...] = ()


def read_script(later: Sequence[Message]) -> tuple[Part, ...]:
    """The parts of a conversation, one a question.

    A result belongs to the oldest open call of its id: files use an id again in each round, or twice in one.
    """
    parts: list[Part] = []
    calls: list[RecordedCall] = []
    then: list[Message] = []
    open_calls: list[tuple[Json, int]] = []  # ids and places in `calls`
    for message in later:
        if message["role"] == "assistant":
            if then:
                parts.append(Part(calls=tuple(calls), then=tuple(then)))
                calls, then, open_calls = [], [], []
            for call in _calls(message):
                open_calls.append((call.get("id"), len(calls)))
                calls.append(_recorded(call))
        elif message["role"] == "tool":
            answered = next((item for item in open_calls if item[0] == message.get("tool_call_id")), None)
            if answered:
                open_calls.remove(answered)
                calls[answered[1]] = replace(calls[answered[1]], result=message)
        else:
            then.append(message)
    parts.append(Part(calls=tuple(calls), then=tuple(then)))
    return tuple(parts) if not then else (*parts, Part())


def expected_turns(later: Sequence[Message]) -> int:
    """How many answers the file foresees, the first one among them: one a question or a round of results."""
    asked = [message["role"] != "assistant" for message in later]
    return 1 + sum(here and not before for before, here in zip([False, *asked], asked, strict=False))


def script_digest(later: str) -> str:
    """What stands for the recorded turns, as JSON, in an Ending."""
    return hashlib.blake2b(later.encode(), digest_size=8).hexdigest()


def canonical(arguments: Json) -> str | None:
    """Arguments, as a JSON text or an object, in one spelling of their JSON value; None for what is no object."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(value, dict):
            return None
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None


def _calls(message: Message) -> Sequence[Mapping[str, Json]]:
    return cast("Sequence[Mapping[str, Json]]", message.get("tool_calls") or ())


def _recorded(call: Mapping[str, Json]) -> RecordedCall:
    function = cast("Mapping[str, Json]", call["function"])
    arguments = canonical(function.get("arguments")) or ""
    return RecordedCall(name=str(function.get("name")), arguments=arguments, result=None)
