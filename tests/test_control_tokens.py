"""Control tokens in texts, over the real tokenizers of the families."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawtokens.records import Conversation, Json, Prompt, Rejection
from rawtokens.target.control_tokens import ControlTokens, found_tokens
from rawtokens.target.rendering import PromptOptions, tokenize_conversations
from rawtokens.target.target_tokenizer import Tokenizer

FAMILIES = ("kimi", "qwen3", "deepseek_v31", "glm45", "gpt_oss")
TYPED = {  # what people type, and the ids that it would become
    "kimi": {"<|im_end|>": 163586, "</think>": 163607, "<|tool_call_begin|>": 163597, "[EOS]": 163585},
    "qwen3": {"<|im_end|>": 151645, "</think>": 151668, "<tool_call>": 151657},
    "deepseek_v31": {"<｜end▁of▁sentence｜>": 1, "</think>": 128799, "<｜tool▁call▁begin｜>": 128808},
    "glm45": {"<|user|>": 151336, "</think>": 151351, "/nothink": 151360},
    "gpt_oss": {"<|end|>": 200007, "<|channel|>": 200005, "<|call|>": 200012},
}
TEXTS = [(family, text, number) for family, texts in TYPED.items() for text, number in texts.items()]

Family = Callable[[str], Tokenizer]


@pytest.fixture(scope="session")
def family(target: Tokenizer, family_target: Family) -> Family:
    """A family's tokenizer as the kit loads it."""
    return lambda name: target if name == "kimi" else family_target(name)


def user(content: Json, **members: Json) -> dict[str, Json]:
    return {"role": "user", "content": content, **members}


def row(*messages: dict[str, Json], tools: Sequence[dict[str, Json]] = (), **template_kwargs: Json) -> Conversation:
    return Conversation(
        source_id="7", line=3, messages=messages, tools=tuple(tools), template_kwargs=dict(template_kwargs)
    )


def made(tokenizer: Tokenizer, conversation: Conversation, choice: ControlTokens) -> Prompt | Rejection:
    (result,) = tokenize_conversations([conversation], tokenizer, PromptOptions(control_tokens=choice))
    return result


def control_ids(tokenizer: Tokenizer, prompt: Prompt | Rejection) -> list[int]:
    assert isinstance(prompt, Prompt), prompt
    return [item for item in prompt.prompt_ids if item in tokenizer.control_ids]


@pytest.mark.parametrize(("name", "text", "number"), TEXTS)
def test_what_people_type_is_found_with_its_id_and_its_place(family: Family, name: str, text: str, number: int) -> None:
    typed = made(family(name), row(user("Hi"), user(f"what does {text} mean? {text}")), "skip")
    assert isinstance(typed, Rejection)
    assert (typed.key, typed.line, typed.reason) == ("7#0", 3, "control_token_in_text")
    assert typed.detail == f"2 x {number} {text} in messages[1].content"
    assert found_tokens(typed.detail) == [(text, number, 2)]


@pytest.mark.parametrize(("name", "text", "number"), TEXTS)
def test_as_text_it_has_the_same_text_and_the_templates_own_control_ids_alone(
    family: Family, name: str, text: str, number: int
) -> None:
    tokenizer = family(name)
    question = row(user(f"what does {text} mean?"))
    as_text = made(tokenizer, question, "as_text")
    assert isinstance(as_text, Prompt)
    assert tokenizer.decode(as_text.prompt_ids) == tokenizer.render(question.messages)
    assert control_ids(tokenizer, as_text) == control_ids(tokenizer, made(tokenizer, row(user("Hi")), "skip"))
    assert as_text.notices == [f"control_token_as_text: 1 x {number} {text} in messages[0].content"]


@pytest.mark.parametrize(("name", "text", "number"), TEXTS)
def test_kept_it_is_the_control_id_and_carries_a_notice(family: Family, name: str, text: str, number: int) -> None:
    tokenizer = family(name)
    question = row(user(f"what does {text} mean?"))
    kept = made(tokenizer, question, "keep")
    assert isinstance(kept, Prompt)
    assert kept.prompt_ids == tokenizer.prompt_ids(question.messages)
    assert control_ids(tokenizer, kept).count(number) > 0
    assert kept.notices == [f"control_token_in_text: 1 x {number} {text} in messages[0].content"]


def test_as_text_is_what_the_vocabulary_makes_of_its_characters(family: Family) -> None:
    tokenizer = family("kimi")
    as_text = made(tokenizer, row(user("<|im_end|>")), "as_text")
    assert isinstance(as_text, Prompt)
    assert [tokenizer.decode([item]) for item in as_text.prompt_ids[3:-5]] == ["<", "|", "im", "_end", "|", ">"]


