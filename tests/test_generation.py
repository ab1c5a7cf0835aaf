import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawtokens.engines.answers import ServerFacts
from rawtokens.errors import InputError, RunStopped
from rawtokens.generation import Progress, Target, generate
from rawtokens.journal import JOURNAL, read_rejections, read_responses
from rawtokens.records import PROMPTS_SCHEMA, Response, Sampling

URL = "http://one:30000"
OUTPUT_IDS = [1008, 163607, 5, 163586]
KEY = "k-not-to-be-told"
Handler = Callable[[dict[str, list[int]]], httpx.Response]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.capture.tries.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("rawtokens.capture.servers.LONGEST_REST", 0.01)


def target(**changes: object) -> Target:
    settings: dict[str, object] = {
        "urls": (URL,),
        "sampling": Sampling(max_new_tokens=16),
        "stop_ids": (163586,),
        "vocabulary_size": 163840,
        "fingerprint": "f" * 16,
        "patience_seconds": 0.0,
    }
    return Target(**{**settings, **changes})  # type: ignore[arg-type]


def write_prompts(folder: Path, count: int, prompt_ids: list[int] | None = None) -> None:
    ids = prompt_ids or [163587, 17, 163606]
    row = {"turn": 0, "prompt_ids": ids, "prompt_tokens": len(ids), "thinking": "opened", "messages": "[]"}
    row |= {"tools": "[]", "template_kwargs": "{}", "notices": []}
    rows = [{"key": f"{number}#0", "source_id": str(number), **row} for number in range(count)]
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")


def answer(sent: dict[str, list[int]], **changes: object) -> httpx.Response:
    meta: dict[str, object] = {
        "id": sent["rid"],
        "finish_reason": {"type": "stop", "matched": 163586},
        "prompt_tokens": len(sent["input_ids"]),
        "completion_tokens": len(OUTPUT_IDS),
        "cached_tokens": 0,
        "weight_version": "default",
    }
    return httpx.Response(200, json={"text": "", "output_ids": OUTPUT_IDS, "meta_info": {**meta, **changes}})


def run(folder: Path, handler: Handler, *, window: int = 4, **changes: object) -> tuple[Progress, list[str]]:
    """Generate over a fault-injecting transport; returns the counts and the routes that were asked, in order."""
    routes: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        routes.append(request.url.path)
        if request.url.path != "/generate":
            return httpx.Response(200)
        return handler(json.loads(request.content))

    transport = httpx.MockTransport(handle)
    work = generate(folder, target(**changes), window=window, transport=transport, api_key=KEY)
    return asyncio.run(work), routes


def records(folder: Path) -> list[Response]:
    return list(read_responses(folder / JOURNAL))


def test_every_prompt_and_sample_becomes_one_record(tmp_path: Path) -> None:
    write_prompts(tmp_path, 3)
    progress, _ = run(tmp_path, answer, sampling=Sampling(samples_per_prompt=2))
    assert sorted(item.key for item in records(tmp_path)) == ["0#0/0", "0#0/1", "1#0/0", "1#0/1", "2#0/0", "2#0/1"]
    assert {tuple(item.output_ids) for item in records(tmp_path)} == {tuple(OUTPUT_IDS)}
    assert {tuple(item.prompt_ids) for item in records(tmp_path)} == {(163587, 17, 163606)}
    assert (progress.planned, progress.done, progress.rejected) == (6, 6, 0)


def test_a_second_run_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    write_prompts(tmp_path, 3)
    run(tmp_path, answer)
    kept = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    (tmp_path / JOURNAL).write_bytes(kept[0] + kept[2])
    progress, routes = run(tmp_path, answer)
    assert len(routes) == 1
    assert (progress.present, progress.done) == (2, 1)
    assert sorted(item.key for item in records(tmp_path)) == ["0#0/0", "1#0/0", "2#0/0"]


