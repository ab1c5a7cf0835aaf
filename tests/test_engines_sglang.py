"""The wire format, on answers that a real SGLang 0.5.23 gave (tests/data/sglang)."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawtokens.engines.answers import Answer, Failure, Sent, checked_prompt, error_text
from rawtokens.engines.sglang import parse_answer, request_body, sampling_parameters, server_facts
from rawtokens.errors import InputError
from rawtokens.records import Json, Response, ResponseLine, Sampling

DATA = Path(__file__).parent / "data" / "sglang"


def recorded(name: str) -> tuple[int, bytes]:
    """A recorded answer's HTTP status and body."""
    content = json.loads((DATA / f"{name}.json").read_bytes())
    return content["status"], json.dumps(content["body"]).encode()


def parsed(name: str) -> Answer | Failure:
    status, body = recorded(name)
    content = json.loads(body)
    prompt_tokens = content["meta_info"]["prompt_tokens"] if status == 200 else 0
    return parse_answer(status, body, prompt_tokens=prompt_tokens, vocabulary_size=163840)


def test_a_stop_answer_keeps_its_stop_id() -> None:
    body = json.loads(recorded("answer_stop")[1])
    answer = parsed("answer_stop")
    assert isinstance(answer, Answer)
    assert answer.ids() == body["output_ids"]
    assert answer.ids()[-1] == answer.matched == body["meta_info"]["finish_reason"]["matched"] == 163586
    assert (answer.finish_reason, answer.completion_tokens) == ("stop", len(body["output_ids"]))


def test_a_length_answer_matched_nothing() -> None:
    answer = parsed("answer_length")
    assert isinstance(answer, Answer)
    assert (answer.finish_reason, answer.matched) == ("length", None)


def test_a_stop_string_leaves_its_own_ids_and_no_stop_id() -> None:
    answer = parsed("answer_stop_string")
    assert isinstance(answer, Answer)
    assert (answer.finish_reason, answer.matched, answer.ids()[-1]) == ("stop", "</think>", 163607)


def test_an_abort_under_200_is_tried_again() -> None:
    assert recorded("answer_abort")[0] == 200
    failure = parsed("answer_abort")
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.next) == ("aborted", "retry")


@pytest.mark.parametrize(("rid", "taken"), [("7#0/0.1", True), ("0.1", True), ("", True), ("7#0/0.2", False)])
def test_an_answer_that_names_another_request_is_tried_again(rid: str, taken: bool) -> None:
    body = recorded("answer_stop")[1]
    outcome = parse_answer(200, body, prompt_tokens=16, vocabulary_size=163840, rid=rid)
    assert isinstance(outcome, Answer) == taken
    if isinstance(outcome, Failure):
        assert (outcome.reason, outcome.next) == ("answer_of_another_request", "retry")


ERRORS = [
    ("error_prompt_too_long", 400, "context_exceeded", "reject"),
    ("error_too_many_tokens", 400, "context_exceeded", "reject"),
    ("error_unknown_sampling_parameter", 400, "bad_request", "reject"),
    ("error_duplicate_rid", 400, "duplicate_rid", "retry"),
    ("error_no_input", 400, "bad_request", "reject"),
    ("error_unauthorized", 401, "key_refused", "stop"),
    ("error_not_found", 404, "no_generate_route", "stop"),
    ("error_wrong_method", 405, "no_generate_route", "stop"),
]


@pytest.mark.parametrize(("name", "status", "reason", "following"), ERRORS)
def test_an_error_body_is_told_apart(name: str, status: int, reason: str, following: str) -> None:
    failure = parsed(name)
    assert isinstance(failure, Failure)
    assert (recorded(name)[0], failure.reason, failure.next) == (status, reason, following)
    assert failure.detail
    assert not failure.detail.startswith("{")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"object": "error", "message": "bad value"}', "bad value"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>502 Bad Gateway</html>", "<html>502 Bad Gateway</html>"),
        (b'"text"', "text"),
    ],
)
def test_all_shapes_of_an_error_are_read(body: bytes, text: str) -> None:
    assert error_text(body) == text


def test_a_request_sends_ids_and_every_sampling_value() -> None:
    prompt = checked_prompt([163587, 163606], 163840)
    sent = Sent(prompt=prompt, sampling=Sampling(seed=7), stop_ids=[163586], vocabulary_size=163840, rid="r")
    body = json.loads(request_body(sent))
    assert body["input_ids"] == [163587, 163606]
    assert body["rid"] == "r"
    assert body["sampling_params"] == sampling_parameters(Sampling(seed=7), stop_ids=[163586])
    assert body["sampling_params"]["sampling_seed"] == 7


