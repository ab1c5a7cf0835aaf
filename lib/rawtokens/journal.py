"""raw_responses.jsonl and rejected.jsonl: append-only, one writer, safe to kill at any byte.

A record is one line, written by one `write`; a torn last line is repaired when the next writer opens the file
and never by a reader. A shard has both files for itself, and readers read them all. This module does not know what
a good response is, and it never rewrites a line that ends with a newline.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from .atomic_files import append_atomically, write_atomically
from .capture.known_keys import KnownKeys, key_at, refuse_foreign, scan_keys
from .capture.torn_tails import repair_tail, response_of
from .errors import InputError, RawTokensError, RunStopped
from .locking import lock, refuse_locked
from .records import Rejection, Response
from .shards import WHOLE, Shard

__all__ = ["lock", "repair_tail", "response_of", "write_atomically"]

JOURNAL = "raw_responses.jsonl"
REJECTED = "rejected.jsonl"
_SHARD_NAME = re.compile(r"(?:raw_responses|rejected)(?:\.\d+-of-(\d+))?\.(?:jsonl|lock)")
_SYNC_SECONDS = 5.0
_Record = TypeVar("_Record", bound=msgspec.Struct)


class Journal:
    """The one writer of a journal; made by `open_journal`. `known_keys` stand in it or in another shard's."""

    def __init__(self, path: Path, file: BinaryIO, known_keys: KnownKeys) -> None:
        self.path = path
        self.known_keys = known_keys
        self._file = file
        self._synced_at = time.monotonic()
        self._failure = ""

    def append(self, response: Response) -> None:
        """Write one record; see `append_line`."""
        self.append_line(response.key, msgspec.json.encode(response))

    def append_line(self, key: str, line: bytes) -> None:
        """Write an encoded records.Response (`key` its first field, no newline) as one line, with one write.

        On disk within seconds (`sync_when_due`). Raises RunStopped where it can't be written, InputError for a key that
        stands here.
        """
        if key in self.known_keys:
            raise InputError(
                f"key {key!r} stands in {self.path} already; a key has one record: are keys twice in "
                "prompts.parquet? Run stage 01 again"
            )
        with self._visible_failures():
            if self._file.write(line + b"\n") != len(line) + 1:
                raise OSError("the write was cut short; the disk may be full")
        self.known_keys.add(key)
        self.sync_when_due()

    def sync_when_due(self) -> None:
        """`sync` where the last time is 5 seconds ago; to be called also while no answer comes."""
        if time.monotonic() - self._synced_at > _SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Bring what was written to the disk. Raises RunStopped, also where the file is gone from its place."""
        with self._visible_failures():
            os.fsync(self._file.fileno())
            if not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
                raise OSError("another file lies in its place")
        self._synced_at = time.monotonic()

    @contextmanager
    def _visible_failures(self) -> Iterator[None]:
        """After a failure nothing is appended any more, for it would fuse with the fragment of what failed."""
        try:
            if self._failure:
                raise OSError(self._failure)
            yield
        except OSError as error:
            if not self._failure:
                self._failure = str(error)
                with suppress(OSError, RawTokensError):  # on a full disk the next start does it
                    repair_tail(self.path)
            raise RunStopped(
                f"can't write {self.path}: {error}; make room or mount it again, then run the same command"
            ) from error


@contextmanager
def open_journal(path: Path, *, wait_seconds: float = 10.0) -> Iterator[Journal]:
    """Lock `path` for this process, repair a torn tail, read the keys of all journals of its folder, and append.

    Waits `wait_seconds` for another owner, who may be dying. Raises LockedError, naming the owner, also where the
    data set is being written in another number of shards, InputError for a line that is no record, and RunStopped
    where the folder can't be written.
    """
    with lock(lock_path(path), wait_seconds=wait_seconds):
        for other in lock_paths(path.parent):
            if _shards_of(other) != _shards_of(path):
                refuse_locked(other)
        try:
            refuse_foreign(path)
            repair_tail(path)
            file = path.open("ab", buffering=0)
        except OSError as error:
            raise RunStopped(f"can't write {path}: {error}; mend the folder, then run the same command") from error
        with file:
            journal = Journal(path, file, KnownKeys.of(journal_paths(path.parent)))
            try:
                yield journal
            finally:
                journal.sync()


def read_keys(path: Path) -> Iterator[str]:
    """The keys of a journal's whole lines, without decoding its ids. Raises InputError for a foreign line."""
    return (key.decode() for key in scan_keys(path))


