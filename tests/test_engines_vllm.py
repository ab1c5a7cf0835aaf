"""The wire format, on answers that a real vLLM 0.32.0 gave (tests/data/vllm)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawtokens.capture import server_facts
from rawtokens.engines import vllm
from rawtokens.engines.answers import Answer, Failure, Sent, ServerFacts, checked_prompt
from rawtokens.engines.choice import engine_of
from rawtokens.errors import InputError, ServerError
from rawtokens.records import Json, Sampling

DATA = Path(__file__).parent / "data" / "vllm"
CLOSER, STOP = 163607, 163586
BOTH = pytest.mark.parametrize("route", ["answer", "tokens"])


def recorded(name: str) -> tuple[int, bytes]:
    """A recorded answer's HTTP status and body."""
    content = json.loads((DATA / f"{name}.json").read_bytes())
    return content["status"], json.dumps(content["body"]).encode()


def body_of(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(recorded(name)[1])
    return body


def prompt_of(body: dict[str, Any]) -> list[int]:
    """The prompt's ids, where either route repeats them."""
    ids: list[int] = body["choices"][0].get("prompt_token_ids") or body.get("prompt_token_ids") or [1]
    return ids


def sent(prompt_ids: list[int], **changes: object) -> Sent:
    """The request that the recorded answers are to: greedy, its id 7f3a."""
    sampling = Sampling(temperature=0.0, max_new_tokens=5, seed=5)
    prompt = checked_prompt(prompt_ids, 163840)
    made = Sent(prompt=prompt, sampling=sampling, stop_ids=(STOP,), vocabulary_size=163840, rid="7f3a")
    return msgspec.structs.replace(made, **changes)


def parsed(name: str, **changes: object) -> Answer | Failure:
    status, body = recorded(name)
    return vllm.parse_answer(status, body, sent(prompt_of(json.loads(body)) if status == 200 else [1], **changes))


def altered(name: str, *path: str | int, value: Json) -> Answer | Failure:
    """A recorded answer with one value changed."""
    body = body_of(name)
    prompt_ids = prompt_of(body)
    place: Any = body
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return vllm.parse_answer(200, json.dumps(body).encode(), sent(prompt_ids))


@BOTH
def test_a_stop_answer_keeps_its_stop_id(route: str) -> None:
    answer = parsed(f"{route}_stop")
    assert isinstance(answer, Answer)
    assert answer.ids() == body_of(f"{route}_stop")["choices"][0]["token_ids"]
    assert answer.ids()[-1] == answer.matched == STOP
    assert (answer.finish_reason, answer.completion_tokens, answer.prompt_tokens) == ("stop", 31, 15)


def test_both_routes_give_the_same_ids_and_one_of_them_the_weights() -> None:
    completion, tokens = parsed("answer_stop"), parsed("tokens_stop")
    assert isinstance(completion, Answer)
    assert isinstance(tokens, Answer)
    assert completion.ids() == tokens.ids()
    assert (completion.weight_version, tokens.weight_version) == ("", "default")


@BOTH
def test_another_stop_id_is_named_by_the_server(route: str) -> None:
    answer = parsed(f"{route}_stop_id", stop_ids=(CLOSER,))
    assert isinstance(answer, Answer)
    assert (answer.matched, answer.ids()[-1]) == (CLOSER, CLOSER)


def test_the_tokenizers_own_end_is_not_named_and_taken_from_the_last_id() -> None:
    assert body_of("answer_stop_eos")["choices"][0]["stop_reason"] is None
    answer = parsed("answer_stop_eos")
    assert isinstance(answer, Answer)
    assert (answer.finish_reason, answer.matched, answer.ids()[-1]) == ("stop", STOP, STOP)


def test_an_end_that_may_not_end_a_turn_matched_nothing() -> None:
    answer = parsed("answer_stop_eos", stop_ids=(CLOSER,))
    assert isinstance(answer, Answer)
    assert (answer.finish_reason, answer.matched, answer.ids()[-1]) == ("stop", None, STOP)


def test_a_length_answer_matched_nothing() -> None:
    answer = parsed("answer_length")
    assert isinstance(answer, Answer)
    assert (answer.finish_reason, answer.matched, answer.completion_tokens) == ("length", None, 5)


def test_a_length_answer_that_happens_to_end_with_a_stop_id_matched_nothing() -> None:
    last = parsed("answer_length")
    assert isinstance(last, Answer)
    answer = parsed("answer_length", stop_ids=(last.ids()[-1],))
    assert isinstance(answer, Answer)
    assert answer.matched is None


def test_a_stop_string_is_matched_as_a_string() -> None:
    answer = parsed("answer_stop_string")
    assert isinstance(answer, Answer)
    assert (answer.finish_reason, answer.matched, answer.ids()[-1]) == ("stop", "</think>", CLOSER)


@BOTH
def test_an_abort_under_200_is_tried_again(route: str) -> None:
    assert recorded(f"{route}_abort")[0] == 200
    failure = parsed(f"{route}_abort")
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.next) == ("aborted", "retry")


