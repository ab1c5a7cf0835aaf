"""Which turn is asked, and whether what leads to it can be rendered.

turns="last": the final user (or tool) turn is to be answered. turns="continue": the final assistant turn stays, as the
beginning of the answer that the model goes on with, character by character as the file has it. turns="each": every
turn of the assistant is to be generated in its place; the conversation is cut before its first answer, and what the
file has behind that, its old answers without their text, is kept as `later`. This module does not know any format, nor
whether a template renders a beginning unchanged.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from ..records import Conversation, Json
from .rows import BadRow

Turns = Literal["last", "continue", "each"]
TURNS: tuple[Turns, ...] = ("last", "continue", "each")
ROLES = ("system", "user", "assistant", "tool")
ASKED = ("user", "tool")


def last_turn(roles: Sequence[str], turns: Turns) -> tuple[int, tuple[str, ...]]:
    """How many turns to keep, so that the last one is to be answered or continued, and the notices.

    A final assistant turn goes without a notice: it is the answer that the target gives anew. It is cut before
    it is parsed, so that a broken old answer costs no prompt. With "continue" all turns stay.
    Raises BadRow("no_user_turn").
    """
    count = max((index + 1 for index, role in enumerate(roles) if role in ASKED), default=0)
    if count == 0:
        raise BadRow("no_user_turn", f"none of the {len(roles)} turns is by a user or a tool")
    notices = []
    if next(role for role in roles if role != "system") == "assistant":
        notices.append("leading_assistant")
    if list(roles[count:]) not in ([], ["assistant"]):
        notices.append("several_turns_after_the_last")
    return len(roles) if turns == "continue" else count, tuple(notices)


def checked(conversation: Conversation, turns: Turns) -> Conversation:
    """The conversation with notices on odd turns. Raises BadRow for what no template and no tokenizer can take."""
    try:
        parts = [conversation.messages, conversation.tools, conversation.template_kwargs]
        json.dumps(parts, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        detail = "a lone surrogate, or a byte that is not UTF-8, stands in the messages, tools or arguments"
        raise BadRow("lone_surrogate", detail) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRow(
            "bad_value", f"the messages, tools or arguments hold what JSON can't: {str(error)[:80]}"
        ) from error
    texts = [str(message["content"]) for message in conversation.messages]
    if turns == "each":
        conversation = _cut_before_first_answer(conversation)
    last = conversation.messages[-1]
    if last["role"] == "user" and not str(last["content"]).strip():
        raise BadRow("empty_prompt", "the turn to be answered is empty or whitespace")
    notices = list(conversation.notices)
    if any("\0" in text for text in texts):
        notices.append("nul_character")
    everything = (*conversation.messages, *(conversation.later or ()))
    spoken = [
        str(message["content"]) for message in everything if "content" in message and not message.get("tool_calls")
    ]
    if not all(text.strip() for text in spoken):
        notices.append("empty_turn")
    if turns == "continue":
        _check_beginning(last)
    return replace(conversation, continue_final=turns == "continue", notices=tuple(notices))


def _cut_before_first_answer(conversation: Conversation) -> Conversation:
    """Messages up to the first answer to a user or a tool, and the rest; of recorded answers their calls alone stay."""
    messages = conversation.messages
    asked = next(place for place, message in enumerate(messages) if message["role"] in ASKED)
    answers = (place for place in range(asked, len(messages)) if messages[place]["role"] == "assistant")
    first = next(answers, len(messages))
    later = tuple(_calls_alone(message) if message["role"] == "assistant" else message for message in messages[first:])
    return replace(conversation, messages=messages[:first], later=later)


def _calls_alone(message: Mapping[str, Json]) -> dict[str, Json]:
    return {name: message[name] for name in ("role", "tool_calls") if name in message}


def _check_beginning(last: Mapping[str, Json]) -> None:
    if last["role"] != "assistant":
        raise BadRow("not_continuable", f"the last turn is by the {last['role']}; expected the beginning of an answer")
    if last.get("tool_calls"):
        raise BadRow("not_continuable", "the last turn holds tool calls, which have no beginning to go on with")
    thought = last.get("reasoning_content")
    if not str(last["content"] or thought or "").strip():
        raise BadRow("not_continuable", "the beginning of the answer is empty or whitespace")
