"""The replay audit: what is sent and read, what is counted, and a real server that scores its own greedy answers."""

import asyncio
import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawtokens import runs
from rawtokens.capture import server_facts
from rawtokens.demo.server import DemoServer
from rawtokens.engines import sglang_scores, vllm_scores
from rawtokens.engines.answers import Failure
from rawtokens.engines.scores import Asked, Scores
from rawtokens.errors import InputError
from rawtokens.fidelity.audit_records import read_audits
from rawtokens.fidelity.audits import audit_drift
from rawtokens.fidelity.replay import REPLAY_SCHEMA, TIE, read_replay, replay, replay_if_asked, summarise
from rawtokens.fidelity.replay_losses import changes, likelihood_by_position, loss_behind_changes
from rawtokens.generation import Target, generate
from rawtokens.prompts import tokenize_file
from rawtokens.records import Json, Sampling
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.verification import verify_journal

SIZE = 100


def asked(ids: list[int], *, first: int = 1, best: bool = True, served_name: str = "") -> Asked:
    return Asked(ids=ids, first=first, rid="r", vocabulary_size=SIZE, best=best, served_name=served_name)


def answer(scored: list[list[Json]], best: list[Json] | None, prompt_tokens: int) -> bytes:
    meta = {"input_token_logprobs": scored, "input_top_logprobs": best, "prompt_tokens": prompt_tokens}
    return msgspec.json.encode({"meta_info": meta})


def test_a_request_scores_from_the_first_output_id_and_generates_nothing() -> None:
    body = json.loads(sglang_scores.score_body(asked([5, 6, 7], first=2)))
    assert (body["input_ids"], body["logprob_start_len"], body["top_logprobs_num"]) == ([5, 6, 7], 1, 1)
    assert body["sampling_params"]["max_new_tokens"] == 0
    assert json.loads(sglang_scores.score_body(asked([5, 6], best=False)))["top_logprobs_num"] == 0


@pytest.mark.parametrize(
    ("ids", "first"), [([], 1), ([1, -1], 1), ([1, SIZE], 1), ([1, 2**40], 1), ([1, 2], 0), ([1, 2], 2)]
)
def test_what_would_kill_the_server_or_scores_nothing_is_never_sent(ids: list[int], first: int) -> None:
    with pytest.raises(InputError, match="score"):
        asked(ids, first=first)


def test_scores_are_read_and_the_last_id_of_the_vocabulary_is_excused() -> None:
    scored: list[list[Json]] = [[None, 5, None], [-1.0, 6, None], [-2.0, 0, None], [-3.0, 8, None]]
    best: list[Json] = [None, [[-0.5, 6, None]], [[-0.25, 3, None]], [[-3.0, 8, None]]]
    found = sglang_scores.parse_scores(200, answer(scored, best, 5), asked([4, 5, 6, SIZE - 1, 7], first=2))
    assert isinstance(found, Scores)
    assert found.logprobs.tolist() == [-1.0, -2.0, -3.0]
    assert found.best.tolist() == [-0.5, -0.25, -3.0]
    assert (found.masked, found.echo_differs) == ([3], [4])


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, b'{"error": {"message": "too long"}}', "http_400"),
        (200, b"{", "malformed_answer"),
        (200, answer([[None, 1, None], [-1.0, 2, None]], [None, [[-1.0, 2, None]]], 3), "counts_differ"),
        (200, answer([[None, 1, None]], [None], 2), "counts_differ"),
        (200, answer([[None, 1, None], [-1.0, 2, None]], None, 2), "counts_differ"),
        (200, answer([[None, 1, None], [None, 2, None]], [None, [[-1.0, 2, None]]], 2), "scores_missing"),
    ],
)
def test_an_answer_that_is_no_score_says_why(status: int, body: bytes, reason: str) -> None:
    found = sglang_scores.parse_scores(status, body, asked([1, 2]))
    assert isinstance(found, Failure)
    assert found.reason == reason


def vllm_answer(places: list[Json], prompt_tokens: int) -> bytes:
    return msgspec.json.encode({"choices": [{"prompt_logprobs": places}], "usage": {"prompt_tokens": prompt_tokens}})


def test_vllm_is_asked_for_each_place_of_the_prompt_under_the_name_that_it_serves() -> None:
    body = json.loads(vllm_scores.score_body(asked([5, 6, 7], best=False, served_name="m")))
    assert (body["prompt"], body["prompt_logprobs"], body["max_tokens"], body["model"]) == ([5, 6, 7], 0, 1, "m")
    assert json.loads(vllm_scores.score_body(asked([5, 6])))["prompt_logprobs"] == 1


