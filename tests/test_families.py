"""Outputs of every family, built from segments whose places are known."""

from collections import Counter
from itertools import count
from typing import Any, NamedTuple

import pytest
from family_tokens import FAMILY_OF, VOCABULARIES, markers_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rawtokens.markers import Channels, IdSequence, Markers, thinking_mode
from rawtokens.records import Response, Thinking
from rawtokens.reporting.samples import Sample, split_output
from rawtokens.response_checks.checks import prompt_digests
from rawtokens.response_checks.response_columns import IdLists, ResponseColumns
from rawtokens.verification import DEFAULT_POLICY, verify

NAMES = sorted(VOCABULARIES)
VOCABULARY = 250_000
MARKERS = {name: markers_of(name) for name in NAMES}


class Built(NamedTuple):
    """An output and the truth about it."""

    ids: list[int]
    thinking: Thinking
    finish_reason: str
    matched: int | None
    truth: dict[str, object]
    reasons: set[str]


class Writer:
    """Writes ids segment by segment and counts each; ordinary ids never repeat."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.tokens = {"reasoning": 0, "closer": 0, "answer": 0, "tool": 0}
        self._fresh = count(1000)

    def write(self, segment: str, *ids: int) -> None:
        self.ids += ids
        self.tokens[segment] += len(ids)

    def text(self, segment: str, size: int) -> None:
        self.write(segment, *(next(self._fresh) for _ in range(size)))


def write_section(writer: Writer, segment: str, markers: Markers, sizes: list[int]) -> int:
    """A section with a call for each size of its arguments; the number of calls."""
    alone = markers.tool_call_begin == markers.tool_section_begin
    if not alone:
        writer.write(segment, *markers.tool_section_begin)
    for size in sizes:
        writer.write(segment, *markers.tool_call_begin)
        writer.text(segment, 1)
        writer.write(segment, *markers.tool_arguments_begin)
        writer.text(segment, size)
        writer.write(segment, *markers.tool_call_end)
    if not alone:
        writer.write(segment, *markers.tool_section_end)
    return len(sizes)


SIZES = st.integers(0, 4)
CALLS = st.lists(SIZES, min_size=1, max_size=3)


@st.composite
def marker_outputs(draw: st.DrawFn, markers: Markers) -> Built:
    has_tools, ends_sections = bool(markers.tool_section_begin), bool(markers.tool_section_end)
    modes: st.SearchStrategy[Thinking] = st.sampled_from(("opened", "off", "by_model"))
    thinking = draw(modes)
    writer, reasons, calls = Writer(), set(), 0
    ending = (
        "off"
        if thinking == "off"
        else draw(st.sampled_from(["closer", "tool", "none"] if has_tools else ["closer", "none"]))
    )
    if thinking == "by_model" or (thinking == "opened" and markers.may_reopen and draw(st.booleans())):
        writer.write("reasoning", *markers.opener)
    position = None
    if thinking != "off":
        writer.text("reasoning", draw(SIZES))
        if has_tools and ending == "closer" and draw(st.booleans()):
            write_section(writer, "reasoning", markers, draw(CALLS))
            writer.text("reasoning", draw(SIZES))
            reasons.add("tool_section_in_thinking")
    if ending == "closer":
        position = len(writer.ids)
        writer.write("closer", *markers.closer)
    if ending != "none":
        if ending != "tool":
            writer.text("answer", draw(SIZES))
        for sizes in draw(st.lists(CALLS, min_size=ending == "tool", max_size=3)) if has_tools else []:
            calls += write_section(writer, "tool", markers, sizes)
            writer.text("answer" if ends_sections else "tool", draw(SIZES))
    truncated = draw(st.booleans())
    shape = {"closer": "closed", "tool": "tool_closed", "none": "never_closed", "off": "thinking_off"}[ending]
    if truncated:
        shape = "truncated_in_thinking" if ending == "none" else "truncated_in_answer"
    if shape in ("never_closed", "truncated_in_thinking", "truncated_in_answer"):
        reasons.add(shape)
    if not writer.ids:
        reasons.add("empty")
    elif not truncated and ending != "none" and writer.tokens["answer"] == 0 and calls == 0:
        reasons.add("empty_answer")
    return finish(draw, writer, markers, thinking, truncated, reasons, shape, calls, position)


@st.composite
def channel_outputs(draw: st.DrawFn, markers: Markers, channels: Channels) -> Built:
    modes: st.SearchStrategy[Thinking] = st.sampled_from(("opened", "off", "by_model"))
    thinking = draw(modes)
    writer, calls, said = Writer(), 0, False
    names: dict[str, IdSequence] = {"reasoning": channels.reasoning, "tool": channels.tool, "answer": channels.answer}
    last = ""
    number = draw(st.integers(1, 4))
    for index in range(number):
        begun = index == 0 and thinking != "by_model"
        segment = draw(st.sampled_from(sorted(names)))
        if begun:
            segment = "reasoning" if thinking == "opened" else "answer"
        called = segment == "tool" and draw(st.booleans())
        if index:
            writer.write(segment, channels.start)
            writer.text(segment, 1)
        if not begun:
            to = channels.recipient if called else ()
            before = draw(st.booleans())
            writer.write(segment, *(to if before else ()), channels.channel, *names[segment], *(() if before else to))
            writer.write(segment, channels.message)
        size = draw(st.integers(1, 4))
        writer.text(segment, size)
        if index < number - 1:
            writer.write(segment, channels.end)
        calls, said, last = calls + called, said or segment == "answer", segment
    truncated = draw(st.booleans())
    shape = "channels"
    if truncated:
        shape = "truncated_in_thinking" if last == "reasoning" else "truncated_in_answer"
    reasons = {shape} - {"channels"}
    if not truncated and not said and calls == 0:
        reasons.add("empty_answer")
    return finish(draw, writer, markers, thinking, truncated, reasons, shape, calls, None)


def finish(
    draw: st.DrawFn,
    writer: Writer,
    markers: Markers,
    thinking: Thinking,
    truncated: bool,
    reasons: set[str],
    shape: str,
    calls: int,
    position: int | None,
) -> Built:
    """With a stop id, with one that a wrapper stripped, or cut by the length limit."""
    stop = None if truncated else draw(st.sampled_from([*markers.turn_ends, 999]))  # 999: the request named it
    stripped = stop is not None and draw(st.booleans())
    if stop is not None and not stripped:
        writer.ids.append(stop)
    truth: dict[str, object] = {
        "shape": shape,
        "closer_position": position,
        "closers": int(position is not None),
        "reasoning_tokens": writer.tokens["reasoning"],
        "answer_tokens": writer.tokens["answer"],
        "tool_tokens": writer.tokens["tool"],
        "tool_calls": calls,
        "ends_with_stop": stop is not None and not stripped,
        "output_tokens": len(writer.ids),
    }
    reasons |= {"stop_missing"} if stripped else set()
    return Built(writer.ids, thinking, "length" if truncated else "stop", stop, truth, reasons)


def outputs_of(markers: Markers) -> st.SearchStrategy[Built]:
    return channel_outputs(markers, markers.channels) if markers.channels else marker_outputs(markers)


def prompt_of(thinking: Thinking, markers: Markers) -> list[int]:
    """A prompt whose ids say the mode."""
    if markers.channels is not None:
        marks = markers.channels
        begun = {"opened": marks.reasoning, "off": marks.answer, "by_model": ()}[thinking]
        return [1000, marks.start, 1001, *((marks.channel, *begun, marks.message) if begun else ())]
    tail = {"opened": markers.opener, "off": markers.closer, "by_model": ()}[thinking]
    return [1000, markers.turn_ends[0], *tail]


def verified(markers: Markers, built: list[Built]) -> list[dict[str, Any]]:
    responses = [
        Response(
            key=f"{number}#0/0",
            prompt_ids=prompt_of(item.thinking, markers),
            output_ids=item.ids,
            finish_reason="length" if item.finish_reason == "length" else "stop",
            matched=item.matched,
            prompt_tokens=len(prompt_of(item.thinking, markers)),
            completion_tokens=len(item.ids),
            cached_tokens=0,
            weight_version="default",
            fingerprint="f",
            server="s",
            rid="r",
            attempt=1,
            started_at="2026-11-29T12:00:00Z",
            latency_s=1.0,
        )
        for number, item in enumerate(built)
    ]
    table = verify(
        ResponseColumns.from_responses(responses),
        markers=markers,
        thinking=[thinking_mode(item.prompt_ids, markers) for item in responses],
        vocabulary_size=VOCABULARY,
        known_prompts={
            f"{number}#0": prompt_digests(IdLists.from_lists([prompt_of(item.thinking, markers)]))[0]
            for number, item in enumerate(built)
        },
        fingerprint="f",
    )
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def shown(row: dict[str, Any], markers: Markers) -> list[int]:
    """The ids of the segments that a sample shows, after their sizes are held to the row's counts."""
    fields = {name: row[name] for name in Sample.__struct_fields__ if name in row}
    sizes: Counter[str] = Counter()
    ids: list[int] = []
    for label, segment in split_output(Sample(**fields, rows=1), markers):
        sizes[label] += len(segment)
        ids += segment
    expected = {"reasoning": row["reasoning_tokens"], "answer": row["answer_tokens"], "tool calls": row["tool_tokens"]}
    assert {label: sizes[label] for label in expected} == expected
    return ids


