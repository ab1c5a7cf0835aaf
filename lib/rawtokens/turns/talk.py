"""One conversation, turn by turn: an answer comes in, the next prompt or the end comes out.

A new question is rendered by the chat template with the history as this very model gave it, exactly as stage 01 renders
a conversation. Inside a tool cycle the prompt is what was sampled and the template's suffix (suffix). Pure but for the
tools' results, which the caller gives. This module does not know where prompts go, nor how a conversation is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Literal, cast

import msgspec
from msgspec.structs import replace

from ..records import Conversation, Json, Rejection, Response
from ..target.id_bytes import IdBytes
from ..target.rendering import PromptOptions, tokenize_conversations
from .history import Ended, owns_newlines
from .keys import split_key
from .reading import Call, read_answer
from .script import Part, RecordedCall, canonical, read_script
from .suffix import find_suffix

Results = Callable[[str, int, Call, Sequence[Mapping[str, Json]]], str | Ended | None]
"""(key of the turn, place of the call, call, messages) to what the tool answers; None leaves it to the prompt file."""


class Reader(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What reading and rendering need of one tokenizer and one data set; `lock` keeps it to one thread at a time."""

    table: IdBytes
    options: PromptOptions
    bare_content: bool
    lock: Lock = msgspec.field(default_factory=Lock)

    @classmethod
    def of(cls, table: IdBytes, options: PromptOptions) -> "Reader":
        """`options` are those that stage 01 rendered the first prompts with."""
        return cls(table=table, options=options, bare_content=owns_newlines(table.tokenizer))


class Talk(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation up to a prompt: its messages, and what the file has for the turns to come.

    `calls` are recorded calls of this question that were not made yet.
    """

    conversation: Conversation
    calls: tuple[RecordedCall, ...]
    parts: tuple[Part, ...]

    @classmethod
    def begin(cls, conversation: Conversation) -> "Talk":
        """At the first prompt."""
        parts = read_script(conversation.later or ())
        return cls(conversation=conversation, calls=parts[0].calls, parts=parts)


class NextTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn and its prompt; `made` is `question` (rendered) or `cycle` (sampled ids and suffix). See Suffix."""

    talk: Talk
    prompt_ids: list[int]
    made: Literal["question", "cycle"]
    differs_at: int | None = None
    template_ids: list[int] = []


def next_turn(talk: Talk, response: Response, reader: Reader, results: Results) -> NextTurn | Ended:
    """What follows an answer. `Ended("complete")` where the file asks nothing more.

    Reasons: those of `read_answer`, `find_suffix` and stage 01's rendering, call_not_recorded, no_recorded_result,
    and what `results` ends with.
    """
    said = talk.conversation
    with reader.lock:
        answer = read_answer(response, reader.table, tools=said.tools, bare_content=reader.bare_content)
    if isinstance(answer, Ended):
        return answer
    said = replace(said, messages=(*said.messages, answer.message))
    if not answer.calls:
        with reader.lock:
            return _asked(replace(talk, conversation=said), reader)
    found = _results(answer.calls, talk, said, response.key, results)  # a user's function may take its time
    if isinstance(found, Ended):
        return found
    messages, calls = found
    cycle = replace(talk, conversation=replace(said, messages=(*said.messages, *messages)), calls=calls)
    with reader.lock:
        return _in_cycle(cycle, response, len(messages), reader)


def _asked(talk: Talk, reader: Reader) -> NextTurn | Ended:
    """The file's next question, behind the history."""
    then = talk.parts[0].then
    if not then:
        return Ended("complete")
    made = _rendered(replace(talk.conversation, messages=(*talk.conversation.messages, *map(dict, then))), reader)
    if isinstance(made, Ended):
        return made
    said, prompt_ids = made
    parts = talk.parts[1:]
    return NextTurn(
        talk=Talk(conversation=said, calls=parts[0].calls, parts=parts), prompt_ids=prompt_ids, made="question"
    )


def _in_cycle(talk: Talk, response: Response, results: int, reader: Reader) -> NextTurn | Ended:
    made = _rendered(talk.conversation, reader)
    if isinstance(made, Ended):
        return made
    said, rendered = made
    sampled = [*response.prompt_ids, *response.output_ids]
    suffix = find_suffix(
        sampled,
        rendered,
        said.messages[:-results],
        reader.table,
        tools=said.tools,
        template_kwargs=said.template_kwargs,
    )
    if isinstance(suffix, Ended):
        return suffix
    return NextTurn(
        talk=replace(talk, conversation=said),
        prompt_ids=[*sampled, *suffix.ids],
        made="cycle",
        differs_at=suffix.differs_at,
        template_ids=suffix.template_ids,
    )


def _rendered(conversation: Conversation, reader: Reader) -> tuple[Conversation, list[int]] | Ended:
    """The conversation with its messages in the template's form, and its ids, as stage 01 makes them."""
    options = PromptOptions(control_tokens=reader.options.control_tokens)  # the row has all its arguments already
    (made,) = tokenize_conversations([replace(conversation, later=None)], reader.table.tokenizer, options)
    if isinstance(made, Rejection):
        return Ended(made.reason, made.detail)
    messages = tuple(cast("list[dict[str, Json]]", msgspec.json.decode(made.messages)))
    return replace(conversation, messages=messages), made.prompt_ids


def _results(
    calls: Sequence[Call], talk: Talk, said: Conversation, key: str, results: Results
) -> tuple[list[dict[str, Json]], tuple[RecordedCall, ...]] | Ended:
    """The tools' messages in the order of the calls, and the recorded calls that are left."""
    messages: list[dict[str, Json]] = []
    left = list(talk.calls)
    for place, call in enumerate(calls):
        content = results(key, place, call, said.messages)
        if isinstance(content, Ended):
            return content
        message: dict[str, Json] = {"role": "tool", "content": content}
        if content is None:
            wanted = (call.name, canonical(call.arguments))
            recorded = next((item for item in left if (item.name, item.arguments) == wanted), None)
            if recorded is None:
                return Ended("call_not_recorded", _unmatched(call, left))
            if recorded.result is None:
                return Ended("no_recorded_result", f"the file has no result for its call of {call.name!r}")
            left.remove(recorded)
            message = {name: value for name, value in recorded.result.items() if name != "tool_call_id"}
        messages.append({**message, "tool_call_id": call.call_id} if call.call_id else message)
    return messages, tuple(left)


def _unmatched(call: Call, left: Sequence[RecordedCall]) -> str:
    made = f"{call.name}({canonical(call.arguments)})"
    recorded = ", ".join(f"{item.name}({item.arguments})" for item in left) or "none"
    return f"the model called {made[:200]}; recorded and not made yet: {recorded[:300]}"


def turn_after(key: str) -> str:
    """The key of the turn behind this one."""
    found = split_key(key)
    return str(found._replace(turn=found.turn + 1))
