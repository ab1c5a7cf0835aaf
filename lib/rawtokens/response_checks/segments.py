"""Where the ids of an output fall: reasoning, closers, answer, tool sections, stop id.

The *body* of an output is its ids without a final stop id. It is cut at the first closer, or, where no closer
comes, at the first tool section; a closer that comes later makes earlier tool sections drafts, which are reasoning.
A tool section left open reaches to the end of the body. Found by scanning for the few marker ids, then on arrays
of their positions; no loop over ids or rows. This module does not know what is good or bad about an output
(verification does), nor harmony's channels (channel_segments does).
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..markers import IdSequence, Markers
from ..records import Thinking
from .marker_scan import positions_near
from .pieces import ANSWER, CLOSER, REASONING, TOOL, Changes, Pieces, pieces_of
from .response_columns import IdLists

Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


class Segments(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One entry a row. reasoning + closers * len(closer) + answer + tool + ends_with_stop = ids of the output."""

    ends_with_stop: Bools  # the last id ends a turn, or is the id that the server matched
    body_tokens: Integers
    reasoning_tokens: Integers
    closers: Integers
    closer_position: Integers  # of the first one, counted in the output from 0; -1 where none
    answer_tokens: Integers
    tool_tokens: Integers  # sections outside thinking, their markers included, closers in them left out
    tool_calls: Integers  # begun in those sections
    thinking_off: Bools
    tool_closed: Bools  # a tool section opened while no closer had come, and none came later
    drafted_section: Bools  # a tool section began in thinking that a closer ended later
    unbalanced_section: Bools  # outside thinking: a begin, an end or a call marker without its counterpart
    unexpected_opener: Bools  # more openers than the one that a prompt left to the model
    nothing_said: Bools  # neither an answer nor a call
    in_reasoning: Bools  # the body ends within reasoning
    in_channels: Bools  # harmony: messages on channels instead of a closer
    inner_stop: Bools  # an id that ends a turn, or the matched id, in the body
    inner_role: Bools  # a role marker in the body
    pieces: Pieces  # what was counted, in place


class Found(NamedTuple):
    """Occurrences in order: flat positions of their first ids, and their rows."""

    positions: Integers
    rows: Integers


