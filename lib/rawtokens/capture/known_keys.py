"""Which keys stand in a journal, at the speed of the disk and in 16 bytes a key.

A key is kept as 128 bits of BLAKE2b: over ten million keys the chance that any two are confused is 1e-25, and none
can be made to. A Python set of ten million keys takes over 1 GB, this 160 MB. This module does not know what a key
means, nor what follows it in a line.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

KEY_START = b'{"key":"'
KEY_END = b'","prompt_ids":'
_BLOCK_BYTES = 1 << 20
_NEW_KEYS = 1 << 17  # about 12 MB of a set; merging them into ten million takes 0.4 s


class KnownKeys:
    """A set of keys that grows: `key in known`, `known.add(key)`, `len(known)` (a key added twice counts twice)."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        """`keys` as UTF-8 bytes, any number of them."""
        digests = bytearray()
        for key in keys:
            digests += hashlib.blake2b(key, digest_size=16).digest()
        self._sorted = np.frombuffer(digests, dtype="S16")
        self._sorted.sort()
        self._new: set[bytes] = set()

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Self:
        """The keys of these journals. Raises InputError for a line that is no record."""
        return cls(key for path in paths for key in scan_keys(path))

    def __len__(self) -> int:
        return len(self._sorted) + len(self._new)

    def __contains__(self, key: str) -> bool:
        digest = _digest(key)
        if digest in self._new or not len(self._sorted):
            return digest in self._new
        return bool(self._found(np.array([digest], dtype="S16"))[0])

    def contains_each(self, keys: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each key is known, in order: 3 us a key among ten million."""
        digests = [_digest(key) for key in keys]
        found = self._found(np.array(digests, dtype="S16"))
        if self._new:
            found |= np.fromiter((digest in self._new for digest in digests), dtype=np.bool_, count=len(digests))
        return found

    def add(self, key: str) -> None:
        """Know this key too."""
        self._new.add(_digest(key))
        if len(self._new) > _NEW_KEYS:
            self._sorted = np.concatenate([self._sorted, np.array(sorted(self._new), dtype="S16")])
            self._sorted.sort(kind="stable")  # two sorted runs: a merge
            self._new.clear()

    def _found(self, digests: NDArray[np.bytes_]) -> NDArray[np.bool_]:
        if not len(self._sorted):
            return np.zeros(len(digests), dtype=np.bool_)
        places = np.searchsorted(self._sorted, digests)
        found: NDArray[np.bool_] = self._sorted[np.minimum(places, len(self._sorted) - 1)] == digests
        return found


def scan_keys(path: Path) -> Iterator[bytes]:
    """The key of each whole line, as UTF-8, without looking at its ids.

    A last line without newline is being written, or is torn: no record yet. Raises InputError for a line that does
    not begin with a key and for a file that can't be read.
    """
    number = 0
    for block, filled in _whole_lines(path):
        start = 0
        while start < filled:
            end = block.find(b"\n", start)
            number += 1
            key = key_at(block, start, end)
            if key is None:
                raise foreign_line(path, number)
            yield key
            start = end + 1


def refuse_foreign(path: Path) -> None:
    """Raise InputError for a file that begins as another program's JSON does: its end is no torn line of this kit.

    It is to be set aside whole, so this comes before a tail is mended.
    """
    if path.exists():
        with path.open("rb") as file:
            start = file.read(len(KEY_START)).partition(b"\0")[0]  # a power cut leaves NULs in place of a line's rest
        if start[:1] in (b"{", b"[", b" ") and not KEY_START.startswith(start):
            raise foreign_line(path, 1)


def foreign_line(path: Path, number: int) -> InputError:
    """The error of a line that another program wrote, with the command that sets such lines aside."""
    return InputError(
        f"{path}: line {number} is no record of this kit (no key in front); `rawtokens retry RUN --dataset NAME "
        "--where foreign` sets such lines aside, or move the file away; then run again"
    )


def key_at(block: bytes | bytearray, start: int, end: int) -> bytes | None:
    """The key of the line `block[start:end]`, as UTF-8; None where no key is in front."""
    if not block.startswith(KEY_START, start):
        return None
    stop = block.find(KEY_END, start, end)
    if stop < 0:
        return None
    raw = bytes(block[start + len(KEY_START) : stop])
    if raw.isascii() and b"\\" not in raw:
        return raw
    try:
        return msgspec.json.decode(b'"%b"' % raw, type=str).encode()
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _whole_lines(path: Path) -> Iterator[tuple[bytearray, int]]:
    """The file in blocks, each with how much of it is lines that end; one buffer for all, filled anew each time.

    A buffer that is filled in place is read at 4 times the speed of fresh bytes, whose pages the system clears.
    """
    buffer, rest = bytearray(_BLOCK_BYTES), 0
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(memoryview(buffer)[rest:]):
                filled = rest + count
                whole = buffer.rfind(b"\n", 0, filled) + 1
                if whole:
                    yield buffer, whole
                rest = filled - whole
                buffer[:rest] = buffer[whole:filled]
                if rest == len(buffer):  # a line longer than the buffer
                    buffer += bytes(len(buffer))
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}; mend or move it, then run again") from error


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
