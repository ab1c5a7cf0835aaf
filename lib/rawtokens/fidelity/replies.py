"""An output as the message that a chat server would answer; for looking only, nothing of it becomes a record.

Read by ids, as SGLang 0.5.23 reads text: reasoning is what stands before the first closer (a repeated opener left out),
content what stands between it and the first tool call, a call is a name and its arguments; text behind a call is
dropped. White space stays where the model put it. This module does not know what a template makes of the message.
"""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from ..markers import Channels, Markers, thinking_mode
from ..records import Json
from ..reporting.samples import Sample
from ..target.id_bytes import IdBytes
from .drift import places_of

Kind = Literal["reasoning", "answer", "tool calls"]
Runs = list[tuple[Kind, int, int]]
_NAMED = re.compile(rb"to=functions\.([\w.-]+)")
_TAGGED = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


class Unread(ValueError):
    """An output that no message can be made of; the message says why."""


class Piece(msgspec.Struct, frozen=True):
    """Bytes `start` to `stop` of an output that a message holds as text."""

    kind: Kind
    start: int
    stop: int


class Reply(msgspec.Struct, frozen=True):
    """An output as an assistant's message, and where its texts stand in the output."""

    message: dict[str, Json]
    pieces: tuple[Piece, ...]


def read_reply(sample: Sample, table: IdBytes) -> Reply:
    """The output as the message that a chat server would answer. Raises Unread for a call that can't be read."""
    tokenizer, ids = table.tokenizer, sample.output_ids
    markers = tokenizer.markers
    starts = [0, *np.cumsum(table.lengths[np.array(ids, dtype=np.int64)]).tolist()]
    text = table.joined(ids)
    if markers.channels is not None:
        runs, names = _channel_runs(sample, markers, markers.channels, text, starts)
    else:
        runs, names = _runs(sample, markers, table, starts)
    pieces = tuple(Piece(kind, start, stop) for kind, start, stop in runs if stop > start or kind == "tool calls")
    first_call = min((piece.start for piece in pieces if piece.kind == "tool calls"), default=len(text))
    said = {
        kind: "".join(_text(text, piece) for piece in pieces if piece.kind == kind and piece.start <= first_call)
        for kind in ("reasoning", "answer")
    }
    bodies = [_text(text, piece) for piece in pieces if piece.kind == "tool calls"]
    calls = [_call(body, name, markers) for body, name in zip(bodies, names or [""] * len(bodies), strict=True)]
    message: dict[str, Json] = {"role": "assistant", "content": said["answer"]}
    if said["reasoning"]:
        message["reasoning_content"] = said["reasoning"]
    if calls:
        message["tool_calls"] = calls
    return Reply(message, pieces)


def _runs(sample: Sample, markers: Markers, table: IdBytes, starts: Sequence[int]) -> tuple[Runs, list[str]]:
    """Reasoning without openers, the answer before the first call, the body of each call."""
    ids, places = sample.output_ids, places_of(sample, markers)
    opened, size = 0, len(markers.opener)
    for place in range(sample.reasoning_tokens):  # GLM begins a line before its opener
        if _stands(ids, place, markers.opener):
            opened = place + size
        elif place >= opened and table.joined(ids[place : place + 1]).strip():
            break
    runs: Runs = [("reasoning", starts[opened], starts[sample.reasoning_tokens])]
    runs += [("answer", starts[place], starts[place + 1]) for place, label in enumerate(places) if label == "answer"]
    place = sample.reasoning_tokens
    while place < len(ids):
        if places[place].startswith("tool") and _stands(ids, place, markers.tool_call_begin):
            begin = place + len(markers.tool_call_begin)
            ends = [later for later in range(begin, len(ids)) if _stands(ids, later, markers.tool_call_end)]
            if not ends and markers.tool_call_end:
                raise Unread("a tool call that was cut off")
            place = ends[0] if ends else len(ids) - sample.ends_with_stop
            runs.append(("tool calls", starts[begin], starts[place]))
        place += 1
    return _joined(sorted(runs, key=lambda run: run[1])), []


def _channel_runs(
    sample: Sample, markers: Markers, channels: Channels, text: bytes, starts: Sequence[int]
) -> tuple[Runs, list[str]]:
    """The texts of harmony's messages; a call's name stands in its header."""
    ids, places = sample.output_ids, places_of(sample, markers)
    kinds: dict[str, Kind] = {"reasoning": "reasoning", "answer": "answer", "tool calls": "tool calls"}
    begun = thinking_mode(sample.prompt_ids, markers) != "by_model"
    bounds = [0, *(place for place in range(1, len(ids)) if ids[place] == channels.start), len(ids)]
    runs: Runs = []
    names = []
    for begin, stop in pairwise(bounds):
        message = ids[begin:stop]
        if places[begin] not in kinds or (not begun and channels.message not in message):
            continue
        header = begin if begun and begin == 0 else begin + message.index(channels.message) + 1
        ends = [place for place in range(header, stop) if ids[place] in (channels.end, *markers.turn_ends)]
        kind = kinds[places[begin]]
        if kind == "tool calls":
            named = _NAMED.search(text[starts[begin] : starts[header]])
            if named is None:
                kind = "answer"
            else:
                names.append(named[1].decode(errors="replace"))
        runs.append((kind, starts[header], starts[ends[0] if ends else stop]))
    return runs, names


def _call(body: str, name: str, markers: Markers) -> Json:
    """A call's name and arguments, whatever way its family spells them. Raises Unread."""
    call_id: dict[str, Json] = {}
    arguments: Json = body
    separator = markers.names.get(markers.tool_arguments_begin[0], "") if markers.tool_arguments_begin else ""
    if name:
        pass
    elif separator and separator in body:
        name, _, arguments = body.partition(separator)
        fenced = re.fullmatch(r"(.*?)\n```json\n(.*)\n```", arguments, re.DOTALL)
        if fenced:  # DeepSeek-R1: function SEPARATOR NAME, and the arguments in a fence
            name, arguments = fenced[1], fenced[2]
        if name.startswith("functions.") and name.rpartition(":")[2].isdecimal():
            call_id, name = {"id": name}, name.removeprefix("functions.").rpartition(":")[0]
    elif _TAGGED.search(body):
        name, arguments = body.partition("<arg_key>")[0].strip(), dict(_TAGGED.findall(body))
    else:
        try:
            made = json.loads(body)
            name, arguments = made["name"], made.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Unread("a tool call in a form that is not read here") from error
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _joined(runs: Runs) -> Runs:
    """Neighbouring runs of the answer as one."""
    made: Runs = []
    for kind, start, stop in runs:
        if made and made[-1][0] == kind == "answer" and made[-1][2] == start:
            made[-1] = (kind, made[-1][1], stop)
        else:
            made.append((kind, start, stop))
    return made


def _text(text: bytes, piece: Piece) -> str:
    return text[piece.start : piece.stop].decode("utf-8", errors="replace")


def _stands(ids: Sequence[int], place: int, sequence: Sequence[int]) -> bool:
    return bool(sequence) and list(ids[place : place + len(sequence)]) == list(sequence)