def test_every_sampling_value_is_sent(tmp_path: Path) -> None:
    write_prompts(tmp_path, 1)
    seen: list[dict[str, object]] = []

    def handler(sent: dict[str, list[int]]) -> httpx.Response:
        seen.append(sent)  # type: ignore[arg-type]
        return answer(sent)

    run(tmp_path, handler, sampling=Sampling(temperature=0.7, top_p=0.9, top_k=5, max_new_tokens=9))
    assert sorted(seen[0]) == ["input_ids", "rid", "sampling_params"]
    assert seen[0]["sampling_params"] == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "max_new_tokens": 9,
        "min_new_tokens": 0,
        "ignore_eos": False,
        "stop_token_ids": [163586],
        "n": 1,
    }


FAULTS: dict[str, tuple[Handler, str, int]] = {
    "cut prompt": (lambda sent: answer(sent, prompt_tokens=1), "prompt_tokens_differ", 5),
    "count differs": (lambda sent: answer(sent, completion_tokens=3), "completion_tokens_differ", 5),
    "stop id stripped": (
        lambda sent: answer(sent, finish_reason={"type": "stop", "matched": 163585}),
        "stop_id_missing",
        5,
    ),
    "abort under 200": (lambda sent: answer(sent, finish_reason={"type": "abort", "message": "m"}), "aborted", 5),
    "answer of another": (lambda sent: answer(sent, id="another"), "answer_of_another_request", 5),
    "null finish reason": (lambda sent: answer(sent, finish_reason=None), "aborted", 5),
    "truncated body": (lambda sent: httpx.Response(200, content=answer(sent).content[:-9]), "malformed_answer", 5),
    "no JSON": (lambda sent: httpx.Response(200, text="<html>"), "malformed_answer", 5),
    "server error": (lambda sent: httpx.Response(500, json={"error": {"message": "m"}}), "http_500", 5),
    "bad request": (lambda sent: httpx.Response(400, json={"error": "m"}), "bad_request", 1),
    "too long": (
        lambda sent: httpx.Response(400, json={"object": "error", "message": "Requested token count exceeds the"}),
        "context_exceeded",
        1,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_row_that_keeps_failing_is_rejected_and_the_run_goes_on(tmp_path: Path, name: str) -> None:
    handler, reason, tries = FAULTS[name]
    write_prompts(tmp_path, 2)
    pq.write_table(
        pa.concat_tables([pq.read_table(tmp_path / "prompts.parquet").slice(0, 1), _one_more(tmp_path)]),
        tmp_path / "prompts.parquet",
    )

    def mostly(sent: dict[str, list[int]]) -> httpx.Response:
        return handler(sent) if sent["input_ids"] == [163587, 99, 163606] else answer(sent)

    progress, routes = run(tmp_path, mostly)
    assert [item.key for item in records(tmp_path)] == ["0#0/0"]
    assert [(item.key, item.reason) for item in read_rejections(tmp_path)] == [("bad#0/0", reason)]
    assert routes.count("/generate") == tries + 1
    assert (progress.done, progress.rejected) == (1, 1)
    _, again = run(tmp_path, mostly)
    assert again == []


def _one_more(folder: Path) -> pa.Table:
    row = pq.read_table(folder / "prompts.parquet").to_pylist()[0]
    changed = {**row, "key": "bad#0", "source_id": "bad", "prompt_ids": [163587, 99, 163606]}
    return pa.Table.from_pylist([changed], schema=PROMPTS_SCHEMA)


STOPS: dict[str, tuple[Handler, str]] = {
    "refused key": (lambda sent: httpx.Response(401, json={"error": "Unauthorized"}), "key_refused: Unauthorized"),
    "NaN matched": (
        lambda sent: answer(sent, finish_reason={"type": "stop", "matched": "NaN happened"}),
        "nan_weights",
    ),
    "queue full": (lambda sent: httpx.Response(503, json={"detail": "no_available_workers"}), "no_available_workers"),
}


@pytest.mark.parametrize("name", STOPS)
def test_what_no_retry_mends_stops_the_run_with_a_word(tmp_path: Path, name: str) -> None:
    handler, words = STOPS[name]
    write_prompts(tmp_path, 2)
    with pytest.raises(RunStopped, match=words):
        run(tmp_path, handler)
    assert records(tmp_path) == []
    assert read_rejections(tmp_path) == []


def test_all_zero_ids_are_taken_for_nan_weights(tmp_path: Path) -> None:
    write_prompts(tmp_path, 1)

    def zeros(sent: dict[str, list[int]]) -> httpx.Response:
        body = json.loads(answer(sent, finish_reason={"type": "length", "length": 8}, completion_tokens=8).content)
        return httpx.Response(200, json={**body, "output_ids": [0] * 8})

    with pytest.raises(RunStopped, match="all 8 output ids are 0"):
        run(tmp_path, zeros)


def test_a_server_that_comes_back_within_the_patience_is_used_again(tmp_path: Path) -> None:
    write_prompts(tmp_path, 2)
    calls: list[int] = []

    def late(sent: dict[str, list[int]]) -> httpx.Response:
        calls.append(1)
        if len(calls) <= 2:
            raise httpx.ConnectError("refused")
        return answer(sent)

    progress, _ = run(tmp_path, late, patience_seconds=60.0)
    assert progress.done == 2


@pytest.mark.parametrize(
    ("error", "reason"), [(httpx.ReadTimeout("slow"), "timeout"), (httpx.ReadError("reset"), "connection")]
)
def test_a_row_without_answer_on_a_server_that_is_well_is_rejected_in_the_end(
    tmp_path: Path, error: Exception, reason: str
) -> None:
    write_prompts(tmp_path, 1)

    def poisoned(sent: dict[str, list[int]]) -> httpx.Response:
        if len(sent["input_ids"]) == 1:
            return answer(sent)
        raise error

    progress, asked = run(tmp_path, poisoned)
    routes = [route for route in asked if route in ("/generate", "/abort_request")]  # others ask what the server is
    assert (progress.done, progress.rejected) == (0, 1)
    assert [(item.key, item.reason) for item in read_rejections(tmp_path)] == [("0#0/0", reason)]
    assert routes[:-1] == ["/generate", "/abort_request", "/generate"] * 5  # each try, its abort, and the probe
    assert routes[-1] == "/generate"  # whether the server takes requests at all
    assert records(tmp_path) == []


@pytest.mark.parametrize("error", [httpx.ReadTimeout("slow"), httpx.ReadError("reset"), httpx.ConnectError("refused")])
def test_a_server_that_hangs_or_dies_costs_no_row(tmp_path: Path, error: Exception) -> None:
    write_prompts(tmp_path, 3)

    def hangs(sent: dict[str, list[int]]) -> httpx.Response:
        raise error

    with pytest.raises(RunStopped, match="gave no answer"):
        run(tmp_path, hangs, patience_seconds=0.05)
    assert read_rejections(tmp_path) == []


def test_a_timed_out_request_is_aborted_before_it_is_tried_again(tmp_path: Path) -> None:
    write_prompts(tmp_path, 1)
    calls: list[int] = []

    def slow_once(sent: dict[str, list[int]]) -> httpx.Response:
        calls.append(1)
        if len(calls) == 1:
            raise httpx.ReadTimeout("slow")
        return answer(sent)

    _, routes = run(tmp_path, slow_once, patience_seconds=60.0)
    assert routes == ["/generate", "/abort_request", "/generate", "/generate"]  # the third asks whether it lives
    assert [(item.key, item.attempt) for item in records(tmp_path)] == [("0#0/0", 2)]


@pytest.mark.parametrize("error", [httpx.RemoteProtocolError("gone"), ConnectionResetError("gone")])
def test_what_the_transport_lets_through_is_a_lost_connection(tmp_path: Path, error: Exception) -> None:
    write_prompts(tmp_path, 1)
    calls: list[int] = []

    def broken_once(sent: dict[str, list[int]]) -> httpx.Response:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return answer(sent)

    progress, _ = run(tmp_path, broken_once, patience_seconds=60.0)
    assert progress.done == 1


def test_a_full_queue_does_not_stop_a_run_whose_requests_are_being_worked_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rawtokens.capture.servers.CONNECT_SECONDS", -5.0
    )  # a request counts as being worked on at once
    write_prompts(tmp_path, 2)
    taken: list[int] = []

    async def one_at_a_time(request: httpx.Request) -> httpx.Response:
        if taken:
            return httpx.Response(503, json={"error": "The request queue is full."})
        taken.append(1)
        await asyncio.sleep(0.1)
        taken.clear()
        return answer(json.loads(request.content))

    progress = asyncio.run(generate(tmp_path, target(), window=2, transport=httpx.MockTransport(one_at_a_time)))
    assert progress.done == 2


@pytest.mark.parametrize("dead", ["http://dead:1", "http://zdead:1"])
@pytest.mark.parametrize("dead_first", [True, False])
def test_a_dead_server_among_several_takes_no_work_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: str, dead_first: bool
) -> None:
    monkeypatch.setattr("rawtokens.capture.servers.LONGEST_REST", 15.0)
    write_prompts(tmp_path, 30)
    asked: list[str] = []

    async def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host in dead:
            raise httpx.ConnectError("refused")
        await asyncio.sleep(0.001)
        return answer(json.loads(request.content))

    urls = (dead, URL) if dead_first else (URL, dead)
    progress = asyncio.run(generate(tmp_path, target(urls=urls), window=4, transport=httpx.MockTransport(handle)))
    assert (progress.done, progress.rejected) == (30, 0)
    assert sum(host != "one" for host in asked) <= 12  # four in flight, each failed, aborted and probed once