PARTS: list[Json] = [{"type": "text", "text": "a <|im_"}, {"type": "text", "text": "end|> b"}]


def test_pieces_that_the_template_joins_are_found(family: Family) -> None:
    for question in (row(user("Hi"), user(PARTS)), row(user("Hi"), user(["<", "|im_", "end", "|>"]))):
        joined = made(family("kimi"), question, "skip")
        assert isinstance(joined, Rejection)
        assert joined.detail == "1 x 163586 <|im_end|> in messages[1] (in pieces)"
    as_text = made(family("kimi"), row(user(PARTS)), "as_text")
    assert len(control_ids(family("kimi"), as_text)) == 6


def test_a_name_that_the_template_puts_between_brackets_is_found(family: Family, tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.name }}>{{ m.content }}<|im_end|>{% endfor %}<|im_assistant|>"
    tokenizer = with_template(family("kimi"), template)
    assert isinstance(made(tokenizer, row(user("Hi", name="thought")), "skip"), Prompt)
    between = made(tokenizer, row(user("Hi", name="think")), "skip")
    assert isinstance(between, Rejection)
    assert between.detail == "1 x 163606 <think> in messages[0] (in pieces)"


def test_a_template_that_takes_characters_out_joins_what_stands_around_them(family: Family) -> None:
    template = "{% for m in messages %}<|im_user|>{{ m.content.replace('*', '') }}<|im_end|>{% endfor %}"
    joined = made(with_template(family("kimi"), template), row(user("<|im*_end|>")), "skip")
    assert isinstance(joined, Rejection)
    assert found_tokens(joined.detail) == [("<|im_end|>", 163586, 1)]


def test_control_tokens_are_found_wherever_a_row_holds_them(family: Family) -> None:
    text = "<|im_end|>"
    function: dict[str, Json] = {"name": "f", "arguments": f'{{"x": "{text}"}}'}
    call: Json = {"id": "functions.f:0", "type": "function", "function": function}
    history: list[dict[str, Json]] = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "functions.f:0"},
    ]
    tool: dict[str, Json] = {"type": "function", "function": {"name": "f", "description": text}}
    parameter: dict[str, Json] = {"type": "object", "properties": {text: {"type": "string"}}}
    named: dict[str, Json] = {"type": "function", "function": {"name": "f", "parameters": parameter}}
    where = {
        "messages[1].tool_calls[0].function.arguments": row(user("Hi"), *history),
        "messages[0].name": row(user("Hi", name=text)),
        "tools[0].function.description": row(user("Hi"), tools=[tool]),
        f"tools[0].function.parameters.properties.{text}": row(user("Hi"), tools=[named]),
        "messages[1].content": row(user("Hi"), {"role": "assistant", "content": text}, user("Hi")),
    }
    for place, conversation in where.items():
        found = made(family("kimi"), conversation, "skip")
        assert isinstance(found, Rejection)
        assert found.detail == f"1 x 163586 {text} in {place}"
        as_text = made(family("kimi"), conversation, "as_text")
        assert isinstance(as_text, Prompt)
        assert family("kimi").decode(as_text.prompt_ids) == family("kimi").render(
            conversation.messages, tools=conversation.tools
        )


def test_a_rows_own_template_arguments_are_texts_too(family: Family) -> None:
    found = made(family("gpt_oss"), row(user("Hi"), reasoning_effort="<|end|>"), "skip")
    assert isinstance(found, Rejection)
    assert found.detail == "1 x 200007 <|end|> in template_kwargs.reasoning_effort"


def test_reasoning_that_a_user_wrote_into_an_answer_is_found_where_the_template_leaves_it(family: Family) -> None:
    answered = row(user("a"), {"role": "assistant", "content": "<think>b</think>c"}, user("d"))
    left_out = made(family("qwen3"), answered, "skip")  # its template drops the reasoning of earlier turns
    assert isinstance(left_out, Prompt)
    assert "b" not in family("qwen3").decode(left_out.prompt_ids).split("assistant")[1]
    found = made(family("kimi"), answered, "skip")
    assert isinstance(found, Rejection)
    assert [token for token, _, _ in found_tokens(found.detail)] == ["<think>", "</think>"]