def test_vllms_scores_are_read_from_the_first_output_id_on_and_an_id_of_its_own_is_told() -> None:
    places: list[Json] = [
        None,
        {"6": {"logprob": -9.0, "rank": 4}},
        {"7": {"logprob": -0.5, "rank": 1, "decoded_token": "x"}},
        {"8": {"logprob": -2.0, "rank": 3}, "9": {"logprob": -0.25, "rank": 1}},
        {"3": {"logprob": -1.0, "rank": 1}},
    ]
    found = vllm_scores.parse_scores(200, vllm_answer(places, 5), asked([5, 6, 7, 8, 4], first=2))
    assert isinstance(found, Scores)
    assert found.logprobs.tolist() == [-0.5, -2.0, -1.0]
    assert found.best.tolist() == [-0.5, -0.25, -1.0]
    assert (found.masked, found.echo_differs) == ([], [4])


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, b'{"error": {"message": "too long"}}', "http_400"),
        (200, b"{", "malformed_answer"),
        (200, vllm_answer([None, {"2": {"logprob": -1.0}}], 3), "counts_differ"),
        (200, vllm_answer([None], 2), "counts_differ"),
        (200, vllm_answer([None, {"2": {"logprob": None}}], 2), "scores_missing"),
        (200, vllm_answer([None, None], 2), "scores_missing"),
    ],
)
def test_a_vllm_answer_that_is_no_score_says_why(status: int, body: bytes, reason: str) -> None:
    found = vllm_scores.parse_scores(status, body, asked([1, 2]))
    assert isinstance(found, Failure)
    assert found.reason == reason


def line(version: str, ids: list[int], logprobs: list[float], places: list[int], **others: Json) -> dict[str, Json]:
    best = [0.0] * len(ids) if version == "captured" else []
    common: dict[str, Json] = {"key": "a", "drawn": True, "best_logprobs": best, "echo_differs": 0, "masked": 0}
    return {**common, "version": version, "ids": ids, "logprobs": logprobs, "places": places, **others}


def scores_table(*lines: dict[str, Json]) -> pa.Table:
    return pa.Table.from_pylist(list(lines), schema=REPLAY_SCHEMA)


CAPTURED = line("captured", [1, 2, 3, 4], [-0.5, -1.0, -0.25, -0.0625], [0, 1, 2, 3])
RETOKENISED = line("retokenised", [1, 9, 4], [-0.5, -8.0, -1.0625], [0, -1, -1, 2])
RERENDERED = line("rerendered", [4], [-4.0625], [-1, -1, -1, 0])


def test_a_change_costs_what_its_ids_lose_together() -> None:
    (found,) = changes(scores_table(CAPTURED, RETOKENISED, RERENDERED))
    assert (found.key, found.position, found.was, found.becomes) == ("a", 1, [2, 3], [9])
    assert found.loss == 6.75


def test_ids_behind_a_change_are_compared_with_themselves() -> None:
    table = loss_behind_changes(scores_table(CAPTURED, RETOKENISED, RERENDERED))
    assert table.to_dict("records") == [
        {"version": "rerendered", "distance": 0, "ids": 1, "loss": 4.0},
        {"version": "retokenised", "distance": 0, "ids": 1, "loss": 1.0},
    ]


def test_a_row_without_another_version_counts_as_captured() -> None:
    table = likelihood_by_position(scores_table(CAPTURED, RETOKENISED))
    assert table["ids"].sum() == 4
    assert table["captured"].tolist() == table["rerendered"].tolist() == [-0.5, -1.0, -0.25, -0.0625]
    assert np.isnan(table["retokenised"].tolist()[1])
    assert table["retokenised"].tolist()[3] == -1.0625


def test_nothing_scored_gives_empty_tables() -> None:
    empty = scores_table()
    assert (len(likelihood_by_position(empty)), len(loss_behind_changes(empty)), changes(empty)) == (0, 0, [])
    assert summarise(empty, seed=1, not_scored={}, temperature=None, model=None).log_likelihood is None


