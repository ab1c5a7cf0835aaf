"""An answer's ids as a message for the history, or the doubt that ends its conversation.

Nothing of it becomes a record. An answer is read only where its ids leave no choice: it ended by a stop id, thinking
that was open is closed (by its closer or by a tool section), sections are whole, and every call can be read. This
module does not know what is asked next.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import numpy as np

from ..conversations.rows import BadRow, load_json
from ..errors import one_line
from ..fidelity.replies import Reply, Unread, read_reply
from ..markers import thinking_mode
from ..records import Json, Response
from ..reporting.samples import Sample
from ..response_checks.channel_segments import segment_outputs
from ..response_checks.checks import reasons_of_ids, shapes_of
from ..response_checks.response_columns import ResponseColumns
from ..target.id_bytes import IdBytes
from ..target.target_tokenizer import Tokenizer
from .history import Ended

DOUBTS = (
    "truncated_in_thinking",
    "truncated_in_answer",
    "empty",
    "stop_missing",
    "stop_in_middle",
    "all_equal_ids",
    "never_closed",
    "closer_repeated",
    "opener_in_output",
    "open_tool_section",
    "role_id_in_output",
    "empty_answer",
)
"""Reasons of verification (checks.DEFAULT_POLICY) that end a conversation; the first that an answer has is told."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that the model made; `call_id` is its own, "" where its family writes none."""

    call_id: str
    name: str
    arguments: dict[str, Json]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as an assistant's message, and its calls in order."""

    message: dict[str, Json]
    calls: tuple[Call, ...]


def read_answer(
    response: Response, table: IdBytes, *, tools: Sequence[Mapping[str, Json]], bare_content: bool
) -> Answer | Ended:
    """The message that `response` becomes in the history.

    `bare_content` takes off the newlines between closer and content (`owns_newlines`). Reasons: DOUBTS, no_stop_id,
    broken_text, unreadable_call, text_behind_calls.
    """
    markers = table.tokenizer.markers
    sample, doubts = _sample(response, table.tokenizer)
    doubt = next((reason for reason in DOUBTS if reason in doubts), None)
    if doubt:
        return Ended(doubt, f"an answer of {len(response.output_ids):,} ids, shape {sample.shape}")
    if not sample.ends_with_stop:
        return Ended("no_stop_id", f"it ended with id {response.output_ids[-1]}, matched {response.matched!r}")
    text = table.joined(response.output_ids)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return Ended("broken_text", f"byte {error.start:,} of the answer is none of a character")
    try:
        reply = read_reply(sample, table)
        _check_bodies(reply, text)
        calls = [_call(call, tools, typed=markers.family == "glm") for call in _calls(reply.message)]
    except Unread as error:
        return Ended("unreadable_call", one_line(error))
    if markers.family == "glm" and text.count(b"<arg_key>") != sum(len(call.arguments) for call in calls):
        return Ended("unreadable_call", "an argument stands twice, or outside of a call")
    if _says_more(reply, text):
        return Ended("text_behind_calls", "text stands behind a tool call, where no template writes it")
    content = str(reply.message["content"])
    if bare_content:
        content = content.strip("\n") if calls else content.lstrip("\n")
    return Answer(message={**reply.message, "content": content}, calls=tuple(calls))


def _sample(response: Response, tokenizer: Tokenizer) -> tuple[Sample, set[str]]:
    """The answer cut into its parts, and the reasons that verification gives it for its ids."""
    columns = ResponseColumns.from_responses([response])
    mode = thinking_mode(response.prompt_ids, tokenizer.markers)
    segments = segment_outputs(
        columns.outputs, markers=tokenizer.markers, thinking=[mode], matched_ids=columns.matched_ids
    )
    shapes = shapes_of(segments, np.array([response.finish_reason == "length"]))
    found = {reason for reason, rows in reasons_of_ids(columns, segments, shapes).items() if rows[0]}
    sample = Sample(
        key=response.key,
        shape=str(shapes[0]),
        rows=1,
        verdict="accept",
        reasons=[],
        finish_reason=response.finish_reason,
        prompt_ids=response.prompt_ids,
        output_ids=response.output_ids,
        reasoning_tokens=int(segments.reasoning_tokens[0]),
        ends_with_stop=bool(segments.ends_with_stop[0]),
    )
    return sample, found


def _says_more(reply: Reply, text: bytes) -> bool:
    """Whether something but white space stands behind the first call, outside of calls."""
    first = min((piece.start for piece in reply.pieces if piece.kind == "tool calls"), default=len(text))
    behind = [piece for piece in reply.pieces if piece.kind == "answer" and piece.start > first]
    return any(text[piece.start : piece.stop].strip() for piece in behind)


def _check_bodies(reply: Reply, text: bytes) -> None:
    """Refuse a call whose JSON says a thing twice, which a reader settles by taking the last. Raises Unread."""
    for piece in reply.pieces:
        body = text[piece.start : piece.stop].decode().strip()
        if piece.kind == "tool calls" and body.startswith("{"):
            _strict(body, "a tool call")


def _strict(text: str, what: str) -> Json:
    """JSON without NaN, lone surrogates and repeated keys. Raises Unread."""
    try:
        return load_json(text, what, "unreadable_call")
    except BadRow as error:
        raise Unread(error.detail) from error


def _calls(message: Mapping[str, Json]) -> Sequence[Mapping[str, Json]]:
    return cast("Sequence[Mapping[str, Json]]", message.get("tool_calls") or ())


def _call(call: Mapping[str, Json], tools: Sequence[Mapping[str, Json]], *, typed: bool) -> Call:
    """A call with its arguments as a JSON object. Raises Unread where they are none."""
    function = cast("Mapping[str, Json]", call["function"])
    name = str(function["name"])
    arguments = _strict(str(function["arguments"]), f"arguments of {name!r}")
    if not isinstance(arguments, dict):
        raise Unread(f"arguments of {name!r} that are no JSON object")
    if typed:
        texts = _text_parameters(name, tools)
        arguments = {key: value if key in texts else _typed(value) for key, value in arguments.items()}
    return Call(call_id=str(call.get("id") or ""), name=name, arguments=arguments)


def _text_parameters(name: str, tools: Sequence[Mapping[str, Json]]) -> set[str]:
    """The parameters that a tool declares as text: GLM writes those bare, all others as JSON."""
    for tool in tools:
        function = cast("Mapping[str, Json]", tool.get("function", tool))
        if function.get("name") == name:
            parameters = function.get("parameters")
            declared = parameters.get("properties") if isinstance(parameters, dict) else None
            schemas = declared.items() if isinstance(declared, dict) else ()
            return {key for key, schema in schemas if isinstance(schema, dict) and schema.get("type") == "string"}
    return set()


def _typed(value: Json) -> Json:
    try:
        return _strict(str(value), "a value")
    except Unread:
        return value
