"""Decoded samples: every id in one segment, markers told from text, nothing that could run."""

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_dataset
from small_dataset import CALL, CLOSER, END, OPENER, SECTION, SECTION_END
from transformers import PreTrainedTokenizerBase

from rawtokens.markers import Markers, find_markers
from rawtokens.reporting import decoded, samples, token_statistics
from rawtokens.reporting.decoded import Segment
from rawtokens.reporting.display import printable
from rawtokens.reporting.safe_html import clean_html
from rawtokens.reporting.samples import Sample

MARKERS = Markers(
    family="kimi",
    opener=(OPENER,),
    closer=(CLOSER,),
    turn_ends=(END,),
    tool_section_begin=(SECTION,),
    tool_section_end=(SECTION_END,),
    tool_call_begin=(CALL,),
    names={OPENER: "<think>", CLOSER: "</think>", END: "<|im_end|>", SECTION: "<|begin|>", CALL: "<|call|>"},
)


class TextDecoder:
    """A decoder of named texts; ids without one are unknown to it, as padded ids are to a real tokenizer."""

    def __init__(self, texts: dict[int, str], markers: Markers = MARKERS) -> None:
        self.markers = markers
        self.vocabulary_size = 163_840
        self._texts = {**{number: f"w{number} " for number in range(100)}, **texts}

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._texts[item] for item in ids)


class Kimi:
    """The real tokenizer."""

    def __init__(self, encoder: PreTrainedTokenizerBase) -> None:
        self.markers = find_markers(lambda text: encoder.get_vocab().get(text))
        self.vocabulary_size = 163_840
        self._encoder = encoder

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._encoder.decode(list(ids), skip_special_tokens=False))


