"""Where pieces lie, held to the segments' counts and to a sample's reading of the same ids one by one."""

import numpy as np
import pytest
from family_tokens import VOCABULARIES, markers_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rawtokens.markers import Markers
from rawtokens.records import Thinking
from rawtokens.reporting.samples import _labels
from rawtokens.response_checks.channel_segments import segment_outputs
from rawtokens.response_checks.pieces import ANSWER, CLOSER, REASONING, TOOL
from rawtokens.response_checks.response_columns import IdLists
from rawtokens.response_checks.segments import Segments

NAMES = sorted(VOCABULARIES)
LABELS = {"reasoning": REASONING, "closer": CLOSER, "answer": ANSWER, "tool calls": TOOL}


def cut(markers: Markers, outputs: IdLists, modes: list[Thinking]) -> Segments:
    return segment_outputs(outputs, markers=markers, thinking=modes, matched_ids=np.full(len(modes), -1))


def labels_of(found: Segments, outputs: IdLists) -> list[list[int]]:
    """The label of every id of a body, row by row."""
    starts, rows, labels = found.pieces
    ends = outputs.offsets[:-1] + found.body_tokens
    laid: list[list[int]] = [[] for _ in ends]
    for number, (start, row, label) in enumerate(zip(starts.tolist(), rows.tolist(), labels.tolist(), strict=True)):
        following = number + 1 < len(rows) and rows[number + 1] == row
        assert start == outputs.offsets[row] + len(laid[row])
        laid[row] += [label] * int((starts[number + 1] if following else ends[row]) - start)
    return laid


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=60)
def test_pieces_cover_every_body_as_it_was_counted(name: str, data: st.DataObject) -> None:
    markers = markers_of(name)
    channels = markers.channels
    named = (channels.reasoning, channels.tool, channels.answer, channels.recipient) if channels else ()
    parts = [*markers.sequences(), *named, *((item,) for item in (*markers.ids(), 0, 1000))]
    output = st.lists(st.sampled_from(parts), max_size=30).map(lambda drawn: [item for part in drawn for item in part])
    mode: st.SearchStrategy[Thinking] = st.sampled_from(("opened", "off", "by_model"))
    rows = data.draw(st.lists(st.tuples(output, mode), max_size=6))
    outputs, modes = IdLists.from_lists([ids for ids, _ in rows]), [mode for _, mode in rows]
    found = cut(markers, outputs, modes)
    laid = labels_of(found, outputs)
    assert [len(labels) for labels in laid] == found.body_tokens.tolist()
    assert [labels.count(REASONING) for labels in laid] == found.reasoning_tokens.tolist()
    assert [labels.count(ANSWER) for labels in laid] == found.answer_tokens.tolist()
    assert [labels.count(TOOL) for labels in laid] == found.tool_tokens.tolist()
    assert [labels.count(CLOSER) for labels in laid] == (found.closers * len(markers.closer)).tolist()
    if channels is None:
        bodies = [outputs.row(row)[:size].tolist() for row, size in enumerate(found.body_tokens)]
        plain = [_labels(ids, int(size), markers) for ids, size in zip(bodies, found.reasoning_tokens, strict=True)]
        assert laid == [[LABELS[label] for label in row] for row in plain]


def test_neighbours_of_one_label_are_one_piece() -> None:
    markers = markers_of("kimi_k25")
    (closer,), (begin,), (end,) = markers.closer, markers.tool_section_begin, markers.tool_section_end
    outputs = IdLists.from_lists([[1, closer, closer, 2, begin, 3, closer, end, 4, 163586], [5, begin], []])
    starts, rows, labels = cut(markers, outputs, ["opened"] * 3).pieces
    assert starts.tolist() == [0, 1, 3, 4, 6, 7, 8, 10, 11]
    assert rows.tolist() == [0] * 7 + [1] * 2
    assert labels.tolist() == [REASONING, CLOSER, ANSWER, TOOL, CLOSER, TOOL, ANSWER, REASONING, TOOL]
