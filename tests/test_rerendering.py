"""What a chat loses: outputs parsed into messages, rendered again and compared, on exact cases."""

from collections.abc import Callable
from typing import cast

import pytest

from rawtokens.fidelity.replies import Unread, read_reply
from rawtokens.fidelity.rerendering import Rerendered, rerender
from rawtokens.records import Conversation, Json
from rawtokens.reporting.samples import Sample
from rawtokens.target.id_bytes import LOST, IdBytes
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.target.tool_arguments import wanted_form

QUESTION: dict[str, Json] = {"role": "user", "content": "What is 2+2?"}
CALL = "<|tool_calls_section_begin|><|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"


class Chat:
    """A tokenizer with the rows that a model could have written after one question."""

    def __init__(self, tokenizer: Tokenizer, **template_kwargs: Json) -> None:
        self.tokenizer, self.table = tokenizer, IdBytes.of(tokenizer)
        self.conversation = Conversation(source_id="a", line=1, messages=(QUESTION,), template_kwargs=template_kwargs)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode([text])[0]

    def row(self, reasoning: str, rest: str) -> Sample:
        """An output whose reasoning is `reasoning`; every part has the ids that its text encodes to."""
        thought = self.ids(reasoning) if reasoning else []
        output = [*thought, *self.ids(rest)]
        return Sample(
            key="a#0/0",
            shape="closed",
            rows=1,
            verdict="accept",
            reasons=[],
            finish_reason="stop",
            prompt_ids=self.tokenizer.prompt_ids([QUESTION], template_kwargs=self.conversation.template_kwargs),
            output_ids=output,
            reasoning_tokens=len(thought),
            ends_with_stop=output[-1] in self.tokenizer.markers.turn_ends,
        )

    def again(self, row: Sample) -> Rerendered:
        return rerender(row, self.conversation, self.table, form=wanted_form(self.tokenizer))


@pytest.fixture(scope="session")
def kimi_chat(target: Tokenizer) -> Chat:
    return Chat(target)


def test_a_finished_turn_loses_its_reasoning_and_nothing_else(kimi_chat: Chat) -> None:
    row = kimi_chat.row("I add both.", "</think>It is 4.<|im_end|>")
    found = kimi_chat.again(row)
    assert found.ids == [*row.prompt_ids, *row.output_ids[row.reasoning_tokens :]]
    assert not found.same
    assert found.first_difference == 0
    said = len(kimi_chat.ids("It is 4."))
    assert found.tokens == {"reasoning": row.reasoning_tokens, "answer": said, "tool calls": 0}
    assert found.lost == {"reasoning": row.reasoning_tokens, "answer": 0, "tool calls": 0}
    assert found.empty_thinking
    kept = list(range(len(row.prompt_ids), len(found.ids)))
    assert found.partners.tolist() == [LOST] * row.reasoning_tokens + kept


def test_a_turn_that_calls_a_tool_keeps_everything(kimi_chat: Chat) -> None:
    call = CALL.format("f", 0, '{"a": 1}') + "<|tool_calls_section_end|>"
    row = kimi_chat.row("I call.", f"</think>{call}<|im_end|>")
    found = kimi_chat.again(row)
    assert found.same
    assert found.first_difference is None
    assert found.lost == {"reasoning": 0, "answer": 0, "tool calls": 0}
    assert found.tokens["tool calls"] == len(kimi_chat.ids("functions.f:0")) + 1 + len(kimi_chat.ids('{"a": 1}'))
    assert not found.empty_thinking


def test_thinking_that_was_off_loses_nothing(target: Tokenizer) -> None:
    chat = Chat(target, thinking=False)
    found = chat.again(chat.row("", "It is 4.<|im_end|>"))
    assert found.same
    assert not found.empty_thinking


def test_ids_that_are_not_their_text_s_are_lost_where_the_text_stays(kimi_chat: Chat) -> None:
    row = kimi_chat.row("", "</think>It is four.<|im_end|>")
    four = kimi_chat.ids(" four")[0]
    place = row.output_ids.index(four)
    spelt = [kimi_chat.table.pieces.index(bytes([byte])) for byte in b" four"]
    output = [*row.output_ids[:place], *spelt, *row.output_ids[place + 1 :]]
    found = kimi_chat.again(_with_output(row, output))
    assert found.lost["answer"] == 5
    assert found.partners.tolist().count(LOST) == 5
    assert found.first_difference == place


def test_text_behind_a_call_is_dropped_and_counted(kimi_chat: Chat) -> None:
    call = CALL.format("f", 0, "{}") + "<|tool_calls_section_end|>"
    row = kimi_chat.row("I call.", f"</think>Now.{call} And done<|im_end|>")
    reply = read_reply(row, kimi_chat.table)
    assert reply.message["content"] == "Now."
    assert kimi_chat.again(row).lost["answer"] == len(kimi_chat.ids(" And done"))


