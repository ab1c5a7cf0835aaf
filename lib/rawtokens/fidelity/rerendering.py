"""What a chat loses: an output parsed into a message, rendered by the chat template again, and compared.

The output is read as a chat server reads it (SGLang 0.5.23: reasoning is what stands before the first closer, content
what stands between it and the first tool call, a call is a name and its arguments; text behind a call is dropped) and
appended to the prompt's messages; the whole conversation is rendered without a generation prompt, as a trainer would.
The message is for looking only: nothing of it becomes a record. An id is *lost* where the rendered conversation does
not have it over the same bytes of the same piece of text. This module does not know how a trainer masks.
"""

import re
from collections.abc import Iterator, Sequence
from typing import cast

import msgspec
import numpy as np

from ..errors import one_line
from ..records import Conversation
from ..reporting.samples import Sample
from ..response_checks.segments import Bools
from ..target.id_bytes import LOST, IdBytes, Integers, Span, first_difference
from ..target.target_tokenizer import Tokenizer
from ..target.template_dates import hold_date
from ..target.tool_arguments import Form, with_wanted_form
from .replies import Piece, Reply, Unread, read_reply


class Rerendered(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One row after re-rendering. `same`: the conversation begins with prompt and output, id by id.

    `partners` gives for each output id its place in `ids`, LOST where it has none, of the ids in a piece;
    `first_difference` counts in prompt + output from the output's first id: below 0 it lies in the prompt.
    """

    ids: list[int]
    partners: Integers
    same: bool
    first_difference: int | None
    tokens: dict[str, int]  # ids in the pieces of text, by kind
    lost: dict[str, int]  # those without a partner
    empty_thinking: bool


def rerender(
    sample: Sample, conversation: Conversation, table: IdBytes, *, form: Form, template_date: str = ""
) -> Rerendered:
    """Parse, render and compare one row. Raises Unread where there is nothing to compare."""
    if not table.exact:
        raise Unread("a tokenizer whose ids have no bytes of their own")
    reply = read_reply(sample, table)
    ids = _render(conversation, reply, table.tokenizer, form, template_date)
    whole = [*sample.prompt_ids, *sample.output_ids]
    first = first_difference(whole, ids)
    same = first == len(whole)
    starts = np.append(0, np.cumsum(table.lengths[np.array(sample.output_ids, dtype=np.int64)]))
    prompt, again = table.joined(sample.prompt_ids), table.joined(ids)
    behind = first_difference(prompt, again)
    partners = np.full(len(sample.output_ids), LOST, dtype=np.int64)
    if same:
        partners = np.arange(len(sample.prompt_ids), len(whole))
    else:
        spans = list(_found(reply.pieces, table.joined(sample.output_ids), again, behind, table))
        partners = table.partners(sample.output_ids, ids, spans)
        _grow(partners, sample, ids)
    return Rerendered(
        ids=ids,
        partners=partners,
        same=same,
        first_difference=None if same else first - len(sample.prompt_ids),
        tokens=_tokens(reply.pieces, np.ones(len(partners), dtype=np.bool_), starts),
        lost=_tokens(reply.pieces, partners == LOST, starts),
        empty_thinking=sample.reasoning_tokens > 0 and _thinks_nothing(again, behind, table),
    )


def _render(
    conversation: Conversation, reply: Reply, tokenizer: Tokenizer, form: Form, template_date: str
) -> list[int]:
    if tokenizer.prompt_encoder is not None or conversation.continue_final:
        raise Unread("a prompt that is not rendered by a chat template, or ends inside the assistant's turn")
    given = msgspec.structs.replace(conversation, messages=(*conversation.messages, reply.message))
    date = template_date or tokenizer.template_date
    try:
        given = with_wanted_form(given, form)
        if date:
            hold_date(tokenizer.encoder, date)
        text = tokenizer.encoder.apply_chat_template(
            [dict(message) for message in given.messages],
            tools=[dict(tool) for tool in given.tools] or None,
            add_generation_prompt=False,
            tokenize=False,
            **given.template_kwargs,
        )
        return tokenizer.encode([cast("str", text)])[0]
    except Exception as error:  # a template's filters, a model's own Python: whatever it is, it is this row's
        raise Unread(f"the template refuses it: {one_line(error)}") from error


def _found(pieces: Sequence[Piece], text: bytes, again: bytes, behind: int, table: IdBytes) -> Iterator[Span]:
    """Where the rendered text has each piece, whole or without the white space at its ends, in order."""
    closer = table.joined(table.tokenizer.markers.closer)
    closed = again.find(closer, behind) if closer else -1
    place = behind
    for piece in pieces:
        if piece.kind != "reasoning":
            place = max(place, closed)
        until = closed if piece.kind == "reasoning" and closer else len(again)
        whole = text[piece.start : piece.stop]
        for part, ahead in ((whole, 0), (whole.strip(), len(whole) - len(whole.lstrip()))):
            found = again.find(part, place, max(until, 0)) if part else -1
            if found >= 0:
                start = piece.start + ahead
                yield Span(start, start + len(part), found)
                place = found + len(part)
                break


def _grow(partners: Integers, sample: Sample, again: Sequence[int]) -> None:
    """Markers stand between the pieces: an id survives too where it follows, or precedes, one that does in both."""
    output = sample.output_ids
    begins = again[: len(sample.prompt_ids)] == sample.prompt_ids
    before = len(sample.prompt_ids) - 1 if begins else LOST
    for place, found in enumerate(partners.tolist()):
        if found == LOST and before != LOST and before + 1 < len(again) and again[before + 1] == output[place]:
            partners[place] = before + 1
        before = int(partners[place])
    for place in range(len(output) - 2, -1, -1):
        behind = int(partners[place + 1])
        if partners[place] == LOST and behind > 0 and again[behind - 1] == output[place]:
            partners[place] = behind - 1


def _tokens(pieces: Sequence[Piece], wanted: Bools, starts: Integers) -> dict[str, int]:
    """The wanted ids that lie in a piece, by its kind."""
    counts = {"reasoning": 0, "answer": 0, "tool calls": 0}
    for piece in pieces:
        inside = (starts[:-1] >= piece.start) & (starts[1:] <= piece.stop) & (starts[1:] > starts[:-1])
        counts[piece.kind] += int((inside & wanted).sum())
    return counts


def _thinks_nothing(again: bytes, behind: int, table: IdBytes) -> bool:
    """Whether the last turn is rendered as an opener and a closer with nothing but white space between them."""
    opener, closer = (table.joined(ids) for ids in (table.tokenizer.markers.opener, table.tokenizer.markers.closer))
    if not opener:
        return False
    start = max(0, behind - len(opener) - 4)
    return re.search(re.escape(opener) + rb"\s*" + re.escape(closer), again[start:]) is not None