ECHOES: dict[str, Handler] = {
    "rejected": lambda sent: httpx.Response(400, json={"error": f"bad header Bearer {KEY}"}),
    "cut in the middle": lambda sent: httpx.Response(400, json={"error": "x" * 290 + KEY}),
    "not JSON": lambda sent: httpx.Response(400, text=f"{KEY} {KEY}"),
    "refused": lambda sent: httpx.Response(401, json={"error": {"message": f"{KEY}?"}}),
    "unavailable": lambda sent: httpx.Response(503, json={"detail": [KEY]}),
    "aborted": lambda sent: answer(sent, finish_reason={"type": "abort", "message": KEY}),
    "in the record": lambda sent: answer(sent, weight_version=KEY),
}


@pytest.mark.parametrize("name", ECHOES)
def test_a_key_that_the_server_repeats_lands_nowhere(tmp_path: Path, name: str) -> None:
    write_prompts(tmp_path, 1)
    told = ""
    try:
        run(tmp_path, ECHOES[name])
    except RunStopped as error:
        told = str(error)
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert "[secret]" in told or b"[sec" in files
    assert KEY[:6] not in told
    assert KEY[:6].encode() not in files


def test_a_key_of_digits_changes_no_id(tmp_path: Path) -> None:
    write_prompts(tmp_path, 1)

    def handle(request: httpx.Request) -> httpx.Response:
        return answer(json.loads(request.content))

    asyncio.run(generate(tmp_path, target(), transport=httpx.MockTransport(handle), api_key="1636"))
    assert records(tmp_path)[0].output_ids == OUTPUT_IDS


