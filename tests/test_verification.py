"""Kimi-K2.5's real marker ids throughout; ordinary ids are small numbers."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawtokens import verification
from rawtokens.capture.known_keys import KnownKeys
from rawtokens.errors import InputError, RunStopped
from rawtokens.markers import IdSequence, Markers
from rawtokens.records import PROMPTS_SCHEMA, VERIFIED_SCHEMA, Response, Thinking, Verdict
from rawtokens.response_checks.checks import complete_policy, policy_from, prompt_digests
from rawtokens.response_checks.repetition import repeated_share
from rawtokens.response_checks.response_columns import IdLists
from rawtokens.training.policies import select_rows
from rawtokens.training.settings import TrainingSettings
from rawtokens.verification import DEFAULT_POLICY, ResponseColumns, verify, verify_journal

END, USER, ASSISTANT, MIDDLE = 163586, 163587, 163588, 163601
SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END = 163595, 163596, 163597, 163598, 163599
OPENER, CLOSER = 163606, 163607
KIMI = Markers(
    family="kimi",
    opener=(OPENER,),
    closer=(CLOSER,),
    turn_ends=(END,),
    tool_section_begin=(SECTION,),
    tool_section_end=(SECTION_END,),
    tool_call_begin=(CALL,),
    tool_arguments_begin=(ARGUMENTS,),
    tool_call_end=(CALL_END,),
    role_ids=(USER, ASSISTANT, 163594, MIDDLE),
)
QWEN3 = Markers(
    family="qwen3",
    opener=(151667,),
    closer=(151668,),
    turn_ends=(151645,),
    tool_section_begin=(151657,),
    tool_section_end=(151658,),
    tool_call_begin=(151657,),
    tool_call_end=(151658,),
    role_ids=(151644,),
)
# A family of several ids a marker, with one that is its own beginning and end.
LONG = Markers(
    family="long",
    opener=(90, 91),
    closer=(92, 93, 92),
    turn_ends=(99,),
    tool_section_begin=(94, 95),
    tool_section_end=(96,),
    tool_call_begin=(97, 97),
    tool_call_end=(98,),
    role_ids=(89,),
)
VOCABULARY = 163840
PROMPT = [USER, 2482, MIDDLE, 18699, END, ASSISTANT, 69702, MIDDLE, OPENER]
A_CALL = [CALL, 7, 8, ARGUMENTS, 9, CALL_END]
A_SECTION = [SECTION, *A_CALL, SECTION_END]
FINGERPRINT = "f" * 16
Row = dict[str, Any]


def response(output_ids: list[int], **changes: object) -> Response:
    """A response that passes every check but those of its ids; `matched` is the last id where that is END."""
    prompt_ids = changes.get("prompt_ids", PROMPT)
    assert isinstance(prompt_ids, list)
    fields = {
        "key": "7#0/0",
        "prompt_ids": prompt_ids,
        "output_ids": output_ids,
        "finish_reason": "stop",
        "matched": END if output_ids[-1:] == [END] else None,
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": len(output_ids),
        "cached_tokens": 0,
        "weight_version": "default",
        "fingerprint": FINGERPRINT,
        "server": "http://127.0.0.1:30000",
        "rid": "r",
        "attempt": 1,
        "started_at": "2026-11-29T12:00:00Z",
        "latency_s": 1.0,
    }
    return msgspec.convert({**fields, **changes}, Response)


def digest(ids: Sequence[int]) -> bytes:
    return prompt_digests(IdLists.from_lists([ids]))[0]


def rows(
    responses: Sequence[Response],
    *,
    thinking: Thinking | Sequence[Thinking] = "opened",
    markers: Markers = KIMI,
    known_prompts: Mapping[str, bytes] | None = None,
    policy: Mapping[str, Verdict] = DEFAULT_POLICY,
    fingerprint: str | None = None,
    earlier_keys: KnownKeys | None = None,
) -> list[Row]:
    """The verified rows; by default every response's prompt is the known one."""
    own = {item.key.rpartition("/")[0]: digest(item.prompt_ids) for item in responses}
    table = verify(
        ResponseColumns.from_responses(responses),
        markers=markers,
        thinking=[thinking] * len(responses) if isinstance(thinking, str) else thinking,
        vocabulary_size=VOCABULARY,
        known_prompts=own if known_prompts is None else known_prompts,
        policy=policy,
        fingerprint=fingerprint,
        earlier_keys=earlier_keys,
    )
    assert table.schema.equals(VERIFIED_SCHEMA)
    table.validate(full=True)
    found: list[Row] = table.to_pylist()
    return found


def row(output_ids: list[int], *, thinking: Thinking = "opened", markers: Markers = KIMI, **changes: object) -> Row:
    return rows([response(output_ids, **changes)], thinking=thinking, markers=markers)[0]


