"""raw_responses.jsonl and rejected.jsonl: append-only, one writer, safe to kill at any byte.

A record is one line, written by one `write`; a torn last line is repaired when the next writer opens the file
and never by a reader. The lock is the kernel's (flock), so it ends with its owner, however that one dies. This
module does not know what a good response is, and it never rewrites a line that ends with a newline.
"""

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from .errors import InputError, LockedError, RunStopped
from .records import Rejection, Response, Stage

JOURNAL = "raw_responses.jsonl"
REJECTED = "rejected.jsonl"
_JOURNAL_NAME = re.compile(r"raw_responses(\.\d+-of-\d+)?\.jsonl")
_KEY_START = b'{"key":"'
_SYNC_SECONDS = 5.0
_Record = TypeVar("_Record", Response, Rejection)


class Journal:
    """The one writer of a journal; made by `open_journal`. `known_keys` are the keys that stand in it."""

    def __init__(self, path: Path, file: BinaryIO, known_keys: set[str]) -> None:
        self.path = path
        self.known_keys = known_keys
        self._file = file
        self._synced_at = time.monotonic()

    def append(self, response: Response) -> None:
        """Write one record; see `append_line`."""
        self.append_line(response.key, msgspec.json.encode(response))

    def append_line(self, key: str, line: bytes) -> None:
        """Write an encoded records.Response (`key` its first field, no newline) as one line, with one write.

        On disk within 5 seconds. Raises RunStopped where it can't be written, InputError for a key that stands here.
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
        if time.monotonic() - self._synced_at > _SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Bring what was written to the disk. Raises RunStopped."""
        with self._visible_failures():
            os.fsync(self._file.fileno())
        self._synced_at = time.monotonic()

    @contextmanager
    def _visible_failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunStopped(
                f"can't write {self.path}: {error}; make room or mount it again, then run the same command"
            ) from error


@contextmanager
def open_journal(path: Path, *, wait_seconds: float = 10.0) -> Iterator[Journal]:
    """Lock `path` for this process, repair a torn tail, read its keys, and append.

    Waits `wait_seconds` for another owner, who may be dying. Raises LockedError, naming the owner, and RunStopped
    where the folder can't be written.
    """
    with lock(path.with_suffix(".lock"), wait_seconds=wait_seconds):
        try:
            repair_tail(path)
            file = path.open("ab", buffering=0)
        except OSError as error:
            raise RunStopped(f"can't write {path}: {error}; mend the folder, then run the same command") from error
        with file:
            journal = Journal(path, file, set(read_keys(path)))
            try:
                yield journal
            finally:
                journal.sync()


@contextmanager
def lock(path: Path, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold an exclusive lock on `path`, whose text names the owner. Raises LockedError where another has it."""
    deadline = time.monotonic() + wait_seconds
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise RunStopped(f"can't write {path}: {error}; choose another folder with --outputs DIR") from error
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    owner = file.read().decode(errors="replace").strip() or "an unnamed process"
                    raise LockedError(
                        f"{path.parent} is being written by {owner}; wait for it or stop it, then run again"
                    ) from error
                time.sleep(0.1)
        file.truncate(0)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}\n".encode())
        file.flush()
        yield


def repair_tail(path: Path) -> Path | None:
    """Mend a last line without newline: a whole record gets its newline, a fragment is set aside in a file.

    Returns the fragment's file, or None. Earlier rows are never touched.
    """
    if not path.exists() or path.stat().st_size == 0:
        return None
    with path.open("r+b") as file:
        start = _tail_start(file)
        file.seek(start)
        tail = file.read()
        if not tail:
            return None
        if response_of(tail):
            file.write(b"\n")
            return None
        fragment = path.with_name(f"{path.stem}.torn-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
        write_atomically(fragment, tail)
        file.truncate(start)
        return fragment


def read_keys(path: Path) -> Iterator[str]:
    """The keys of a journal's whole lines, without decoding its ids. Raises InputError for a foreign line."""
    for number, line in _whole_lines(path):
        key = key_of(line)
        if key is None:
            raise InputError(
                f"{path}: line {number} is no record of this kit (no key in front); move the file away, then run again "
                "(`rawtokens retry --where foreign` sets such lines aside)"
            )
        yield key


def key_of(line: bytes) -> str | None:
    """The key in front of a journal's line, without decoding its ids; None where there is none."""
    end = line.find(b'","prompt_ids":')
    if not line.startswith(_KEY_START) or end < 0:
        return None
    try:
        return msgspec.json.decode(line[len(_KEY_START) - 1 : end + 1], type=str)
    except msgspec.MsgspecError:
        return None


def response_of(line: bytes) -> Response | None:
    """The record that a journal's line holds; None where it holds none."""
    try:
        return msgspec.json.decode(line, type=Response)
    except msgspec.MsgspecError:
        return None


def read_responses(path: Path) -> Iterator[Response]:
    """The records of a journal's whole lines, in the order written. Raises InputError for a line that is none."""
    return _records(path, _whole_lines(path), Response)


def journal_paths(folder: Path) -> list[Path]:
    """The journals of a data set: one, or one a shard (raw_responses.I-of-N.jsonl), by name; a copy is none."""
    return sorted(path for path in folder.glob("raw_responses*.jsonl") if _JOURNAL_NAME.fullmatch(path.name))


def read_rejections(folder: Path) -> list[Rejection]:
    """The lines of rejected.jsonl, or none where there is no such file. Raises InputError for a line that is none."""
    path = folder / REJECTED
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().splitlines()  # written whole: a last line without newline is an editor's, not torn
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}; mend or move it, then run again") from error
    return list(_records(path, ((number, line) for number, line in enumerate(lines, start=1) if line), Rejection))


def write_rejections(folder: Path, stage: Stage, rejections: Sequence[Rejection]) -> None:
    """Replace the lines of `stage` in rejected.jsonl by `rejections`, atomically; other stages' lines stay."""
    kept = [rejection for rejection in read_rejections(folder) if rejection.stage != stage]
    text = b"".join(msgspec.json.encode(rejection) + b"\n" for rejection in [*kept, *rejections])
    write_atomically(folder / REJECTED, text)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file so that readers see the old one or the new one. Raises RunStopped where it can't."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise RunStopped(f"can't write {path}: {error}; mend the folder, then run the same command") from error


def _records(path: Path, lines: Iterable[tuple[int, bytes]], kind: type[_Record]) -> Iterator[_Record]:
    decoder = msgspec.json.Decoder(kind)
    for number, line in lines:
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise InputError(
                f"{path}: line {number} is no record of this kit ({error}); take the line out or move the file away, "
                "then run again"
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


def _tail_start(file: BinaryIO, block: int = 1 << 16) -> int:
    """The offset behind the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - block)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
