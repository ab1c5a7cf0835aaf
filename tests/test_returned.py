"""Servers that were away and come back: under the same address another model may answer."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from test_broken_servers import answer, target, write_prompts

from rawtokens.capture.returned import Returned
from rawtokens.engines.answers import Failure, ServerFacts
from rawtokens.errors import RunStopped
from rawtokens.generation import Progress, generate
from rawtokens.journal import JOURNAL, read_keys

ONE, TWO = "http://one:1", "http://two:1"
FACTS = ServerFacts(version="0.5.23", model="demo", weight_version="default", dtype="bfloat16", context_length=4096)
TOLD: dict[str, dict[str, object]] = {
    "/model_info": {"model_path": "/models/demo", "weight_version": "default"},
    "/server_info": {"version": "0.5.23", "dtype": "bfloat16"},
    "/v1/models": {"data": [{"id": "demo", "max_model_len": 4096}]},
}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.capture.tries.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("rawtokens.capture.servers.LONGEST_REST", 0.005)


class Restarted:
    """Answers three requests, refuses some connections, and is back with other words about itself."""

    def __init__(self, told: Mapping[str, object]) -> None:
        self.told, self.answers, self.refuses = told, 0, 6

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/abort_request":
            return httpx.Response(200)
        if self.answers >= 3 and self.refuses:
            self.refuses -= 1
            raise httpx.ConnectError("refused")
        if request.url.path == "/generate":
            self.answers += 1
            return answer(json.loads(request.content))
        found = self.told.get(request.url.path)
        return httpx.Response(200, json=found) if found else httpx.Response(404)


def run(folder: Path, told: Mapping[str, object], *, window: int = 1) -> Progress:
    write_prompts(folder, list(range(12)))
    asked = target(urls=(ONE,), facts=FACTS, patience_seconds=60.0)
    return asyncio.run(generate(folder, asked, window=window, transport=httpx.MockTransport(Restarted(told))))


OTHERS: dict[str, dict[str, dict[str, object]]] = {
    "model": {"/model_info": {"model_path": "/models/other", "weight_version": "default"}},
    "weight_version": {"/model_info": {"model_path": "/models/demo", "weight_version": "step-200"}},
    "dtype": {"/server_info": {"version": "0.5.23", "dtype": "float32"}},
    "version": {"/server_info": {"version": "0.6.0", "dtype": "bfloat16"}},
    "context_length": {"/v1/models": {"data": [{"id": "demo", "max_model_len": 1024}]}},
}


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("name", OTHERS)
def test_a_server_that_comes_back_as_another_one_stops_the_run_and_gives_no_record(
    name: str, window: int, tmp_path: Path
) -> None:
    with pytest.raises(RunStopped, match=f"server_differs: it came back with another {name}: was .*, now .*"):
        run(tmp_path, {**TOLD, **OTHERS[name]}, window=window)
    assert len(list(read_keys(tmp_path / JOURNAL))) == 3


@pytest.mark.parametrize("told", [TOLD, {}], ids=["the same", "nothing told"])
def test_a_server_that_comes_back_as_it_was_goes_on(told: dict[str, object], tmp_path: Path) -> None:
    assert run(tmp_path, told, window=4).done == 12


def test_a_server_that_was_not_there_at_the_start_is_held_to_the_run_when_it_comes(tmp_path: Path) -> None:
    late = Restarted({**TOLD, **OTHERS["model"]})
    late.refuses = 0

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.host == "two":
            return late(request)
        await asyncio.sleep(0.02)
        return answer(json.loads(request.content))

    write_prompts(tmp_path, list(range(40)))
    asked = target(urls=(ONE, TWO), facts=FACTS, patience_seconds=60.0)
    with pytest.raises(RunStopped, match=f"{TWO}: server_differs"):
        asyncio.run(generate(tmp_path, asked, window=2, away={TWO}, transport=httpx.MockTransport(handle)))


def test_a_connection_that_broke_at_a_restart_is_no_reason_to_go_on_with_another_model(tmp_path: Path) -> None:
    """It answers again at once, so that nothing is seen of it but one broken connection."""
    quick = Restarted({**TOLD, **OTHERS["model"]})
    quick.refuses = 1
    write_prompts(tmp_path, list(range(12)))
    asked = target(urls=(ONE,), facts=FACTS, patience_seconds=60.0)
    with pytest.raises(RunStopped, match="server_differs"):
        asyncio.run(generate(tmp_path, asked, window=1, transport=httpx.MockTransport(quick)))
    assert len(list(read_keys(tmp_path / JOURNAL))) == 3


def contradiction(handler: httpx.MockTransport) -> Failure | None:
    return asyncio.run(Returned(FACTS, api_key="", transport=handler).contradiction(ONE))


def test_a_server_that_can_not_be_asked_is_waited_for_and_a_refused_key_is_not() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    found = contradiction(httpx.MockTransport(away))
    assert found is not None
    assert (found.reason, found.next) == ("connection", "wait")
    found = contradiction(httpx.MockTransport(lambda request: httpx.Response(401)))
    assert found is not None
    assert (found.reason, found.next) == ("key_refused", "stop")
