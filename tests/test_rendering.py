import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from rawtokens.errors import InputError
from rawtokens.records import Conversation, Json, Prompt, Rejection
from rawtokens.target.rendering import PromptOptions, check_options, tokenize_conversations
from rawtokens.target.target_tokenizer import Tokenizer


def row(number: int, *contents: str) -> Conversation:
    messages: tuple[dict[str, Json], ...] = tuple(
        {"role": "assistant" if place % 2 else "user", "content": content} for place, content in enumerate(contents)
    )
    return Conversation(
        source_id=str(number), line=number + 1, messages=messages, continue_final=len(contents) % 2 == 0
    )


def tokenized(target: Tokenizer, *rows: Conversation, **options: object) -> list[Prompt | Rejection]:
    return tokenize_conversations(rows, target, PromptOptions(**options))  # type: ignore[arg-type]


def reasons(made: Sequence[Prompt | Rejection]) -> list[str]:
    return [row.reason if isinstance(row, Rejection) else "" for row in made]


def test_a_batch_gives_the_ids_of_apply_chat_template_row_by_row(target: Tokenizer) -> None:
    rows = [row(n, f"question {n}", "an answer", "好 🙂\n\n  more" * n) for n in range(5)]
    made = tokenized(target, *rows)
    assert [one.prompt_ids for one in made if isinstance(one, Prompt)] == [
        target.prompt_ids(each.messages) for each in rows
    ]


def test_a_fault_of_one_row_costs_no_other(target: Tokenizer) -> None:
    surrogate, image = row(1, "\ud83d"), row(2, "")
    image = replace(image, messages=({"role": "user", "content": [{"type": "image", "url": "x"}]},))
    made = tokenized(target, row(0, "Hi"), surrogate, image, row(3, "Hi"))
    assert reasons(made) == ["", "tokenizer_error", "template_error", ""]
    assert [one.line if isinstance(one, Rejection) else one.source_id for one in made] == ["0", 2, 3, "3"]
    assert isinstance(made[0], Prompt)
    assert isinstance(made[3], Prompt)
    assert made[0].prompt_ids == made[3].prompt_ids == target.prompt_ids(row(0, "Hi").messages)


def test_what_a_template_raises_is_its_rows_whatever_it_is(target: Tokenizer) -> None:
    import copy

    encoder = copy.copy(target.encoder)
    encoder.chat_template = "{% for m in messages %}{{ 1 // (m.content | length - 2) }}{% endfor %}"
    made = tokenized(replace(target, encoder=encoder), row(0, "Hi"), row(1, "Hello"))
    assert reasons(made) == ["tokenizer_error", ""]


def test_an_answers_beginning_ends_the_prompt(target: Tokenizer) -> None:
    (made,) = tokenized(target, row(0, "What is 2+2?", "2+2 is "))
    assert isinstance(made, Prompt)
    text = (
        "<|im_user|>user<|im_middle|>What is 2+2?<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>2+2 is "
    )
    assert target.decode(made.prompt_ids) == text
    assert made.prompt_ids == target.prompt_ids(row(0, "What is 2+2?", "2+2 is ").messages, continue_final=True)
    assert made.thinking == "off"


def test_the_mode_of_an_answers_beginning_is_read_from_the_rendered_prompt(target: Tokenizer) -> None:
    inside, behind = row(0, "a", "<think>Let me"), row(1, "a", "<think>Let me</think>It")
    assert reasons(tokenized(target, inside, behind)) == ["", "control_token_in_text"]
    made = tokenized(target, inside, behind, control_tokens="keep")
    assert [one.thinking for one in made if isinstance(one, Prompt)] == ["opened", "off"]


CHANGED = {
    "trimmed": "{% for m in messages %}<|im_user|>{{ m.content | trim }}<|im_end|>{% endfor %}",
    "cut": "{% for m in messages %}<|im_user|>{{ m.content.split('#')[0] }}<|im_end|>{% endfor %}",
    "upper": "{% for m in messages %}<|im_user|>{{ m.content | upper }}<|im_end|>{% endfor %}",
    "left out": "{% for m in messages if m.role == 'user' %}<|im_user|>{{ m.content }}<|im_end|>{% endfor %}",
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_template_that_changes_the_beginning_rejects_its_row(target: Tokenizer, name: str) -> None:
    import copy

    encoder = copy.copy(target.encoder)
    encoder.chat_template = CHANGED[name]
    made = tokenized(replace(target, encoder=encoder), row(0, "a", "It is #1 "), row(1, "a"))
    assert reasons(made) == ["continue_mismatch", ""]


def test_an_empty_beginning_is_none(target: Tokenizer) -> None:
    assert reasons(tokenized(target, row(0, "a", ""))) == ["continue_mismatch"]


def test_arguments_are_recorded_in_the_order_of_their_names(target: Tokenizer) -> None:
    own = replace(row(0, "a"), template_kwargs={"thinking": True, "b": 2})
    (made,) = tokenized(target, own, template_kwargs={"z": 1, "b": 1})
    assert isinstance(made, Prompt)
    assert made.template_kwargs == '{"b":2,"thinking":true,"z":1}'
    assert json.loads(made.messages) == [{"role": "user", "content": "a"}]


def test_a_choice_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="control_tokens is 'drop'; expected one of skip, keep, as_text"):
        check_options(PromptOptions(control_tokens="drop"))  # type: ignore[arg-type]