def counts(found: Row) -> tuple[Any, ...]:
    names = ("closer_position", "closers", "reasoning_tokens", "answer_tokens", "tool_tokens", "tool_calls")
    return tuple(found[name] for name in names)


# --- shapes and segments ---------------------------------------------------------------------------------------


def test_an_answer_of_71_ids_with_the_closer_at_61_is_split_there() -> None:
    """The first 20 ids, the length and the place of the closer are published of the real model; the rest is made up."""
    published = [1008, 2742, 387, 15738, 261, 5216, 15601, 6315, 25, 414, 5376, 387, 220, 17, 10, 17, 30, 4559, 1379]
    thought = [*published, 387, *range(1000, 1041)]
    found = row([*thought, CLOSER, *range(2000, 2008), END])
    assert found["output_tokens"] == 71
    assert counts(found) == (61, 1, 61, 8, 0, 0)
    assert (found["shape"], found["verdict"], found["reasons"]) == ("closed", "accept", [])
    assert found["ends_with_stop"] is True
    assert found["prompt_ids"] == PROMPT
    assert found["output_ids"] == [*thought, CLOSER, *range(2000, 2008), END]


@pytest.mark.parametrize(
    ("output_ids", "thinking", "shape", "expected", "reasons"),
    [
        ([1, 2, CLOSER, 3, END], "opened", "closed", (2, 1, 2, 1, 0, 0), []),
        ([CLOSER, 3, END], "opened", "closed", (0, 1, 0, 1, 0, 0), []),
        ([OPENER, 1, CLOSER, 3, END], "by_model", "closed", (2, 1, 2, 1, 0, 0), []),
        ([1, CLOSER, 3, END], "by_model", "closed", (1, 1, 1, 1, 0, 0), []),
        ([OPENER, 1, CLOSER, 3, END], "opened", "closed", (2, 1, 2, 1, 0, 0), ["opener_in_output"]),
        ([OPENER, OPENER, CLOSER, 3, END], "by_model", "closed", (2, 1, 2, 1, 0, 0), ["opener_in_output"]),
        ([1, CLOSER, OPENER, 3, END], "by_model", "closed", (1, 1, 1, 2, 0, 0), ["opener_in_output"]),
        ([1, CLOSER, 2, CLOSER, 3, END], "opened", "closed", (1, 2, 1, 2, 0, 0), ["closer_repeated"]),
        ([1, CLOSER, END], "opened", "closed", (1, 1, 1, 0, 0, 0), ["empty_answer"]),
        ([1, 2, END], "opened", "never_closed", (None, 0, 2, 0, 0, 0), ["never_closed"]),
        ([1, 2, END], "off", "thinking_off", (None, 0, 0, 2, 0, 0), []),
        ([1, CLOSER, 2, END], "off", "thinking_off", (1, 1, 0, 2, 0, 0), ["closer_repeated"]),
        ([OPENER, 2, END], "off", "thinking_off", (None, 0, 0, 2, 0, 0), ["opener_in_output"]),
        ([*A_SECTION, END], "off", "thinking_off", (None, 0, 0, 0, 8, 1), []),
    ],
)
def test_thinking_and_answer_are_told_apart(
    output_ids: list[int], thinking: Thinking, shape: str, expected: tuple[Any, ...], reasons: list[str]
) -> None:
    found = row(output_ids, thinking=thinking)
    assert (found["shape"], counts(found), found["reasons"]) == (shape, expected, reasons)
    assert found["verdict"] == ("flag" if reasons else "accept")


