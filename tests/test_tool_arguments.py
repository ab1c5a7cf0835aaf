from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rawtokens.records import Conversation, Json, Prompt, Rejection
from rawtokens.target.rendering import PromptOptions, tokenize_conversations
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.target.tool_arguments import Form, wanted_form, with_wanted_form

HEAD = "{% for m in messages %}<|im_user|>{{ m.role }}<|im_middle|>{{ m.content }}{% for c in m.tool_calls or [] %}"
TAIL = "{% endfor %}<|im_end|>{% endfor %}"
NAMED = "{{ c.function.name }}("
TEMPLATES: dict[str, tuple[str, Form]] = {
    "verbatim": (NAMED + "{{ c.function.arguments }})", "text"),
    "added": (NAMED + "{{ '' + c.function.arguments }})", "text"),
    "json": (NAMED + "{{ c.function.arguments | tojson }})", "object"),
    "members": (NAMED + "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %})", "object"),
    "both": (
        NAMED + "{% if c.function.arguments is string %}{{ c.function.arguments }}"
        "{% else %}{{ c.function.arguments | tojson }}{% endif %})",
        "either",
    ),
    "by_id": ("{{ c.id }}({{ c.function.arguments }})", "text"),
    "none": ("", "unread"),
}


@pytest.fixture
def templated(target: Tokenizer) -> Callable[[str], Tokenizer]:
    """Kimi's tokenizer under one of TEMPLATES."""
    import copy

    def under(name: str) -> Tokenizer:
        encoder = copy.copy(target.encoder)
        encoder.chat_template = HEAD + TEMPLATES[name][0] + TAIL
        return replace(target, encoder=encoder)

    return under


def calling(arguments: Json) -> Conversation:
    call: Json = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages: tuple[dict[str, Json], ...] = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "functions.f:0"},
    )
    return Conversation(source_id="7", line=3, messages=messages)


def rendered(tokenizer: Tokenizer, arguments: Json) -> tuple[str, list[str]]:
    (made,) = tokenize_conversations([calling(arguments)], tokenizer, PromptOptions())
    assert isinstance(made, Prompt), made
    return tokenizer.decode(made.prompt_ids), made.notices


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_form_is_found_by_rendering_both(templated: Callable[[str], Tokenizer], name: str) -> None:
    assert wanted_form(templated(name)) == TEMPLATES[name][1]


@pytest.mark.parametrize(
    ("name", "form"),
    [("qwen3", "either"), ("deepseek_v31", "either"), ("deepseek_v4", "object"), ("glm45", "object")],
)
def test_families_want_what_they_want(family_target: Callable[[str], Tokenizer], name: str, form: Form) -> None:
    assert wanted_form(family_target(name)) == form


def test_a_template_that_takes_both_gets_the_files_spelling(target: Tokenizer) -> None:
    assert wanted_form(target) == "either"
    for spelled in ('{"z":1.0,"a":1e3}', '{ "a" : "\\u00e9" }'):
        text, notices = rendered(target, spelled)
        assert spelled in text
        assert notices == []


@pytest.mark.parametrize("name", ["json", "members"])
def test_text_becomes_the_object_with_its_order_and_its_letters(
    templated: Callable[[str], Tokenizer], name: str
) -> None:
    text, notices = rendered(templated(name), '{"z": 1, "a": "é好", "n": {"y": [true, null]}}')
    expected = {
        "json": 'f({"z": 1, "a": "é好", "n": {"y": [true, null]}})',
        "members": "f(z=1a=é好n={'y': [True, None]})",
    }
    assert expected[name] in text
    assert notices == []


def test_an_object_becomes_text_for_a_template_that_adds_texts(templated: Callable[[str], Tokenizer]) -> None:
    text, _ = rendered(templated("added"), {"z": 1, "a": "é"})
    assert 'f({"z": 1, "a": "é"})' in text


@pytest.mark.parametrize(
    ("spelled", "respelled"),
    [
        ('{"a": 1e3}', True),
        ('{"a": 1.10}', True),
        ('{"a": 0.1000000000000000055}', True),
        ('{"a": "\\u00e9"}', True),
        ('{"a": 1, "a": 2}', True),
        ('{"a": "\\/"}', True),
        ('{"a": 1.0}', False),
        ('{"a": 123456789012345678901234567890}', False),
        ('{"a":1,  "b" : [1, 2]}', False),
        ('{"a": "two  spaces \\" inside"}', False),
    ],
)
def test_a_spelling_that_an_object_does_not_keep_is_noticed(
    templated: Callable[[str], Tokenizer], spelled: str, respelled: bool
) -> None:
    _, notices = rendered(templated("json"), spelled)
    assert notices == (["arguments_respelled"] if respelled else [])


@pytest.mark.parametrize("broken", ['{"a": 1', "[1]", '"text"', '{"a": NaN}', ""])
def test_broken_arguments_reject_their_row_alone(templated: Callable[[str], Tokenizer], broken: str) -> None:
    batch = [calling('{"a": 1}'), calling(broken), calling('{"a": 2}')]
    made = tokenize_conversations(batch, templated("json"), PromptOptions())
    assert [isinstance(row, Prompt) for row in made] == [True, False, True]
    assert isinstance(made[1], Rejection)
    assert (made[1].reason, made[1].line) == ("bad_arguments", 3)
    assert "arguments of 'f'" in made[1].detail


def test_calls_that_a_template_leaves_out_are_noticed(templated: Callable[[str], Tokenizer]) -> None:
    text, notices = rendered(templated("none"), '{"a": 1}')
    assert "f(" not in text
    assert notices == ["tool_calls_unread"]


def test_a_conversation_without_calls_stays_the_same_object() -> None:
    plain = Conversation(source_id="7", line=1, messages=({"role": "user", "content": "Hi"},))
    assert with_wanted_form(plain, "object") is plain