def test_an_output_that_the_context_cut_short_is_no_answer() -> None:
    failure = parsed("answer_clamped", sampling=Sampling(temperature=0.0, max_new_tokens=60))
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.next) == ("context_exceeded", "reject")
    assert "cut after 6 ids where 60 were asked for" in failure.detail


def test_an_answer_without_ids_is_named() -> None:
    status, body = recorded("answer_no_ids")
    failure = vllm.parse_answer(status, body, sent([1] * 15))
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.next) == ("no_token_ids", "stop")


@pytest.mark.parametrize(("rid", "taken"), [("7f3a", True), ("7f3b", False)])
@BOTH
def test_an_answer_that_names_another_request_is_tried_again(route: str, rid: str, taken: bool) -> None:
    outcome = parsed(f"{route}_stop", rid=rid)
    assert isinstance(outcome, Answer) == taken
    if isinstance(outcome, Failure):
        assert (outcome.reason, outcome.next) == ("answer_of_another_request", "retry")


@BOTH
def test_other_prompt_ids_of_the_same_count_are_found(route: str) -> None:
    prompt_ids = prompt_of(body_of(f"{route}_stop"))
    status, body = recorded(f"{route}_stop")
    failure = vllm.parse_answer(status, body, sent([*prompt_ids[:-1], 5]))
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.next) == ("prompt_tokens_differ", "retry")


ALTERED: list[tuple[tuple[str | int, ...], Json, str, str]] = [
    (("usage", "prompt_tokens"), 14, "prompt_tokens_differ", "retry"),
    (("choices", 0, "prompt_token_ids"), None, "prompt_tokens_differ", "retry"),
    (("usage", "completion_tokens"), 32, "completion_tokens_differ", "retry"),
    (("choices", 0, "token_ids"), "1,2", "malformed_answer", "retry"),
    (("choices", 0, "token_ids"), [163840] * 31, "id_out_of_vocabulary", "retry"),
    (("choices", 0, "token_ids"), [-1] * 31, "id_out_of_vocabulary", "retry"),
    (("choices", 0, "token_ids"), [0] * 31, "nan_weights", "stop"),
    (("choices", 0, "stop_reason"), CLOSER, "stop_id_missing", "retry"),
    (("choices", 0, "finish_reason"), "repetition", "aborted", "retry"),
    (("choices", 0, "finish_reason"), None, "aborted", "retry"),
    (("choices",), [], "malformed_answer", "retry"),
    (("usage",), None, "malformed_answer", "retry"),
]


@pytest.mark.parametrize(("path", "value", "reason", "following"), ALTERED)
def test_what_is_wrong_with_an_answer_is_named(
    path: tuple[str | int, ...], value: Json, reason: str, following: str
) -> None:
    failure = altered("answer_stop", *path, value=value)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.next) == (reason, following)


def test_one_answer_by_several_weights_stops_the_run() -> None:
    versions: list[Json] = [{"version": "a", "start": 0, "end": 9}, {"version": "b", "start": 9, "end": 31}]
    failure = altered("tokens_stop", "choices", 0, "weight_versions", value=versions)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.next) == ("weight_version_differs", "stop")