@pytest.mark.parametrize(
    ("output_ids", "shape", "expected", "reasons"),
    [
        # straight out of thinking, and after it
        ([1, *A_SECTION, END], "tool_closed", (None, 0, 1, 0, 8, 1), []),
        ([*A_SECTION, END], "tool_closed", (None, 0, 0, 0, 8, 1), []),
        ([1, CLOSER, 2, *A_SECTION, END], "closed", (1, 1, 1, 1, 8, 1), []),
        ([1, CLOSER, *A_SECTION, END], "closed", (1, 1, 1, 0, 8, 1), []),
        ([1, *A_SECTION, 2, END], "tool_closed", (None, 0, 1, 1, 8, 1), []),
        # parallel calls, no arguments, two sections
        ([1, SECTION, *A_CALL, *A_CALL, SECTION_END, END], "tool_closed", (None, 0, 1, 0, 14, 2), []),
        ([1, SECTION, CALL, 7, CALL_END, SECTION_END, END], "tool_closed", (None, 0, 1, 0, 5, 1), []),
        ([1, *A_SECTION, 5, *A_SECTION, END], "tool_closed", (None, 0, 1, 1, 16, 2), []),
        # drafted in thinking: a closer came later
        ([1, *A_SECTION, 2, CLOSER, 3, END], "closed", (10, 1, 10, 1, 0, 0), ["tool_section_in_thinking"]),
        ([*A_SECTION, CLOSER, *A_SECTION, END], "closed", (8, 1, 8, 0, 8, 1), ["tool_section_in_thinking"]),
        ([1, SECTION, 2, CLOSER, 3, END], "closed", (3, 1, 3, 1, 0, 0), ["tool_section_in_thinking"]),
        # out of balance
        ([1, SECTION, *A_CALL, END], "tool_closed", (None, 0, 1, 0, 7, 1), ["open_tool_section"]),
        ([1, CLOSER, 2, SECTION_END, 3, END], "closed", (1, 1, 1, 3, 0, 0), ["open_tool_section"]),
        ([1, CLOSER, SECTION_END, *A_SECTION[:-1], END], "closed", (1, 1, 1, 1, 7, 1), ["open_tool_section"]),
        ([1, SECTION, *A_SECTION, END], "tool_closed", (None, 0, 1, 0, 9, 1), ["open_tool_section"]),
        ([1, SECTION, CALL, 7, SECTION_END, END], "tool_closed", (None, 0, 1, 0, 4, 1), ["open_tool_section"]),
        ([1, CLOSER, *A_CALL, END], "closed", (1, 1, 1, 6, 0, 0), ["open_tool_section"]),
        ([1, SECTION, SECTION_END, END], "tool_closed", (None, 0, 1, 0, 2, 0), ["empty_answer"]),
        # closers inside and behind a section are closers
        ([1, CLOSER, SECTION, CLOSER, *A_CALL, SECTION_END, END], "closed", (1, 2, 1, 0, 8, 1), ["closer_repeated"]),
        ([1, CLOSER, *A_SECTION, CLOSER, 2, END], "closed", (1, 2, 1, 1, 8, 1), ["closer_repeated"]),
    ],
)
def test_tool_sections_are_calls_outside_thinking_and_drafts_inside(
    output_ids: list[int], shape: str, expected: tuple[Any, ...], reasons: list[str]
) -> None:
    found = row(output_ids)
    assert (found["shape"], counts(found), found["reasons"]) == (shape, expected, reasons)
    assert found["verdict"] == ("accept" if reasons in ([], ["tool_section_in_thinking"]) else "flag")


def test_a_drafted_section_with_its_end_behind_the_closer_shows_both_doubts() -> None:
    found = row([1, SECTION, 2, CLOSER, 3, SECTION_END, END])
    assert counts(found) == (3, 1, 3, 2, 0, 0)
    assert (found["verdict"], found["reasons"]) == ("flag", ["open_tool_section", "tool_section_in_thinking"])


@pytest.mark.parametrize(
    ("output_ids", "thinking", "shape", "expected"),
    [
        ([1, 2, 3], "opened", "truncated_in_thinking", (None, 0, 3, 0, 0, 0)),
        ([OPENER, 2, 3], "by_model", "truncated_in_thinking", (None, 0, 3, 0, 0, 0)),
        ([1, CLOSER, 2, 3], "opened", "truncated_in_answer", (1, 1, 1, 2, 0, 0)),
        ([1, CLOSER], "opened", "truncated_in_answer", (1, 1, 1, 0, 0, 0)),
        ([1, *A_SECTION], "opened", "truncated_in_answer", (None, 0, 1, 0, 8, 1)),
        ([1, 2], "off", "truncated_in_answer", (None, 0, 0, 2, 0, 0)),
    ],
)
def test_the_length_limit_cuts_thinking_or_answer(
    output_ids: list[int], thinking: Thinking, shape: str, expected: tuple[Any, ...]
) -> None:
    found = row(output_ids, thinking=thinking, finish_reason="length")
    assert (found["shape"], counts(found), found["reasons"]) == (shape, expected, [shape])
    assert (found["verdict"], found["ends_with_stop"], found["finish_reason"]) == ("flag", False, "length")


def test_a_section_cut_by_the_length_limit_is_also_open() -> None:
    found = row([1, SECTION, CALL, 7], finish_reason="length")
    assert counts(found) == (None, 0, 1, 0, 3, 1)
    assert found["reasons"] == ["open_tool_section", "truncated_in_answer"]


def test_qwen3_calls_are_sections_of_their_own() -> None:
    begin, end, closer, stop = 151657, 151658, 151668, 151645
    output_ids = [151667, 1, closer, begin, 2, 3, end, 5, begin, 4, end, stop]
    found = row(output_ids, thinking="by_model", markers=QWEN3, matched=stop)
    assert (found["shape"], counts(found), found["reasons"]) == ("closed", (2, 1, 2, 1, 7, 2), [])


