import asyncio
from collections.abc import Callable

import httpx
import pytest

from rawtokens.capture import server_facts, servers
from rawtokens.capture.connections import CONNECT_SECONDS
from rawtokens.capture.servers import Asked, Server
from rawtokens.engines.answers import Failure, Next, ServerFacts
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
    return asyncio.run(server_facts.facts_of(urls or (ONE,), api_key=KEY, transport=transport))


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
    asyncio.run(server_facts.facts_of([ONE], transport=transport))
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


def test_servers_of_one_run_hold_prompts_of_one_length() -> None:
    """Else the server that is asked would decide which rows are rejected as too long."""

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models" and request.url.host == "two":
            return httpx.Response(200, json={"data": [{"id": "demo", "max_model_len": 2048}]})
        return sglang(request)

    with pytest.raises(ServerError, match=f"context_length is 2048 at {TWO} but 4096 at {ONE}"):
        facts(handler, ONE, TWO)


def only(*hosts: str, told: Callable[[httpx.Request], httpx.Response] = sglang) -> httpx.MockTransport:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host not in hosts:
            raise httpx.ConnectError("refused")
        return told(request)

    return httpx.MockTransport(handler)


def test_a_run_begins_with_the_servers_that_are_there() -> None:
    found = asyncio.run(server_facts.facts_of_those_there([ONE, TWO], transport=only("two")))
    assert list(found) == [TWO]
    words = server_facts.there_in_words([ONE, TWO], found)
    assert words == f"Servers that answer: 1 of 2. Not there, and taken up once they are: {ONE}."
    whole = asyncio.run(server_facts.facts_of_those_there([ONE, TWO], transport=only("one", "two")))
    assert server_facts.there_in_words([ONE, TWO], whole) == "Servers that answer: 2 of 2."
    assert servers.spread([ONE, TWO], servers.windows(found, 4096)) == {ONE: servers.DEFAULT_WINDOW, TWO: 64}


def test_a_run_begins_with_no_server_that_contradicts_and_not_without_any() -> None:
    with pytest.raises(server_facts.AbsentError, match=f"no server answers at {ONE}"):
        asyncio.run(server_facts.facts_of_those_there([ONE, TWO], transport=only()))
    refused = only("two", told=lambda request: httpx.Response(401))
    with pytest.raises(ServerError, match="refuses the key"):
        asyncio.run(server_facts.facts_of_those_there([ONE, TWO], transport=refused))


def test_a_key_that_the_facts_repeat_is_taken_out() -> None:
    found = facts(lambda request: httpx.Response(200, json={"model_path": KEY, "version": f"1-{KEY}"}))
    assert (found.model, found.version) == ("[secret]", "1-[secret]")


