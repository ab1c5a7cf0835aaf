"""What the kit relies on, asked of the real vLLM on the CPU with the demo's model: one client, the same records."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
from chaos.ground import Ground, make_ground

import rawtokens
from rawtokens import runs
from rawtokens.__main__ import main
from rawtokens.capture import server_facts
from rawtokens.capture.connections import NoReplyError
from rawtokens.capture.transport import open_post
from rawtokens.demo.server import DemoServer
from rawtokens.demo.vllm_server import serve_with_vllm
from rawtokens.errors import ResumeError
from rawtokens.fidelity.audits import audit_drift
from rawtokens.fidelity.replay import read_replay, replay
from rawtokens.generation import Progress, Target, generate
from rawtokens.journal import JOURNAL, read_rejections, read_responses
from rawtokens.prompts import tokenize_file
from rawtokens.records import Response, Sampling
from rawtokens.server_checks import server_check
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.verification import verify_journal

pytestmark = pytest.mark.vllm

CLOSER, STOP = 163607, 163586
GREEDY = Sampling(temperature=0.0, max_new_tokens=256)


@pytest.fixture(scope="session")
def vllm_server(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoServer]:
    """The real vLLM on the CPU with the demo's model, in float32 as `demo_server`."""
    log = tmp_path_factory.mktemp("vllm") / "log"
    with serve_with_vllm(demo_folder, log_path=log, extra_arguments=["--dtype", "float32"]) as server:
        yield server


@pytest.fixture(scope="session")
def ground(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Some sixty tokenized prompts of every kind that the demo's model knows."""
    return make_ground(tmp_path_factory.mktemp("sixty") / "ground", demo_folder, 60)


@pytest.fixture(scope="session")
def captured(
    ground: Ground, vllm_server: DemoServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Response]]:
    """The prompts' greedy answers by vLLM, and the folder that they stand in."""
    folder = ground.copy_to(tmp_path_factory.mktemp("by_vllm") / "run")
    progress, responses = capture(folder, vllm_server.url, GREEDY)
    assert (progress.done, progress.rejected) == (len(ground.prompt_ids), 0)
    return folder, responses


def capture(folder: Path, url: str, sampling: Sampling) -> tuple[Progress, list[Response]]:
    """A capture as notebook 02 makes it."""
    facts, tokenized = asyncio.run(server_facts.facts_of([url])), runs.read_tokenized(folder)
    target = Target(
        urls=(url,),
        sampling=sampling,
        stop_ids=tokenized.stop_ids,
        vocabulary_size=tokenized.vocabulary_size,
        fingerprint=runs.record_generating(folder, facts, sampling),
        facts=facts,
    )
    progress = asyncio.run(generate(folder, target, window=16))
    return progress, list(read_responses(folder / JOURNAL))


def outputs(responses: list[Response]) -> Mapping[str, list[int]]:
    return {response.key: response.output_ids for response in responses}


