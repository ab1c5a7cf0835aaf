from collections.abc import Callable

import numpy as np
import pytest
from family_tokens import KIMI
from transformers import PreTrainedTokenizerBase

from rawtokens.errors import TokenizerError
from rawtokens.markers import Channels, GivenMarkers, Markers, find_markers, given_markers, last_position, thinking_mode
from rawtokens.response_checks.response_columns import IdLists
from rawtokens.response_checks.segments import segment
from rawtokens.target.target_tokenizer import Tokenizer

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


MODES = [
    ("qwen3", {}, "by_model"),
    ("qwen3", {"enable_thinking": False}, "off"),
    ("qwen3_thinking", {}, "opened"),
    ("deepseek_r1", {}, "opened"),
    ("deepseek_v31", {}, "off"),
    ("deepseek_v31", {"thinking": True}, "opened"),
    ("deepseek_v4", {}, "off"),
    ("deepseek_v4", {"thinking": True}, "opened"),
    ("glm45", {}, "by_model"),
    ("glm45", {"enable_thinking": False}, "off"),
    ("gpt_oss", {}, "by_model"),
    ("kimi_k2_thinking", {}, "by_model"),
]


@pytest.mark.parametrize(("name", "arguments", "mode"), MODES)
def test_the_mode_of_every_familys_prompt_is_read_from_its_ids(
    name: str, arguments: dict[str, bool], mode: str, family_target: Callable[[str], Tokenizer]
) -> None:
    target = family_target(name)
    question = {"role": "user", "content": "Is </think> the end? <think>"}
    answered = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    for messages in ([question], [question, answered, question]):
        ids = target.prompt_ids(messages, template_kwargs=arguments)
        assert thinking_mode(ids, target.markers) == mode


@pytest.mark.parametrize(
    ("name", "family", "turn_ends"),
    [
        ("qwen3", "qwen3", (151645,)),
        ("deepseek_r1", "deepseek", (1,)),
        ("deepseek_v4", "deepseek_v4", (1,)),
        ("glm45", "glm", (151329, 151336, 151338)),
        ("gpt_oss", "gpt_oss", (200002, 200012)),
        ("kimi_k2_thinking", "kimi", (163586,)),
    ],
)
def test_the_family_of_a_real_tokenizer_is_found_by_its_texts(
    name: str, family: str, turn_ends: tuple[int, ...], family_target: Callable[[str], Tokenizer]
) -> None:
    markers = family_target(name).markers
    assert (markers.family, markers.turn_ends) == (family, turn_ends)


def test_deepseek_v4s_calls_are_found_among_ordinary_ids(family_target: Callable[[str], Tokenizer]) -> None:
    target = family_target("deepseek_v4")
    calls = "".join(f'<｜DSML｜invoke name="{name}">\n\n</｜DSML｜invoke>\n' for name in ("now", "f"))
    (ids,) = target.encode([f"Looking.\n\n<｜DSML｜tool_calls>\n{calls}</｜DSML｜tool_calls><｜end▁of▁sentence｜>"])
    outputs, none = IdLists.from_lists([ids]), np.array([-1])
    found = segment(outputs, markers=target.markers, thinking=["off"], matched_ids=none)
    assert found.tool_calls.tolist() == [2]
    assert not found.unbalanced_section[0]
    looking = len(target.encode(["Looking.\n\n"])[0])
    assert found.answer_tokens.tolist() == [looking]
    assert found.tool_tokens.tolist() == [len(ids) - looking - 1]


def test_gpt_oss_markers_are_channels(family_target: Callable[[str], Tokenizer]) -> None:
    channels = family_target("gpt_oss").markers.channels
    assert channels == Channels(
        start=200006,
        channel=200005,
        message=200008,
        end=200007,
        reasoning=(35644,),
        tool=(12606, 815),
        answer=(17196,),
        recipient=(316, 28),
    )


@pytest.mark.parametrize(
    ("header", "mode"),
    [
        ("", "by_model"),
        ("<|channel|>analysis", "by_model"),
        ("<|channel|>analysis<|message|>", "opened"),
        ("<|channel|>final<|message|>So", "off"),
    ],
)
def test_a_message_that_a_harmony_prompt_began_says_the_mode(
    header: str, mode: str, family_target: Callable[[str], Tokenizer]
) -> None:
    target = family_target("gpt_oss")
    (ids,) = target.encode([f"<|start|>user<|message|>Hi<|end|><|start|>assistant{header}"])
    assert thinking_mode(ids, target.markers) == mode


def test_markers_of_another_family_can_be_given_as_texts(family_target: Callable[[str], Tokenizer]) -> None:
    target = family_target("qwen3")
    (opener, closer) = target.encode(["◁think▷", "◁/think▷"])
    markers = given_markers(
        target.token_to_id,
        lambda text: target.encode([text])[0],
        GivenMarkers(opener="◁think▷", closer="◁/think▷", turn_end="<|im_end|>"),
    )
    assert (markers.opener, markers.closer, markers.turn_ends) == (tuple(opener), tuple(closer), (151645,))
    assert len(opener) > 1
    with pytest.raises(TokenizerError, match="'<END>' is no single id"):
        given_markers(target.token_to_id, lambda text: [], GivenMarkers(turn_end="<END>"))


def test_a_model_of_no_known_family_that_does_not_think_has_thinking_off(
    family_target: Callable[[str], Tokenizer],
) -> None:
    target = family_target("qwen3")
    markers = given_markers(target.token_to_id, lambda text: [], GivenMarkers(turn_end="<|im_end|>"))
    assert markers.ids() == (151645,)
    assert (markers.opener, markers.closer, markers.sequences()) == ((), (), ())
    assert [thinking_mode(ids, markers) for ids in ([], [1, 151645, 2], [151667])] == ["off", "off", "off"]


def test_an_opener_is_given_with_its_closer_or_not_at_all() -> None:
    with pytest.raises(ValueError, match="markers give opener but no closer"):
        GivenMarkers(turn_end="<|im_end|>", opener="<think>")
    with pytest.raises(ValueError, match="markers give closer but no opener"):
        GivenMarkers(turn_end="<|im_end|>", closer="</think>")


def test_a_tokenizer_of_no_known_family_is_told_the_key_that_gives_its_markers() -> None:
    with pytest.raises(TokenizerError, match=r'`model: \{markers: \{turn_end: "<\|im_end\|>"\}\}`'):
        find_markers({"<|im_end|>": 2}.get)