def sum_holds(row: dict[str, Any], markers: Markers) -> bool:
    said = row["reasoning_tokens"] + row["answer_tokens"] + row["tool_tokens"]
    whole: bool = said + row["closers"] * len(markers.closer) + row["ends_with_stop"] == row["output_tokens"]
    return whole and min(row["reasoning_tokens"], row["answer_tokens"], row["tool_tokens"]) >= 0


@pytest.mark.parametrize("name", NAMES)
def test_a_family_is_found_by_the_texts_in_its_vocabulary(name: str) -> None:
    assert MARKERS[name].family == FAMILY_OF.get(name, name)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_output_built_from_segments_is_cut_at_them(name: str, data: st.DataObject) -> None:
    markers = MARKERS[name]
    built = data.draw(st.lists(outputs_of(markers), min_size=1, max_size=4))
    for row, item in zip(verified(markers, built), built, strict=True):
        assert {field: row[field] for field in item.truth} == item.truth
        assert set(row["reasons"]) == item.reasons
        assert sum_holds(row, markers)
        assert shown(row, markers) == row["output_ids"]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_wild_ids_keep_the_sum_rule(name: str, data: st.DataObject) -> None:
    markers = MARKERS[name]
    named = markers.channels
    sequences = [*markers.sequences(), *((named.reasoning, named.tool, named.answer, named.recipient) if named else ())]
    pieces = [*sequences, *((item,) for item in (*markers.ids(), 0, 1000, VOCABULARY - 1))]
    wild = st.lists(st.sampled_from(pieces), max_size=30).map(lambda parts: [item for part in parts for item in part])
    modes: st.SearchStrategy[Thinking] = st.sampled_from(("opened", "off", "by_model"))
    ends = st.sampled_from([None, *markers.turn_ends, 1000])
    some = st.builds(Built, wild, modes, st.sampled_from(["stop", "length"]), ends, st.just({}), st.just(set()))
    built = data.draw(st.lists(some, min_size=1, max_size=6))
    for row, item in zip(verified(markers, built), built, strict=True):
        assert row["output_ids"] == item.ids
        assert sum_holds(row, markers)
        assert all(reason in DEFAULT_POLICY for reason in row["reasons"])