def key_of(line: bytes) -> str | None:
    """The key in front of a journal's line, without decoding its ids; None where there is none."""
    key = key_at(line, 0, len(line))
    return None if key is None else key.decode()


def read_responses(path: Path) -> Iterator[Response]:
    """The records of a journal's whole lines, in the order written. Raises InputError for a line that is none."""
    return read_records(path, Response)


def recorded_weights(folder: Path) -> str | None:
    """The weight version of a data set's first record; None where there is none."""
    first = next((item for path in journal_paths(folder) for item in read_responses(path)), None)
    return first.weight_version if first else None


def read_records(path: Path, kind: type[_Record]) -> Iterator[_Record]:
    """A journal's whole lines as `kind`, a Struct with some of Response's fields. Raises as `read_responses` does."""
    remedy = "`rawtokens retry RUN --dataset NAME --where foreign` sets such lines aside, or move the file away"
    return _records(path, _whole_lines(path), kind, remedy=remedy)


def journal_paths(folder: Path) -> list[Path]:
    """The journals of a data set: one, or one a shard (raw_responses.I-of-N.jsonl), by name; a copy is none."""
    return sorted(path for path in folder.glob("raw_responses*.jsonl") if _shards_of(path))


def lock_path(path: Path) -> Path:
    """The lock of a journal's writer."""
    return path.with_suffix(".lock")


def lock_paths(folder: Path) -> list[Path]:
    """The locks of all writers that a data set has had."""
    return sorted(path for path in folder.glob("raw_responses*.lock") if _shards_of(path))


def rejection_paths(folder: Path) -> list[Path]:
    """The files of rejections of a data set: rejected.jsonl, and one a shard (rejected.I-of-N.jsonl)."""
    return sorted(path for path in folder.glob("rejected*.jsonl") if _shards_of(path))


def read_rejections(folder: Path) -> list[Rejection]:
    """The rejections of a data set, those of all shards, or none; a generation is told once.

    Raises InputError for a line that is none.
    """
    found = [item for path in rejection_paths(folder) for item in _rejections(path)]
    generate = {item.key: item for item in found if item.stage == "generate"}
    return [*(item for item in found if item.stage == "tokenize"), *generate.values()]


def append_rejections(folder: Path, rejections: Iterable[Rejection], *, shard: Shard = WHOLE) -> None:
    """Add rejections to the shard's rejected.jsonl, atomically; nothing to add makes an empty file.

    Raises RunStopped where it can't be written.
    """
    lines = b"".join(msgspec.json.encode(rejection) + b"\n" for rejection in rejections)
    append_atomically(folder / shard.file_name(REJECTED), lines)


def remove_rejections(folder: Path, keys: Set[str]) -> None:
    """Take the generations with these keys out of every file of rejections, each atomically."""
    for path in rejection_paths(folder):
        before = list(_rejections(path))
        kept = [item for item in before if item.stage != "generate" or item.key not in keys]
        if kept != before:
            write_atomically(path, b"".join(msgspec.json.encode(item) + b"\n" for item in kept))


def _rejections(path: Path) -> Iterator[Rejection]:
    if not path.exists():
        return iter(())
    try:
        lines = path.read_bytes().splitlines()  # written whole: a last line without newline is an editor's, not torn
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}; mend or move it, then run again") from error
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line)
    return _records(path, numbered, Rejection, remedy="take the line out or move the file away")


def _records(path: Path, lines: Iterable[tuple[int, bytes]], kind: type[_Record], *, remedy: str) -> Iterator[_Record]:
    decoder = msgspec.json.Decoder(kind)
    for number, line in lines:
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise InputError(
                f"{path}: line {number} is no record of this kit ({error}); {remedy}, then run again"
            ) from error


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that end with a newline; a last line without one is being written, or is torn."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield number, line
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}; mend or move it, then run again") from error


def _shards_of(path: Path) -> int | None:
    """How many shards a file's name tells of, 1 for the whole data set; None for a name that is another's."""
    found = _SHARD_NAME.fullmatch(path.name)
    return int(found[1] or 1) if found else None