class Page(HTMLParser):
    """The elements and the text of a page, as a browser would read it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def sample(output_ids: list[int], *, reasoning: int, prompt_ids: list[int] | None = None) -> Sample:
    return Sample(
        key="7#0/0",
        shape="closed",
        rows=1,
        verdict="accept",
        reasons=[],
        finish_reason="stop",
        prompt_ids=prompt_ids or [OPENER],
        output_ids=output_ids,
        reasoning_tokens=reasoning,
        ends_with_stop=output_ids[-1] == END,
    )


def test_an_output_is_split_where_its_columns_say() -> None:
    ids = [1, 2, CLOSER, 3, SECTION, CALL, 4, SECTION_END, 5, END]
    assert samples.split_output(sample(ids, reasoning=2), MARKERS) == [
        Segment("reasoning", (1, 2)),
        Segment("closer", (CLOSER,)),
        Segment("answer", (3,)),
        Segment("tool calls", (SECTION, CALL, 4, SECTION_END)),
        Segment("answer", (5,)),
        Segment("stop id", (END,)),
    ]


def test_a_section_that_is_left_open_reaches_to_the_end() -> None:
    assert samples.split_output(sample([1, SECTION, CALL, 4], reasoning=1), MARKERS) == [
        Segment("reasoning", (1,)),
        Segment("tool calls", (SECTION, CALL, 4)),
    ]


def test_a_closer_of_several_ids_is_one_segment_and_one_chip() -> None:
    markers = msgspec.structs.replace(MARKERS, closer=(7, 8, 9), names={})
    row = sample([1, 7, 8, 9, 8, END], reasoning=1)
    assert [segment.label for segment in samples.split_output(row, markers)] == [
        "reasoning",
        "closer",
        "answer",
        "stop id",
    ]
    html = samples.sample_html(row, TextDecoder({7: "◁/", 8: "think", 9: "▷", END: "END"}, markers))
    assert '<span dir="auto">◁/think▷</span> <small>7 8 9</small>' in html
    assert ">think</pre>" in html


def test_every_id_of_every_shape_stands_in_one_segment_with_the_lengths_on_record(tmp_path: Path) -> None:
    folder = small_dataset.write(tmp_path)
    rows = token_statistics.read_verified(folder).set_index("key")
    for row in samples.read_samples(folder):
        parts = samples.split_output(row, MARKERS)
        assert [item for part in parts for item in part.ids] == row.output_ids
        lengths = {
            name: sum(len(part.ids) for part in parts if part.label == name)
            for name in ("reasoning", "closer", "answer", "tool calls")
        }
        on_record = rows.loc[row.key]
        assert lengths["reasoning"] == on_record["reasoning_tokens"]
        assert lengths["answer"] == on_record["answer_tokens"]
        assert lengths["tool calls"] == on_record["tool_tokens"]
        assert lengths["closer"] == on_record["closers"]


def test_one_row_a_shape_is_chosen_and_its_own_ids_are_read(tmp_path: Path) -> None:
    found = samples.read_samples(small_dataset.write(tmp_path))
    assert [row.shape for row in found] == list(token_statistics.SHAPES)
    assert [row.key for row in found] == ["a#0/0", "c#0/0", "d#0/0", "e#0/0", "f#0/0", "g#0/0", "h#0/0"]
    assert [row.rows for row in found] == [2, 1, 1, 1, 1, 1, 1]
    assert found[0].output_ids == [1, 2, 3, CLOSER, 4, END]
    assert found[6].output_ids == [9, 9]
    assert found[2].reasons == ["loop", "truncated_in_thinking"]


def test_a_marker_is_a_chip_with_its_id_and_the_same_text_is_not() -> None:
    decoder = TextDecoder({1: "</think>"})
    html = samples.sample_html(sample([1, CLOSER, 2, END], reasoning=1), decoder)
    assert f'<span dir="auto">&lt;/think&gt;</span> <small>{CLOSER}</small>' in html
    assert html.count("<small>") == 3  # opener in the prompt, closer, stop id
    assert ">&lt;/think&gt;</pre>" in html


def test_segments_are_told_apart_by_label_as_well() -> None:
    html = samples.sample_html(sample([1, 2, CLOSER, 3, SECTION, 4, SECTION_END, END], reasoning=2), TextDecoder({}))
    for label in ("prompt · 1 id", "reasoning · 2 ids", "closer · 1 id", "answer · 1 id", "tool calls · 3 ids"):
        assert label in html


def test_a_long_segment_loses_its_middle_and_says_how_much() -> None:
    ids = [*range(50)] * 20
    ids[500] = OPENER
    page = Page(samples.sample_html(sample([*ids, CLOSER, END], reasoning=1000), TextDecoder({})))
    assert "[… 760 ids left out, 1 marker among them …]" in page.text
    assert len(re.findall(r"w\d+ ", page.text)) == decoded.HEAD_IDS + decoded.TAIL_IDS


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "</pre></div><a href='javascript:alert(1)'>",
        "\x1b[31mred\x1b[0m",
        "abc\u202etxt.exe",
        "nul\x00byte",
        "zero\u200bwidth",
        "&lt;b&gt;",
    ],
)
def test_hostile_text_is_inert_and_nothing_of_it_is_hidden(hostile: str) -> None:
    row = sample([1, CLOSER, 2, END], reasoning=1, prompt_ids=[3, OPENER])
    html = samples.sample_html(row, TextDecoder({1: hostile, 2: hostile, 3: hostile}))
    page = Page(html)
    assert page.tags == {"figure", "figcaption", "div", "pre", "span", "small"}
    assert page.attributes == {"style", "dir"}
    assert not any(character in html for character in "\x00\x1b\u202e\u200b")
    assert page.text.count(printable(hostile)) == 3


def test_a_text_of_ten_megabytes_makes_a_small_page() -> None:
    assert len(samples.sample_html(sample([1, CLOSER, END], reasoning=1), TextDecoder({1: "x" * 10_000_000}))) < 20_000


def test_an_id_that_the_tokenizer_has_no_text_for_is_shown_and_not_skipped() -> None:
    row = sample([1, 163_700, 200_000, -1, CLOSER, END], reasoning=4)
    html = samples.sample_html(row, TextDecoder({}))
    for item in (163_700, 200_000, -1):
        assert f'<span dir="auto">no text</span> <small>{item}</small>' in html


def test_special_ids_beside_the_markers_are_chips_when_named() -> None:
    decoder = TextDecoder({99: "[PAD]"})
    row = sample([1, 99, END], reasoning=2)
    assert '<span dir="auto">[PAD]</span> <small>99</small>' in samples.sample_html(row, decoder, special_ids={99})
    assert "<small>99</small>" not in samples.sample_html(row, decoder)


def test_a_sample_is_shown_as_html_and_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    samples.show(sample([1, CLOSER, 2, END], reasoning=1), TextDecoder({}))
    shown = capsys.readouterr().out
    assert "text/html" in shown
    assert f"[closer: 1 id] ⟦</think> {CLOSER}⟧" in shown


def test_a_prompt_is_shown_before_there_is_an_output(capsys: pytest.CaptureFixture[str]) -> None:
    samples.show_prompt([1, OPENER], TextDecoder({}), key="7#0")
    shown = capsys.readouterr().out
    assert "key 7#0" in shown
    assert f"[prompt: 2 ids] w1 ⟦<think> {OPENER}⟧" in shown


def test_the_report_keeps_a_sample_as_it_is() -> None:
    row = sample([1, CLOSER, 2, SECTION, 4, SECTION_END, *[3] * 300, END], reasoning=1)
    html = samples.sample_html(row, TextDecoder({1: "<b>&\x00"}))
    before, after = Page(html), Page(str(clean_html(html)))
    assert (after.tags, after.attributes, after.text) == (before.tags, before.attributes, before.text)


def test_the_real_tokenizer_shows_markers_and_whole_characters(kimi: PreTrainedTokenizerBase) -> None:
    thought = kimi.encode("2+2 is 4: 四 🙂", add_special_tokens=False)
    row = sample([*thought, CLOSER, *kimi.encode("4", add_special_tokens=False), END], reasoning=len(thought))
    html = samples.sample_html(row, Kimi(kimi))
    assert ">2+2 is 4: 四 🙂</pre>" in html
    assert '<span dir="auto">&lt;/think&gt;</span> <small>163607</small>' in html
    assert '<span dir="auto">&lt;|im_end|&gt;</span> <small>163586</small>' in html


def test_a_reason_that_no_shape_s_row_has_gets_a_row_of_its_own(tmp_path: Path) -> None:
    folder = small_dataset.write(tmp_path / "data")
    table = pq.read_table(folder / "verified.parquet")
    rows = table.to_pylist()
    (first,) = [row for row in rows if row["key"] == "a#0/0"]
    rows += [{**first, "key": f"{n}#0/0", "verdict": "flag", "reasons": ["closer_repeated"]} for n in "xyz"]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "verified.parquet")
    *by_shape, added = samples.read_samples(folder)
    assert len({sample.shape for sample in by_shape}) == len(by_shape)
    assert (added.key, added.reasons, added.shape) == ("y#0/0", ["closer_repeated"], "closed")
    shown = {reason for sample in [*by_shape, added] for reason in sample.reasons}
    assert shown == {reason for row in rows for reason in row["reasons"]}


def test_a_loop_is_shown_with_its_measure() -> None:
    sample = Sample(
        key="a#0/0",
        shape="closed",
        rows=1,
        verdict="flag",
        reasons=["loop", "role_id_in_output"],
        finish_reason="stop",
        prompt_ids=[1, OPENER],
        output_ids=[2, CLOSER, *range(5, 55), *[3, 4] * 103, END],
        reasoning_tokens=1,
        ends_with_stop=True,
    )
    html = samples.sample_html(sample, TextDecoder({}))
    assert "verdict flag (loop: 80% of its last 256 ids repeat an n-gram, role_id_in_output)" in html
