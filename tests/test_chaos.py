"""A short form of `python tests/chaos`: the real client and the real server, killed and lied to, beside a run in peace.

The fault-injecting proxy and the comparison are tested here too, on answers made up for it.
"""

import json
import random
from pathlib import Path

import httpx
import msgspec
import pytest
from chaos import scenarios
from chaos.altered import NAN, STATUSES, UNDER_200, Answer, error_body
from chaos.ground import JOURNAL, Ground, Outcome
from chaos.proxy import FaultProxy
from chaos.scenarios import Stage
from chaos.tails import TAILS, tear

from rawtokens.demo.server import DemoServer
from rawtokens.engines.answers import Failure, error_text
from rawtokens.engines.sglang import parse_answer
from rawtokens.journal import open_journal, read_responses

WHOLE = Outcome(missing=0, doubled=0, altered=0, rejected=0, lengths_equal=True)
PROMPT = (163587, 17, 18, 19, 20, 21, 22, 163606)
ANSWER: Answer = {
    "output_ids": [1008, 163607, 5, 163586],
    "meta_info": {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": 163586},
        "prompt_tokens": len(PROMPT),
        "completion_tokens": 4,
        "cached_tokens": 0,
        "weight_version": "default",
    },
}


@pytest.fixture
def stage(tmp_path: Path, undisturbed: Ground, demo_server: DemoServer, demo_folder: Path) -> Stage:
    return Stage(
        folder=undisturbed.copy_to(tmp_path / "run"),
        ground=undisturbed,
        servers=[demo_server],
        model=demo_folder,
        chooser=random.Random(5),
        seed=5,
    )


@pytest.mark.engine
def test_a_client_killed_at_any_point_loses_doubles_and_alters_nothing_over_torn_tails(stage: Stage) -> None:
    scenarios.tail_torn(stage, kills=6)
    assert stage.ground.compare(stage.folder) == WHOLE
    assert stage.client_kills >= 4


@pytest.mark.engine
def test_no_fault_of_the_wire_loses_doubles_or_alters_a_row(stage: Stage) -> None:
    scenarios.wire_faults(stage, kills=2, rate=0.3)
    assert stage.ground.compare(stage.folder) == WHOLE
    assert stage.wire.total() >= 8


@pytest.mark.engine
def test_a_server_killed_and_back_costs_no_row(stage: Stage) -> None:
    scenarios.server_killed(stage, ways=["SIGKILL"])
    assert stage.ground.compare(stage.folder) == WHOLE
    assert stage.server_kills == 1


@pytest.mark.engine
def test_signs_of_broken_weights_and_a_refused_key_stop_the_run(stage: Stage) -> None:
    scenarios.must_stop(stage)
    assert stage.ground.compare(stage.folder) == WHOLE


@pytest.mark.parametrize("kind", [*UNDER_200, *NAN])
def test_every_altered_answer_can_be_seen_by_a_client(kind: str) -> None:
    body = {**UNDER_200, **NAN}[kind](ANSWER, PROMPT)
    outcome = parse_answer(200, body, prompt_tokens=len(PROMPT), vocabulary_size=163840, rid="r")
    assert isinstance(outcome, Failure)
    assert outcome.next == ("stop" if kind in NAN else "retry")


@pytest.mark.parametrize("status", STATUSES)
def test_errors_come_in_every_shape_and_are_told(status: int) -> None:
    bodies = {error_body(status, random.Random(seed)) for seed in range(50)}
    assert len(bodies) == 5
    for body in bodies:
        told = error_text(body)
        assert str(status) in told or "Too many" in told or "no_available_workers" in told


def ground(folder: Path, ids: dict[str, list[int]]) -> Ground:
    """An undisturbed journal of these output ids."""
    lines = {
        key: json.dumps(record(key, each), separators=(",", ":"), ensure_ascii=False).encode()
        for key, each in ids.items()
    }
    return Ground(folder=folder, prompt_ids=dict.fromkeys(ids, PROMPT), lines=lines)