def test_markers_of_several_ids_count_with_all_their_ids() -> None:
    output_ids = [90, 91, 1, 92, 93, 92, 2, 94, 95, 97, 97, 3, 98, 96, 99]
    found = row(output_ids, thinking="by_model", markers=LONG, matched=99)
    assert (found["shape"], counts(found), found["reasons"]) == ("closed", (3, 1, 3, 1, 7, 1), [])


def test_a_closer_that_overlaps_the_one_before_is_none() -> None:
    found = row([1, 92, 93, 92, 93, 92, 99], markers=LONG, matched=99)
    assert (counts(found), found["reasons"]) == ((1, 1, 1, 2, 0, 0), [])


def test_a_marker_is_not_put_together_across_two_rows_or_across_the_stop_id() -> None:
    first, second = response([1, 92, 93], finish_reason="length"), response([92, 2, 99], matched=99, key="8#0/0")
    assert [found["closers"] for found in rows([first, second], markers=LONG)] == [0, 0]
    stopped_inside = response([1, 92, 93, 92], matched=92)
    assert rows([stopped_inside], markers=LONG)[0]["closers"] == 0


def test_a_family_without_a_closer_never_thinks() -> None:
    plain = Markers(family="plain", opener=(), closer=(), turn_ends=(END,))
    found = row([1, 2, END], thinking="by_model", markers=plain)
    assert (found["shape"], counts(found), found["reasons"]) == ("thinking_off", (None, 0, 0, 2, 0, 0), [])


# --- reasons ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output_ids", [[END], []])
def test_nothing_but_a_stop_id_is_empty_and_rejected(output_ids: list[int]) -> None:
    found = row(output_ids)
    assert (found["verdict"], found["reasons"]) == ("reject", ["empty", "never_closed"])
    assert counts(found) == (None, 0, 0, 0, 0, 0)


def test_a_stripped_stop_id_is_rejected_and_never_put_back() -> None:
    found = row([1, CLOSER, 2], matched=END)
    assert (found["verdict"], found["reasons"], found["ends_with_stop"]) == ("reject", ["stop_missing"], False)
    assert found["output_ids"] == [1, CLOSER, 2]


def test_a_stop_string_needs_no_stop_id() -> None:
    found = row([1, CLOSER, 2], matched="###")
    assert (found["verdict"], found["reasons"], found["ends_with_stop"]) == ("accept", [], False)


@pytest.mark.parametrize(
    ("output_ids", "finish_reason", "reasons"),
    [
        ([1, CLOSER, 2], "stop", ["stop_not_shown"]),
        ([1, CLOSER, 2, END], "stop", []),
        ([1, CLOSER, 2], "length", ["truncated_in_answer"]),
        ([], "stop", ["empty", "never_closed"]),
    ],
)
def test_an_end_that_nothing_shows_is_a_doubt(output_ids: list[int], finish_reason: str, reasons: list[str]) -> None:
    """A wrapper may strip the stop id, its count and its name."""
    found = row(output_ids, matched=None, finish_reason=finish_reason)
    assert (found["reasons"], found["ends_with_stop"]) == (reasons, output_ids[-1:] == [END])


def test_another_id_that_the_server_matched_is_the_stop_id() -> None:
    found = row([1, CLOSER, 2, 163585], matched=163585)
    assert (found["reasons"], found["ends_with_stop"], found["answer_tokens"]) == ([], True, 1)


@pytest.mark.parametrize(
    ("output_ids", "matched"),
    [([1, CLOSER, END, 2, END], END), ([1, CLOSER, 2, END, END], END), ([1, CLOSER, 5, 2, 5], 5), ([END, 1], None)],
)
def test_a_stop_id_before_the_end_is_rejected(output_ids: list[int], matched: int | None) -> None:
    found = row(output_ids, matched=matched)
    assert found["verdict"] == "reject"
    assert "stop_in_middle" in found["reasons"]


def test_what_another_row_matched_is_no_stop_id_here() -> None:
    first, second = response([1, CLOSER, 2, 5], matched=5), response([1, CLOSER, 5, 2, END], key="8#0/0")
    assert [found["reasons"] for found in rows([first, second])] == [[], []]


def test_a_role_id_in_the_output_is_flagged() -> None:
    found = row([1, CLOSER, USER, 2, END])
    assert (found["verdict"], found["reasons"]) == ("flag", ["role_id_in_output"])