class Body(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The bodies of all rows with every place where a wanted id, or one numbered near it, stands."""

    ids: NDArray[np.int32]
    starts: Integers
    ends: Integers
    places: Found
    place_ids: NDArray[np.int32]

    def occurrences(self, sequence: IdSequence) -> Found:
        """Where `sequence` stands whole in a body, from the left, none overlapping another."""
        if not sequence:
            return self.select(np.zeros(len(self.place_ids), dtype=np.bool_))
        ahead = sequence.index(max(sequence))
        positions, rows = self.select(self.place_ids == sequence[ahead])
        positions = positions - ahead
        fits = (positions >= self.starts[rows]) & (positions + len(sequence) <= self.ends[rows])
        positions, rows = positions[fits], rows[fits]
        for step, wanted in enumerate(sequence):
            same = self.ids[positions + step] == wanted
            positions, rows = positions[same], rows[same]
        apart = _apart(positions, sequence)
        return Found(positions[apart], rows[apart])

    def select(self, mask: Bools) -> Found:
        return Found(self.places.positions[mask], self.places.rows[mask])

    def count(self, found: Found, mask: Bools | None = None) -> Integers:
        """Occurrences a row, of those that `mask` picks."""
        return np.bincount(found.rows if mask is None else found.rows[mask], minlength=len(self.starts))

    def has(self, mask: Bools) -> Bools:
        """Rows whose body holds a place that `mask` picks."""
        in_body = self.places.positions < self.ends[self.places.rows]
        rows: Bools = self.count(self.places, in_body & mask) > 0
        return rows

    def is_stop(self, markers: Markers, matched_ids: Integers) -> Bools:
        """Places with an id that ends a turn, or that the server matched in this row."""
        ends = np.isin(self.place_ids, np.array(markers.turn_ends, dtype=np.int32))
        stops: Bools = ends | (self.place_ids == matched_ids[self.places.rows])
        return stops

    def first(self, found: Found) -> Integers:
        """The first occurrence's flat position a row; the body's end where there is none."""
        first = self.ends.copy()
        np.minimum.at(first, found.rows, found.positions)
        return first


def segment(outputs: IdLists, *, markers: Markers, thinking: Sequence[Thinking], matched_ids: Integers) -> Segments:
    """Cut every output; `thinking` says what each prompt asked for, `matched_ids` the server's stop id (-1: none).

    A family without a closer never thinks: its rows count as thinking off.
    """
    mode = np.array(thinking, dtype=np.str_)
    off = (mode == "off") | (not markers.closer)
    body, ends_with_stop = body_of(outputs, markers, matched_ids)

    closers, openers = body.occurrences(markers.closer), body.occurrences(markers.opener)
    begins = body.occurrences(markers.tool_section_begin)
    has_closer = body.count(closers) > 0
    first_closer = body.first(closers)
    thought_end = np.where(off, body.starts, np.where(has_closer, first_closer, body.first(begins)))
    sections = _sections(body, markers, begins, closers, thought_end)

    body_tokens = body.ends - body.starts
    reasoning = thought_end - body.starts
    closer_tokens = body.count(closers) * len(markers.closer)
    answer = body_tokens - reasoning - closer_tokens - sections.tokens
    tool_closed = ~off & ~has_closer & (thought_end < body.ends)
    may_open = (mode == "by_model") | (markers.may_reopen & (mode == "opened"))
    expected_openers = may_open & (body.first(openers) < thought_end)
    return Segments(
        ends_with_stop=ends_with_stop,
        body_tokens=body_tokens,
        reasoning_tokens=reasoning,
        closers=body.count(closers),
        closer_position=np.where(has_closer, first_closer - body.starts, -1),
        answer_tokens=answer,
        tool_tokens=sections.tokens,
        tool_calls=sections.calls,
        thinking_off=off,
        tool_closed=tool_closed,
        drafted_section=body.count(begins, begins.positions < thought_end[begins.rows]) > 0,
        unbalanced_section=sections.unbalanced,
        unexpected_opener=body.count(openers) > expected_openers,
        nothing_said=(answer == 0) & (sections.calls == 0),
        in_reasoning=~(off | tool_closed | has_closer),
        in_channels=np.zeros(len(mode), dtype=np.bool_),
        inner_stop=body.has(body.is_stop(markers, matched_ids)),
        inner_role=body.has(np.isin(body.place_ids, np.array(markers.role_ids, dtype=np.int32))),
        pieces=_pieces(body, thought_end, closers, len(markers.closer), sections),
    )


class _Sections(NamedTuple):
    tokens: Integers
    calls: Integers
    unbalanced: Bools
    begins: Found
    stops: Integers  # where each of them ends


def _sections(body: Body, markers: Markers, begins: Found, closers: Found, thought_end: Integers) -> _Sections:
    """Tool sections outside thinking; a begin inside an open section and an end outside one open and end nothing.

    Where nothing ends a section (Magistral), the first begin opens one that reaches to the body's end.
    """

    def outside(found: Found) -> Found:
        later = found.positions >= thought_end[found.rows]
        return Found(found.positions[later], found.rows[later])

    begins, ends = outside(begins), outside(body.occurrences(markers.tool_section_end))
    order = np.argsort(np.concatenate([begins.positions, ends.positions]))
    positions = np.concatenate([begins.positions, ends.positions])[order]
    rows = np.concatenate([begins.rows, ends.rows])[order]
    is_begin = order < len(begins.positions)
    was_open = np.zeros(len(rows), dtype=np.bool_)  # a section is open just before this marker
    was_open[1:] = is_begin[:-1] & (rows[1:] == rows[:-1])

    opening, closing = is_begin & ~was_open, ~is_begin & was_open
    starts, stops = positions[opening], body.ends[rows[opening]]
    closed = np.searchsorted(starts, positions[closing], side="right") - 1
    stops[closed] = positions[closing] + len(markers.tool_section_end)

    def in_section(found: Found) -> Bools:
        if len(starts) == 0:
            return np.zeros(len(found.positions), dtype=np.bool_)
        section = np.searchsorted(starts, found.positions, side="right") - 1
        inside: Bools = (section >= 0) & (found.positions < stops[section])
        return inside

    calls, call_ends = outside(body.occurrences(markers.tool_call_begin)), body.occurrences(markers.tool_call_end)
    in_sections = body.count(calls, in_section(calls))
    tokens = np.zeros(len(body.starts), dtype=np.int64)
    np.add.at(tokens, rows[opening], stops - starts)
    unbalanced = body.count(calls) != in_sections
    if markers.tool_section_end:
        unbalanced |= np.bincount(rows, weights=np.where(is_begin, 1, -1), minlength=len(tokens)) != 0
        unbalanced[rows[is_begin == was_open]] = True
    if markers.tool_call_end:
        unbalanced |= body.count(calls) != body.count(outside(call_ends))
    tokens -= body.count(closers, in_section(closers)) * len(markers.closer)
    return _Sections(tokens, in_sections, unbalanced, Found(starts, rows[opening]), stops)


def _pieces(body: Body, thought_end: Integers, closers: Found, closer_ids: int, sections: _Sections) -> Pieces:
    every = np.arange(len(thought_end))
    behind = closers.positions + closer_ids
    section = np.searchsorted(sections.begins.positions, closers.positions, side="right") - 1
    goes_on = np.append(sections.stops, -1)[section] > behind  # a closer in a section, which ends later
    changes = [
        Changes(sections.stops, sections.begins.rows, ANSWER),
        Changes(behind, closers.rows, np.where(goes_on, TOOL, ANSWER).astype(np.int8)),
        Changes(body.starts, every, REASONING),
        Changes(thought_end, every, ANSWER),
        Changes(sections.begins.positions, sections.begins.rows, TOOL),
        Changes(closers.positions, closers.rows, CLOSER),
    ]
    return pieces_of(changes, body.ends)


def body_of(outputs: IdLists, markers: Markers, matched_ids: Integers) -> tuple[Body, Bools]:
    """The bodies of all rows, and whether each row ends with a stop id."""
    last, matched = outputs.last_ids(), matched_ids >= 0
    ends_with_stop = np.isin(last, markers.turn_ends) | (matched & (last == matched_ids))
    anchors = [max(sequence) for sequence in markers.sequences()]
    wanted = {*anchors, *markers.turn_ends, *markers.role_ids, *np.unique(matched_ids[matched]).tolist()}
    if markers.channels is not None:
        marks = markers.channels
        wanted |= {marks.start, marks.channel, marks.message, marks.end}
    positions = positions_near(outputs.ids, sorted(wanted))
    body = Body(
        ids=outputs.ids,
        starts=outputs.offsets[:-1],
        ends=outputs.offsets[1:] - ends_with_stop,
        places=Found(positions, outputs.rows_of(positions)),
        place_ids=outputs.ids[positions],
    )
    return body, ends_with_stop


def _apart(positions: Integers, sequence: IdSequence) -> Bools:
    """Leaves out what overlaps a kept one to the left; only a sequence that ends as it begins can."""
    apart = np.ones(len(positions), dtype=np.bool_)
    length = len(sequence)
    if not any(sequence[:size] == sequence[-size:] for size in range(1, length)):
        return apart
    free = 0
    for index, position in enumerate(positions.tolist()):
        apart[index] = position >= free
        free = position + length if position >= free else free
    return apart
