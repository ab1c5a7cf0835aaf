"""Conversations become prompt ids: rendered by the model's own chat template, encoded a batch at a time.

The ids of the whole rendered text are those that `apply_chat_template` gives; ids are never edited. This module does
not know where conversations come from, nor what the model will answer.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import jinja2
import msgspec
from msgspec.structs import replace

from ..errors import InputError, one_line
from ..markers import thinking_mode
from ..records import Conversation, Json, Prompt, Rejection
from .beginnings import NoBeginning, render_conversation, with_begun_thinking
from .control_tokens import (
    AS_TEXT,
    IN_TEXT,
    NOT_PROVED,
    ControlTokens,
    Finding,
    Rendered,
    find_control_tokens,
    ids_as_text,
)
from .thinking_modes import Portion, arguments_of, check_arguments, check_mix, encoded
from .tool_arguments import BadArguments, Form, has_calls, wanted_form, with_wanted_form

if TYPE_CHECKING:
    from .target_tokenizer import Tokenizer


class PromptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What decides a data set's prompt ids beside its file and the tokenizer; a run's manifest covers all of it.

    `turns` is which turn is generated (conversations.turns), `template_kwargs` and `mix` are the template's arguments
    (thinking_modes), `control_tokens` is what becomes of rows whose texts hold some.
    """

    turns: str = "last"
    template_kwargs: dict[str, Json] = {}
    mix: tuple[Portion, ...] = ()
    control_tokens: ControlTokens = "skip"


def check_options(options: PromptOptions) -> None:
    """Raise InputError for options that no row can follow; `turns` is read_conversations' to check."""
    known = get_args(ControlTokens)
    if options.control_tokens not in known:
        raise InputError(f"control_tokens is {options.control_tokens!r}; expected one of {', '.join(known)}")
    check_arguments(options.template_kwargs)
    check_mix(options.mix)


class _Open(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as the template is given it, and the text that comes out."""

    conversation: Conversation
    text: str


def tokenize_conversations(
    batch: Sequence[Conversation], tokenizer: "Tokenizer", options: PromptOptions
) -> list[Prompt | Rejection]:
    """Each conversation as a prompt, or the reason why it is none; in order, and no row's fault costs another.

    Pure: the same batch gives the same result in every process. All texts are encoded at once.
    Reasons: template_error, tokenizer_error, bad_template_kwargs, bad_arguments, continue_mismatch,
    id_out_of_vocabulary, control_token_in_text, as_text_not_proved.
    Notices: control_token_in_text, control_token_as_text,
    arguments_respelled, tool_calls_unread, begins_inside_thinking.
    """
    form = wanted_form(tokenizer) if any(map(has_calls, batch)) else "either"
    opened = [_open(conversation, form, tokenizer, options) for conversation in batch]
    rendered = _encode(opened, tokenizer)
    whole = [row for row in rendered if isinstance(row, Rendered)]
    findings = iter(find_control_tokens(whole, tokenizer))
    return [
        row if isinstance(row, Rejection) else _judge(row, next(findings), tokenizer, options.control_tokens)
        for row in rendered
    ]


def _open(conversation: Conversation, form: Form, tokenizer: "Tokenizer", options: PromptOptions) -> _Open | Rejection:
    arguments = arguments_of(conversation.source_id, options.template_kwargs, options.mix, conversation.template_kwargs)
    try:
        formed = with_wanted_form(replace(conversation, template_kwargs=arguments), form)
        given = with_begun_thinking(formed, tokenizer)
        text = render_conversation(given, tokenizer)
    except NoBeginning as error:
        return _reject(conversation, "continue_mismatch", str(error))
    except BadArguments as error:
        return _reject(conversation, "bad_arguments", one_line(error))
    except InputError as error:
        return _reject(conversation, "bad_template_kwargs", one_line(error))
    except jinja2.TemplateError as error:
        return _reject(conversation, "template_error", one_line(error))
    except Exception as error:  # a template's filters, a model's own Python: whatever it is, it is this row's
        if conversation.continue_final and "continue_final_message" in str(error):  # transformers' own check
            detail = "the template leaves out, or changes, what the answer begins with"
            return _reject(conversation, "continue_mismatch", detail)
        return _reject(conversation, "tokenizer_error", one_line(error))
    if given.continue_final and not _ends_with_prefix(text, given):
        detail = f"the rendered text ends with {text[-40:]!r}, not with what the answer begins with"
        return _reject(conversation, "continue_mismatch", detail)
    return _Open(conversation=given, text=text)


def _ends_with_prefix(text: str, conversation: Conversation) -> bool:
    last = conversation.messages[-1]
    prefix = last.get("content") or str(last.get("reasoning_content") or "").removeprefix("\n")
    return isinstance(prefix, str) and prefix != "" and text.endswith(prefix)


def _encode(rows: Sequence[_Open | Rejection], tokenizer: "Tokenizer") -> list[Rendered | Rejection]:
    """The rows with their ids; where the batch as a whole fails, row by row."""
    opened = [row for row in rows if isinstance(row, _Open)]
    try:
        encoded = iter(tokenizer.encode([row.text for row in opened]))
    except Exception as error:  # one text that can't be encoded fails a batch
        if len(rows) == 1:
            return [_reject(opened[0].conversation, "tokenizer_error", one_line(error))]
        return [result for row in rows for result in _encode([row], tokenizer)]
    return [
        row if isinstance(row, Rejection) else Rendered(conversation=row.conversation, text=row.text, ids=next(encoded))
        for row in rows
    ]


def _judge(
    row: Rendered, finding: Finding | None, tokenizer: "Tokenizer", control_tokens: ControlTokens
) -> Prompt | Rejection:
    """What the choice for control tokens in texts makes of a row."""
    if finding is None:
        return _prompt(row, row.ids, tokenizer)
    if control_tokens == "skip":
        return _reject(row.conversation, IN_TEXT, finding.detail)
    if control_tokens == "keep":
        return _prompt(row, row.ids, tokenizer, f"{IN_TEXT}: {finding.detail}")
    ids = ids_as_text(row, finding, tokenizer)
    if isinstance(ids, str):
        return _reject(row.conversation, NOT_PROVED, f"{ids} ({finding.detail})")
    return _prompt(row, ids, tokenizer, f"{AS_TEXT}: {finding.detail}")


def _prompt(row: Rendered, ids: list[int], tokenizer: "Tokenizer", *notices: str) -> Prompt | Rejection:
    made = row.conversation
    if not ids or min(ids) < 0 or max(ids) >= tokenizer.vocabulary_size:
        expected = f"ids must lie in 0..{tokenizer.vocabulary_size - 1} and not be empty"
        return _reject(made, "id_out_of_vocabulary", expected)
    return Prompt(
        key=f"{made.source_id}#0",
        source_id=made.source_id,
        turn=0,
        prompt_ids=ids,
        prompt_tokens=len(ids),
        thinking=thinking_mode(ids, tokenizer.markers),
        messages=_json(made.messages),
        tools=_json(made.tools),
        template_kwargs=encoded(made.template_kwargs),
        notices=[*made.notices, *notices],
        later=None if made.later is None else _json(made.later),
    )


def _reject(conversation: Conversation, reason: str, detail: str) -> Rejection:
    key = f"{conversation.source_id}#0"
    return Rejection(stage="tokenize", key=key, line=conversation.line, reason=reason, detail=detail)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