def test_changed_and_unknown_prompts_are_rejected() -> None:
    responses = [response([1, CLOSER, 2, END], key=f"{name}#0/1") for name in ("same", "a/b", "changed", "unknown")]
    prompts = {"same#0": digest(PROMPT), "a/b#0": digest(PROMPT), "changed#0": digest([*PROMPT[:-1], 5])}
    found = rows(responses, known_prompts=prompts)
    assert [item["reasons"] for item in found] == [[], [], ["prompt_changed"], ["prompt_unknown"]]
    assert [item["verdict"] for item in found] == ["accept", "accept", "reject", "reject"]


def test_rows_of_another_fingerprint_than_most_are_rejected() -> None:
    responses = [
        response([1, CLOSER, 2, END], key=f"{number}#0/0", fingerprint=name) for number, name in enumerate("abb")
    ]
    assert [item["reasons"] for item in rows(responses)] == [["fingerprints_mixed"], [], []]
    told = rows(responses, fingerprint="a")
    assert [item["reasons"] for item in told] == [[], ["fingerprints_mixed"], ["fingerprints_mixed"]]


def test_a_key_that_stood_before_is_rejected() -> None:
    responses = [response([1, CLOSER, 2, END], key=key) for key in ("1#0/0", "1#0/1", "1#0/0", "2#0/0")]
    found = rows(responses, earlier_keys=KnownKeys([b"2#0/0"]))
    assert [item["reasons"] for item in found] == [[], [], ["key_repeated"], ["key_repeated"]]


@pytest.mark.parametrize(("prompt_tokens", "completion_tokens"), [(8, 4), (9, 5)])
def test_counts_that_differ_from_the_ids_are_rejected(prompt_tokens: int, completion_tokens: int) -> None:
    found = row([1, CLOSER, 2, END], prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    assert (found["verdict"], found["reasons"]) == ("reject", ["count_mismatch"])
    assert (found["prompt_tokens"], found["output_tokens"]) == (9, 4)


@pytest.mark.parametrize("wrong", [-1, VOCABULARY])
def test_ids_outside_the_vocabulary_are_rejected_in_prompt_and_output(wrong: int) -> None:
    good, bad = response([1, CLOSER, VOCABULARY - 1, END]), response([1, CLOSER, wrong, END], key="8#0/0")
    prompt = response([1, CLOSER, 2, END], key="9#0/0", prompt_ids=[wrong, *PROMPT])
    found = rows([good, bad, prompt])
    assert [item["reasons"] for item in found] == [[], ["id_out_of_vocabulary"], ["id_out_of_vocabulary"]]


def test_an_id_that_no_int32_holds_is_refused_with_the_rows_named() -> None:
    with pytest.raises(InputError, match="'7#0/0' to '7#0/0' holds a number"):
        ResponseColumns.from_responses([response([2**31])])


@pytest.mark.parametrize(
    ("output_ids", "expected"),
    [([0] * 8, True), ([0] * 7, False), ([*[0] * 8, END], True), ([0, 0, 0, 1, 0, 0, 0, 0, 0], False)],
)
def test_one_id_over_and_over_is_rejected(output_ids: list[int], expected: bool) -> None:
    assert ("all_equal_ids" in row(output_ids)["reasons"]) is expected


@pytest.mark.parametrize("period", [1, 2, 7, 64])
def test_a_repeated_n_gram_at_the_end_is_a_loop(period: int) -> None:
    thought, gram = list(range(1000, 1300)), list(range(period))
    looping = [*thought, CLOSER, *(gram * 256)[:256]]
    found = row(looping, finish_reason="length")
    assert found["reasons"] == ["loop", "truncated_in_answer"]
    assert row([*looping, *thought, END])["reasons"] == []  # it came out of the loop


def test_a_longer_period_counting_up_and_few_ids_are_no_loop() -> None:
    counting = [item for number in range(128) for item in (5000 + number, 11)]
    shuffled = random.Random(0).choices(range(30), k=400)
    for body in (list(range(65)) * 10, counting, shuffled, [1, 2] * 90):
        assert row([1, CLOSER, *body, END])["reasons"] == []


def test_the_repeated_share_is_that_of_the_last_256_ids_of_the_body() -> None:
    bodies = [[1, 2] * 500, [3] * 256, [4] * 100, [item for n in range(128) for item in (n, 500)], [], range(300)]
    outputs = IdLists.from_lists([list(body) for body in bodies])
    expected = [254 / 256, 255 / 256, 99 / 256, 127 / 256, 0, 0]
    assert repeated_share(outputs, outputs.lengths).tolist() == expected
    assert repeated_share(outputs, np.maximum(outputs.lengths - 1, 0))[2] == 98 / 256


def test_a_row_with_several_reasons_names_all_and_takes_the_worst_verdict() -> None:
    found = row([OPENER, END, 1, USER], completion_tokens=3)
    assert found["reasons"] == [
        "stop_in_middle",
        "count_mismatch",
        "stop_not_shown",
        "never_closed",
        "opener_in_output",
        "role_id_in_output",
    ]
    assert found["verdict"] == "reject"


# --- policy ----------------------------------------------------------------------------------------------------


def test_the_policy_decides_what_a_reason_means() -> None:
    item = response([1, 2, END])
    verdicts: list[Verdict] = ["accept", "flag", "reject"]
    for verdict in verdicts:
        found = rows([item], policy={"never_closed": verdict})[0]
        assert (found["verdict"], found["reasons"]) == (verdict, ["never_closed"])
    assert rows([item], policy={"empty": "accept"})[0]["verdict"] == "flag"  # the default of what it leaves out


@pytest.mark.parametrize("text", ["[]", "{", '{"loop": "drop"}', '{"loops": "flag"}'])
def test_a_notebook_s_policy_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="policy"):
        policy_from(text)


