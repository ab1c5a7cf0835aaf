import asyncio
import json
from collections.abc import Callable

import httpx
import pytest

from rawtokens.chat_comparison import ask_both_ways, voices_table, voices_takeaway
from rawtokens.errors import ServerError
from rawtokens.server_check import Check, check_server, require_no_failure
from rawtokens.target_tokenizer import Tokenizer

URL = "http://one:1"
KEY = "k-not-to-be-told"
ANSWER = [17, 163607, 19, 163586]
Handler = Callable[[httpx.Request], httpx.Response | None]


def server(target: Tokenizer, fault: Handler) -> httpx.MockTransport:
    """A faithful server, but where `fault` answers in its place."""

    def faithful(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/tokenize":
            text = json.loads(request.content)["prompt"]
            return httpx.Response(200, json={"tokens": target.encoder.encode(text, add_special_tokens=False)})
        if path == "/generate":
            meta = {"finish_reason": {"type": "stop", "matched": 163586}, "completion_tokens": len(ANSWER)}
            meta["prompt_tokens"] = len(json.loads(request.content)["input_ids"])
            return httpx.Response(200, json={"output_ids": ANSWER, "meta_info": meta})
        if path == "/v1/chat/completions":
            return httpx.Response(200, json={"choices": [{"message": {"content": "4", "reasoning_content": None}}]})
        facts = {"/model_info": {"model_path": "/models/demo"}, "/server_info": {"version": "0.5.23"}}
        return httpx.Response(200, json=facts[path]) if path in facts else httpx.Response(404)

    return httpx.MockTransport(lambda request: fault(request) or faithful(request))


def check(target: Tokenizer, fault: Handler = lambda _: None) -> dict[str, Check]:
    checks = asyncio.run(check_server(URL, target, api_key=KEY, transport=server(target, fault)))
    assert KEY not in repr(checks)
    return {item.check: item for item in checks}


def on(path: str, reply: Callable[[], httpx.Response]) -> Handler:
    return lambda request: reply() if request.url.path == path else None


def refuse() -> httpx.Response:
    raise httpx.ConnectError("refused")


def test_what_the_server_does_not_tell_is_a_warning_and_no_failure(target: Tokenizer) -> None:
    checks = check(target)
    untold = ["context", "vocabulary", "auto-truncate", "tokenizer on the server"]
    assert [name for name, item in checks.items() if item.status == "warn"] == untold
    assert not [item for item in checks.values() if item.status == "fail"]
    require_no_failure(URL, list(checks.values()))


def test_a_server_that_is_not_there_is_one_failed_check(target: Tokenizer) -> None:
    checks = check(target, lambda _: refuse())
    assert [(item.check, item.status) for item in checks.values()] == [("reachable", "fail")]
    with pytest.raises(ServerError, match=f"{URL} fails the check 'reachable': no server answers at {URL}"):
        require_no_failure(URL, list(checks.values()))


@pytest.mark.parametrize("size", [32000, 163841])
def test_another_vocabulary_fails(target: Tokenizer, size: int) -> None:
    told = on("/server_info", lambda: httpx.Response(200, json={"vocab_size": size}))
    assert check(target, told)["vocabulary"].status == "fail"


@pytest.mark.parametrize(
    "reply",
    [
        refuse,
        lambda: httpx.Response(404, json={"detail": "Not Found"}),
        lambda: httpx.Response(500, text=f"no {KEY}"),
        lambda: httpx.Response(200, text="[1, 2]"),
        lambda: httpx.Response(200, text="<html>"),
        lambda: httpx.Response(200, json={"tokens": "many"}),
    ],
)
def test_a_tokenize_route_that_gives_no_ids_is_a_warning(
    target: Tokenizer, reply: Callable[[], httpx.Response]
) -> None:
    assert check(target, on("/tokenize", reply))["same ids on both sides"].status == "warn"


def test_other_ids_on_the_server_fail(target: Tokenizer) -> None:
    found = check(target, on("/tokenize", lambda: httpx.Response(200, json={"tokens": [1, 2, 3]})))
    assert found["same ids on both sides"].status == "fail"
    assert "there" in found["same ids on both sides"].seen


@pytest.mark.parametrize(
    "reply", [refuse, lambda: httpx.Response(400, json={"error": KEY}), lambda: httpx.Response(200, text="{}")]
)
def test_a_server_that_does_not_generate_fails(target: Tokenizer, reply: Callable[[], httpx.Response]) -> None:
    assert check(target, on("/generate", reply))["generates from ids"].status == "fail"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (refuse, "no chat answer (ConnectError)"),
        (lambda: httpx.Response(500, json={"error": {"message": f"no tokenizer {KEY}"}}), "no tokenizer [secret]"),
        (lambda: httpx.Response(200, json={"choices": []}), "no chat answer (ValidationError)"),
        (lambda: httpx.Response(200, text="<html>"), "no chat answer (DecodeError)"),
    ],
)
def test_a_chat_route_that_fails_stops_nothing_and_is_told(
    target: Tokenizer, reply: Callable[[], httpx.Response], words: str
) -> None:
    transport = server(target, on("/v1/chat/completions", reply))
    voices = asyncio.run(ask_both_ways(URL, target, api_key=KEY, transport=transport))
    assert voices.output_ids == ANSWER
    assert voices.chat_problem == words
    assert words in voices_takeaway(voices, target)
    assert voices_table(voices, target)["content"].tolist()[-1] == f"(none: {words})"


def test_both_ways_get_the_runs_template_arguments(target: Tokenizer) -> None:
    sent: list[dict[str, object]] = []

    def record(request: httpx.Request) -> None:
        sent.append(json.loads(request.content))

    transport = server(target, record)
    voices = asyncio.run(ask_both_ways(URL, target, template_kwargs={"thinking": False}, transport=transport))
    assert voices.prompt_ids[-1] == 163607
    assert sent[1]["chat_template_kwargs"] == {"thinking": False}


def test_both_ways_need_an_answer_from_ids(target: Tokenizer) -> None:
    with pytest.raises(ServerError, match="/generate: connection"):
        asyncio.run(ask_both_ways(URL, target, transport=server(target, on("/generate", refuse))))
