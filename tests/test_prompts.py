import copy
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from rawtokens.errors import InputError
from rawtokens.journal import read_rejections
from rawtokens.prompts import read_prompts, tokenize_file
from rawtokens.records import PROMPTS_SCHEMA, Conversation, Json, Prompt, Rejection
from rawtokens.target.rendering import PromptOptions, tokenize_conversations
from rawtokens.target.target_tokenizer import Tokenizer

# Published ids of the real Kimi-K2.5 (its first validation).
TWO_PLUS_TWO = [163587, 2482, 163601, 5376, 387, 220, 17, 10, 17, 30, 163586, 163588, 69702, 163601, 163606]
HI = [163587, 2482, 163601, 18699, 163586, 163588, 69702, 163601, 163606]


def conversation(content: str, **template_kwargs: Json) -> Conversation:
    messages: tuple[dict[str, Json], ...] = ({"role": "user", "content": content},)
    return Conversation(source_id="7", line=3, messages=messages, template_kwargs=template_kwargs)


def tokenize_one(row: Conversation, target: Tokenizer, **template_kwargs: Json) -> Prompt | Rejection:
    (made,) = tokenize_conversations([row], target, PromptOptions(template_kwargs=template_kwargs))
    return made


def prompt(target: Tokenizer, content: str, **template_kwargs: Json) -> Prompt:
    made = tokenize_one(conversation(content, **template_kwargs), target)
    assert isinstance(made, Prompt)
    return made


def test_golden_prompts_have_the_published_ids(target: Tokenizer) -> None:
    golden = prompt(target, "What is 2+2?")
    assert (golden.key, golden.prompt_ids, golden.prompt_tokens) == ("7#0", TWO_PLUS_TWO, 15)
    assert golden.thinking == "opened"
    assert prompt(target, "Hi").prompt_ids == HI


def test_thinking_off_is_read_from_the_rendered_prompt(target: Tokenizer) -> None:
    off = prompt(target, "Hi", thinking=False)
    assert off.prompt_ids == [*HI, 163607]
    assert off.thinking == "off"
    assert json.loads(off.template_kwargs) == {"thinking": False}


def test_a_rows_own_arguments_win_over_the_runs(target: Tokenizer) -> None:
    made = tokenize_one(conversation("Hi", thinking=False), target, thinking=True)
    assert isinstance(made, Prompt)
    assert made.thinking == "off"


@pytest.mark.parametrize("token", ["<|im_end|>", "</think>", "<|tool_calls_section_begin|>", "[EOS]"])
def test_a_control_token_in_the_text_rejects_its_row(target: Tokenizer, token: str) -> None:
    made = tokenize_one(conversation(f"what does {token} mean?"), target)
    assert isinstance(made, Rejection)
    assert (made.key, made.line, made.reason) == ("7#0", 3, "control_token_in_text")
    assert token in made.detail


def test_a_control_token_anywhere_in_a_row_is_found(target: Tokenizer) -> None:
    call: Json = {"function": {"name": "f", "arguments": '{"x": "</think>"}'}}
    history: dict[str, Json] = {"role": "assistant", "content": "", "tool_calls": [call]}
    row = conversation("Hi")
    tool: dict[str, Json] = {"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}
    for changed in (
        Conversation(source_id="7", line=3, messages=(*row.messages, history, *row.messages)),
        Conversation(source_id="7", line=3, messages=row.messages, tools=(tool,)),
    ):
        made = tokenize_one(changed, target)
        assert isinstance(made, Rejection)
        assert made.reason == "control_token_in_text"


def test_a_template_error_rejects_its_row(target: Tokenizer) -> None:
    encoder = copy.copy(target.encoder)
    encoder.chat_template = "{{ raise_exception('roles must alternate') }}"
    made = tokenize_one(conversation("Hi"), replace(target, encoder=encoder))
    assert isinstance(made, Rejection)
    assert (made.reason, made.detail) == ("template_error", "roles must alternate")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"chat_template": "{{ messages[0].content }}"}', "bad_template_kwargs"),
        ('{"messages": []}', "bad_template_kwargs"),
        ('{"tokenize": false}', "bad_template_kwargs"),
        ('{"thinking": "false"}', "bad_template_kwargs"),
        ('{"thinking": "True"}', "bad_template_kwargs"),
        ('{"note": "\\ud83d"}', "lone_surrogate"),
        ('{"\\ud83d": 1}', "lone_surrogate"),
        ('{"note": NaN}', "bad_value"),
    ],
)
def test_a_rows_bad_template_arguments_cost_that_row_alone(
    target: Tokenizer, tmp_path: Path, arguments: str, reason: str
) -> None:
    bad = f'{{"id": "a", "prompt": "Hi", "template_kwargs": {arguments}}}'
    (tmp_path / "rows.jsonl").write_text(f'{bad}\n{{"id": "b", "prompt": "Hi"}}\n', encoding="utf-8")
    counts = tokenize_file(tmp_path / "rows.jsonl", tmp_path, target, PromptOptions())
    assert (counts.prompts, counts.rejected) == (1, 1)
    assert [(item.key, item.reason) for item in read_rejections(tmp_path)] == [("a#0", reason)]
    assert [made["prompt_ids"] for made in read_prompts(tmp_path)] == [HI]


