"""Ids as the bytes that they spell, and which ids survive where the same bytes are spelt by other ids.

An id survives where the other sequence has the same id over the same bytes: exact, and linear in the ids. Byte-level
tokenizers alone have bytes for every id; of any other, all between the first and the last difference counts as lost.
This module does not know why a text was spelt again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from transformers.convert_slow_tokenizer import bytes_to_unicode

from .target_tokenizer import Tokenizer

Integers = NDArray[np.int64]
LOST = -1


class Span(NamedTuple):
    """Bytes `start` to `stop` of one text, which stand from `again` on in the other."""

    start: int
    stop: int
    again: int


class IdBytes(msgspec.Struct, frozen=True, eq=False):
    """The bytes of every id of the model's vocabulary; none for an id that the tokenizer has no text for."""

    tokenizer: Tokenizer
    pieces: list[bytes]
    lengths: Integers  # (vocabulary,), bytes
    exact: bool  # whether the bytes of the ids, joined, are what the tokenizer decodes to

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "IdBytes":
        """Read the vocabulary; half a second for 160,000 ids."""
        encoder, letters = tokenizer.encoder, {letter: byte for byte, letter in bytes_to_unicode().items()}
        known = max(encoder.get_vocab().values(), default=-1) + 1
        texts: list[str | None] = encoder.convert_ids_to_tokens(list(range(min(known, tokenizer.vocabulary_size))))
        pieces = [_bytes(text or "", letters) for text in texts]
        pieces += [b""] * (tokenizer.vocabulary_size - len(pieces))
        # Every rank's text on its own, then runs of them: a decoder that treats neighbours is no byte-level one.
        probes = [list(range(start, min(start + 64, len(texts)))) for start in range(0, len(texts), 997)]
        exact = all(tokenizer.decode(ids) == _text(pieces, ids) for ids in probes)
        return cls(tokenizer, pieces, np.array([len(piece) for piece in pieces], dtype=np.int64), exact)

    def joined(self, ids: Sequence[int]) -> bytes:
        """The bytes of a sequence. Raises IndexError for an id above the vocabulary."""
        return b"".join(map(self.pieces.__getitem__, ids))

    def text(self, ids: Sequence[int]) -> str:
        """What the tokenizer decodes to, ten times as fast; U+FFFD where bytes are no UTF-8."""
        return _text(self.pieces, ids) if self.exact else self.tokenizer.decode(ids)

    def is_whole_text(self, ids: Sequence[int], text: str) -> bool:
        """Whether `text`, decoded from `ids`, lost no byte: an output that ends inside a character does."""
        return "\ufffd" not in text or text.encode() == self.joined(ids)

    def partners(self, ids: Sequence[int], again: Sequence[int], spans: Sequence[Span] | None = None) -> Integers:
        """For each id its place in `again`, LOST where it does not survive, (ids,).

        `spans` are the pieces of text that both hold; by default the whole text or, where the two texts differ, what
        stands before the first and behind the last difference.
        """
        one, other = np.array(ids, dtype=np.int64), np.array(again, dtype=np.int64)
        if not self.exact:
            return _outer(one, other)
        starts, starts_again = (np.append(0, np.cumsum(self.lengths[found])) for found in (one, other))
        if spans is None:
            spans = _common_spans(self.joined(ids), self.joined(again))
        found = np.full(len(one), LOST, dtype=np.int64)
        for span in spans:
            inside = (starts[:-1] >= span.start) & (starts[1:] <= span.stop)
            wanted = starts[:-1] - span.start + span.again
            place = np.minimum(np.searchsorted(starts_again[:-1], wanted), len(other) - 1)
            same = inside & (starts_again[place] == wanted) if len(other) else np.zeros(len(one), dtype=np.bool_)
            same[same] = other[place[same]] == one[same]
            found = np.where((found == LOST) & same, place, found)
        return found


def first_difference(ids: Sequence[int], again: Sequence[int]) -> int:
    """Where two sequences, of ids or of bytes, first differ: at the shorter's length where one begins the other."""
    shorter = min(len(ids), len(again))
    one, other = (
        np.frombuffer(found[:shorter], dtype=np.uint8) if isinstance(found, bytes) else np.array(found[:shorter])
        for found in (ids, again)
    )
    different = np.flatnonzero(one != other)
    return int(different[0]) if len(different) else shorter


def _common_spans(text: bytes, again: bytes) -> list[Span]:
    head = first_difference(text, again)
    tail = min(first_difference(text[::-1], again[::-1]), len(text) - head, len(again) - head)
    return [Span(0, head, 0), Span(len(text) - tail, len(text), len(again) - tail)]


def _outer(one: Integers, other: Integers) -> Integers:
    """What stands before the first and behind the last difference survives."""
    head = first_difference(one.tolist(), other.tolist())
    rest = min(len(one), len(other)) - head
    tail = min(first_difference(one[::-1].tolist(), other[::-1].tolist()), rest)
    found = np.arange(len(one))
    found[head : len(one) - tail] = LOST
    found[len(one) - tail :] += len(other) - len(one)
    return found


def _bytes(text: str, letters: dict[str, int]) -> bytes:
    """A vocabulary's text as bytes: one letter a byte, an added token as it is."""
    try:
        return bytes([letters[letter] for letter in text])
    except KeyError:
        return text.encode()


def _text(pieces: Sequence[bytes], ids: Sequence[int]) -> str:
    return b"".join(map(pieces.__getitem__, ids)).decode("utf-8", errors="replace")
