"""Harmony's channels: where the messages of an output fall, as the same segments that other families have.

A message is everything from its `<|start|>` (the first one's stands in the prompt) to the next one: header, text and
end. A message on the analysis channel is reasoning, on commentary tool tokens, on final the answer; a header that was
cut before its channel's name is reasoning, since what it would have become is unknown. There is no closer. Found by
scanning for the few marker ids, then on arrays of their positions. This module does not know what is good or bad
about an output (verification does).
"""

from collections.abc import Sequence

import numpy as np

from ..markers import Channels, IdSequence, Markers
from ..records import Thinking
from .pieces import ANSWER, REASONING, TOOL, Changes, pieces_of
from .response_columns import IdLists
from .segments import Body, Bools, Found, Integers, Segments, body_of, segment

_HEADER_IDS = 64  # a recipient's name is shorter


def segment_outputs(
    outputs: IdLists, *, markers: Markers, thinking: Sequence[Thinking], matched_ids: Integers
) -> Segments:
    """Cut every output as its family does: at channels or at markers (segments.segment)."""
    if markers.channels is None:
        return segment(outputs, markers=markers, thinking=thinking, matched_ids=matched_ids)
    return segment_channels(
        outputs, markers=markers, channels=markers.channels, thinking=thinking, matched_ids=matched_ids
    )


def segment_channels(
    outputs: IdLists, *, markers: Markers, channels: Channels, thinking: Sequence[Thinking], matched_ids: Integers
) -> Segments:
    """Cut every output at its messages; `thinking` says how each prompt's own message had begun.

    `opened`: within analysis; `off`: within another channel's text, counted as the answer; `by_model`: in the header.
    `unbalanced_section` says that a message has no known channel or no text, or that one before the last has no end.
    """
    body, ends_with_stop = body_of(outputs, markers, matched_ids)
    mode = np.array(thinking, dtype=np.str_)
    starts, rows = _messages(body, channels.start)
    ends = body.ends[rows]
    last_of_row = np.ones(len(rows), dtype=np.bool_)
    last_of_row[:-1] = rows[1:] != rows[:-1]
    ends[~last_of_row] = starts[1:][~last_of_row[:-1]]
    first_of_row = starts == body.starts[rows]
    begun = first_of_row & (mode[rows] != "by_model")  # the prompt holds this message's header

    texts = _first_within(body, starts, ends, (channels.message,))
    header_ends = np.where(begun, starts, np.where(texts < 0, ends, texts))
    channel_of = np.full(len(starts), -1)
    for channel, name in ((REASONING, channels.reasoning), (TOOL, channels.tool), (ANSWER, channels.answer)):
        channel_of[_first_within(body, starts, header_ends, (channels.channel, *name)) >= 0] = channel
    channel_of[begun] = np.where(mode[rows[begun]] == "opened", REASONING, ANSWER)
    unknown = channel_of < 0
    cut = unknown & last_of_row & ~ends_with_stop[rows]
    channel_of[unknown] = np.where(cut[unknown], REASONING, ANSWER)

    message_ends = _first_within(body, starts, ends, (channels.end,))
    text_starts = np.where(begun, starts, texts + 1)
    text_ends = np.where(message_ends < 0, ends, message_ends)
    has_text = (begun | (texts >= 0)) & (text_ends > text_starts)
    is_call = (channel_of == TOOL) & (_recipients(body, channels.recipient, starts, header_ends) > 0)
    closed = (message_ends >= 0) | last_of_row
    broken = ~closed | ((unknown | (~begun & (texts < 0))) & ~cut)

    def tokens(channel: int) -> Integers:
        picked = channel_of == channel
        total = np.zeros(len(body.starts), dtype=np.int64)
        np.add.at(total, rows[picked], (ends - starts)[picked])
        return total

    def rows_with(mask: Bools) -> Bools:
        return np.bincount(rows[mask], minlength=len(body.starts)) > 0

    none = np.zeros(len(body.starts), dtype=np.bool_)
    calls = np.bincount(rows[is_call], minlength=len(body.starts))
    return Segments(
        ends_with_stop=ends_with_stop,
        body_tokens=body.ends - body.starts,
        reasoning_tokens=tokens(REASONING),
        closers=np.zeros(len(body.starts), dtype=np.int64),
        closer_position=np.full(len(body.starts), -1),
        answer_tokens=tokens(ANSWER),
        tool_tokens=tokens(TOOL),
        tool_calls=calls,
        thinking_off=none,
        tool_closed=none,
        drafted_section=none,
        unbalanced_section=rows_with(broken),
        unexpected_opener=none,
        nothing_said=~rows_with((channel_of == ANSWER) & has_text) & (calls == 0),
        in_reasoning=rows_with(last_of_row & (channel_of == REASONING)) | (body.ends == body.starts),
        in_channels=~none,
        inner_stop=body.has(body.is_stop(markers, matched_ids)),
        inner_role=none,
        pieces=pieces_of([Changes(starts, rows, channel_of.astype(np.int8))], body.ends),
    )


def _messages(body: Body, start: int) -> Found:
    """Where each message begins: at its start marker, the first one of a row at the body's start."""
    marked = body.occurrences((start,))
    filled = np.flatnonzero(body.ends > body.starts)
    positions = np.concatenate([body.starts[filled], marked.positions])
    rows = np.concatenate([filled, marked.rows])
    positions, first = np.unique(positions, return_index=True)
    return Found(positions, rows[first])


def _first_within(body: Body, starts: Integers, ends: Integers, sequence: IdSequence) -> Integers:
    """The first occurrence at or behind each start and before its end; -1 where there is none."""
    found = body.occurrences(sequence).positions
    place = np.searchsorted(found, starts)
    first = np.append(found, np.iinfo(np.int64).max)[place]
    return np.where(first < ends, first, -1)


def _recipients(body: Body, recipient: IdSequence, starts: Integers, ends: Integers) -> Integers:
    """How often the recipient's ids stand in each header's beginning: ordinary ids, so that headers alone are read."""
    longest = min(int((ends - starts).max(initial=0)), _HEADER_IDS)
    counts = np.zeros(len(starts), dtype=np.int64)
    for ahead in range(longest):
        here = starts + ahead
        fits = here + len(recipient) <= ends
        for step, item in enumerate(recipient):
            fits[fits] = body.ids[here[fits] + step] == item
        counts += fits
    return counts