def running(url: str) -> int:
    """How many requests vLLM is computing."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("vllm:num_requests_running{"))


def test_the_server_says_that_it_is_vllm(vllm_server: DemoServer) -> None:
    facts = asyncio.run(server_facts.facts_of([vllm_server.url]))
    assert (facts.engine, facts.version, facts.context_length, facts.tokens_route) == ("vllm", "0.32.0", 4096, False)


def test_answers_are_captured_to_the_last_id(
    ground: Ground, captured: tuple[Path, list[Response]], demo_target: Tokenizer
) -> None:
    folder, responses = captured
    assert {response.key: tuple(response.prompt_ids) for response in responses} == ground.prompt_ids
    for response in responses:
        assert response.completion_tokens == len(response.output_ids)
        if response.finish_reason == "stop":
            assert response.output_ids[-1] == response.matched == STOP
            assert STOP not in response.output_ids[:-1]
        else:
            assert (len(response.output_ids), response.matched) == (GREEDY.max_new_tokens, None)
    summary = verify_journal(folder, markers=demo_target.markers, vocabulary_size=demo_target.vocabulary_size)
    assert (summary.rows, summary.verdicts["reject"]) == (len(responses), 0)


def test_the_run_is_recorded_as_vllms_and_goes_on_with_no_other_engine(
    captured: tuple[Path, list[Response]], demo_server: DemoServer
) -> None:
    folder, _ = captured
    manifest = json.loads((folder / runs.MANIFEST).read_bytes())
    assert (manifest["engine"], manifest["engine_version"]) == ("vllm", "0.32.0")
    assert "/" not in json.dumps(manifest["server"])
    facts = asyncio.run(server_facts.facts_of([demo_server.url]))
    with pytest.raises(ResumeError, match="engine: was 'vllm', now 'sglang'"):
        runs.record_generating(folder, facts, GREEDY)


def test_greedy_ids_are_those_of_sglang(
    tmp_path: Path, ground: Ground, captured: tuple[Path, list[Response]], demo_server: DemoServer
) -> None:
    _, by_sglang = capture(ground.copy_to(tmp_path / "run"), demo_server.url, GREEDY)
    assert outputs(captured[1]) == outputs(by_sglang)


def test_the_server_finds_its_own_greedy_ids_the_likeliest(
    captured: tuple[Path, list[Response]], vllm_server: DemoServer, demo_target: Tokenizer
) -> None:
    folder, responses = captured
    verify_journal(folder, markers=demo_target.markers, vocabulary_size=demo_target.vocabulary_size)
    audit_drift(folder, demo_target)
    found = asyncio.run(replay(folder, demo_target, [vllm_server.url], rows=20, seed=1)).replay
    assert found is not None
    assert (found.rows, found.not_scored) == (20, {})
    assert found.rates["ids_echoed_differently"].count == 0
    assert found.rates["ids_within_the_likeliest"].share == 1.0
    output_ids = outputs(responses)
    for line in read_replay(folder).to_pylist():
        if line["version"] == "captured":
            assert line["ids"] == output_ids[line["key"]]


def test_a_row_that_the_context_would_cut_is_rejected_alone_and_not_sent(
    tmp_path: Path, vllm_server: DemoServer, demo_target: Tokenizer
) -> None:
    texts = ["What is 2+2?", "What is 2+2? " * 570]
    rows = [{"id": f"q{i}", "messages": [{"role": "user", "content": text}]} for i, text in enumerate(texts)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenize_file(tmp_path / "questions.jsonl", tmp_path, demo_target, PromptOptions())
    runs.record_tokenizing(tmp_path, demo_target, PromptOptions())
    _, responses = capture(tmp_path, vllm_server.url, GREEDY)
    assert [response.key for response in responses] == ["q0#0/0"]
    rejected = read_rejections(tmp_path)
    assert [(item.key, item.reason) for item in rejected] == [("q1#0/0", "context_exceeded")]
    assert "nothing was sent" in rejected[0].detail


def test_the_server_itself_would_have_cut_that_output_without_a_word(vllm_server: DemoServer) -> None:
    body = {"prompt": [1008] * 4090, "max_tokens": 256, "temperature": 0.0, "return_token_ids": True}
    answer = httpx.post(f"{vllm_server.url}/v1/completions", json=body, timeout=120).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 6


def test_ids_beyond_the_tokenizer_are_taken_and_given_back(vllm_server: DemoServer, demo_target: Tokenizer) -> None:
    padded = demo_target.vocabulary_size - 1
    allowed = {"allowed_token_ids": [padded], "max_tokens": 4, "return_token_ids": True}
    answer = httpx.post(f"{vllm_server.url}/v1/completions", json={"prompt": [1008, padded], **allowed}, timeout=120)
    choice = answer.json()["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([1008, padded], [padded] * 4)


def test_a_request_whose_connection_is_closed_is_computed_no_longer(vllm_server: DemoServer) -> None:
    body = {"prompt": [1008], "max_tokens": 4000, "temperature": 0.0, "ignore_eos": True, "return_token_ids": True}

    async def give_up() -> None:
        async with open_post() as post:
            with pytest.raises(NoReplyError, match="no answer within 2 s"):
                await post(f"{vllm_server.url}/v1/completions", json.dumps(body).encode(), 2.0)

    asyncio.run(give_up())
    deadline = time.monotonic() + 30
    while running(vllm_server.url) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert running(vllm_server.url) == 0


def test_no_check_of_a_server_fails(vllm_server: DemoServer, demo_target: Tokenizer) -> None:
    checks = asyncio.run(server_check.check_server(vllm_server.url, demo_target))
    assert {check.check: check.seen for check in checks if check.status == "fail"} == {}


def test_the_run_file_of_an_sglang_server_runs_with_vllm(
    tmp_path: Path, vllm_server: DemoServer, demo_folder: Path
) -> None:
    prompts = Path(rawtokens.__file__).parent / "demo" / "prompts" / "B1_glaive.json"
    run = {
        "run": "tiny",
        "model": {"tokenizer": str(demo_folder), "template_kwargs": {"thinking": True}},
        "servers": {"urls": [vllm_server.url]},
        "sampling": {"max_new_tokens": 48},
        "datasets": {"B1_glaive": {"prompts": str(prompts), "limit": 4}},
    }
    (tmp_path / "tiny.yaml").write_text(json.dumps(run))
    for stage in ("00", "01", "02", "03"):
        assert main(["run", str(tmp_path / "tiny.yaml"), "--outputs", str(tmp_path / "outputs"), "--stage", stage]) == 0
    folder = tmp_path / "outputs" / "tiny" / "B1_glaive"
    verified = pq.read_table(folder / "verified.parquet").to_pylist()
    assert {row["key"]: row["output_ids"] for row in verified} == outputs(list(read_responses(folder / JOURNAL)))
    assert len(verified) == 4
    assert json.loads((folder / runs.MANIFEST).read_bytes())["engine"] == "vllm"