def test_a_policy_with_an_unknown_reason_or_verdict_is_refused() -> None:
    with pytest.raises(InputError, match="reason 'never_close' is not known; known: empty, "):
        complete_policy({"never_close": "flag"})
    with pytest.raises(InputError, match="never_closed: verdict 'drop' must be one of accept, flag, reject"):
        complete_policy({"never_closed": "drop"})  # type: ignore[dict-item]


# --- against a plain reading of every id -----------------------------------------------------------------------


class Plain(NamedTuple):
    closer_position: int | None
    closers: int
    reasoning: int
    answer: int
    tool: int
    calls: int


def starts(ids: Sequence[int], sequence: IdSequence) -> list[int]:
    found, place = [], 0
    while sequence and place <= len(ids) - len(sequence):
        if tuple(ids[place : place + len(sequence)]) == sequence:
            found.append(place)
            place += len(sequence)
        else:
            place += 1
    return found


def plain_reading(body: Sequence[int], markers: Markers, thinking: Thinking) -> Plain:
    """Give each id of a body one label, going from left to right."""
    closers = starts(body, markers.closer)
    begins = starts(body, markers.tool_section_begin)
    ends, calls = starts(body, markers.tool_section_end), starts(body, markers.tool_call_begin)
    thought_end = min([*(closers[:1] or begins[:1]), len(body)]) if thinking != "off" else 0
    labels = ["reasoning" if place < thought_end else "answer" for place in range(len(body))]
    section_open, called, place = False, 0, thought_end
    while place < len(body):
        section_open = section_open or place in begins
        called += section_open and place in calls
        width = 1
        if section_open and place in ends:
            width = len(markers.tool_section_end)
        if section_open:
            labels[place : place + width] = ["tool"] * width
        if place in ends:
            section_open = False
        place += width
    for place in closers:
        labels[place : place + len(markers.closer)] = ["closer"] * len(markers.closer)
    assert labels.count("closer") == len(closers) * len(markers.closer)
    first = closers[0] if closers else None
    return Plain(first, len(closers), labels.count("reasoning"), labels.count("answer"), labels.count("tool"), called)


@st.composite
def outputs_of(draw: st.DrawFn) -> tuple[Markers, list[tuple[list[int], Thinking, int | None]]]:
    markers = draw(st.sampled_from([KIMI, QWEN3, LONG]))
    pieces = [(item,) for item in (*markers.ids(), 1, 2, 3)] + [
        markers.closer,
        markers.tool_section_begin,
        markers.tool_section_end,
        markers.tool_call_begin,
    ]
    output = st.lists(st.sampled_from(pieces), max_size=24).map(lambda parts: [item for part in parts for item in part])
    modes: st.SearchStrategy[Thinking] = st.sampled_from(("opened", "off", "by_model"))
    matched = st.sampled_from([None, markers.turn_ends[0], 1])
    return markers, draw(st.lists(st.tuples(output, modes, matched), max_size=6))


@given(outputs_of())
@settings(max_examples=200, deadline=None)
def test_every_id_falls_into_one_segment_as_a_plain_reading_says(
    case: tuple[Markers, list[tuple[list[int], Thinking, int | None]]],
) -> None:
    markers, drawn = case
    responses = [response(ids, matched=matched, key=f"{n}#0/0") for n, (ids, _, matched) in enumerate(drawn)]
    found = rows(responses, markers=markers, thinking=[mode for _, mode, _ in drawn])
    assert len(found) == len(drawn)
    for item, (ids, mode, matched) in zip(found, drawn, strict=True):
        stops = bool(ids) and ids[-1] in (*markers.turn_ends, matched)
        expected = plain_reading(ids[:-1] if stops else ids, markers, mode)
        assert counts(item) == expected
        assert item["ends_with_stop"] is stops
        total = item["reasoning_tokens"] + item["closers"] * len(markers.closer) + item["answer_tokens"]
        assert total + item["tool_tokens"] + int(stops) == item["output_tokens"] == len(ids)
        assert all(DEFAULT_POLICY[reason] for reason in item["reasons"])
        worst = max((("accept", "flag", "reject").index(DEFAULT_POLICY[name]) for name in item["reasons"]), default=0)
        assert item["verdict"] == ("accept", "flag", "reject")[worst]


