"""The arguments of earlier tool calls, in the form that the chat template wants: a JSON string or an object.

Found by rendering one made-up call in both forms; a template that takes both gets the file's. A template that wants
objects writes them anew, so a spelling that JSON values do not keep (1e3, 1.10, escapes, a key given twice) would
change: such a row carries a notice. This module does not know what a template writes around arguments.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from msgspec.structs import replace

from ..records import Conversation, Json

if TYPE_CHECKING:
    from .target_tokenizer import Tokenizer

Form = Literal["either", "text", "object", "unread"]
"""What a template takes; `unread` writes no earlier calls at all."""

RESPELLED = "arguments_respelled"
UNREAD = "tool_calls_unread"
_NAME, _KEY, _VALUE = "probe_function", "probe_key", "probe value"
_TEXT = json.dumps({_KEY: _VALUE})
_SPACE_OUTSIDE_TEXT = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')


class BadArguments(ValueError):
    """Arguments that are no JSON object; the message says which."""


def wanted_form(tokenizer: "Tokenizer") -> Form:
    """The form of arguments that the chat template writes out as they are, without quoting them a second time."""
    text, made = _rendered(tokenizer, _TEXT), _rendered(tokenizer, {_KEY: _VALUE})
    if not text and not made:
        return "either"  # the template refuses this conversation, and will say of each row why
    if not any(part in rendered for rendered in (text, made) for part in (_NAME, _KEY)):
        return "unread"
    takes_text = _TEXT in text
    takes_object = all(part in made for part in (_KEY, _VALUE)) and f"'{_KEY}'" not in made
    if takes_text and takes_object:
        return "either"
    return "object" if takes_object else "text"


def with_wanted_form(conversation: Conversation, form: Form) -> Conversation:
    """The conversation with the arguments of its calls in the template's form, and what there is to notice.

    Raises BadArguments for arguments that are no JSON object.
    """
    if not has_calls(conversation):
        return conversation
    if form == "unread":
        return replace(conversation, notices=(*conversation.notices, UNREAD))
    notices: dict[str, None] = dict.fromkeys(conversation.notices)
    messages = tuple(_converted(message, form, notices) for message in conversation.messages)
    return replace(conversation, messages=messages, notices=tuple(notices))


def has_calls(conversation: Conversation) -> bool:
    """Whether an earlier turn calls tools."""
    return any(message.get("tool_calls") for message in conversation.messages)


def _converted(message: dict[str, Json], form: Form, notices: dict[str, None]) -> dict[str, Json]:
    calls = cast("Sequence[Mapping[str, Json]] | None", message.get("tool_calls"))
    if not calls:
        return message
    return {**message, "tool_calls": [_call(call, form, notices) for call in calls]}


def _call(call: Mapping[str, Json], form: Form, notices: dict[str, None]) -> Mapping[str, Json]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    given = function.get("arguments")
    made = given
    if isinstance(given, str):
        value = _object(given, function.get("name"))
        if form == "object":
            made = value
            if _compact(json.dumps(value, ensure_ascii=False)) != _compact(given):
                notices[RESPELLED] = None
    elif form == "text":
        made = json.dumps(given, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": made}}


def _object(text: str, name: Json) -> dict[str, Json]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadArguments(f"arguments of {name!r} are not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadArguments(f"arguments of {name!r} are {type(value).__name__} as JSON; expected an object")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _compact(text: str) -> str:
    """JSON without the white space that stands outside its strings."""
    return _SPACE_OUTSIDE_TEXT.sub(lambda match: match[1] or "", text)


def _rendered(tokenizer: "Tokenizer", arguments: Json) -> str:
    """The made-up call, without declarations: they would name it too. Empty where the template refuses the form."""
    call: Json = {"id": "call00001", "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    messages: list[dict[str, Json]] = [
        {"role": "user", "content": "probe"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "probe", "tool_call_id": "call00001"},
    ]
    try:
        return tokenizer.render(messages)
    except Exception:  # a template's filters, a model's own Python
        return ""
