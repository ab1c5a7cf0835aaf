"""Ids as bytes: which survive where the same text is spelt by other ids."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rawtokens.target.id_bytes import LOST, IdBytes, Span, first_difference
from rawtokens.target.target_tokenizer import Tokenizer


def table_of(tokenizer: Tokenizer, pieces: list[bytes], *, exact: bool = True) -> IdBytes:
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    return IdBytes(tokenizer, pieces, lengths, exact)


PIECES = [b"a", b"b", b"ab", b"c", b"bc", b""]


def test_the_bytes_of_ids_are_what_the_tokenizer_decodes(target: Tokenizer) -> None:
    table = IdBytes.of(target)
    assert table.exact
    assert len(table.pieces) == target.vocabulary_size == 163840
    ids = [163606, *target.encode(["Fünf 🙂 naïve\n\n  x = {'a': 1}  你好"])[0], 163607, 163586]
    assert table.text(ids) == target.decode(ids) == "<think>Fünf 🙂 naïve\n\n  x = {'a': 1}  你好</think><|im_end|>"


def test_half_a_character_is_no_whole_text(target: Tokenizer) -> None:
    table = IdBytes.of(target)
    smile = [table.pieces.index(bytes([byte])) for byte in "🙂".encode()]
    assert table.joined(smile) == "🙂".encode()
    assert table.is_whole_text(smile, table.text(smile))
    assert table.text(smile[:2]) == "\ufffd"
    assert not table.is_whole_text(smile[:2], "\ufffd")
    told = target.encode(["\ufffd"])[0]
    assert table.is_whole_text(told, "\ufffd")  # the model said U+FFFD itself


def test_an_id_survives_over_the_same_bytes_alone(target: Tokenizer) -> None:
    table = table_of(target, PIECES)
    # a|b|c|a  against  ab|c|a: "c" and the last "a" stay.
    assert table.partners([0, 1, 3, 0], [2, 3, 0]).tolist() == [LOST, LOST, 1, 2]
    assert table.partners([0, 1, 3, 0], [0, 4, 0]).tolist() == [0, LOST, LOST, 2]
    assert table.partners([0, 1], [0, 1]).tolist() == [0, 1]
    assert table.partners([0, 1], []).tolist() == [LOST, LOST]
    assert table.partners([], [0]).tolist() == []


def test_an_id_without_text_is_lost(target: Tokenizer) -> None:
    assert table_of(target, PIECES).partners([0, 5, 1], [0, 1]).tolist() == [0, LOST, 1]


def test_where_the_text_itself_changed_ids_are_found_from_both_ends(target: Tokenizer) -> None:
    table = table_of(target, PIECES)
    assert table.partners([0, 1, 3, 3], [0, 2, 3, 3]).tolist() == [0, LOST, 2, 3]


def test_spans_say_which_bytes_are_the_same(target: Tokenizer) -> None:
    table = table_of(target, PIECES)
    # Bytes 1 to 3 of "abca" stand from byte 2 on in "ccbc".
    assert table.partners([0, 1, 3, 0], [3, 3, 1, 3], [Span(1, 3, 2)]).tolist() == [LOST, 2, 3, LOST]


def test_without_bytes_all_between_the_first_and_the_last_difference_is_lost(target: Tokenizer) -> None:
    table = table_of(target, PIECES, exact=False)
    assert table.partners([7, 8, 1, 8, 9], [7, 2, 1, 2, 2, 9]).tolist() == [0, LOST, LOST, LOST, 5]
    assert table.partners([7, 7], [7, 7, 7]).tolist() == [0, 1]


def test_the_first_difference_of_a_beginning_is_its_length() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) == 3
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([1, 9, 3], [1, 2, 3]) == 1
    assert first_difference([], [1]) == 0
    assert first_difference(b"<think>a", b"<think>b") == 7


@given(ids=st.lists(st.integers(0, 4)), again=st.lists(st.integers(0, 4)), exact=st.booleans())
def test_partners_are_the_same_ids_and_their_own_partners_in_order(
    target: Tokenizer, ids: list[int], again: list[int], exact: bool
) -> None:
    table = table_of(target, PIECES, exact=exact)
    found = table.partners(ids, again).tolist()
    assert all(again[place] == item for place, item in zip(found, ids, strict=True) if place != LOST)
    kept = [place for place in found if place != LOST]
    assert kept == sorted(set(kept))
    assert table.partners(ids, ids).tolist() == list(range(len(ids)))