def refused(sent: dict[str, list[int]]) -> httpx.Response:
    return httpx.Response(400, json={"error": {"message": "Requested token count exceeds the model's context length"}})


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_server_that_refuses_everything_stops_the_run_and_rejects_nothing(
    tmp_path: Path, count: int, status: int
) -> None:
    write_prompts(tmp_path, count)
    with pytest.raises(RunStopped, match=rf"{URL}.*some other API"):
        run(tmp_path, lambda sent: httpx.Response(status, json={"error": "some other API"}))
    assert records(tmp_path) == []
    assert read_rejections(tmp_path) == []
    progress, _ = run(tmp_path, answer)
    assert progress.done == count


def test_settings_that_fit_no_prompt_stop_the_run_and_reject_nothing(tmp_path: Path) -> None:
    write_prompts(tmp_path, 30)

    def no_room(sent: dict[str, list[int]]) -> httpx.Response:
        return refused(sent) if sent["sampling_params"]["max_new_tokens"] > 8 else answer(sent)  # type: ignore[call-overload]

    with pytest.raises(RunStopped, match="max_new_tokens fits its context"):
        run(tmp_path, no_room)
    assert read_rejections(tmp_path) == []


def test_many_prompts_that_are_too_long_are_rejected_though_no_good_answer_has_come_yet(tmp_path: Path) -> None:
    write_prompts(tmp_path, 90)

    async def handle(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        if len(sent["input_ids"]) == 3:
            return refused(sent)
        await asyncio.sleep(0.05)
        return answer(sent)

    progress = asyncio.run(generate(tmp_path, target(), window=4, transport=httpx.MockTransport(handle)))
    assert (progress.done, progress.rejected) == (0, 90)
    assert {item.reason for item in read_rejections(tmp_path)} == {"context_exceeded"}


def test_a_server_that_breaks_on_the_way_stops_the_run_and_rejects_no_row_for_it(tmp_path: Path) -> None:
    write_prompts(tmp_path, 90)
    seen: list[int] = []

    def breaks(sent: dict[str, list[int]]) -> httpx.Response:
        seen.append(1)
        return answer(sent) if len(seen) <= 30 else httpx.Response(500, json={"error": "CUDA error"})

    with pytest.raises(RunStopped, match=r"20 rows in a row no good answer.*CUDA error"):
        run(tmp_path, breaks)
    assert len(records(tmp_path)) == 30
    assert read_rejections(tmp_path) == []


def test_a_request_id_that_a_router_sent_twice_is_tried_again_under_another(tmp_path: Path) -> None:
    write_prompts(tmp_path, 1)
    rids: list[object] = []

    def twice(sent: dict[str, list[int]]) -> httpx.Response:
        rids.append(sent["rid"])
        if len(rids) == 1:
            return httpx.Response(400, json={"error": {"message": f"Duplicate request ID detected: {sent['rid']}"}})
        return answer(sent)

    progress, _ = run(tmp_path, twice)
    assert progress.done == 1
    assert len(set(rids)) == 2


def test_a_route_that_goes_away_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    write_prompts(tmp_path, 3)
    seen: list[int] = []

    def restarts(sent: dict[str, list[int]]) -> httpx.Response:
        seen.append(1)
        return httpx.Response(404, text="default backend - 404") if len(seen) == 2 else answer(sent)

    progress, _ = run(tmp_path, restarts, window=1, patience_seconds=60.0)
    assert progress.done == 3


def test_answers_by_other_weights_stop_the_run(tmp_path: Path) -> None:
    write_prompts(tmp_path, 2)
    with pytest.raises(RunStopped, match="began with weights 'first', this answer is by 'default'"):
        run(tmp_path, answer, facts=ServerFacts(weight_version="first"))
    assert records(tmp_path) == []


def test_no_server_is_given_more_than_its_window(tmp_path: Path) -> None:
    write_prompts(tmp_path, 40)
    urls = (URL, "http://two:30000")
    out, most = dict.fromkeys(("one", "two"), 0), dict.fromkeys(("one", "two"), 0)

    async def handle(request: httpx.Request) -> httpx.Response:
        host = request.url.host
        out[host] += 1
        most[host] = max(most[host], out[host])
        await asyncio.sleep(0.01)
        out[host] -= 1
        return answer(json.loads(request.content))

    windows = {URL: 2, "http://two:30000": 6}
    asyncio.run(generate(tmp_path, target(urls=urls), window=windows, transport=httpx.MockTransport(handle)))
    assert most == {"one": 2, "two": 6}


class Slow:
    """A server whose first answers take no time, and whose others come when they are aborted, as SGLang's do."""

    def __init__(self, at_once: int, *, deaf: bool = False) -> None:
        self.at_once, self.deaf = at_once, deaf
        self.asked: dict[str, asyncio.Event] = {}
        self.aborted: list[str] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        if request.url.path == "/abort_request":
            self.aborted.append(sent["rid"])
            if not self.deaf:
                self.asked[sent["rid"]].set()
            return httpx.Response(200)
        self.asked[sent["rid"]] = asyncio.Event()
        if len(self.asked) > self.at_once:
            await self.asked[sent["rid"]].wait()
            return answer(sent, finish_reason={"type": "abort", "message": "Abort"}, completion_tokens=4)
        return answer(sent)


async def stopped(
    folder: Path,
    server: Callable[[httpx.Request], Awaitable[httpx.Response]],
    *,
    after: int,
    times: int = 1,
    **changes: object,
) -> None:
    """Start a run, cancel it once `after` requests were sent, as the stop button does, and wait for its end."""
    caller, sent, enough = asyncio.get_running_loop(), [], asyncio.Event()

    async def counted(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        if len(sent) == after:
            caller.call_soon_threadsafe(enough.set)
        return await server(request)

    transport = httpx.MockTransport(counted)
    work = generate(folder, target(**changes), window=4, transport=transport, on_progress=TOLD.append)
    task = asyncio.create_task(work)
    await enough.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.05)
    await task


TOLD: list[Progress] = []


def test_a_stopped_run_aborts_what_is_in_flight_and_keeps_what_came(tmp_path: Path) -> None:
    TOLD.clear()
    write_prompts(tmp_path, 20)
    server = Slow(at_once=5)
    with pytest.raises(RunStopped, match="stopped with 5 of 20 planned in the journal; run the same command"):
        asyncio.run(stopped(tmp_path, server, after=9, drain_seconds=0.0))
    assert len(records(tmp_path)) == 5
    assert read_rejections(tmp_path) == []
    assert sorted(server.aborted) == sorted(list(server.asked)[5:])
    assert len(server.aborted) == 4
    assert (TOLD[-1].done, TOLD[-1].in_flight) == (5, 4)  # what the stop cut off is told
    progress, _ = run(tmp_path, answer)
    assert (progress.present, progress.done) == (5, 15)


def test_a_stopped_run_waits_for_answers_that_are_near(tmp_path: Path) -> None:
    write_prompts(tmp_path, 20)

    async def half_a_second(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.5)
        return answer(json.loads(request.content))

    with pytest.raises(RunStopped, match="stopped with 4 of 20"):
        asyncio.run(stopped(tmp_path, half_a_second, after=4, drain_seconds=10.0))
    assert len(records(tmp_path)) == 4


def test_a_run_whose_last_answer_comes_while_it_is_stopped_is_complete(tmp_path: Path) -> None:
    write_prompts(tmp_path, 4)

    async def half_a_second(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.5)
        return answer(json.loads(request.content))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped(tmp_path, half_a_second, after=4, drain_seconds=10.0))
    assert len(records(tmp_path)) == 4


