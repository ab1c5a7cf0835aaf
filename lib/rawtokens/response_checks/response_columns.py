"""Many responses as flat columns of ids, so that checks run over arrays and not over rows.

This module does not know what an id means.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import InputError
from ..records import Response

NO_ID = -1
"""Stands where there is no id: where the server named none (a stop string, or null), or a row is empty."""


_INTS = msgspec.json.Decoder(list[int])
_LARGEST = np.iinfo(np.int32).max


class IdLists(msgspec.Struct, frozen=True, eq=False):
    """The id lists of many rows: row i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: NDArray[np.int32]  # (all ids,)
    offsets: NDArray[np.int64]  # (rows + 1,)

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> "IdLists":
        """Copy lists of ints. Raises OverflowError for an int that is no int32."""
        offsets = np.fromiter(accumulate(map(len, lists), initial=0), dtype=np.int64, count=len(lists) + 1)
        ids = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(offsets[-1]))
        return cls(ids, offsets)

    @classmethod
    def from_texts(cls, texts: Sequence[msgspec.Raw]) -> "IdLists":
        """Read JSON arrays of ints without an int object each. Raises msgspec.ValidationError for any other value,
        OverflowError for an int that is no int32."""
        inner = [bytes(text)[1:-1] for text in texts]
        joined = b",".join(filter(None, inner))
        arrays = all(bytes(memoryview(text)[:1]) == b"[" for text in texts)
        if not arrays or joined.translate(None, b"0123456789,"):  # spaces, signs, or no ints: by the strict decoder
            return cls.from_lists([_INTS.decode(text) for text in texts])
        counts = [text.count(b",") + 1 if text else 0 for text in inner]
        ids = np.fromstring(joined, dtype=np.int64, sep=",") if joined else np.zeros(0, dtype=np.int64)
        if len(ids) and ids.max() > _LARGEST:
            raise OverflowError(f"{ids.max()} is no int32")
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return cls(ids.astype(np.int32), offsets)

    @classmethod
    def from_arrow(cls, lists: pa.ListArray) -> "IdLists":
        """View a list<int32> array without nulls, read-only.

        By DLPack: the first `to_numpy` of a process imports pandas, a second or two in which a run's loop stands;
        the first `flatten` imports pyarrow.compute, a quarter of a second.
        """
        offsets = np.from_dlpack(lists.offsets).astype(np.int64)
        ids = np.asarray(np.from_dlpack(lists.values), dtype=np.int32)
        return cls(ids[offsets[0] : offsets[-1]], offsets - offsets[0])

    def to_arrow(self, kind: pa.DataType) -> pa.ListArray:
        """View as list<int32> of the type `kind`; at most 2**31 - 1 ids."""
        return pa.ListArray.from_arrays(pa.array(self.offsets, type=pa.int32()), pa.array(self.ids), type=kind)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Ids of each row, (rows,)."""
        lengths: NDArray[np.int64] = np.diff(self.offsets)
        return lengths

    def row(self, index: int) -> NDArray[np.int32]:
        """The ids of one row."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def last_ids(self) -> NDArray[np.int64]:
        """The last id of each row, NO_ID where there is none, (rows,)."""
        last = np.full(len(self.lengths), NO_ID, dtype=np.int64)
        filled = self.lengths > 0
        last[filled] = self.ids[self.offsets[1:][filled] - 1]
        return last

    def rows_with_id_outside(self, size: int) -> NDArray[np.bool_]:
        """Rows that hold an id below 0 or not below `size`, (rows,)."""
        outside = np.zeros(len(self.offsets) - 1, dtype=np.bool_)
        if len(self.ids) == 0 or self.ids.view(np.uint32).max() < size:  # unsigned, a negative id is a huge one
            return outside
        positions = np.flatnonzero((self.ids < 0) | (self.ids >= size))
        outside[self.rows_of(positions)] = True
        return outside

    def rows_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row in which each flat position lies."""
        rows: NDArray[np.int64] = np.searchsorted(self.offsets, positions, side="right") - 1
        return rows


class ResponseTexts(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks need of a journal's line, its ids still JSON text: a records.Response in part."""

    key: str
    prompt_ids: msgspec.Raw
    output_ids: msgspec.Raw
    finish_reason: Literal["stop", "length"]
    matched: int | str | None
    prompt_tokens: int
    completion_tokens: int
    fingerprint: str


class ResponseColumns(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A batch of `records.Response`, column by column; every field has one entry a row."""

    keys: list[str]
    prompts: IdLists
    outputs: IdLists
    finish_reasons: list[str]
    matched_ids: NDArray[np.int64]  # NO_ID where `matched` is no id
    unmatched: NDArray[np.bool_]  # whether `matched` is null
    fingerprints: list[str]
    prompt_tokens: NDArray[np.int64]  # the server's count
    completion_tokens: NDArray[np.int64]  # the server's count

    @classmethod
    def from_responses(cls, responses: Sequence[Response]) -> "ResponseColumns":
        """Copy a batch, at most 2**31 - 1 ids. Raises InputError for an id that is no int32: it can't be stored."""
        return _columns(
            responses,
            lambda: IdLists.from_lists([response.prompt_ids for response in responses]),
            lambda: IdLists.from_lists([response.output_ids for response in responses]),
        )

    @classmethod
    def from_texts(cls, responses: Sequence[ResponseTexts]) -> "ResponseColumns":
        """Read a batch, at most 2**31 - 1 ids. Raises InputError for ids that are no list of int32."""
        return _columns(
            responses,
            lambda: IdLists.from_texts([response.prompt_ids for response in responses]),
            lambda: IdLists.from_texts([response.output_ids for response in responses]),
        )


def _columns(
    responses: Sequence[Response] | Sequence[ResponseTexts],
    prompts: Callable[[], IdLists],
    outputs: Callable[[], IdLists],
) -> ResponseColumns:
    try:
        counts = np.array(
            [[response.prompt_tokens, response.completion_tokens] for response in responses], dtype=np.int64
        ).reshape(-1, 2)
        matched = [response.matched if isinstance(response.matched, int) else NO_ID for response in responses]
        return ResponseColumns(
            keys=[response.key for response in responses],
            prompts=prompts(),
            outputs=outputs(),
            finish_reasons=[response.finish_reason for response in responses],
            matched_ids=np.array(matched, dtype=np.int64),
            unmatched=np.array([response.matched is None for response in responses], dtype=np.bool_),
            fingerprints=[response.fingerprint for response in responses],
            prompt_tokens=counts[:, 0],
            completion_tokens=counts[:, 1],
        )
    except (OverflowError, msgspec.ValidationError) as error:
        raise InputError(
            f"a response among {responses[0].key!r} to {responses[-1].key!r} holds a number that no id or count "
            f"can be ({error}); the journal was changed or damaged: look at its lines, then run again"
        ) from error
