"""The chat template's exact ids and texts: Kimi-K2.5's behaviour."""

from collections.abc import Mapping, Sequence

import pytest
from transformers import PreTrainedTokenizerBase

WHAT_IS = [163587, 2482, 163601, 5376, 387, 220, 17, 10, 17, 30, 163586, 163588, 69702, 163601, 163606]
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function", "function": {"name": "get_time", "arguments": {"city": "Oslo"}}}
TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}


def ids(kimi: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, object]], **arguments: object) -> list[int]:
    found = kimi.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **arguments)
    assert isinstance(found, list)
    return found


def text(kimi: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, object]], **arguments: object) -> str:
    found = kimi.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **arguments})
    assert isinstance(found, str)
    return found


def test_what_is_2_plus_2_is_15_ids(kimi: PreTrainedTokenizerBase) -> None:
    assert ids(kimi, [{"role": "user", "content": "What is 2+2?"}]) == WHAT_IS


def test_hi(kimi: PreTrainedTokenizerBase) -> None:
    assert ids(kimi, [USER]) == [163587, 2482, 163601, 18699, 163586, 163588, 69702, 163601, 163606]


@pytest.mark.parametrize(("thinking", "end"), [(False, [163606, 163607]), (True, [163601, 163606])])
def test_the_switch_closes_the_thinking(kimi: PreTrainedTokenizerBase, thinking: bool, end: list[int]) -> None:
    found = ids(kimi, [USER], thinking=thinking)
    assert found[-2:] == end


def test_no_system_prompt_is_made_up_and_a_given_one_is_kept(kimi: PreTrainedTokenizerBase) -> None:
    assert text(kimi, [{"role": "system", "content": " Be brief.\n"}, USER]) == (
        "<|im_system|>system<|im_middle|> Be brief.\n<|im_end|>"
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )


def test_a_name_replaces_the_role_word(kimi: PreTrainedTokenizerBase) -> None:
    found = text(kimi, [{**USER, "name": "ann"}], add_generation_prompt=False)
    assert found == "<|im_user|>ann<|im_middle|>Hi<|im_end|>"


def test_tools_are_declared_as_compact_json(kimi: PreTrainedTokenizerBase) -> None:
    found = ids(kimi, [USER], tools=[TOOL])
    assert found[:5] == [163594, 20960, 35556, 677, 163601]
    assert text(kimi, [USER], tools=[TOOL]).startswith(
        '<|im_system|>tool_declare<|im_middle|>[{"type":"function","function":{"name":"get_time","parameters":'
        '{"type":"object"}}}]<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|>'
    )


def test_finished_turns_lose_their_reasoning(kimi: PreTrainedTokenizerBase) -> None:
    old = {"role": "assistant", "content": "Hello.", "reasoning_content": "A greeting."}
    assert text(kimi, [USER, old, USER]) == (
        "<|im_user|>user<|im_middle|>Hi<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>Hello.<|im_end|>"
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )


def test_calls_and_results_of_the_open_turn_keep_reasoning(kimi: PreTrainedTokenizerBase) -> None:
    caller = {"role": "assistant", "content": None, "reasoning_content": "Look it up.", "tool_calls": [CALL, CALL]}
    results = [{"role": "tool", "content": "12:00"}, {"role": "tool", "content": "13:00"}]
    assert text(kimi, [USER, caller, *results]) == (
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>Look it up.</think>"
        "<|tool_calls_section_begin|>"
        '<|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>'
        '<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>'
        "<|tool_calls_section_end|><|im_end|>"
        "<|im_system|>tool<|im_middle|>## Return of functions.get_time:0\n12:00<|im_end|>"
        "<|im_system|>tool<|im_middle|>## Return of functions.get_time:1\n13:00<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>"
    )


def test_call_ids_and_string_arguments_are_rendered_as_given(kimi: PreTrainedTokenizerBase) -> None:
    call = {"id": "functions.f:7", "function": {"name": "f", "arguments": '{"a":1}'}}
    result = {"role": "tool", "tool_call_id": "functions.f:7", "content": "ok"}
    rendered = text(kimi, [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result])
    assert '<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{"a":1}<|tool_call_end|>' in rendered
    assert "## Return of functions.f:7\nok<|im_end|>" in rendered


def test_tool_markers_are_single_control_ids(kimi: PreTrainedTokenizerBase) -> None:
    message: dict[str, object] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    found = ids(kimi, [USER, message])
    call = [163606, 163607, 163595, 163597, *kimi.encode("functions.get_time:0"), 163598]
    call += [*kimi.encode('{"city": "Oslo"}'), 163599, 163596, 163586]
    begin = found.index(163606)
    assert found[begin : begin + len(call)] == call


def test_text_parts_are_joined_and_an_image_is_refused(kimi: PreTrainedTokenizerBase) -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert ids(kimi, [{"role": "user", "content": parts}]) == ids(kimi, [USER])
    with pytest.raises(Exception, match="image_url"):
        ids(kimi, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
