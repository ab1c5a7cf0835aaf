"""The golden question: exact for Kimi-K2.5, said to be the tokenizer's own for others."""

import asyncio
from collections.abc import Callable

import httpx
import pytest
from faulty_proxies import ANSWER, PatientServer, Proxy, chat_only

from rawtokens.records import Json
from rawtokens.server_checks.check_table import Check
from rawtokens.server_checks.golden import GOLDEN_PROMPT, Golden, ask_golden, segment_lines
from rawtokens.target.target_tokenizer import Tokenizer

URL = "http://one:1"
KEY = "k-not-to-be-told"


def golden(tokenizer: Tokenizer, transport: httpx.AsyncBaseTransport, **arguments: Json) -> Golden:
    found = asyncio.run(ask_golden(URL, tokenizer, template_kwargs=arguments, api_key=KEY, transport=transport))
    assert KEY not in repr(found)
    return found


def by_name(found: Golden) -> dict[str, Check]:
    return {check.check: check for check in found.checks}


def test_kimis_prompt_is_exact_and_the_answer_is_split(target: Tokenizer) -> None:
    found = golden(target, PatientServer(target))
    assert [(check.check, check.status) for check in found.checks] == [
        ("golden prompt", "pass"),
        ("golden closer", "pass"),
        ("golden split", "pass"),
    ]
    checks = by_name(found)
    assert checks["golden prompt"].seen == "the 15 published ids exactly"
    assert checks["golden closer"].seen == "closer 163607 at position 12"
    assert checks["golden split"].seen == (
        "20 ids: reasoning 12, closer 1, answer 6, stop id 1; the real Kimi-K2.5 once gave 71, the closer at 61: "
        "informative only"
    )
    assert [item for segment in found.segments for item in segment.ids] == ANSWER
    assert (
        segment_lines(found, target, api_key="user")[0] == "reasoning (12 ids): The [secret] wants me to add 2 and 2."
    )


def test_an_answer_without_a_closer_fails(target: Tokenizer) -> None:
    found = golden(target, PatientServer(target, answer=[1008, 2742, 163586]))
    assert by_name(found)["golden closer"].status == "fail"


def test_a_server_that_takes_no_ids_fails(target: Tokenizer) -> None:
    found = golden(target, Proxy(PatientServer(target), question=chat_only))
    assert by_name(found)["golden answer"].status == "fail"
    assert found.segments == []


def test_another_template_than_kimis_fails(target: Tokenizer) -> None:
    template = target.encoder.chat_template
    assert isinstance(template, str)
    try:
        target.encoder.chat_template = template.replace("<|im_middle|><think>", "<|im_middle|>\n<think>")
        found = golden(target, PatientServer(target))
    finally:
        target.encoder.chat_template = template
    check = by_name(found)["golden prompt"]
    assert check.status == "fail"
    assert f"other than {GOLDEN_PROMPT} from position 14 on" in check.seen


@pytest.mark.parametrize("name", ["qwen3", "kimi_k2_thinking", "glm45", "deepseek_r1"])
def test_other_models_ask_with_their_own_prompt_and_say_so(
    family_target: Callable[[str], Tokenizer], name: str
) -> None:
    tokenizer = family_target(name)
    answer = [5, *tokenizer.markers.closer, 6, tokenizer.markers.turn_ends[0]]
    checks = by_name(golden(tokenizer, PatientServer(tokenizer, answer=answer)))
    assert checks["golden prompt"].status == "pass"
    assert checks["golden prompt"].seen.startswith("not Kimi-K2.5 with its thinking on: no published ids; its own ")
    assert checks["golden closer"].status == "pass"
    assert checks["golden split"].seen.endswith("reasoning 1, closer 1, answer 1, stop id 1")


def test_thinking_off_has_no_published_ids(target: Tokenizer) -> None:
    found = by_name(golden(target, PatientServer(target), thinking=False))
    assert found["golden prompt"].seen.startswith("not Kimi-K2.5 with its thinking on")
    assert found["golden closer"].seen == "the prompt asks for no thinking"