def test_a_second_interrupt_ends_the_run_at_once_and_frees_the_journal(tmp_path: Path) -> None:
    write_prompts(tmp_path, 20)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped(tmp_path, Slow(at_once=5, deaf=True), after=9, times=2, drain_seconds=600.0))
    assert len(records(tmp_path)) == 5
    progress, _ = run(tmp_path, answer)
    assert progress.done == 15


def test_sigint_stops_a_run_in_words(tmp_path: Path) -> None:
    write_prompts(tmp_path, 20)
    server = Slow(at_once=5)

    async def interrupts(request: httpx.Request) -> httpx.Response:
        if len(server.asked) == 8 and request.url.path == "/generate":
            os.kill(os.getpid(), signal.SIGINT)
        return await server(request)

    work = generate(tmp_path, target(drain_seconds=0.0), window=4, transport=httpx.MockTransport(interrupts))
    with pytest.raises(RunStopped, match="stopped with 5 of 20"):
        asyncio.run(work)
    assert len(records(tmp_path)) == 5


def test_a_failure_that_stops_the_run_lets_go_of_what_is_in_flight(tmp_path: Path) -> None:
    write_prompts(tmp_path, 20)
    server = Slow(at_once=1)

    async def refuses_the_third(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/generate" and len(server.asked) == 3:
            return httpx.Response(401, json={"error": "Unauthorized"})
        return await server(request)

    work = generate(tmp_path, target(), window=4, transport=httpx.MockTransport(refuses_the_third))
    with pytest.raises(RunStopped, match="key_refused"):
        asyncio.run(work)
    assert sorted(server.aborted) == sorted(list(server.asked)[1:])
    assert len(records(tmp_path)) == 1


def test_keys_that_stand_twice_among_the_prompts_stop_the_run_in_words(tmp_path: Path) -> None:
    write_prompts(tmp_path, 1)
    rows = pq.read_table(tmp_path / "prompts.parquet")
    pq.write_table(pa.concat_tables([rows, rows]), tmp_path / "prompts.parquet")

    async def after_a_moment(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.01)
        return answer(json.loads(request.content))

    with pytest.raises(InputError, match="a key has one record"):
        asyncio.run(generate(tmp_path, target(), transport=httpx.MockTransport(after_a_moment)))
    assert len(records(tmp_path)) == 1


@pytest.mark.parametrize("bad", [163840, -1, 2**31 - 1])
def test_an_id_outside_the_vocabulary_is_never_sent(tmp_path: Path, bad: int) -> None:
    write_prompts(tmp_path, 1, [163587, bad])
    with pytest.raises(InputError, match=r"0\.\.163839"):
        run(tmp_path, answer)


def test_the_least_loaded_of_several_servers_is_asked(tmp_path: Path) -> None:
    write_prompts(tmp_path, 8)
    urls = (URL, "http://two:30000")

    async def after_a_moment(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.01)
        return answer(json.loads(request.content))

    transport = httpx.MockTransport(after_a_moment)
    asyncio.run(generate(tmp_path, target(urls=urls), window=8, transport=transport))
    assert [sum(item.server == url for item in records(tmp_path)) for url in urls] == [4, 4]


def test_progress_counts_everything_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.generation._REPORT_SECONDS", 0.01)
    write_prompts(tmp_path, 5)
    run(tmp_path, answer)
    kept = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    (tmp_path / JOURNAL).write_bytes(b"".join(kept[:3]))
    told: list[Progress] = []

    async def after_a_moment(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.05)
        return answer(json.loads(request.content))

    transport = httpx.MockTransport(after_a_moment)
    asyncio.run(generate(tmp_path, target(), window=1, transport=transport, on_progress=told.append))
    assert {(progress.planned, progress.present) for progress in told} == {(5, 3)}
    assert [told[0].done, told[-1].done] == [0, 2]
    assert str(told[-1]).startswith("5 of 5 generated")


def test_a_server_that_answers_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.generation._REPORT_SECONDS", 0.01)
    monkeypatch.setattr("rawtokens.capture.servers._SILENT_SECONDS", 0.02)
    write_prompts(tmp_path, 1)
    told: list[Progress] = []

    async def after_a_moment(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.2)
        return answer(json.loads(request.content))

    transport = httpx.MockTransport(after_a_moment)
    asyncio.run(generate(tmp_path, target(), window=1, transport=transport, on_progress=told.append))
    named = [progress.silent for progress in told if progress.silent]
    assert named[0].keys() == {URL}
    assert 0.02 < named[0][URL] < named[-1][URL]
    assert told[-1].silent == {}