def pool_of(*urls: str, window: int = 4) -> tuple[servers.ServerPool, list[Server]]:
    pool = servers.ServerPool(dict.fromkeys(urls, window))
    return pool, pool.servers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, to be set by hand."""
    now = [100.0]
    monkeypatch.setattr("rawtokens.capture.servers.time.monotonic", lambda: now[0])
    return now


def ask(server: Server, *keys: str, at: float = 0.0) -> None:
    server.asked |= {key: Asked(key, at) for key in keys}


GONE = Failure(reason="connection", detail="refused", next="wait")
FULL = Failure(reason="http_503", detail="The request queue is full.", next="wait")


def test_the_server_with_the_smallest_share_of_its_window_is_chosen() -> None:
    pool = servers.ServerPool({ONE: 2, TWO: 8})
    one, two = pool.servers
    assert pool.choose() is one
    ask(one, "a")
    assert pool.choose() is two
    ask(two, "b", "c", "d", "e", "f")
    assert pool.choose() is one
    ask(one, "g")
    assert pool.choose() is two


def test_nothing_is_asked_beyond_a_window() -> None:
    pool, (one,) = pool_of(ONE, window=2)
    ask(one, "a", "b")
    assert pool.choose() is None
    assert 0.0 < pool.pause() < 0.2


def test_a_failed_server_rests_while_another_can_be_asked_and_returns(clock: list[float]) -> None:
    pool, (one, two) = pool_of(ONE, TWO)
    one.failed(GONE)
    ask(two, "a")
    assert pool.choose() is two
    clock[0] += 1.5
    assert pool.choose() is one
    assert one.failures == 1  # to be probed first
    one.failed(GONE)
    two.failed(GONE)
    assert pool.choose() is None
    assert 0.4 < pool.pause() < 1.6  # both rest: wait for the first
    two.answered()
    assert pool.choose() is two
    assert pool.lost_seconds() == 0.0


def test_many_failures_at_once_count_as_one_and_rests_have_an_end(clock: list[float]) -> None:
    _, (one,) = pool_of(ONE)
    for _ in range(64):
        one.failed(GONE)
    assert one.resting_until == clock[0] + 1.0
    for _ in range(20):
        clock[0] += servers.LONGEST_REST
        one.failed(GONE)
    assert one.resting_until == clock[0] + servers.LONGEST_REST


def test_a_full_queue_shrinks_the_window_and_answers_let_it_grow_again(clock: list[float]) -> None:
    pool, (one,) = pool_of(ONE, window=4)
    ask(one, "a", "b")
    one.failed(FULL)
    one.answered()
    assert one.room == 3
    ask(one, "c")
    assert pool.choose() is None
    for _ in range(3):
        one.answered()
    assert one.room == 4


def test_breakdowns_with_few_answers_between_shrink_the_window_and_others_do_not(clock: list[float]) -> None:
    _, (one,) = pool_of(ONE, window=64)
    rooms = []
    for answers in (64, 63, 0, 0, 0):
        for _ in range(answers):
            one.finished(1, 1.0)
        for _ in range(64):
            one.failed(GONE)
        rooms.append(one.room)
        clock[0] += servers.LONGEST_REST
        one.failed(GONE)  # a probe while it is down is no other breakdown
        one.answered()
    assert rooms == [64, 16, 4, 1, 1]


@pytest.mark.parametrize(
    ("reason", "next_", "told"),
    [
        ("connection", "wait", True),
        ("timeout", "wait", True),
        ("http_502", "wait", True),
        ("http_504", "wait", True),
        ("http_503", "wait", False),
        ("http_429", "wait", False),
        ("connection", "retry", False),
        ("bad_request", "reject", False),
    ],
)
def test_a_full_queue_and_an_answer_are_no_breakdown(reason: str, next_: Next, told: bool) -> None:
    assert servers.broke_down(Failure(reason=reason, detail="d", next=next_)) is told


def test_servers_are_lost_only_where_none_is_well_and_none_works(clock: list[float]) -> None:
    pool, (one, two) = pool_of(ONE, TWO)
    clock[0] += 50.0
    one.failed(GONE)
    assert pool.lost_seconds() == 0.0
    two.failed(GONE)
    assert pool.lost_seconds() == 50.0
    ask(two, "a", at=clock[0])
    assert pool.lost_seconds() == 50.0
    clock[0] += CONNECT_SECONDS + 6.0  # out for longer than a connection takes: it is being computed
    assert pool.lost_seconds() == 0.0


def test_a_long_generation_is_waited_for_and_a_slow_server_for_longer(clock: list[float]) -> None:
    _, (one,) = pool_of(ONE, window=64)
    assert one.patience(32768) == 60.0 + 32768
    one.finished(4096, 40.96)  # 100 ids/s: a slow stretch may come yet
    assert one.patience(32768) == 60.0 + 32768
    one.finished(1, 600.0)  # of a queue, not of a rate
    assert one.patience(32768) == 60.0 + 32768
    one.finished(1000, 1000.0)
    assert one.patience(32768) == 60.0 + 4 * 32768
    assert Server(ONE, 400).patience(100) == 60.0 + 400  # four hundred share a server


def test_a_short_answer_that_came_late_makes_longer_ones_be_waited_for(clock: list[float]) -> None:
    _, (one,) = pool_of(ONE)
    one.finished(60, 3000.0)  # too few ids to tell a rate
    assert one.patience(512) == 4 * 3000.0
    one.finished(60, 30 * 3600.0)
    assert one.patience(512) == 24 * 3600.0


def test_a_server_without_any_answer_is_waited_for_twice_as_long_each_time_until_its_rate_is_known(
    clock: list[float],
) -> None:
    _, (one,) = pool_of(ONE)
    waits = []
    for _ in range(4):
        waits.append(one.patience(16384))
        for _ in range(64):  # all that were out give up at the same time
            one.kept_waiting(waits[-1])
    assert waits == [16444.0, 32888.0, 65776.0, 86400.0]
    _, (two,) = pool_of(TWO)
    two.finished(4096, 41.0)
    two.kept_waiting(16444.0)  # that one hangs: the others come at 100 ids/s
    assert two.patience(16384) == 16444.0


def test_a_server_is_silent_where_requests_are_out_and_nothing_comes_for_longer_than_before(clock: list[float]) -> None:
    _, (one,) = pool_of(ONE)
    clock[0] += 1000.0
    assert one.silent_seconds() == 0.0
    ask(one, "a", at=clock[0])
    clock[0] += 299.0
    assert one.silent_seconds() == 0.0
    clock[0] += 2.0
    assert one.silent_seconds() == 301.0
    one.finished(4096, 400.0)
    assert one.silent_seconds() == 0.0
    clock[0] += 500.0
    assert one.silent_seconds() == 801.0
    one.answered()
    assert one.silent_seconds() == 0.0


def test_a_server_that_is_away_is_silent_though_nothing_is_out(clock: list[float]) -> None:
    _, (one,) = pool_of(ONE)
    one.failed(Failure(reason="connection", detail="refused", next="wait"))
    clock[0] += 299.0
    assert one.silent_seconds() == 0.0
    clock[0] += 2.0
    assert one.silent_seconds() == 301.0
    one.answered()
    assert one.silent_seconds() == 0.0


def test_windows_follow_what_each_server_runs_and_holds() -> None:
    known = {
        "http://runs:1": ServerFacts(running_limit=256, token_limit=10**7),
        "http://holds:1": ServerFacts(running_limit=4096, token_limit=65536),
        "http://small:1": ServerFacts(running_limit=4096, token_limit=100),
        "http://router:1": ServerFacts(),
    }
    assert servers.windows(known, 4096) == {
        "http://runs:1": 256,
        "http://holds:1": 64,
        "http://small:1": 1,
        "http://router:1": servers.DEFAULT_WINDOW,
    }


def test_the_facts_of_every_server_are_told_by_url() -> None:
    transport = httpx.MockTransport(sglang)
    found = asyncio.run(server_facts.all_facts([ONE, TWO], transport=transport))
    assert list(found) == [ONE, TWO]
    assert {known.model for known in found.values()} == {"demo"}
