"""Files of lines beside the journal, a shard's each: appended whole, a torn last line left out and cut off.

A line that a kill tore was used by nothing yet: what it said is found again. This module does not know what a line
means.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import TypeVar

import msgspec

from ..errors import InputError, RunStopped
from ..shards import Shard

_Line = TypeVar("_Line", bound=msgspec.Struct)


class SideFile:
    """The one writer of a file of lines, from any thread; the journal's lock keeps other processes out."""

    def __init__(self, folder: Path, name: str, shard: Shard) -> None:
        self._path = folder / shard.file_name(name)
        self._checked = self._closed = False
        self._lock = Lock()

    def close(self) -> None:
        """Take no line any more: the journal's lock is another's from here on."""
        with self._lock:
            self._closed = True

    def append(self, line: msgspec.Struct, *, sync: bool = False) -> None:
        """Write one line, with `sync` on the disk before this returns.

        Raises RunStopped where it can't be written, and where the file is closed.
        """
        try:
            with self._lock, self._path.open("ab", buffering=0) as file:
                if self._closed:
                    raise OSError("the run is over")
                if not self._checked:
                    _cut_torn_tail(self._path)
                    self._checked = True
                written = msgspec.json.encode(line) + b"\n"
                if file.write(written) != len(written):
                    self._checked = False  # what comes next must not fuse with the fragment
                    raise OSError("the write was cut short; the disk may be full")
                if sync:
                    os.fsync(file.fileno())
        except OSError as error:
            raise RunStopped(
                f"can't write {self._path}: {error}; mend the folder, then run the same command"
            ) from error


def side_paths(folder: Path, name: str) -> list[Path]:
    """The files of that name of a data set: `NAME.jsonl`, or one a shard, by name."""
    stem = re.escape(name.removesuffix(".jsonl"))
    wanted = re.compile(rf"{stem}(\.\d+-of-\d+)?\.jsonl")
    return sorted(path for path in folder.glob(f"{name.removesuffix('.jsonl')}*.jsonl") if wanted.fullmatch(path.name))


def read_lines(folder: Path, name: str, kind: type[_Line]) -> Iterator[_Line]:
    """The whole lines of all shards' files. Raises InputError for a line that is none, or a file that can't be read."""
    decoder = msgspec.json.Decoder(kind)
    for path in side_paths(folder, name):
        number = 0
        try:
            with path.open("rb") as file:
                for line in file:
                    number += 1
                    if line.endswith(b"\n"):
                        yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise InputError(
                f"{path}: line {number} is no record of this kit ({error}); take the line out, then run again"
            ) from error
        except OSError as error:
            raise InputError(f"{path} can't be read: {error.strerror}; mend or move it, then run again") from error


def _cut_torn_tail(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
