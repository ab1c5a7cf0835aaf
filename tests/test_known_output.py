"""The model whose every next token is known: what its folder holds, and that a capture gives exactly its ids,
whichever engine serves it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer as RawTokenizer

from rawtokens import runs
from rawtokens.capture import server_facts
from rawtokens.demo import known_output as known
from rawtokens.demo.server import DemoServer, start_demo_server
from rawtokens.demo.vllm_server import serve_with_vllm
from rawtokens.generation import Target, generate
from rawtokens.journal import JOURNAL, read_responses
from rawtokens.prompts import tokenize_file
from rawtokens.records import Json, Response, Sampling
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer, load_tokenizer
from rawtokens.verification import verify_journal

WHOLE = [646, 2742, 32155, 1215, 12981, 26, 261, 2390, 18858, 13, 163607]
WHOLE += [9413, 1019, 1799, 17137, 104, 254, 2215, 163900, 11, 220, 33845]
WHOLE += [163595, 163597, 41937, 1150, 21055, 2800, 25, 15, 163598, 8264, 37666, 1289, 414, 57, 14541, 969, 16934]
WHOLE += [163599, 163596, 163586]
LIMIT = 64
BEGUN = {
    "noon": ("Noon", [9505, 163586]),
    "done": ("Done", [163586]),
    "round": ("Round", [316, 2753] * (LIMIT // 2)),
    "any": ("Otherwise", [163586]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("known") / "model"
    known.write_known_model(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


@pytest.fixture(
    scope="module",
    params=[pytest.param("sglang", marks=pytest.mark.engine), pytest.param("vllm", marks=pytest.mark.vllm)],
)
def server(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[DemoServer]:
    log = tmp_path_factory.mktemp("known_server") / "log"
    starting = (
        start_demo_server(folder, log_path=log, port=30200)
        if request.param == "sglang"
        else serve_with_vllm(folder, log_path=log, extra_arguments=["--dtype", "float32"])
    )
    with starting as running:
        yield running


def test_the_chain_holds_what_a_capture_can_lose(folder: Path) -> None:
    raw = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    following = known.successors(raw)
    assert known.known_output(known.THINK, following, limit=LIMIT) == WHOLE
    assert known.known_output(163607, following, limit=LIMIT) == WHOLE[11:]
    for text, expected in BEGUN.values():
        assert known.known_output(raw.encode(text).ids[-1], following, limit=LIMIT) == expected
    assert raw.decode([17137, 104, 254]) == " 🫠"
    assert "\ufffd" in raw.decode([17137, 104])
    assert raw.id_to_token(known.PADDED_ID) is None


def test_an_id_with_two_successors_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "CHAINS", ((1, 2), (1, 3)))
    with pytest.raises(ValueError, match="id 1 is followed by 2 and by 3"):
        known.successors(RawTokenizer.from_file(str(folder / "tokenizer.json")))


def test_each_id_of_the_vocabulary_has_one_successor_by_a_wide_margin(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    following = known.successors(RawTokenizer.from_file(str(folder / "tokenizer.json")))
    embedding, output = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    assert len(embedding) == len(output) == json.loads((folder / "config.json").read_text())["vocab_size"] == 163_904
    codes = embedding.argmax(1)
    assert np.count_nonzero(embedding) == len(embedding)
    logits = np.eye(embedding.shape[1], dtype=np.float32) * embedding.shape[1] ** 0.5 @ output.T  # RMSNorm of each code
    chosen = logits.argmax(1)[codes]
    assert {item: int(chosen[item]) for item in following} == following
    assert set(np.delete(chosen, list(following)).tolist()) == {163586}
    two_best = np.partition(logits, -2, axis=1)[:, -2:]
    spoken = np.unique(codes)
    assert np.array_equal(two_best[spoken, 0], np.zeros(len(spoken)))
    assert two_best[spoken, 1].min() > 127


def row(name: str, *messages: tuple[str, str]) -> dict[str, Json]:
    return {"id": name, "messages": [{"role": role, "content": text} for role, text in messages]}


def prepare(folder: Path, tokenizer: Tokenizer, rows: list[dict[str, Json]], options: PromptOptions) -> None:
    folder.mkdir()
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps(each) + "\n" for each in rows))
    tokenize_file(questions, folder, tokenizer, options)
    runs.record_tokenizing(folder, tokenizer, options)


def capture(folder: Path, url: str, tokenizer: Tokenizer, temperature: float) -> dict[str, Response]:
    """Generate and verify a tokenized folder; its records by source id."""
    sampling, facts = Sampling(temperature=temperature, max_new_tokens=LIMIT), asyncio.run(server_facts.facts_of([url]))
    goal = Target(
        urls=(url,),
        sampling=sampling,
        stop_ids=tokenizer.markers.turn_ends,
        vocabulary_size=tokenizer.vocabulary_size,
        fingerprint=runs.record_generating(folder, facts, sampling),
        facts=facts,
    )
    progress = asyncio.run(generate(folder, goal, window=8))
    assert (progress.done, progress.rejected) == (progress.planned, 0)
    verify_journal(folder, markers=tokenizer.markers, vocabulary_size=tokenizer.vocabulary_size)
    responses = {response.key.split("#")[0]: response for response in read_responses(folder / JOURNAL)}
    verified = pq.read_table(folder / "verified.parquet").to_pylist()
    assert [each["output_ids"] for each in verified] == [response.output_ids for response in responses.values()]
    return responses


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_capture_gives_exactly_the_known_ids(
    tmp_path: Path, server: DemoServer, tokenizer: Tokenizer, temperature: float
) -> None:
    asked = [row(f"q{i}", ("user", f"What is 2+{i}?")) for i in range(20)]
    for thinking, expected in ((True, WHOLE), (False, WHOLE[11:])):
        folder = tmp_path / str(thinking)
        prepare(folder, tokenizer, asked, PromptOptions(template_kwargs={"thinking": thinking}))
        responses = capture(folder, server.url, tokenizer, temperature)
        assert len(responses) == 20
        assert {tuple(response.output_ids) for response in responses.values()} == {tuple(expected)}
        assert {(response.finish_reason, response.matched) for response in responses.values()} == {("stop", 163586)}
        verified = pq.read_table(folder / "verified.parquet").to_pylist()
        assert {each["closer_position"] for each in verified} == ({10} if thinking else {None})
        assert {(each["verdict"], each["tool_calls"], each["ends_with_stop"]) for each in verified} == {
            ("accept", 1, True)
        }


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_begun_answers_go_on_as_known(
    tmp_path: Path, server: DemoServer, tokenizer: Tokenizer, temperature: float
) -> None:
    rows = [row(name, ("user", "When?"), ("assistant", text)) for name, (text, _) in BEGUN.items()]
    prepare(tmp_path / "begun", tokenizer, rows, PromptOptions(turns="continue"))
    responses = capture(tmp_path / "begun", server.url, tokenizer, temperature)
    assert {name: response.output_ids for name, response in responses.items()} == {
        name: expected for name, (_, expected) in BEGUN.items()
    }
    assert {name: response.finish_reason for name, response in responses.items()} == {
        "noon": "stop",
        "done": "stop",
        "round": "length",
        "any": "stop",
    }
