"""The same question asked as ids and as chat; notebook 00 tells its story with it."""

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest
from faulty_proxies import ANSWER, PatientServer, Proxy

from rawtokens.demo.server import DemoServer
from rawtokens.server_checks.chat_comparison import (
    TOOL,
    TOOL_QUESTION,
    TwoVoices,
    ask_both_ways,
    lost_markers,
    parser_takeaway,
    voices_table,
    voices_takeaway,
)
from rawtokens.target.target_tokenizer import Tokenizer

URL = "http://one:1"
KEY = "k-not-to-be-told"
CLOSER, STOP = 163607, 163586


def refuse() -> httpx.Response:
    raise httpx.ConnectError("refused")


def asked(target: Tokenizer, path: str, reply: Callable[[], httpx.Response]) -> TwoVoices:
    """Both ways, with `reply` in place of the answer of one route."""
    transport = Proxy(PatientServer(target), question=lambda route, _: reply() if route == path else None)
    return asyncio.run(ask_both_ways(URL, target, api_key=KEY, transport=transport))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (refuse, "no chat answer (ConnectError)"),
        (lambda: httpx.Response(500, json={"error": {"message": f"no tokenizer {KEY}"}}), "no tokenizer [secret]"),
        (lambda: httpx.Response(200, json={"choices": []}), "no chat answer (ValidationError)"),
        (lambda: httpx.Response(200, text="<html>"), "no chat answer (DecodeError)"),
    ],
)
def test_a_chat_route_that_fails_stops_nothing_and_is_told(
    target: Tokenizer, reply: Callable[[], httpx.Response], words: str
) -> None:
    voices = asked(target, "/v1/chat/completions", reply)
    assert voices.output_ids == ANSWER
    assert voices.chat_problem == words
    assert words in voices_takeaway(voices, target)
    assert voices_table(voices, target)["what is in it"].tolist()[-1] == f"(none: {words})"


@pytest.mark.parametrize("path", ["/generate", "/model_info"])
def test_a_server_that_gives_no_ids_is_told_and_the_table_of_checks_still_comes(target: Tokenizer, path: str) -> None:
    voices = asked(target, path, refuse)
    assert voices.output_ids == []
    assert voices.ids_problem
    assert voices_takeaway(voices, target).startswith("No ids to compare with: ")
    assert parser_takeaway(voices, voices).startswith("No ids to compare: ")


def test_the_key_is_in_nothing_that_is_shown(target: Tokenizer) -> None:
    message = {"content": KEY, "reasoning_content": f"a {KEY}", "tool_calls": [{"id": KEY}]}
    voices = asked(
        target, "/v1/chat/completions", lambda: httpx.Response(200, json={"choices": [{"message": message}]})
    )
    assert KEY not in f"{voices} {voices_table(voices, target)} {voices_takeaway(voices, target)}"
    assert voices.chat_content == "[secret]"


def test_both_ways_get_the_runs_template_arguments_and_the_tool(target: Tokenizer) -> None:
    sent: dict[str, dict[str, object]] = {}

    def record(path: str, content: dict[str, object]) -> None:
        sent[path] = json.loads(json.dumps(content))

    transport = Proxy(PatientServer(target), question=record)
    arguments = {"thinking": False}
    voices = asyncio.run(
        ask_both_ways(URL, target, question=TOOL_QUESTION, tools=[TOOL], template_kwargs=arguments, transport=transport)
    )
    assert voices.prompt_ids[-1] == CLOSER
    assert "get_weather" in target.decode(voices.prompt_ids)
    assert sent["/v1/chat/completions"]["chat_template_kwargs"] == arguments
    assert sent["/v1/chat/completions"]["tools"] == [TOOL]
    assert sent["/generate"]["input_ids"] == voices.prompt_ids


def test_another_models_ids_are_never_sent(family_target: Callable[[str], Tokenizer], target: Tokenizer) -> None:
    server = PatientServer(target)
    voices = asyncio.run(ask_both_ways(URL, family_target("gpt_oss"), transport=server))
    assert voices.ids_problem.startswith("another tokenizer")
    assert "/generate" not in server.asked


def test_takeaways_say_what_was_measured(target: Tokenizer) -> None:
    prompt = target.prompt_ids([{"role": "user", "content": "What is 2+2?"}])
    muddled = TwoVoices(prompt_ids=prompt, output_ids=ANSWER, chat_content="all in one", chat_prompt_tokens=15)
    told = voices_takeaway(muddled, target)
    assert "last id is <think> (163606): the template wrote it, and the output ids hold no opener." in told
    assert f"<think> (163606), </think> ({CLOSER}), <|im_end|> ({STOP})." in told
    assert told.endswith("reasoning_content is null: thinking and answer stand in one text.")
    parsed = TwoVoices(
        prompt_ids=prompt, output_ids=ANSWER, chat_content="4", chat_reasoning="sum", chat_prompt_tokens=20
    )
    assert voices_takeaway(parsed, target).endswith(
        "it made 20 ids of the messages, the model's own template makes 15."
    )
    assert parser_takeaway(muddled, parsed) == (
        "Both servers gave the same 20 ids: the parsers changed the chat text and no id."
    )
    other = TwoVoices(prompt_ids=prompt, output_ids=[*ANSWER[:5], 1])
    assert parser_takeaway(muddled, other).startswith("The ids part at position 5:")
    reopened = TwoVoices(prompt_ids=prompt, output_ids=[163606, *ANSWER])
    assert "the output ids hold the opener 1 times" in voices_takeaway(reopened, target)


@pytest.mark.engine
def test_parsers_change_the_chat_text_of_a_tool_call_and_no_id(
    demo_server: DemoServer, parsing_server: DemoServer, demo_target: Tokenizer
) -> None:
    tools = [TOOL]
    plain, parsed = (
        asyncio.run(ask_both_ways(server.url, demo_target, question=TOOL_QUESTION, tools=tools))
        for server in (demo_server, parsing_server)
    )
    assert plain.output_ids == parsed.output_ids
    assert {CLOSER, 163595, 163597, 163598, 163599, 163596, STOP} <= set(plain.output_ids)
    assert 163606 not in plain.output_ids
    assert plain.prompt_ids[-1] == 163606
    assert plain.chat_reasoning is None
    assert "</think>" in plain.chat_content
    assert parsed.chat_reasoning
    assert "get_weather" in parsed.chat_calls
    lost = lost_markers(parsed, demo_target)
    assert {f"</think> ({CLOSER})", "<|tool_calls_section_begin|> (163595)", "<|tool_call_begin|> (163597)"} <= set(
        lost
    )
