import asyncio
from collections.abc import Callable

import httpx
import pytest

from rawtokens import servers
from rawtokens.engines.sglang import ServerFacts
from rawtokens.errors import ServerError

ONE, TWO = "http://one:1", "http://two:1"
KEY = "k-not-to-be-told"
ROUTES: dict[str, object] = {
    "/model_info": {"model_path": "/models/demo", "weight_version": "default"},
    "/server_info": {"version": "0.5.23", "dtype": "bfloat16", "api_key": KEY, "launch_command": f"--api-key {KEY}"},
    "/v1/models": {"data": [{"id": "demo", "max_model_len": 4096}]},
}


def facts(handler: Callable[[httpx.Request], httpx.Response], *urls: str) -> ServerFacts:
    transport = httpx.MockTransport(handler)
    return asyncio.run(servers.facts_of(urls or (ONE,), api_key=KEY, transport=transport))


def sglang(request: httpx.Request) -> httpx.Response:
    found = ROUTES.get(request.url.path)
    return httpx.Response(200, json=found) if found else httpx.Response(404)


def test_facts_are_read_from_the_control_routes_without_the_key() -> None:
    found = facts(sglang)
    assert (found.version, found.model, found.context_length) == ("0.5.23", "demo", 4096)
    assert KEY not in repr(found)


def test_the_key_goes_out_as_a_bearer_token_and_nothing_else_does() -> None:
    seen: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("Authorization"))
        return sglang(request)

    facts(handler)
    assert set(seen) == {f"Bearer {KEY}"}
    transport = httpx.MockTransport(lambda request: handler(request))
    asyncio.run(servers.facts_of([ONE], transport=transport))
    assert seen[-1] is None


def test_a_router_that_knows_only_the_old_route_is_enough() -> None:
    def router(request: httpx.Request) -> httpx.Response:
        old = request.url.path == "/get_model_info"
        return httpx.Response(200, json=ROUTES["/model_info"]) if old else httpx.Response(404)

    found = facts(router)
    assert (found.model, found.version, found.context_length) == ("demo", None, None)


@pytest.mark.parametrize("body", ["<html>", "[1]", "", "null", '{"data": [3], "internal_states": "x", "version": 5}'])
def test_answers_that_are_no_objects_tell_nothing(body: str) -> None:
    assert facts(lambda request: httpx.Response(200, text=body)) == ServerFacts()


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), OSError("no route")])
def test_a_server_that_does_not_answer_is_named_with_the_next_step(error: Exception) -> None:
    def dead(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(ServerError, match=rf"no server answers at {ONE} \({error}\); start it"):
        facts(dead)


def test_a_refused_key_is_told_without_the_key() -> None:
    refused = {"error": f"bad key {KEY}"}
    with pytest.raises(ServerError, match=r"refuses the key \(bad key \[secret\]\); set servers\.api_key_env"):
        facts(lambda request: httpx.Response(401, json=refused))


@pytest.mark.parametrize("name", ["model_path", "weight_version"])
def test_servers_of_one_run_must_be_alike(name: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/model_info" and request.url.host == "two":
            return httpx.Response(200, json={"model_path": "/models/demo", "weight_version": "default", name: "other"})
        return sglang(request)

    with pytest.raises(ServerError, match=f"'other' at {TWO} but .* at {ONE}"):
        facts(handler, ONE, TWO)


def test_a_key_that_the_facts_repeat_is_taken_out() -> None:
    found = facts(lambda request: httpx.Response(200, json={"model_path": KEY, "version": f"1-{KEY}"}))
    assert (found.model, found.version) == ("[secret]", "1-[secret]")


def test_the_least_loaded_server_is_chosen() -> None:
    pool = servers.ServerPool([ONE, TWO])
    assert pool.choose() == ONE
    pool.asked_at[ONE]["a"] = 0.0
    assert pool.choose() == TWO
    assert pool.in_flight() == 1


def test_a_failed_server_rests_while_another_can_be_asked_and_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("rawtokens.servers.time.monotonic", lambda: now[0])
    pool = servers.ServerPool([ONE, TWO])
    assert pool.failed(ONE) == 0.0  # no pause: the other one is awake
    pool.asked_at[TWO]["a"] = now[0]
    assert pool.choose() == TWO
    now[0] += 1.5
    assert pool.choose() == ONE
    pool.failed(TWO)
    assert 0.4 < pool.failed(ONE) < 1.6  # both rest: wait for the first
    pool.answered(TWO)
    assert pool.choose() == TWO
    assert pool.silent_seconds() == 0.0


def test_many_failures_at_once_count_as_one_and_rests_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("rawtokens.servers.time.monotonic", lambda: now[0])
    pool = servers.ServerPool([ONE])
    assert all(pool.failed(ONE) < 1.6 for _ in range(64))
    for _ in range(20):
        now[0] += servers.LONGEST_REST
        pause = pool.failed(ONE)
    assert servers.LONGEST_REST * 0.5 <= pause <= servers.LONGEST_REST * 1.5


def test_a_request_that_is_out_for_longer_than_a_connection_takes_is_being_worked_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("rawtokens.servers.time.monotonic", lambda: now[0])
    pool = servers.ServerPool([ONE])
    pool.asked_at[ONE]["a"] = now[0]
    assert not pool.at_work()
    now[0] += servers.CONNECT_SECONDS + 6.0
    assert pool.at_work()