ERRORS = [
    ("error_prompt_too_long", 400, "context_exceeded", "reject"),
    ("tokens_error_prompt_too_long", 400, "context_exceeded", "reject"),
    ("error_bad_id", 400, "bad_request", "reject"),
    ("error_bad_parameter", 400, "bad_request", "reject"),
    ("error_validation", 400, "bad_request", "reject"),
    ("error_model", 404, "no_generate_route", "stop"),
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


def test_a_key_that_an_error_repeats_is_taken_out() -> None:
    failure = vllm.parse_answer(401, b'{"error": "Unauthorized: k-secret"}', sent([1]), "k-secret")
    assert failure == Failure(reason="key_refused", detail="Unauthorized: [secret]", next="stop")


EVERY_VALUE = {
    "temperature": 1.0,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "max_tokens": 64,
    "min_tokens": 0,
    "ignore_eos": False,
    "stop": [],
    "stop_token_ids": [STOP],
    "skip_special_tokens": False,
    "watermarking": False,
    "n": 1,
    "seed": 7,
}
SAMPLING = Sampling(temperature=1, top_p=0.9, top_k=40, max_new_tokens=64, seed=7)


def test_a_completion_asks_for_ids_and_sends_every_sampling_value() -> None:
    body = json.loads(vllm.completions_body(sent([163587, 163606], sampling=SAMPLING, served_name="demo")))
    assert body == {
        "model": "demo",
        "prompt": [163587, 163606],
        "return_token_ids": True,
        "request_id": "7f3a",
        "stream": False,
        **EVERY_VALUE,
    }


def test_the_route_from_ids_to_ids_is_asked_the_same_without_any_text() -> None:
    body = json.loads(vllm.tokens_body(sent([163587, 163606], sampling=SAMPLING)))
    assert body == {
        "token_ids": [163587, 163606],
        "return_token_ids": True,
        "request_id": "7f3a",
        "stream": False,
        "sampling_params": {**EVERY_VALUE, "detokenize": False},
    }


@pytest.mark.parametrize("prompt_ids", [[], [163840], [-1], [5, 2**40]])
def test_ids_that_could_kill_the_server_are_refused(prompt_ids: list[int]) -> None:
    for body in (vllm.completions_body, vllm.tokens_body):
        with pytest.raises(InputError, match="run stage 01 again"):
            body(sent(prompt_ids))


@given(st.lists(st.integers(0, 163839), min_size=1, max_size=40))
def test_any_list_of_legal_ids_is_kept_to_the_last(ids: list[int]) -> None:
    body = body_of("answer_stop")
    prompt_ids = prompt_of(body)
    choice = {**body["choices"][0], "token_ids": [7, *ids], "stop_reason": None}
    usage: Json = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(ids) + 1}
    content = json.dumps({**body, "choices": [choice], "usage": usage}).encode()
    answer = vllm.parse_answer(200, content, sent(prompt_ids))
    assert isinstance(answer, Answer)
    assert answer.ids() == [7, *ids]
    assert answer.matched == (STOP if ids[-1] == STOP else None)


def facts(*servers_routes: dict[str, str]) -> ServerFacts:
    """The facts of servers that answer these paths with recorded answers, and 404 to all others."""
    replies = {f"server{number}": routes for number, routes in enumerate(servers_routes)}

    def answer(request: httpx.Request) -> httpx.Response:
        name = replies[request.url.host].get(request.url.path)
        if name is None:
            return httpx.Response(404)
        status, body = recorded(name)
        return httpx.Response(status, content=body)

    urls = [f"http://{host}:1" for host in replies]
    return asyncio.run(server_facts.facts_of(urls, transport=httpx.MockTransport(answer)))


VLLM = {"/v1/models": "models", "/version": "version", "/inference/v1/generate": "error_no_tokens_route"}
SGLANG = {"/v1/models": "../sglang/models", "/model_info": "../sglang/model_info"}
SCALE_OUT = {**VLLM, "/inference/v1/generate": "error_empty"}


def test_vllm_is_known_by_the_owner_of_its_model() -> None:
    found = facts(VLLM)
    assert (found.engine, found.version, found.context_length) == ("vllm", "0.32.0", 64)
    assert found.model is not None
    assert "/" not in found.model
    assert found.served_name == body_of("models")["data"][0]["id"]
    assert (found.weight_version, found.vocabulary_size, found.auto_truncate) == (None, None, None)
    assert engine_of(found).generate_route == "/v1/completions"


def test_vllm_behind_a_router_that_hides_the_owner_is_known_by_its_version() -> None:
    found = facts({"/version": "version"})
    assert (found.engine, found.version, found.model) == ("vllm", "0.32.0", None)
    assert engine_of(found).generate_route == "/v1/completions"


def test_the_route_from_ids_to_ids_is_taken_where_it_is_on() -> None:
    assert engine_of(facts(SCALE_OUT)).generate_route == "/inference/v1/generate"


@pytest.mark.parametrize("routes", [SGLANG, {}])
def test_what_is_not_vllm_is_asked_as_sglang(routes: dict[str, str]) -> None:
    found = facts(routes)
    assert found.engine == "sglang"
    assert engine_of(found).generate_route == "/generate"


def test_servers_of_one_run_speak_one_engine_and_one_route() -> None:
    with pytest.raises(ServerError, match="engine is 'sglang' at http://server1:1 but 'vllm' at http://server0:1"):
        facts(VLLM, SGLANG)
    with pytest.raises(ServerError, match="tokens_route is True at http://server1:1 but False"):
        facts(VLLM, SCALE_OUT)