def test_a_data_sets_bad_template_arguments_are_refused_before_any_row(target: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Hi"}\n', encoding="utf-8")
    wrong = PromptOptions(template_kwargs={"thinking": "false"})
    with pytest.raises(InputError, match=r"thinking='false', a text, .* expected false without quotes"):
        tokenize_file(tmp_path / "rows.jsonl", tmp_path, target, wrong)


def test_rows_in_are_prompts_and_rejections(target: Tokenizer, tmp_path: Path) -> None:
    rows: list[dict[str, Json]] = [
        {"id": "a", "messages": [{"role": "user", "content": "What is 2+2?"}]},
        {"id": "b", "messages": [{"role": "user", "content": "<|im_end|>"}]},
        {"id": "a", "messages": [{"role": "user", "content": "twice"}]},
        {"id": "c", "messages": [{"role": "user", "content": "Hi"}]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    counts = tokenize_file(path, tmp_path / "out", target, PromptOptions())
    assert (counts.prompts, counts.rejected, counts.empty_lines) == (2, 2, 1)
    table = pq.read_table(tmp_path / "out" / "prompts.parquet")
    assert table.schema.equals(PROMPTS_SCHEMA)
    assert table["key"].to_pylist() == ["a#0", "c#0"]
    assert table["prompt_ids"].to_pylist() == [TWO_PLUS_TWO, HI]
    assert [(item.line, item.reason) for item in read_rejections(tmp_path / "out")] == [
        (2, "control_token_in_text"),
        (3, "duplicate_id"),
    ]
    assert sorted(item.name for item in (tmp_path / "out").iterdir()) == ["prompts.parquet", "rejected.jsonl"]


def test_a_file_without_a_usable_row_is_refused_and_earlier_prompts_stay(target: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "a", "messages": [{"role": "user", "content": "Hi"}]}) + "\n")
    tokenize_file(path, tmp_path / "out", target, PromptOptions())
    before = (tmp_path / "out" / "prompts.parquet").read_bytes()
    path.write_text(json.dumps({"id": "a", "messages": [{"role": "user", "content": "<|im_end|>"}]}) + "\n")
    with pytest.raises(InputError, match="no row became a prompt"):
        tokenize_file(path, tmp_path / "out", target, PromptOptions())
    assert (tmp_path / "out" / "prompts.parquet").read_bytes() == before
    assert [item.reason for item in read_rejections(tmp_path / "out")] == ["control_token_in_text"]
    assert sorted(item.name for item in (tmp_path / "out").iterdir()) == ["prompts.parquet", "rejected.jsonl"]


@pytest.mark.parametrize("name", ["truncation", "max_length", "tokenize", "add_generation_prompt", "tools"])
def test_an_argument_that_would_change_how_ids_are_made_rejects_its_row(target: Tokenizer, name: str) -> None:
    made = tokenize_one(conversation("Hi", **{name: 3}), target)
    assert isinstance(made, Rejection)
    assert made.reason == "bad_template_kwargs"
    assert name in made.detail


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 junk junk junk PAR1", b"no parquet at all"])
def test_damaged_prompts_say_what_to_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "prompts.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"prompts\.parquet can't be read .*; run stage 01 again"):
        next(read_prompts(tmp_path))


def test_half_written_prompts_say_what_to_run(target: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "a", "messages": [{"role": "user", "content": "Hi"}]}) + "\n")
    tokenize_file(path, tmp_path, target, PromptOptions())
    whole = (tmp_path / "prompts.parquet").read_bytes()
    (tmp_path / "prompts.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="run stage 01 again"):
        next(read_prompts(tmp_path))


def test_prompts_of_another_tool_are_refused_by_their_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["Hi"]}), tmp_path / "prompts.parquet")
    with pytest.raises(InputError, match="has no column key"):
        next(read_prompts(tmp_path))


def test_turns_that_this_version_does_not_know_are_refused(target: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="turns is 'all'"):
        tokenize_file(tmp_path / "prompts.jsonl", tmp_path, target, PromptOptions(turns="all"))


def test_missing_prompts_say_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run stage 01"):
        next(read_prompts(tmp_path))
