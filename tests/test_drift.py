"""The drift audit: outputs decoded and encoded again, with every change at its place."""

from collections.abc import Callable

import pytest
import real_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from rawtokens.fidelity.drift import PLACES, drift_of, places_of, retokenise
from rawtokens.reporting.samples import Sample
from rawtokens.target.id_bytes import IdBytes
from rawtokens.target.target_tokenizer import Tokenizer

END, CLOSER, SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END = 163586, 163607, 163595, 163596, 163597, 163598, 163599
PROMPT = [163587, 2482, 163601, 5376, 163586, 163588, 69702, 163601, 163606]


@pytest.fixture(scope="session")
def table(target: Tokenizer) -> IdBytes:
    return IdBytes.of(target)


def sample(output: list[int], *, reasoning: int, stops: bool = True, prompt: list[int] = PROMPT) -> Sample:
    return Sample(
        key="a#0/0",
        shape="closed",
        rows=1,
        verdict="accept",
        reasons=[],
        finish_reason="stop" if stops else "length",
        prompt_ids=prompt,
        output_ids=output,
        reasoning_tokens=reasoning,
        ends_with_stop=stops,
    )


def ids_of(table: IdBytes, text: str) -> list[int]:
    return table.tokenizer.encode([text])[0]


def spelt(table: IdBytes, text: str) -> list[int]:
    """A text in the ids of its single bytes: what no tokenizer would do."""
    return [table.pieces.index(bytes([byte])) for byte in text.encode()]


def test_a_canonical_output_does_not_drift(table: IdBytes) -> None:
    output = [*ids_of(table, "I add both."), CLOSER, *ids_of(table, "It is 4."), END]
    (drift,) = drift_of([sample(output, reasoning=output.index(CLOSER))], table)
    assert (drift.changed_tokens, drift.first_changed, drift.first_place) == (0, None, None)
    assert drift.retokenised_tokens == len(output)


def test_ids_that_are_not_their_text_s_are_found_at_their_place(table: IdBytes) -> None:
    thought, word = ids_of(table, "I add both."), ids_of(table, " four")
    assert len(word) == 1
    output = [*thought, CLOSER, *ids_of(table, "It is"), *spelt(table, " four"), *ids_of(table, "."), END]
    (drift,) = drift_of([sample(output, reasoning=len(thought))], table)
    assert drift.first_changed == len(thought) + 1 + 2
    assert drift.first_place == "answer"
    assert (drift.changed_tokens, drift.changed_by_place) == (5, {"answer": 5})
    assert (drift.was, drift.becomes) == (spelt(table, " four"), word)
    assert drift.retokenised_tokens == len(output) - 4
    assert not drift.text_lost


def test_two_changes_far_apart_leave_what_stands_between_them(table: IdBytes) -> None:
    middle = ids_of(table, " and then comes a long way to the end of the line")
    output = [*spelt(table, " four"), *middle, CLOSER, *spelt(table, " four"), END]
    (drift,) = drift_of([sample(output, reasoning=5 + len(middle))], table)
    assert drift.changed_by_place == {"reasoning": 5, "answer": 5}


def test_tool_arguments_are_told_from_the_rest_of_a_call(table: IdBytes) -> None:
    name, arguments = ids_of(table, "functions.f:0"), spelt(table, '{"a": 1}')
    call = [SECTION, CALL, *name, ARGUMENTS, *arguments, CALL_END, SECTION_END]
    row = sample([CLOSER, *call, END], reasoning=0)
    places = places_of(row, table.tokenizer.markers)
    assert places[0] == "closer"
    assert places[1 : 3 + len(name)] == ["tool calls"] * (2 + len(name))
    first = 1 + 2 + len(name) + 1
    assert places[first : first + len(arguments)] == ["tool arguments"] * len(arguments)
    assert places[first + len(arguments) :] == ["tool calls", "tool calls", "stop id"]
    (drift,) = drift_of([row], table)
    assert (drift.first_changed, drift.first_place) == (first, "tool arguments")


def test_an_output_that_ends_inside_a_character_can_not_come_back(table: IdBytes) -> None:
    whole = ids_of(table, "I smile")
    output = [*whole, *spelt(table, "🙂")[:2]]
    (drift,) = drift_of([sample(output, reasoning=len(output), stops=False)], table)
    assert drift.text_lost
    assert (drift.first_changed, drift.changed_tokens) == (len(whole), 2)


def test_an_id_without_text_is_lost_and_the_rest_stays(table: IdBytes) -> None:
    size = len(table.pieces)
    assert table.pieces[size - 1]  # Kimi's vocabulary has no padding; a row outside of it is not decoded
    output = [*ids_of(table, "I add."), size, CLOSER, END]
    (drift,) = drift_of([sample(output, reasoning=len(output) - 2)], table)
    assert not drift.decoded
    assert drift.first_changed is None


def test_rows_that_can_not_be_decoded_cost_no_other_row(table: IdBytes) -> None:
    outputs = [[-1], spelt(table, " four"), []]
    drifts = drift_of([sample(output, reasoning=len(output), stops=False) for output in outputs], table)
    assert [(drift.decoded, drift.changed_tokens) for drift in drifts] == [(False, 0), (True, 5), (True, 0)]


@settings(max_examples=60)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_s_own_ids_never_drift(table: IdBytes, text: str) -> None:
    ids = ids_of(table, text)
    row = sample(ids, reasoning=len(ids), stops=False)
    assert drift_of([row], table)[0].first_changed is None


@settings(max_examples=60)
@given(output=st.lists(st.integers(0, 163839), max_size=40), data=st.data())
def test_counts_add_up_for_any_ids(table: IdBytes, output: list[int], data: st.DataObject) -> None:
    row = sample(output, reasoning=data.draw(st.integers(0, len(output))), stops=False)
    (drift,) = drift_of([row], table)
    (again,) = retokenise([output], table)
    assert sum(drift.changed_by_place.values()) == drift.changed_tokens <= len(output)
    assert (drift.first_changed is None) == (again == output)
    assert drift.first_place is None or drift.first_place in PLACES
    assert drift.retokenised_tokens == len(again)
    if drift.first_changed is not None:
        assert again[: drift.first_changed] == output[: drift.first_changed]


@pytest.mark.parametrize("name", real_tokenizers.NAMES)
def test_every_family_s_text_comes_back_and_its_single_bytes_do_not(
    family_target: Callable[[str], Tokenizer], name: str
) -> None:
    table = IdBytes.of(family_target(name))
    assert table.exact
    text = 'I add both.\n\n{"a": [1, 2]} — naïve 你好 🙂'
    (ids,) = table.tokenizer.encode([text])
    markers = table.tokenizer.markers
    output = [*ids, *markers.closer, *spelt(table, " four"), markers.turn_ends[0]]
    row = sample(output, reasoning=len(ids) if markers.closer else 0, prompt=[*markers.opener])
    same, different = drift_of([sample(ids, reasoning=0, stops=False, prompt=[]), row], table)
    assert same.first_changed is None
    assert (different.first_changed, different.changed_tokens) == (len(ids) + len(markers.closer), 5)
