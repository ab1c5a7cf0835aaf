"""What the kit relies on, asked of the real SGLang on the CPU with the demo's model."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from rawtokens import runs
from rawtokens.capture import server_facts
from rawtokens.demo.server import DemoServer, weight_version
from rawtokens.generation import Progress, Target, generate
from rawtokens.journal import JOURNAL, read_rejections, read_responses
from rawtokens.prompts import tokenize_file
from rawtokens.records import Json, Response, Sampling
from rawtokens.server_checks import chat_comparison, server_check
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.verification import verify_journal

pytestmark = pytest.mark.engine

CLOSER, STOP = 163607, 163586
TOOL: dict[str, Json] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def write_questions(path: Path, questions: list[str]) -> Path:
    rows = [{"id": f"q{i}", "messages": [{"role": "user", "content": text}]} for i, text in enumerate(questions)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def capture(folder: Path, url: str, target: Tokenizer, sampling: Sampling) -> tuple[Progress, list[Response]]:
    facts = asyncio.run(server_facts.facts_of([url]))
    goal = Target(
        urls=(url,),
        sampling=sampling,
        stop_ids=(STOP,),
        vocabulary_size=target.vocabulary_size,
        fingerprint=runs.record_generating(folder, facts, sampling),
    )
    progress = asyncio.run(generate(folder, goal, window=8))
    return progress, list(read_responses(folder / JOURNAL))


def tokenized(folder: Path, target: Tokenizer, questions: list[str]) -> None:
    tokenize_file(write_questions(folder / "questions.jsonl", questions), folder, target, PromptOptions())
    runs.record_tokenizing(folder, target, PromptOptions())


def generated_ids(url: str, prompt_ids: list[int], count: int = 96) -> list[int]:
    body = {"input_ids": prompt_ids, "sampling_params": {"temperature": 0.0, "max_new_tokens": count}}
    ids: list[int] = httpx.post(f"{url}/generate", json=body, timeout=120).json()["output_ids"]
    return ids


def test_a_server_of_the_right_model_passes_every_check(demo_server: DemoServer, demo_target: Tokenizer) -> None:
    checks = asyncio.run(server_check.check_server(demo_server.url, demo_target))
    assert [check.check for check in checks if check.status != "pass"] == ["vocabulary"]  # SGLang does not tell it
    assert len(checks) == 16


def test_the_weight_version_of_a_record_is_that_of_the_weights(demo_server: DemoServer, demo_folder: Path) -> None:
    facts = asyncio.run(server_facts.facts_of([demo_server.url]))
    assert facts.weight_version == weight_version(demo_folder)


def test_answers_are_captured_to_the_last_id(tmp_path: Path, demo_server: DemoServer, demo_target: Tokenizer) -> None:
    questions = ["What is 2+2?", "What is 17 + 25?", "How many minutes are 3 hours?", "What is 9 + 8?"]
    tokenized(tmp_path, demo_target, questions)
    progress, responses = capture(tmp_path, demo_server.url, demo_target, Sampling(max_new_tokens=200))
    assert (progress.planned, progress.done, progress.rejected) == (4, 4, 0)
    for response in responses:
        assert response.prompt_ids[-1] == 163606
        assert response.prompt_tokens == len(response.prompt_ids)
        assert response.completion_tokens == len(response.output_ids)
        if response.finish_reason == "stop":
            assert response.output_ids[-1] == response.matched == STOP
    summary = verify_journal(tmp_path, markers=demo_target.markers, vocabulary_size=demo_target.vocabulary_size)
    assert summary.rows == 4
    assert summary.verdicts["reject"] == 0


def test_a_second_capture_asks_for_nothing(tmp_path: Path, demo_server: DemoServer, demo_target: Tokenizer) -> None:
    tokenized(tmp_path, demo_target, ["What is 2+2?"])
    _, first = capture(tmp_path, demo_server.url, demo_target, Sampling(max_new_tokens=16))
    progress, second = capture(tmp_path, demo_server.url, demo_target, Sampling(max_new_tokens=16))
    assert second == first
    assert (progress.present, progress.done) == (1, 0)


def test_a_prompt_beyond_the_context_rejects_its_row_alone(
    tmp_path: Path, demo_server: DemoServer, demo_target: Tokenizer
) -> None:
    tokenized(tmp_path, demo_target, ["What is 2+2?", "What is 2+2? " * 2000])
    progress, responses = capture(tmp_path, demo_server.url, demo_target, Sampling(max_new_tokens=16))
    assert [response.key for response in responses] == ["q0#0/0"]
    assert [(item.key, item.reason) for item in read_rejections(tmp_path)] == [("q1#0/0", "context_exceeded")]
    assert progress.rejected == 1


def test_ids_keep_what_chat_text_loses_without_parsers(demo_server: DemoServer, demo_target: Tokenizer) -> None:
    voices = asyncio.run(chat_comparison.ask_both_ways(demo_server.url, demo_target))
    assert voices.prompt_ids[-1] == 163606
    assert CLOSER in voices.output_ids
    assert voices.chat_reasoning is None
    assert "<think>" not in voices.chat_content
    assert f"<|im_end|> ({STOP})" in chat_comparison.lost_markers(voices, demo_target)


def test_parsers_change_the_chat_text_and_no_id(
    demo_server: DemoServer, parsing_server: DemoServer, demo_target: Tokenizer
) -> None:
    prompts = [
        demo_target.prompt_ids([{"role": "user", "content": "What is 2+2?"}]),
        demo_target.prompt_ids([{"role": "user", "content": "What is the weather in Oslo?"}], tools=[TOOL]),
    ]
    for prompt_ids in prompts:
        assert generated_ids(demo_server.url, prompt_ids) == generated_ids(parsing_server.url, prompt_ids)
    voices = asyncio.run(chat_comparison.ask_both_ways(parsing_server.url, demo_target))
    assert CLOSER in voices.output_ids
    assert voices.chat_reasoning
    lost = chat_comparison.lost_markers(voices, demo_target)
    assert {"<think> (163606)", f"</think> ({CLOSER})", f"<|im_end|> ({STOP})"} <= set(lost)