@pytest.mark.parametrize("name", NAMES)
def test_every_legal_stop_id_ends_a_turn_and_none_may_stand_before_the_end(name: str) -> None:
    markers = MARKERS[name]
    head = [markers.channels.channel, *markers.channels.answer, markers.channels.message] if markers.channels else []
    thought = [1000, *markers.closer, *head, 1001]
    for stop in markers.turn_ends:
        good = Built([*thought, stop], "opened" if markers.closer else "by_model", "stop", stop, {}, set())
        rows = verified(
            markers,
            [
                good,
                good._replace(ids=[*thought, stop, stop]),
                good._replace(ids=[*thought, stop, 1002, stop]),
                good._replace(ids=thought),
                good._replace(ids=[*thought, *markers.turn_ends[-1:]], matched=998),
            ],
        )
        reasons = [[reason for reason in row["reasons"] if reason.startswith("stop")] for row in rows]
        assert reasons == [[], ["stop_in_middle"], ["stop_in_middle"], ["stop_missing"], ["stop_missing"]]
        assert [row["verdict"] for row in rows] == ["accept", *["reject"] * 4]


@pytest.mark.parametrize("name", [name for name in NAMES if MARKERS[name].tool_section_begin])
def test_a_section_or_call_without_its_end_shows(name: str) -> None:
    markers = MARKERS[name]
    stop = markers.turn_ends[0]
    begin = markers.tool_section_begin
    call = () if markers.tool_call_begin == begin else markers.tool_call_begin
    whole = [*begin, *call, 1000, *markers.tool_arguments_begin, *markers.tool_call_end]
    whole += [] if markers.tool_call_end == markers.tool_section_end else markers.tool_section_end
    cases = [whole, whole[: len(begin) + len(call) + 1]]
    built = [Built([1001, *markers.closer, *case, stop], "opened", "stop", stop, {}, set()) for case in cases]
    found = ["open_tool_section" in row["reasons"] for row in verified(markers, built)]
    assert found == [False, bool(markers.tool_section_end)]


def test_minimax_may_write_the_opener_again_and_others_may_not() -> None:
    for name in ("minimax", "qwen3"):
        markers = MARKERS[name]
        ids = [*markers.opener, 1000, *markers.closer, 1001, markers.turn_ends[0]]
        built = Built(ids, "opened", "stop", markers.turn_ends[0], {}, set())
        (row,) = verified(markers, [built])
        assert row["reasons"] == ([] if name == "minimax" else ["opener_in_output"])
