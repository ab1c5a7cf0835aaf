"""A checksum per row over its key and its ids, from the journal's text and from arrays alike.

It is SHA-256 over the key (UTF-8), a newline, and the ids of prompt and output in decimal, commas between them; of
its 32 bytes the first 16 are kept. The journal holds those very decimals, so its checksums need no id parsed (7 ns an
id, against 22 for parsing), and ids of an array are written out by a table (12 ns). This module does not know what an
id means.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..capture.known_keys import key_at
from ..errors import InputError
from ..journal import journal_paths
from ..response_checks.response_columns import IdLists

Checksums = NDArray[np.bytes_]
"""One entry a row, S16."""

_PROMPT, _OUTPUT = b'","prompt_ids":[', b'],"output_ids":['
_BLOCK = 1 << 15  # ids; their text stays in the cache
_SEVEN_DIGITS = 10_000_000


class _Ids(msgspec.Struct):
    key: str
    prompt_ids: list[int]
    output_ids: list[int]


class IdTexts:
    """Writes ids as decimals between commas, 100M a second; its table grows to the largest id that it has met."""

    def __init__(self) -> None:
        self._words = np.zeros(0, dtype=np.uint64)

    def text(self, ids: NDArray[np.int32]) -> bytes:
        """`1,22,333` for 1, 22, 333. Raises InputError for an id below 0 or of more than seven digits."""
        self._reach(ids)
        return self._written(ids)

    def row_texts(self, inputs: IdLists) -> Iterator[bytes]:
        """The text of each row. Raises as `text` does."""
        self._reach(inputs.ids)
        return (self._written(inputs.row(row)) for row in range(len(inputs.lengths)))

    def _written(self, ids: NDArray[np.int32]) -> bytes:
        blocks = (ids[start : start + _BLOCK] for start in range(0, len(ids), _BLOCK))
        return b"".join(self._words[block].tobytes().translate(None, b"\0") for block in blocks)[:-1]

    def _reach(self, ids: NDArray[np.int32]) -> None:
        if not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < len(self._words)):
            return
        if int(ids.min()) < 0 or int(ids.max()) >= _SEVEN_DIGITS:
            raise InputError(f"id {ids.min() if ids.min() < 0 else ids.max()} is none of a vocabulary; look at the row")
        words = np.char.add(np.arange(int(ids.max()) + 1).astype("S7"), b",").astype("S8")
        self._words = words.view(np.uint64)


def row_checksums(keys: Sequence[str], texts: Iterator[bytes]) -> Checksums:
    """The checksum of each row from its key and the text of its ids."""
    return np.array([_checksum(key.encode(), text) for key, text in zip(keys, texts, strict=True)], dtype="S16")


def mask_checksums(mask: NDArray[np.int8], offsets: NDArray[np.int64]) -> Checksums:
    """A checksum of each row's mask."""
    content = np.ascontiguousarray(mask, dtype=np.int8).data
    return np.array([_digest(content[start:end]) for start, end in pairwise(offsets.tolist())], dtype="S16")


def journal_checksums(folder: Path) -> Checksums:
    """The checksum of every row of a data set's journals, in the order in which verification reads them.

    Raises InputError where there is no journal, or a line is no record.
    """
    paths = journal_paths(folder)
    if not paths:
        raise InputError(f"{folder} has no raw_responses.jsonl; the export is checked against it")
    found = bytearray()
    for path in paths:
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.endswith(b"\n"):
                        found += _line_checksum(line, f"{path}: line {number}")
        except OSError as error:
            raise InputError(f"{path} can't be read: {error.strerror}; mend or move it, then run again") from error
    return np.frombuffer(found, dtype="S16")


def _line_checksum(line: bytes, place: str) -> bytes:
    key = key_at(line, 0, len(line))
    start = line.find(_PROMPT) + len(_PROMPT)
    middle = line.find(b"]", start)
    end = line.find(b"]", middle + len(_OUTPUT))
    if key is not None and start >= len(_PROMPT) and line.startswith(_OUTPUT, middle) and end > 0:
        output = line[middle + len(_OUTPUT) : end]
        if b" " not in output:
            prompt = line[start:middle]
            return _checksum(key, prompt, b"," if prompt and output else b"", output)
    try:  # spaces in a server's list, another order of fields
        row = msgspec.json.decode(line, type=_Ids)
    except msgspec.MsgspecError as error:
        raise InputError(f"{place} is no record of this kit ({error}); take it out, then run again") from error
    return _checksum(row.key.encode(), ",".join(map(str, [*row.prompt_ids, *row.output_ids])).encode())


def _checksum(key: bytes, *texts: bytes) -> bytes:
    digest = hashlib.sha256(key + b"\n")
    for text in texts:
        digest.update(text)
    return digest.digest()[:16]


def _digest(content: memoryview) -> bytes:
    return hashlib.sha256(content).digest()[:16]