def test_digests_differ_where_ids_do_and_take_empty_rows() -> None:
    first, second, third, none = prompt_digests(IdLists.from_lists([[1, 2], [1, 3], [1, 2], []]))
    assert first == third != second
    assert {len(item) for item in (first, second, none)} == {16}
    assert prompt_digests(IdLists.from_lists([])) == []
    assert prompt_digests(IdLists.from_lists([[]])) == [none]


# --- a data set's folder ---------------------------------------------------------------------------------------


def write_folder(folder: Path, journals: dict[str, list[Response]], prompts: dict[str, list[int]]) -> None:
    for name, responses in journals.items():
        (folder / name).write_bytes(b"".join(msgspec.json.encode(item) + b"\n" for item in responses))
    columns: dict[str, list[Any]] = {
        "key": list(prompts),
        "source_id": list(prompts),
        "turn": [0] * len(prompts),
        "prompt_ids": list(prompts.values()),
        "prompt_tokens": [len(ids) for ids in prompts.values()],
        **{name: [""] * len(prompts) for name in ("thinking", "messages", "tools", "template_kwargs")},
        "notices": [[] for _ in prompts],
        "later": [None] * len(prompts),
    }
    pq.write_table(pa.table(columns, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")


def a_run(count: int, **changes: object) -> list[Response]:
    return [response([1, CLOSER, number, END], key=f"{number}#0/0", **changes) for number in range(count)]


def verify_folder(folder: Path) -> verification.VerificationSummary:
    return verify_journal(folder, markers=KIMI, vocabulary_size=VOCABULARY)


def test_every_row_of_every_shard_stands_in_the_file_in_order(tmp_path: Path) -> None:
    run = a_run(5)
    odd = response([1, 2, END], key="5#0/0", prompt_ids=PROMPT[:-1])
    off = response([9, END], key="6#0/0", prompt_ids=[*PROMPT, CLOSER])
    shards = {"raw_responses.0-of-2.jsonl": run[:3], "raw_responses.1-of-2.jsonl": [*run[3:], odd, off, run[0]]}
    prompts = {f"{number}#0": PROMPT for number in range(6)} | {"6#0": [*PROMPT, CLOSER], "unasked#0": [1]}
    write_folder(tmp_path, shards, prompts)
    summary = verify_folder(tmp_path)
    table = pq.read_table(tmp_path / "verified.parquet")
    assert table.schema.equals(VERIFIED_SCHEMA)
    assert table["key"].to_pylist() == [*(f"{number}#0/0" for number in range(7)), "0#0/0"]
    assert table["output_ids"].to_pylist()[:6] == [*([1, CLOSER, number, END] for number in range(5)), [1, 2, END]]
    assert table["shape"].to_pylist() == [*["closed"] * 5, "never_closed", "thinking_off", "closed"]
    assert table["reasons"].to_pylist() == [*[[]] * 5, ["prompt_changed", "never_closed"], [], ["key_repeated"]]
    assert msgspec.to_builtins(summary) == {
        "rows": 8,
        "prompt_ids": 8 * 9,
        "output_ids": 6 * 4 + 3 + 2,
        "verdicts": {"accept": 6, "flag": 0, "reject": 2},
        "shapes": {"closed": 6, "never_closed": 1, "thinking_off": 1},
        "reasons": {"prompt_changed": 1, "never_closed": 1, "key_repeated": 1},
        "fingerprints": {FINGERPRINT: 8},
    }
    assert not list(tmp_path.glob("*.tmp"))


def test_small_batches_write_the_same_rows_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, {"raw_responses.jsonl": [*a_run(40), *a_run(2)]}, {f"{n}#0": PROMPT for n in range(40)})
    verify_folder(tmp_path)
    whole = pq.read_table(tmp_path / "verified.parquet")
    monkeypatch.setattr(verification, "_BATCH_BYTES", 200)
    verify_folder(tmp_path)
    assert pq.ParquetFile(tmp_path / "verified.parquet").num_row_groups == 14
    assert pq.read_table(tmp_path / "verified.parquet").equals(whole)


def test_the_majority_of_the_whole_run_decides_which_fingerprint_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_BATCH_BYTES", 200)
    run = [*a_run(4, fingerprint="old"), *a_run(12)[4:]]
    write_folder(tmp_path, {"raw_responses.jsonl": run}, {f"{number}#0": PROMPT for number in range(12)})
    summary = verify_folder(tmp_path)
    assert summary.fingerprints == {"old": 4, FINGERPRINT: 8}
    assert summary.reasons == {"fingerprints_mixed": 4}
    reasons = pq.read_table(tmp_path / "verified.parquet")["reasons"].to_pylist()
    assert reasons == [*[["fingerprints_mixed"]] * 4, *[[]] * 8]


def test_the_file_is_zstd_without_dictionaries(tmp_path: Path) -> None:
    write_folder(tmp_path, {"raw_responses.jsonl": a_run(3)}, {f"{number}#0": PROMPT for number in range(3)})
    verify_folder(tmp_path)
    group = pq.ParquetFile(tmp_path / "verified.parquet").metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert not any(column.has_dictionary_page for column in columns)


def test_a_folder_is_verified_by_a_policy_of_one_s_own_and_trained_on_by_it(tmp_path: Path) -> None:
    """Of three rows that never closed and one that drafted a call: kept where accepted, left out where flagged."""
    drafted = response([SECTION, CALL, CALL_END, SECTION_END, CLOSER, 5, END], key="3#0/0")
    run = [*(response([1, number, END], key=f"{number}#0/0") for number in range(3)), drafted]
    write_folder(tmp_path, {"raw_responses.jsonl": run}, {f"{number}#0": PROMPT for number in range(4)})

    def trained(policy: dict[str, Verdict]) -> tuple[list[str], dict[str, int]]:
        verify_journal(tmp_path, markers=KIMI, vocabulary_size=VOCABULARY, policy=policy)
        verdicts = pq.read_table(tmp_path / "verified.parquet")["verdict"].to_pylist()
        return verdicts, select_rows(tmp_path, TrainingSettings(held_out=0.0)).left_out

    assert trained({}) == (["flag"] * 3 + ["accept"], {"flagged: never_closed": 3})
    assert trained({"never_closed": "accept"}) == (["accept"] * 4, {})
    assert trained({"never_closed": "reject"}) == (["reject"] * 3 + ["accept"], {"rejected: never_closed": 3})
    drafts: dict[str, Verdict] = {"never_closed": "accept", "tool_section_in_thinking": "flag"}
    assert trained(drafts) == (["accept"] * 3 + ["flag"], {"flagged: tool_section_in_thinking": 1})


def test_a_journal_without_rows_gives_a_file_without_rows(tmp_path: Path) -> None:
    write_folder(tmp_path, {"raw_responses.jsonl": []}, {})
    assert verify_folder(tmp_path).rows == 0
    assert pq.read_table(tmp_path / "verified.parquet").schema.equals(VERIFIED_SCHEMA)


def test_a_missing_journal_or_prompt_file_names_the_stage_to_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no raw_responses.jsonl; run notebook 02_generate_responses"):
        verify_folder(tmp_path)
    write_folder(tmp_path, {"raw_responses.jsonl": a_run(1)}, {"0#0": PROMPT})
    for content in (b"no parquet", None):
        (tmp_path / "prompts.parquet").unlink()
        if content:
            (tmp_path / "prompts.parquet").write_bytes(content)
        with pytest.raises(InputError, match=r"prompts.parquet can't be read .*; run notebook 01_tokenize_prompts"):
            verify_folder(tmp_path)


def test_a_foreign_line_leaves_the_earlier_file_as_it_was(tmp_path: Path) -> None:
    write_folder(tmp_path, {"raw_responses.jsonl": a_run(2)}, {"0#0": PROMPT, "1#0": PROMPT})
    verify_folder(tmp_path)
    before = (tmp_path / "verified.parquet").read_bytes()
    with (tmp_path / "raw_responses.jsonl").open("a") as file:
        file.write(json.dumps({"key": "2#0/0"}) + "\n")
    with pytest.raises(InputError, match="line 3"):
        verify_folder(tmp_path)
    assert (tmp_path / "verified.parquet").read_bytes() == before


def test_a_file_that_cannot_be_written_stops_with_its_path(tmp_path: Path) -> None:
    write_folder(tmp_path, {"raw_responses.jsonl": a_run(1)}, {"0#0": PROMPT})
    (tmp_path / "verified.parquet.tmp").mkdir()
    with pytest.raises(RunStopped, match=r"can't write .*verified.parquet"):
        verify_folder(tmp_path)


def test_an_unknown_reason_in_the_policy_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reason 'closed' is not known"):
        verify_journal(tmp_path, markers=KIMI, vocabulary_size=VOCABULARY, policy={"closed": "flag"})