def test_only_drawn_rows_count_in_the_rates() -> None:
    added = line("captured", [5], [-9.0], [0], key="b", drawn=False)
    found = summarise(scores_table(CAPTURED, RETOKENISED, added), seed=1, not_scored={}, temperature=0.0, model="m")
    assert (found.rows, found.added_rows, found.ids) == (1, 1, 4)
    assert found.log_likelihood == pytest.approx(-1.8125 / 4)
    assert found.rates["ids_within_the_likeliest"].count == 1  # -0.0625, a tie in bf16
    assert found.rates["ids_likeliest"].count == 0
    assert found.versions == {"captured": 2, "retokenised": 1}


@pytest.fixture(scope="module")
def captured(demo_server: DemoServer, demo_target: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four greedy answers of the real server in float32, verified."""
    folder = tmp_path_factory.mktemp("captured")
    questions = ["What is 2+2?", "What is 17 + 25?", "How many minutes are 3 hours?", "What is 9 + 8?"]
    rows = [{"id": f"q{i}", "messages": [{"role": "user", "content": text}]} for i, text in enumerate(questions)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenize_file(folder / "questions.jsonl", folder, demo_target, PromptOptions())
    runs.record_tokenizing(folder, demo_target, PromptOptions())
    sampling = Sampling(temperature=0.0, max_new_tokens=96)
    facts = asyncio.run(server_facts.facts_of([demo_server.url]))
    goal = Target(
        urls=(demo_server.url,),
        sampling=sampling,
        stop_ids=demo_target.markers.turn_ends,
        vocabulary_size=demo_target.vocabulary_size,
        fingerprint=runs.record_generating(folder, facts, sampling),
        facts=facts,
    )
    asyncio.run(generate(folder, goal, window=4))
    verify_journal(folder, markers=demo_target.markers, vocabulary_size=demo_target.vocabulary_size)
    audit_drift(folder, demo_target)
    return folder


@pytest.mark.engine
def test_a_server_finds_its_own_greedy_ids_the_likeliest(
    captured: Path, demo_server: DemoServer, demo_target: Tokenizer
) -> None:
    before = (captured / "verified.parquet").read_bytes()
    found = asyncio.run(replay(captured, demo_target, [demo_server.url], rows=3, seed=1)).replay
    assert found is not None
    assert (found.rows, found.temperature, found.not_scored) == (3, 0.0, {})
    assert found.rates["ids_echoed_differently"].count == 0
    assert found.rates["ids_within_the_likeliest"].share == 1.0  # float32: 0 of 2,048 differed
    assert found.log_likelihood is not None
    assert -math.log(2) < found.log_likelihood < 0
    verified = {row["key"]: row["output_ids"] for row in pq.read_table(captured / "verified.parquet").to_pylist()}
    lines = [row for row in read_replay(captured).to_pylist() if row["version"] == "captured"]
    for row in lines:
        assert row["ids"] == verified[row["key"]]
        assert all(best - own <= TIE for own, best in zip(row["logprobs"], row["best_logprobs"], strict=True))
    assert found.ids == sum(len(row["ids"]) for row in lines)
    assert found.versions["rerendered"] == 3  # the template drops the reasoning of each
    assert (captured / "verified.parquet").read_bytes() == before


@pytest.mark.engine
def test_an_answer_is_less_likely_without_its_reasoning(
    captured: Path, demo_server: DemoServer, demo_target: Tokenizer
) -> None:
    asyncio.run(replay(captured, demo_target, [demo_server.url], rows=4, seed=1))
    losses = loss_behind_changes(read_replay(captured))
    assert set(losses["version"]) == {"rerendered"}
    assert float((losses["loss"] * losses["ids"]).sum() / losses["ids"].sum()) > 0.1


@pytest.mark.engine
@pytest.mark.parametrize("wrong", ["another model", "no server", "not asked"])
def test_without_the_capture_s_server_the_audits_say_so(
    captured: Path, demo_server: DemoServer, demo_target: Tokenizer, wrong: str
) -> None:
    told = {
        "another model": "its model is 'model', not 'other'",
        "no server": "no server answers",
        "not asked": "not asked",
    }
    url = "http://127.0.0.1:1" if wrong == "no server" else demo_server.url
    kept = (captured / "run.json").read_bytes()
    if wrong == "another model":
        (captured / "run.json").write_text(json.dumps({**json.loads(kept), "model": "other"}))
    try:
        rows = 0 if wrong == "not asked" else 2
        audits = asyncio.run(replay_if_asked(captured, demo_target, json.dumps([url]), rows=rows))
    finally:
        (captured / "run.json").write_bytes(kept)
    assert told[wrong] in audits.replay_note
    assert read_audits(captured) == audits