@pytest.mark.parametrize("prompt_ids", [[], [163840], [-1], [5, 2**40], [5, 2**64], [5, 2**80]])
def test_ids_that_would_kill_the_server_are_refused(prompt_ids: list[int]) -> None:
    with pytest.raises(InputError, match="run stage 01 again"):
        checked_prompt(prompt_ids, 163840)


def test_facts_are_taken_by_name_and_no_key_is_among_them() -> None:
    model_info: dict[str, Json] = json.loads(recorded("model_info")[1])
    server_info: dict[str, Json] = json.loads(recorded("server_info")[1])
    models: dict[str, Json] = json.loads(recorded("models")[1])
    assert "SECRET" in json.dumps(server_info)  # scrubbed when it was recorded; a real server shows the key here
    facts = server_facts(model_info, server_info, models)
    assert (facts.engine, facts.version, facts.weight_version) == ("sglang", "0.5.23", "default")
    assert facts.context_length
    assert facts.running_limit
    assert (facts.auto_truncate, facts.skip_tokenizer_init) == (False, False)
    assert "SECRET" not in str(facts)
    assert "/" not in str(facts.model)


def test_a_router_that_tells_nothing_leaves_facts_open() -> None:
    facts = server_facts(None, None, None)
    assert (facts.version, facts.model, facts.context_length, facts.running_limit) == (None, None, None, None)


def spoken(ids: str, **changes: Json) -> Answer | Failure:
    """The recorded answer with another text in place of its list of ids."""
    body = json.loads(recorded("answer_stop")[1])
    count, size = body["meta_info"]["completion_tokens"], body["meta_info"]["prompt_tokens"]
    body["meta_info"] |= {"completion_tokens": changes.get("count", count), "finish_reason": {"type": "length"}}
    content = json.dumps({**body, "output_ids": "IDS"}).replace('"IDS"', ids).encode()
    return parse_answer(200, content, prompt_tokens=size, vocabulary_size=163840)


@pytest.mark.parametrize(
    "text", ["[1,22,163839]", "[1, 22, 163839]", "[ 1 ,22 , 163839 ]", "[\n  1,\n  22,\r\n\t163839\n]"]
)
def test_ids_are_kept_as_written_without_white_space(text: str) -> None:
    answer = spoken(text, count=3)
    assert isinstance(answer, Answer)
    assert bytes(answer.output_ids) == b"[1,22,163839]"
    assert answer.ids() == [1, 22, 163839]


def test_no_id_at_all_is_an_answer() -> None:
    answer = spoken("[]", count=0)
    assert isinstance(answer, Answer)
    assert answer.ids() == []


NO_IDS = [
    "[1,2.0]",
    "[1,2e0]",
    "[1,null]",
    "[1,[2]]",
    "[[1,2]]",
    '["1",2]',
    "[true,2]",
    "null",
    '"1,2"',
    "12",
    "{}",
    "[1,2",
    "[1 2]",
]


@pytest.mark.parametrize("text", NO_IDS)
def test_what_is_no_list_of_integers_is_malformed(text: str) -> None:
    failure = spoken(text, count=2)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.next) == ("malformed_answer", "retry")


@pytest.mark.parametrize(
    "id_", ["163840", "-1", "-0", "4294967301", "18446744073709551621", str(10**40), str(-(10**40))]
)
def test_an_id_outside_the_vocabulary_is_found_whatever_its_size(id_: str) -> None:
    failure = spoken(f"[5,{id_}]", count=2)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.next) == ("id_out_of_vocabulary", "retry")


def test_counts_and_zeros_are_checked_on_the_ids_themselves() -> None:
    failures = [spoken("[1,2,3]", count=2), spoken("[0,0,0,0,0,0,0,0]", count=8)]
    assert [failure.reason for failure in failures if isinstance(failure, Failure)] == [
        "completion_tokens_differ",
        "nan_weights",
    ]
    assert isinstance(spoken("[0,0]", count=2), Answer)


@given(st.lists(st.integers(0, 163839), min_size=0, max_size=40), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_any_list_of_legal_ids_is_kept_to_the_last(ids: list[int], separators: tuple[str, str]) -> None:
    answer = spoken(json.dumps([7, *ids], separators=separators), count=len(ids) + 1)
    assert isinstance(answer, Answer)
    assert answer.ids() == [7, *ids]


def test_a_line_for_the_journal_has_the_fields_of_a_record_in_their_order() -> None:
    assert ResponseLine.__struct_fields__ == Response.__struct_fields__