def test_a_message_has_the_parts_that_a_chat_server_gives(kimi_chat: Chat) -> None:
    calls = (
        CALL.format("f", 0, '{"a":1}')
        + "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    )
    row = kimi_chat.row("I call.\n", f"</think> Now. {calls}<|tool_calls_section_end|><|im_end|>")
    assert read_reply(row, kimi_chat.table).message == {
        "role": "assistant",
        "content": " Now. ",
        "reasoning_content": "I call.\n",
        "tool_calls": [
            {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "functions.g:1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_a_call_that_was_cut_off_is_no_message(kimi_chat: Chat) -> None:
    cut = CALL.format("f", 0, '{"a"').removesuffix("<|tool_call_end|>")
    with pytest.raises(Unread, match="cut off"):
        kimi_chat.again(kimi_chat.row("I call.", f"</think>{cut}"))


def test_what_a_template_refuses_is_told_with_its_reason(kimi_chat: Chat) -> None:
    content: Json = [{"type": "image", "image": "a.png"}]
    conversation = Conversation(source_id="a", line=1, messages=({"role": "user", "content": content},))
    row = kimi_chat.row("I see.", "</think>A picture.<|im_end|>")
    with pytest.raises(Unread, match="the template refuses it: content part of type image"):
        rerender(row, conversation, kimi_chat.table, form="either")


# name of the tokenizer, reasoning, rest, ids of reasoning lost: all of them, or none
FAMILIES = [
    ("qwen3", "<think>\nI add both.\n", "</think>\n\nIt is 4.<|im_end|>", False),
    ("qwen3_thinking", "I add both.\n", "</think>\n\nIt is 4.<|im_end|>", False),
    ("deepseek_r1", "I add both.\n", "</think>\n\nIt is 4.<｜end▁of▁sentence｜>", True),
    ("glm45", "\n<think>I add both.", "</think>\nIt is 4.<|user|>", False),
    (
        "gpt_oss",
        "<|channel|>analysis<|message|>I add both.<|end|>",
        "<|start|>assistant<|channel|>final<|message|>It is 4.<|return|>",
        True,
    ),
]


@pytest.mark.parametrize(("name", "reasoning", "rest", "lost"), FAMILIES, ids=[row[0] for row in FAMILIES])
def test_every_family_is_read_and_rendered(
    family_target: Callable[[str], Tokenizer], name: str, reasoning: str, rest: str, lost: bool
) -> None:
    chat = Chat(family_target(name))
    row = chat.row(reasoning, rest)
    message = read_reply(row, chat.table).message
    assert str(message["reasoning_content"]).strip() == "I add both."
    assert str(message["content"]).strip() == "It is 4."
    found = chat.again(row)
    assert found.lost["reasoning"] == (found.tokens["reasoning"] if lost else 0)
    assert found.tokens["reasoning"] >= 4
    assert found.lost["answer"] == 0


# name, rest of an output without reasoning
CALLS = [
    ("qwen3", '<think></think><tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>', True),
    ("qwen3", '<think></think><tool_call>{"name":"f","arguments":{"a":1}}</tool_call><|im_end|>', False),
    (
        "glm45",
        "</think><tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call><|observation|>",
        True,
    ),
    ("gpt_oss", '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', True),
]


@pytest.mark.parametrize(("name", "rest", "kept"), CALLS)
def test_calls_are_read_as_their_family_spells_them(
    family_target: Callable[[str], Tokenizer], name: str, rest: str, kept: bool
) -> None:
    chat = Chat(family_target(name))
    row = chat.row("", rest)
    thought = row.output_ids.index(chat.tokenizer.markers.closer[0]) if chat.tokenizer.markers.closer else 0
    row = _with_output(row, row.output_ids, reasoning=thought)
    (call,) = cast("list[dict[str, dict[str, str]]]", read_reply(row, chat.table).message["tool_calls"])
    assert call["function"]["name"] == "f"
    found = chat.again(row)
    assert (found.lost["tool calls"] == 0) == kept
    assert found.tokens["tool calls"] > 0


def _with_output(row: Sample, output: list[int], *, reasoning: int | None = None) -> Sample:
    return Sample(
        key=row.key,
        shape=row.shape,
        rows=1,
        verdict=row.verdict,
        reasons=[],
        finish_reason="stop",
        prompt_ids=row.prompt_ids,
        output_ids=output,
        reasoning_tokens=row.reasoning_tokens if reasoning is None else reasoning,
        ends_with_stop=row.ends_with_stop,
    )
