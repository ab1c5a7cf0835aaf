"""gpt-oss's real ids; ordinary ids are small numbers."""

from collections.abc import Sequence

import numpy as np
import pytest
from family_tokens import markers_of

from rawtokens.records import Thinking
from rawtokens.response_checks.channel_segments import segment_outputs
from rawtokens.response_checks.checks import shapes_of
from rawtokens.response_checks.response_columns import IdLists

RETURN, CHANNEL, START, END, MESSAGE, CALL, CONSTRAIN = 200002, 200005, 200006, 200007, 200008, 200012, 200003
ASSISTANT, ANALYSIS, FINAL, COMMENTARY, TO = 173781, 35644, 17196, [12606, 815], [316, 28]
GPT_OSS = markers_of("gpt_oss")
THOUGHT = [CHANNEL, ANALYSIS, MESSAGE, 1, 2, END]
NEXT = [START, ASSISTANT]
A_CALL = [CHANNEL, *COMMENTARY, *TO, 7, CONSTRAIN, 8, MESSAGE, 9, CALL]


def cut(output: Sequence[int], mode: Thinking = "by_model", *, truncated: bool = False) -> dict[str, object]:
    outputs = IdLists.from_lists([list(output)])
    found = segment_outputs(outputs, markers=GPT_OSS, thinking=[mode], matched_ids=np.array([-1]))
    total = found.reasoning_tokens + found.answer_tokens + found.tool_tokens + found.ends_with_stop
    assert total.tolist() == [len(output)]
    assert found.closers.tolist() == [0]
    assert found.closer_position.tolist() == [-1]
    return {
        "reasoning": int(found.reasoning_tokens[0]),
        "tool": int(found.tool_tokens[0]),
        "answer": int(found.answer_tokens[0]),
        "calls": int(found.tool_calls[0]),
        "shape": str(shapes_of(found, np.array([truncated]))[0]),
        "broken": bool(found.unbalanced_section[0]),
        "silent": bool(found.nothing_said[0]),
        "stops": bool(found.ends_with_stop[0]),
        "inner_stop": bool(found.inner_stop[0]),
    }


FINE = {"tool": 0, "calls": 0, "shape": "channels", "broken": False, "silent": False, "stops": True}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([*THOUGHT, *NEXT, CHANNEL, FINAL, MESSAGE, 3, RETURN], {"reasoning": 6, "answer": 6}),
        ([CHANNEL, FINAL, MESSAGE, 3, RETURN], {"reasoning": 0, "answer": 4}),
        ([*THOUGHT, *NEXT, *A_CALL], {"reasoning": 6, "answer": 0, "tool": 12, "calls": 1}),
        (  # the recipient before the channel
            [*THOUGHT, *NEXT, *TO, 7, CHANNEL, *COMMENTARY, 8, MESSAGE, CALL],
            {"reasoning": 6, "answer": 0, "tool": 10, "calls": 1},
        ),
        (  # a preamble to the user, then the call
            [CHANNEL, *COMMENTARY, MESSAGE, 4, END, *NEXT, *A_CALL],
            {"reasoning": 0, "answer": 0, "tool": 18, "calls": 1},
        ),
        (  # a recipient on analysis is a tool of the model's own: no call to answer
            [CHANNEL, ANALYSIS, *TO, 7, MESSAGE, 9, CALL],
            {"reasoning": 7, "answer": 0, "silent": True},
        ),
        ([*THOUGHT[:-1], RETURN], {"reasoning": 5, "answer": 0, "silent": True}),
        ([CHANNEL, FINAL, MESSAGE, RETURN], {"reasoning": 0, "answer": 3, "silent": True}),
    ],
)
def test_analysis_commentary_and_final_are_reasoning_tools_and_answer(
    output: list[int], expected: dict[str, object]
) -> None:
    found = cut(output)
    assert found == {**FINE, "inner_stop": False, **expected}


def test_a_message_that_the_prompt_began_goes_on_to_its_end() -> None:
    output = [1, 2, END, *NEXT, CHANNEL, FINAL, MESSAGE, 3, RETURN]
    assert cut(output, "opened") == {**FINE, "inner_stop": False, "reasoning": 3, "answer": 6}
    assert cut([3, 4, RETURN], "off") == {**FINE, "inner_stop": False, "reasoning": 0, "answer": 2}


@pytest.mark.parametrize(
    ("output", "shape", "reasoning", "answer"),
    [
        (THOUGHT[:-1], "truncated_in_thinking", 5, 0),
        (THOUGHT[:1], "truncated_in_thinking", 1, 0),
        ([*THOUGHT, *NEXT], "truncated_in_thinking", 8, 0),
        ([*THOUGHT, *NEXT, CHANNEL, FINAL, MESSAGE, 3], "truncated_in_answer", 6, 6),
        ([], "truncated_in_thinking", 0, 0),
    ],
)
def test_the_length_limit_cuts_a_message(output: list[int], shape: str, reasoning: int, answer: int) -> None:
    found = cut(output, truncated=True)
    assert (found["shape"], found["reasoning"], found["answer"]) == (shape, reasoning, answer)
    assert found["broken"] is False


@pytest.mark.parametrize(
    "output",
    [
        [1, 2, RETURN],  # no channel at all
        [CHANNEL, 5, MESSAGE, 1, RETURN],  # a channel of another name
        [CHANNEL, FINAL, 1, RETURN],  # a header without a text
        [CHANNEL, ANALYSIS, MESSAGE, 1, *NEXT, CHANNEL, FINAL, MESSAGE, 3, RETURN],  # analysis without an end
    ],
)
def test_a_broken_message_shows(output: list[int]) -> None:
    assert cut(output)["broken"] is True


def test_a_call_before_the_end_is_a_stop_id_in_the_middle() -> None:
    found = cut([*A_CALL, *NEXT, CHANNEL, FINAL, MESSAGE, 3, RETURN])
    assert found["inner_stop"] is True
    assert cut([CHANNEL, FINAL, MESSAGE, 3, RETURN, RETURN])["inner_stop"] is True