def record(key: str, output_ids: list[int]) -> dict[str, object]:
    meta = {"prompt_tokens": len(PROMPT), "completion_tokens": len(output_ids), "cached_tokens": 0}
    made = {"weight_version": "w", "fingerprint": "f", "server": "s", "rid": "r", "attempt": 1, "started_at": "t"}
    start = {"key": key, "prompt_ids": PROMPT, "output_ids": output_ids, "finish_reason": "stop", "matched": 9}
    return {**start, **meta, **made, "latency_s": 1.0}


@pytest.mark.parametrize(
    ("keys", "different"),
    [
        ("abc", {}),
        ("ab", {"missing": 1, "lengths_equal": False}),
        ("abcc", {"doubled": 1, "lengths_equal": False}),
        ("abC", {"missing": 1, "altered": 1}),
        ("", {"missing": 3, "lengths_equal": False}),
    ],
)
def test_the_comparison_sees_what_is_missing_doubled_and_altered(
    tmp_path: Path, keys: str, different: dict[str, int]
) -> None:
    truth = ground(tmp_path, {"a": [1, 9], "b": [2, 2, 9], "c": [3, 9]})
    written = [json.dumps(record(key, {"b": [2, 2, 9]}.get(key, [{"a": 1}.get(key, 3), 9]))) for key in keys]
    (tmp_path / JOURNAL).write_text("".join(f"{line}\n" for line in written))
    assert truth.compare(tmp_path) == msgspec.structs.replace(WHOLE, **different)


def test_the_comparison_sees_one_other_id(tmp_path: Path) -> None:
    truth = ground(tmp_path, {"a": [1, 9]})
    (tmp_path / JOURNAL).write_text(json.dumps(record("a", [2, 9])) + "\n")
    assert truth.compare(tmp_path) == msgspec.structs.replace(WHOLE, altered=1)


@pytest.mark.parametrize("kind", TAILS)
def test_every_torn_tail_leaves_the_rows_before_it_and_is_mended(tmp_path: Path, kind: str) -> None:
    truth = ground(tmp_path, {"a": [1, 9], "数é": [2, 9]})
    whole = truth.lines["a"] + b"\n"
    for seed in range(20):
        (tmp_path / JOURNAL).write_bytes(whole)
        tear(tmp_path, truth, random.Random(seed), kind)
        torn = (tmp_path / JOURNAL).read_bytes()
        assert torn != whole or kind == "half written"  # of which nothing at all may have been written
        with open_journal(tmp_path / JOURNAL):
            pass
        kept = [response.key for response in read_responses(tmp_path / JOURNAL)]
        assert kept == {"cut at any byte": kept[:1], "whole without its newline": ["a", "数é"]}.get(kind, ["a"])
        assert all(key in ("a", "数é") for key in kept)


def test_the_proxy_spoils_the_same_requests_whatever_their_order() -> None:
    prompts = [(1, number) for number in range(200)]
    chosen = []
    for order in (prompts, prompts[::-1]):
        proxy = FaultProxy("http://nowhere", seed=3, rate=0.3)
        proxy._answers[1] = ((9,), b"{}")
        chosen.append({prompt: proxy._chosen(prompt)[0] for prompt in order})
    assert chosen[0] == chosen[1]
    assert 30 <= sum(kind is not None for kind in chosen[0].values()) <= 90


def test_the_proxy_spares_a_prompt_after_three_faults_in_a_row() -> None:
    proxy = FaultProxy("http://nowhere", rate=1.0, kinds=["HTTP 500"])
    kinds = [proxy._chosen((1, 2))[0] for _ in range(8)]
    assert kinds == ["HTTP 500"] * 3 + [None] + ["HTTP 500"] * 3 + [None]


def test_the_proxy_drops_a_connection_whose_server_is_gone() -> None:
    with FaultProxy("http://127.0.0.1:9") as proxy, pytest.raises(httpx.TransportError):
        httpx.post(f"{proxy.url}/generate", json={"input_ids": [1]})
