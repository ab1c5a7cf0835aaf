"""The tests' own tokenizers: exact ids, as the families' published tokenizers give them."""

from collections.abc import Callable
from typing import Any

import pytest
import real_tokenizers

from rawtokens.target.target_tokenizer import Tokenizer

TEXT = "naïve  don't 12345\n\tdef f(x): 你好，世界 🙂"
DEEPSEEK = [2720, 91223, 223, 2090, 1664, 223, 6895, 1883, 201, 62783, 285, 4042, 2605, 223, 30594, 303, 3427, 68139]
QWEN3 = [3376, 37572, 586, 220, 1513, 944, 220, 16, 17, 18, 19, 20, 198, 7452, 282, 2075, 1648, 220, 108386, 3837]
GLM45 = [3376, 37377, 586, 220, 1513, 944, 220, 108714, 100461, 198, 7452, 282, 2075, 1648, 101726, 98384, 3837, 99011]
GPT_OSS = [1503, 9954, 737, 220, 4128, 220, 7633, 2548, 198, 23154, 285, 4061, 3127, 220, 177519, 979, 28428, 26192]
IDS = {
    "qwen3": [*QWEN3, 99489, 27484],
    "deepseek_r1": DEEPSEEK,
    "deepseek_v4": DEEPSEEK,
    "glm45": [*GLM45, 27392],
    "gpt_oss": GPT_OSS,
}
CONTROL_IDS = {
    "qwen3": {"<|im_end|>": 151645, "<tool_call>": 151657, "<think>": 151667, "</think>": 151668},
    "deepseek_r1": {"<｜User｜>": 128803, "<think>": 128798, "</think>": 128799, "<｜tool▁sep｜>": 128814},
    "deepseek_v4": {"<｜User｜>": 128803, "<think>": 128821, "</think>": 128822, "｜DSML｜": 128825},
    "glm45": {"<|endoftext|>": 151329, "<|user|>": 151336, "<|observation|>": 151338, "<think>": 151350}
    | {"</think>": 151351, "<tool_call>": 151352, "</tool_call>": 151353, "/nothink": 151360, "<|video|>": 151364},
    "gpt_oss": {"<|return|>": 200002, "<|channel|>": 200005, "<|end|>": 200007, "<|message|>": 200008}
    | {"<|call|>": 200012, "<|start|>": 200006, "<|constrain|>": 200003},
}
QUESTION = [{"role": "user", "content": "What is 2+2?"}]
ENGLISH = [3838, 374, 220, 17, 10, 17, 30]  # the question in Qwen3's and GLM's ids
PROMPTS: list[tuple[str, dict[str, Any], list[int]]] = [
    ("qwen3", {}, [151644, 872, 198, *ENGLISH, 151645, 198, 151644, 77091, 198]),
    (
        "qwen3",
        {"enable_thinking": False},
        [151644, 872, 198, *ENGLISH, 151645, 198, 151644, 77091, 198, 151667, 271, 151668, 271],
    ),
    ("qwen3_thinking", {}, [151644, 872, 198, *ENGLISH, 151645, 198, 151644, 77091, 198, 151667, 198]),
    ("deepseek_r1", {}, [0, 128803, 3085, 344, 223, 20, 13, 20, 33, 128804, 128798, 201]),
    ("deepseek_v31", {}, [0, 128803, 3085, 344, 223, 20, 13, 20, 33, 128804, 128799]),
    ("deepseek_v31", {"thinking": True}, [0, 128803, 3085, 344, 223, 20, 13, 20, 33, 128804, 128798]),
    ("deepseek_v4", {}, [0, 128803, 3085, 344, 223, 20, 13, 20, 33, 128804, 128822]),
    ("deepseek_v4", {"thinking": True}, [0, 128803, 3085, 344, 223, 20, 13, 20, 33, 128804, 128821]),
    ("glm45", {}, [151331, 151333, 151336, 198, *ENGLISH, 151337]),
    ("glm45", {"enable_thinking": False}, [151331, 151333, 151336, 198, *ENGLISH, 151360, 151337, 198, 151350, 151351]),
]


@pytest.mark.parametrize("name", IDS)
def test_a_text_has_the_ids_of_the_published_tokenizer(name: str, family_target: Callable[[str], Tokenizer]) -> None:
    tokenizer = family_target(name).encoder
    assert tokenizer.encode(TEXT, add_special_tokens=False) == IDS[name]
    assert tokenizer.decode(IDS[name]) == TEXT
    for text, number in CONTROL_IDS[name].items():
        assert tokenizer.encode(text, add_special_tokens=False) == [number]


@pytest.mark.parametrize(("name", "arguments", "ids"), PROMPTS)
def test_a_question_has_the_ids_of_the_published_template(
    name: str, arguments: dict[str, Any], ids: list[int], family_target: Callable[[str], Tokenizer]
) -> None:
    tokenizer = family_target(name).encoder
    options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": False, **arguments}
    assert tokenizer.apply_chat_template(QUESTION, **options) == ids


def test_gpt_oss_prompts_hold_the_date_and_end_before_any_channel(family_target: Callable[[str], Tokenizer]) -> None:
    tokenizer = family_target("gpt_oss").encoder
    options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    ids = tokenizer.apply_chat_template(QUESTION, reasoning_effort="high", **options)
    assert ids[-12:] == [200006, 1428, 200008, 4827, 382, 220, 17, 10, 17, 30, 200007, 200006, 173781][-12:]
    text = tokenizer.decode(ids)
    assert "Current date: 20" in text
    assert "Reasoning: high\n\n# Valid channels" in text


def test_kimi_k2_thinking_leaves_the_opener_to_the_model(family_target: Callable[[str], Tokenizer]) -> None:
    tokenizer = family_target(real_tokenizers.KIMI_K2_THINKING).encoder
    options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    ids = tokenizer.apply_chat_template(QUESTION, **options)
    assert ids[:3] == [163594, 14062, 163601]
    assert ids[-15:] == [163586, 163587, 2482, 163601, 5376, 387, 220, 17, 10, 17, 30, 163586, 163588, 69702, 163601]
