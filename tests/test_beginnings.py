"""Answers that begin inside their thinking, over the real tokenizers of the families."""

from collections.abc import Callable

import pytest

from rawtokens.records import Conversation, Json, Prompt, Rejection
from rawtokens.target.rendering import PromptOptions, tokenize_conversations
from rawtokens.target.target_tokenizer import Tokenizer

Family = Callable[[str], Tokenizer]
QUESTION: dict[str, Json] = {"role": "user", "content": "What is 2+2?"}


@pytest.fixture(scope="session")
def family(target: Tokenizer, family_target: Family) -> Family:
    """A family's tokenizer as the kit loads it."""
    return lambda name: target if name == "kimi" else family_target(name)


def begun(tokenizer: Tokenizer, last: dict[str, Json], **arguments: Json) -> Prompt | Rejection:
    messages: tuple[dict[str, Json], ...] = (QUESTION, {"role": "assistant", **last})
    row = Conversation(source_id="7", line=3, messages=messages, continue_final=True)
    (made,) = tokenize_conversations([row], tokenizer, PromptOptions(turns="continue", template_kwargs=arguments))
    return made


def asked(tokenizer: Tokenizer, **arguments: Json) -> str:
    """The prompt of the question alone."""
    return tokenizer.render([QUESTION], template_kwargs=arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "spelled", "behind"),
    [  # what the file spells, and what stands behind the generation prompt
        ("kimi", {}, "<think>Let me", "Let me"),
        ("kimi", {}, "<think>\nLet me \n", "\nLet me \n"),
        ("qwen3", {}, "<think>\nLet me", "<think>\nLet me"),
        ("qwen3_thinking", {}, "<think>\nLet me", "Let me"),
        ("qwen3_thinking", {}, "<think>Let me", "Let me"),
        ("deepseek_v31", {"thinking": True}, "<think>Let me", "Let me"),
        ("glm45", {}, "<think>Let me", "<think>Let me"),
    ],
)
def test_thinking_that_has_begun_stands_behind_the_generation_prompt_with_one_opener(
    family: Family, name: str, arguments: dict[str, Json], spelled: str, behind: str
) -> None:
    tokenizer = family(name)
    made = begun(tokenizer, {"content": spelled}, **arguments)
    assert isinstance(made, Prompt), made
    assert tokenizer.decode(made.prompt_ids) == asked(tokenizer, **arguments) + behind
    assert made.prompt_ids == tokenizer.encode([asked(tokenizer, **arguments) + behind])[0]
    assert made.thinking == "opened"
    assert made.notices == ["begins_inside_thinking"]


def test_reasoning_given_as_such_begins_the_thinking_too(target: Tokenizer) -> None:
    made = begun(target, {"content": "", "reasoning_content": "Let me"})
    assert made == begun(target, {"content": "<think>Let me"})


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("kimi", {"thinking": False}),
        ("qwen3", {"enable_thinking": False}),
        ("deepseek_v31", {}),
        ("glm45", {"enable_thinking": False}),
    ],
)
def test_where_the_template_has_closed_the_thinking_none_can_begin(
    family: Family, name: str, arguments: dict[str, Json]
) -> None:
    made = begun(family(name), {"content": "<think>Let me"}, **arguments)
    assert isinstance(made, Rejection)
    assert made.reason == "continue_mismatch"
    assert "which the template has closed" in made.detail


def test_other_control_tokens_in_thinking_that_has_begun_are_found(target: Tokenizer) -> None:
    made = begun(target, {"content": "<think>Let me <|im_end|> <think>"})
    assert isinstance(made, Rejection)
    assert made.detail == (
        "1 x 163586 <|im_end|> in messages[1].reasoning_content; 1 x 163606 <think> in messages[1].reasoning_content"
    )
