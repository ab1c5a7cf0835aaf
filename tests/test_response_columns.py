"""Ids as flat arrays, from lists and from the journal's own text."""

import json

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawtokens.errors import InputError
from rawtokens.response_checks.response_columns import IdLists, ResponseColumns, ResponseTexts

LISTS = st.lists(st.lists(st.integers(-3, 2**31 - 1), max_size=8), max_size=6)


def texts_of(*texts: str) -> list[msgspec.Raw]:
    return [msgspec.Raw(text.encode()) for text in texts]


@given(LISTS, st.sampled_from([(",", ":"), (", ", ": ")]))
def test_text_gives_the_same_arrays_as_lists(lists: list[list[int]], separators: tuple[str, str]) -> None:
    by_text = IdLists.from_texts(texts_of(*(json.dumps(ids, separators=separators) for ids in lists)))
    by_list = IdLists.from_lists(lists)
    assert by_text.ids.tolist() == by_list.ids.tolist()
    assert by_text.offsets.tolist() == by_list.offsets.tolist()
    assert (str(by_text.ids.dtype), str(by_text.offsets.dtype)) == ("int32", "int64")


@settings(deadline=None)  # the first pa.array imports pandas
@given(LISTS, st.integers(0, 6), st.integers(0, 6))
def test_a_part_of_an_arrow_column_gives_the_same_arrays_as_its_lists(
    lists: list[list[int]], start: int, rows: int
) -> None:
    part = pa.array(lists, type=pa.list_(pa.int32())).slice(min(start, len(lists)), rows)
    found, expected = IdLists.from_arrow(part), IdLists.from_lists(part.to_pylist())
    assert (found.ids.tolist(), found.offsets.tolist()) == (expected.ids.tolist(), expected.offsets.tolist())
    assert (found.ids.dtype.name, found.offsets.dtype.name) == ("int32", "int64")


@pytest.mark.parametrize("text", ["[2147483648]", "[1,99999999999999999999999999]", "[-2147483649]"])
def test_a_number_that_no_int32_holds_is_refused(text: str) -> None:
    with pytest.raises((OverflowError, msgspec.ValidationError)):
        IdLists.from_texts(texts_of("[1,2]", text))


@pytest.mark.parametrize(
    "text", ["null", "7", '"[1,2]"', "[1.5]", "[[1]]", '["1"]', "[true]", "{}", '{"1":2}', "[null]"]
)
def test_what_is_no_list_of_ints_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        IdLists.from_texts(texts_of("[1,2]", text))


def test_a_damaged_record_is_refused_with_the_rows_named() -> None:
    line = {"key": "7#0/0", "prompt_ids": [1], "output_ids": [2.5], "finish_reason": "stop", "matched": None}
    counts = {"prompt_tokens": 1, "completion_tokens": 1, "fingerprint": "f"}
    record = msgspec.json.decode(json.dumps({**line, **counts}), type=ResponseTexts)
    with pytest.raises(InputError, match="7#0/0"):
        ResponseColumns.from_texts([record])