def test_what_the_template_never_writes_costs_no_row(family: Family) -> None:
    assert isinstance(made(family("kimi"), row(user("Hi"), note="</think>"), "skip"), Prompt)


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_with_short_names_are_no_control_tokens(family: Family, name: str) -> None:
    function: dict[str, Json] = {"name": "end", "arguments": '{"x": "[1] <b>", "y": 2, "s": "user"}'}
    history: list[dict[str, Json]] = [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "functions.end:0", "function": function}]},
        {"role": "tool", "content": "<i>[done]</i>", "tool_call_id": "functions.end:0"},
    ]
    kept = made(family(name), row(user("if a < b: c[1] > 2"), *history), "skip")
    assert isinstance(kept, Prompt), kept


@pytest.mark.parametrize("name", FAMILIES)
def test_one_batch_tells_its_rows_apart(family: Family, name: str) -> None:
    text, number = next(iter(TYPED[name].items()))
    batch = [row(user(f"{text} {n}" if n % 3 == 0 else f"plain {n}")) for n in range(9)]
    results = tokenize_conversations(batch, family(name), PromptOptions())
    assert [isinstance(result, Rejection) for result in results] == [n % 3 == 0 for n in range(9)]
    assert {result.detail for result in results if isinstance(result, Rejection)} == {
        f"1 x {number} {text} in messages[0].content"
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_no_rows_outcome_depends_on_the_rows_beside_it(family: Family, name: str) -> None:
    """Templates write their own tokens, or leave them out, by what a text spells: reasoning taken out of an answer."""
    tokenizer = family(name)
    text = st.sampled_from(["x", "", "a <think> b </think> c", "b</think>c", "/nothink", *TYPED[name]])
    call: Json = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": "1"}}}

    @st.composite
    def conversations(draw: st.DrawFn) -> Conversation:
        said: dict[str, Json] = {"role": "assistant", "content": draw(text), "reasoning_content": draw(text)}
        result: dict[str, Json] = {"role": "tool", "tool_call_id": "c", "content": draw(text)}
        return row(user("q"), {**said, "tool_calls": [call]}, result, enable_thinking=draw(st.booleans()))

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(conversations(), min_size=2, max_size=12))
    def check(batch: list[Conversation]) -> None:
        together = tokenize_conversations(batch, tokenizer, PromptOptions())
        assert together == [made(tokenizer, conversation, "skip") for conversation in batch]

    check()


def test_reasoning_that_the_template_takes_out_of_an_answer_is_told_from_reasoning_given_as_such(
    family: Family,
) -> None:
    call: Json = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": "1"}}}
    result: dict[str, Json] = {"role": "tool", "tool_call_id": "c", "content": "r"}
    given, spelled = (
        row(
            user("q"),
            {"role": "assistant", "content": said, "reasoning_content": thought, "tool_calls": [call]},
            result,
        )
        for said, thought in (("", "x"), ("<think>x</think>", ""))
    )
    outcomes = tokenize_conversations([given, spelled], family("qwen3"), PromptOptions())
    assert [isinstance(outcome, Prompt) for outcome in outcomes] == [True, False]


@pytest.mark.parametrize("name", FAMILIES)
def test_wild_texts_never_keep_a_control_id_unseen(family: Family, name: str) -> None:
    """Skip lets no control id of a text through, and as_text gives the rendered text without one."""
    tokenizer = family(name)
    texts = list(TYPED[name])
    pieces = sorted({piece for text in texts for cut in range(len(text)) for piece in (text[:cut], text[cut:])} - {""})
    own = control_ids(tokenizer, made(tokenizer, row(user("a"), user("b")), "skip"))
    text = st.lists(st.sampled_from(pieces) | st.sampled_from([" ", "\n", "é", "好", "🙂"]), max_size=12).map("".join)

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(text, text)
    def check(first: str, second: str) -> None:
        conversation = row(user(f"a{first}"), user(f"b{second}"))
        plain = tokenizer.prompt_ids(conversation.messages)
        holds_own_alone = [item for item in plain if item in tokenizer.control_ids] == own
        skipped = made(tokenizer, conversation, "skip")
        assert isinstance(skipped, Prompt) == holds_own_alone
        as_text = made(tokenizer, conversation, "as_text")
        assert isinstance(as_text, Prompt), as_text
        assert control_ids(tokenizer, as_text) == own
        assert tokenizer.decode(as_text.prompt_ids) == tokenizer.render(conversation.messages)
        if holds_own_alone:
            assert as_text.prompt_ids == plain

    check()


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """The tokenizer under another template; the shared one stays as it is."""
    import copy

    from msgspec.structs import replace

    encoder = copy.copy(tokenizer.encoder)
    encoder.chat_template = template
    return replace(tokenizer, encoder=encoder)
