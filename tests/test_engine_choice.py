"""A run over an engine other than SGLang, on answers that a real vLLM 0.32.0 gave (tests/data/vllm)."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawtokens.engines.answers import ServerFacts
from rawtokens.errors import RunStopped
from rawtokens.generation import Progress, Target, generate
from rawtokens.journal import JOURNAL, read_rejections, read_responses
from rawtokens.records import PROMPTS_SCHEMA, Sampling

DATA = Path(__file__).parent / "data" / "vllm"
ROUTES = {False: "/v1/completions", True: "/inference/v1/generate"}
NAMES = {False: "answer_stop", True: "tokens_stop"}
RECORDED = json.loads((DATA / "answer_stop.json").read_bytes())["body"]
PROMPT: list[int] = RECORDED["choices"][0]["prompt_token_ids"]
OUTPUT: list[int] = RECORDED["choices"][0]["token_ids"]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.capture.servers.LONGEST_REST", 0.01)


def write_prompts(folder: Path, *prompts: list[int]) -> None:
    rows = [
        {"key": f"{number}#0", "source_id": str(number), "turn": 0, "prompt_ids": ids, "prompt_tokens": len(ids)}
        | {"thinking": "opened", "messages": "[]", "tools": "[]", "template_kwargs": "{}", "notices": []}
        for number, ids in enumerate(prompts)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")


def said(request: httpx.Request, *, tokens_route: bool) -> httpx.Response:
    """The recorded answer, as if to this request."""
    text = (DATA / f"{NAMES[tokens_route]}.json").read_text()
    return httpx.Response(200, json=json.loads(text.replace("7f3a", json.loads(request.content)["request_id"]))["body"])


def run(
    folder: Path, facts: ServerFacts, handler: Callable[[httpx.Request], httpx.Response], *, patience: float = 600.0
) -> tuple[Progress, list[str]]:
    """Generate; returns the counts and the routes that were asked, in order."""
    routes: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        routes.append(request.url.path)
        return handler(request)

    target = Target(
        urls=("http://one:8000",),
        sampling=Sampling(temperature=0.0, max_new_tokens=64),
        stop_ids=(163586,),
        vocabulary_size=163840,
        fingerprint="f" * 16,
        facts=facts,
        patience_seconds=patience,
    )
    work = generate(folder, target, window=1, transport=httpx.MockTransport(handle))
    return asyncio.run(work), routes


@pytest.mark.parametrize("tokens_route", [False, True])
def test_vllm_is_asked_by_its_own_route_and_leaves_the_same_records(tmp_path: Path, tokens_route: bool) -> None:
    write_prompts(tmp_path, PROMPT, PROMPT)
    facts = ServerFacts(engine="vllm", tokens_route=tokens_route, context_length=4096)
    progress, routes = run(tmp_path, facts, lambda request: said(request, tokens_route=tokens_route))
    assert (progress.done, progress.rejected) == (2, 0)
    assert routes == [ROUTES[tokens_route]] * 2
    for response in read_responses(tmp_path / JOURNAL):
        assert (response.prompt_ids, response.output_ids) == (PROMPT, OUTPUT)
        assert (response.finish_reason, response.matched) == ("stop", 163586)


def test_a_run_whose_first_answers_named_no_weights_goes_on_with_ones_that_do(tmp_path: Path) -> None:
    write_prompts(tmp_path, PROMPT)
    run(tmp_path, ServerFacts(engine="vllm"), lambda request: said(request, tokens_route=False))
    write_prompts(tmp_path, PROMPT, PROMPT)
    facts = ServerFacts(engine="vllm", tokens_route=True)
    progress, _ = run(tmp_path, facts, lambda request: said(request, tokens_route=True))
    assert (progress.present, progress.done) == (1, 1)
    assert [response.weight_version for response in read_responses(tmp_path / JOURNAL)] == ["", "default"]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_what_the_context_can_not_hold_is_rejected_and_never_sent(tmp_path: Path, engine: str) -> None:
    write_prompts(tmp_path, [5] * 37)
    asked: list[int] = []

    def silent(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append(len(body.get("input_ids") or body.get("prompt") or []))
        raise httpx.ReadTimeout("late", request=request)

    progress, _ = run(tmp_path, ServerFacts(engine=engine, context_length=100), silent)
    assert (progress.done, progress.rejected) == (0, 1)
    (rejection,) = read_rejections(tmp_path)
    assert (rejection.key, rejection.reason) == ("0#0/0", "context_exceeded")
    assert rejection.detail.startswith("37 prompt ids and 64 new ones are more than the context's 100")
    assert max(asked) == 1  # the shortest prompt, to learn whether the server takes any


def test_what_just_fits_the_context_is_sent(tmp_path: Path) -> None:
    write_prompts(tmp_path, PROMPT)
    facts = ServerFacts(engine="vllm", context_length=len(PROMPT) + 64)
    progress, _ = run(tmp_path, facts, lambda request: said(request, tokens_route=False))
    assert (progress.done, progress.rejected) == (1, 0)


def test_an_older_vllm_stops_the_run_and_rejects_nothing(tmp_path: Path) -> None:
    write_prompts(tmp_path, PROMPT)
    body = json.loads((DATA / "answer_no_ids.json").read_bytes())["body"]

    def without_ids(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={**body, "id": json.loads(request.content)["request_id"]})

    with pytest.raises(RunStopped, match="no_token_ids: no token_ids in the answer"):
        run(tmp_path, ServerFacts(engine="vllm"), without_ids)
    assert list(read_rejections(tmp_path)) == []


def test_a_request_without_an_answer_is_left_by_its_connection_alone(tmp_path: Path) -> None:
    write_prompts(tmp_path, PROMPT)
    routes: list[str] = []

    def silent(request: httpx.Request) -> httpx.Response:
        routes.append(request.url.path)
        raise httpx.ReadTimeout("late", request=request)

    with pytest.raises(RunStopped, match="gave no answer"):
        run(tmp_path, ServerFacts(engine="vllm"), silent, patience=0.0)
    assert set(routes) == {"/v1/completions"}
