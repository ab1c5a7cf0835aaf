"""Rejected rows one at a time, in flat memory: a file of a million rows may be rejected whole.

Stage 01's lines are written beside rejected.jsonl while rows are read, and replace its earlier ones at the end; those
of stage 02 are added every few seconds. This module does not know why a row was rejected.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..errors import InputError
from ..journal import REJECTED, append_rejections, rejection_paths
from ..records import Rejection
from ..shards import WHOLE, Shard
from .known_keys import KnownKeys

_SHARE = 0.01  # of the time may go into rewriting the file: 10 ms for 100,000 rows


def each_rejection(folder: Path) -> Iterator[Rejection]:
    """The rejections of a data set, those of all shards; a generation is told once.

    Raises InputError for a line that is none.
    """
    told: set[str] = set()
    for path in rejection_paths(folder):
        for rejection, _ in _lines(path):
            if rejection.stage == "generate":
                if rejection.key in told:
                    continue
                told.add(rejection.key)
            yield rejection


@contextmanager
def new_rejections(folder: Path) -> Iterator[Callable[[Iterable[Rejection]], None]]:
    """Replace stage 01's lines in rejected.jsonl by those that are given meanwhile, atomically, when all is well.

    The lines of stage 02 stay. Raises InputError for an earlier line that is no record; an OSError is the caller's.
    """
    path = folder / REJECTED
    waiting, whole = (path.with_name(f".{path.name}.{part}.tmp") for part in ("tokenize", "whole"))
    try:
        with waiting.open("w+b") as lines:
            yield lambda rejections: lines.writelines(msgspec.json.encode(item) + b"\n" for item in rejections)
            lines.seek(0)
            with whole.open("wb") as file:
                file.writelines(line for item, line in _lines(path) if item.stage != "tokenize")
                file.writelines(lines)
        whole.replace(path)
    finally:
        for leftover in (waiting, whole):
            leftover.unlink(missing_ok=True)


class RejectedRows:
    """The rows that stage 02 rejected: their keys, at 16 bytes each, and those that stand in no file yet.

    `key in rows`, `len(rows)`: of all runs of this shard. What was not written at a kill is asked again.
    """

    def __init__(self, folder: Path, *, shard: Shard = WHOLE) -> None:
        """Read what stands rejected. Raises InputError for a line that is no record."""
        self._folder, self._shard = folder, shard
        self._keys, self._waiting = KnownKeys(), list[Rejection]()
        self._due = 0.0
        for path in rejection_paths(folder):
            for item, _ in _lines(path):
                if item.stage == "generate" and shard.holds(item.key) and item.key not in self._keys:
                    self._keys.add(item.key)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, rejections: Iterable[Rejection]) -> None:
        """Reject these rows, for good; in the file at the next `write`."""
        for item in rejections:
            if item.key not in self._keys:
                self._keys.add(item.key)
                self._waiting.append(item)

    def write_when_due(self) -> None:
        """`write`, but seldom where the file is large."""
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Add what waits to the shard's rejected.jsonl; a shard without rejections has no file.

        Raises RunStopped where it can't be written.
        """
        missing = self._shard == WHOLE and not (self._folder / REJECTED).exists()
        if not self._waiting and not missing:
            return
        started = time.monotonic()
        append_rejections(self._folder, self._waiting, shard=self._shard)
        self._waiting.clear()
        self._due = started + (time.monotonic() - started) / _SHARE


def _lines(path: Path) -> Iterator[tuple[Rejection, bytes]]:
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(Rejection)
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                if line.strip():  # an editor may leave an empty last line, or none
                    yield decoder.decode(line), line.rstrip(b"\n") + b"\n"
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{path}: line {number} is no record of this kit ({error}); take the line out or move the file away, "
            "then run again"
        ) from error
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}; mend or move it, then run again") from error
