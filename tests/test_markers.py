from collections.abc import Callable

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from rawtokens.errors import TokenizerError
from rawtokens.markers import Markers, find_markers, last_position, thinking_mode

KIMI = {
    "<|im_end|>": 163586,
    "<|im_user|>": 163587,
    "<|im_assistant|>": 163588,
    "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595,
    "<|tool_calls_section_end|>": 163596,
    "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598,
    "<|tool_call_end|>": 163599,
    "<|im_middle|>": 163601,
    "<think>": 163606,
    "</think>": 163607,
}
QWEN3 = {
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<tool_call>": 151657,
    "</tool_call>": 151658,
    "<think>": 151667,
    "</think>": 151668,
}
OPENER, CLOSER, TURN_END, MIDDLE = 163606, 163607, 163586, 163601
GENERATION_PROMPT = [163588, 69702, 163601]
QUESTION = [163587, 2482, 163601, 5376, 387, 220, 17, 10, 17, 30, 163586]


def kimi_markers() -> Markers:
    return find_markers(KIMI.get)


def test_kimi_markers_are_found_as_their_published_ids() -> None:
    markers = kimi_markers()
    assert markers.family == "kimi"
    assert (markers.opener, markers.closer, markers.turn_ends) == ((163606,), (163607,), (163586,))
    assert (markers.tool_section_begin, markers.tool_section_end) == ((163595,), (163596,))
    assert (markers.tool_call_begin, markers.tool_arguments_begin, markers.tool_call_end) == (
        (163597,),
        (163598,),
        (163599,),
    )
    assert markers.role_ids == (163587, 163588, 163594, 163601)
    assert markers.names[163607] == "</think>"
    assert list(markers.names) == sorted(KIMI.values())


def test_kimi_markers_are_found_in_the_real_tokenizer(kimi: PreTrainedTokenizerBase) -> None:
    vocabulary = kimi.get_vocab()
    assert find_markers(vocabulary.get) == kimi_markers()


def test_qwen3_markers_are_found_and_each_call_is_a_section() -> None:
    markers = find_markers(QWEN3.get)
    assert markers.family == "qwen3"
    assert (markers.opener, markers.closer, markers.turn_ends) == ((151667,), (151668,), (151645,))
    assert markers.tool_section_begin == markers.tool_call_begin == (151657,)
    assert markers.tool_section_end == markers.tool_call_end == (151658,)
    assert markers.tool_arguments_begin == ()
    assert markers.role_ids == (151644,)


def test_ids_are_all_that_a_scan_must_look_for_even_without_names() -> None:
    assert kimi_markers().ids() == tuple(sorted(KIMI.values()))
    assert Markers(family="x", opener=(7, 3), closer=(9,), turn_ends=(5,)).ids() == (3, 5, 7, 9)


@pytest.mark.parametrize("missing", sorted(KIMI))
def test_a_tokenizer_without_one_of_the_markers_is_refused(missing: str) -> None:
    ids = {text: number for text, number in KIMI.items() if text != missing}
    with pytest.raises(TokenizerError, match="no known family"):
        find_markers(ids.get)


def test_a_named_family_is_the_only_one_tried() -> None:
    both = {**QWEN3, **KIMI}
    assert find_markers(both.get, "qwen3").family == "qwen3"
    with pytest.raises(TokenizerError, match=r"no single id for .*family 'kimi' needs"):
        find_markers(QWEN3.get, "kimi")
    with pytest.raises(
        TokenizerError, match=r"'grok' is not known; known: kimi, kimi_vl, qwen3, deepseek, .*magistral"
    ):
        find_markers(QWEN3.get, "grok")


def test_a_marker_with_id_0_counts_as_found() -> None:
    ids = {**QWEN3, "<think>": 0}
    assert find_markers(ids.get).opener == (0,)


@pytest.mark.parametrize(
    ("tail", "mode"),
    [
        ([OPENER], "opened"),
        ([OPENER, CLOSER], "off"),
        ([OPENER, 198, 198, CLOSER, 198, 198], "off"),
        ([OPENER, 198], "opened"),
        ([CLOSER], "off"),
        ([CLOSER, OPENER], "opened"),
        ([], "by_model"),
    ],
)
@pytest.mark.parametrize("convert", [list, tuple, np.array])
def test_the_generation_prompt_says_how_thinking_starts(
    tail: list[int], mode: str, convert: Callable[[list[int]], list[int]]
) -> None:
    assert thinking_mode(convert([*QUESTION, *GENERATION_PROMPT, *tail]), kimi_markers()) == mode


def test_markers_of_earlier_turns_do_not_count() -> None:
    earlier = [*QUESTION, *GENERATION_PROMPT, OPENER, CLOSER, 5, TURN_END]
    assert thinking_mode([*earlier, *QUESTION, *GENERATION_PROMPT], kimi_markers()) == "by_model"
    assert thinking_mode([*earlier, *QUESTION, *GENERATION_PROMPT, OPENER], kimi_markers()) == "opened"


def test_the_mode_of_rendered_prompts_follows_the_template_arguments(kimi: PreTrainedTokenizerBase) -> None:
    messages = [{"role": "user", "content": "What is 2+2?"}]
    for thinking, mode in [(True, "opened"), (False, "off")]:
        ids = kimi.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, thinking=thinking
        )
        assert thinking_mode(ids, kimi_markers()) == mode


@pytest.mark.parametrize(
    ("ids", "sequence", "position"),
    [
        ([1, 2, 1, 2, 3], (1, 2), 2),
        ([1, 2, 3], (3,), 2),
        ([1, 2, 3], (1, 2, 3), 0),
        ([1, 2], (2, 1), -1),
        ([1], (1, 2), -1),
        ([], (1,), -1),
        ([1], (), -1),
    ],
)
def test_the_last_position_is_where_the_whole_sequence_begins(
    ids: list[int], sequence: tuple[int, ...], position: int
) -> None:
    assert last_position(ids, sequence) == position
