"""What a crash leaves at the end of a journal: six kinds of torn tail. This module does not know how one is mended."""

import os
import random
from collections.abc import Callable
from pathlib import Path

from chaos.ground import JOURNAL, Ground, whole_lines


def _missing_line(folder: Path, ground: Ground, chooser: random.Random) -> bytes:
    """A record that the journal lacks, its key not ASCII where there is one."""
    there = set(whole_lines(folder))
    keys = {line.split(b'"', 4)[3] for line in there}
    missing = [line for key, line in ground.lines.items() if key.encode() not in keys]
    wide = [line for line in missing if not line.isascii()]
    return chooser.choice(wide or missing or [b""])


def _cut(path: Path, _: Ground, chooser: random.Random) -> None:
    """The last record loses its end, at any byte."""
    lines = path.read_bytes().splitlines(keepends=True)
    if lines:
        os.truncate(path, path.stat().st_size - chooser.randint(1, len(lines[-1])))


def _append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def _half_written(path: Path, ground: Ground, chooser: random.Random) -> None:
    line = _missing_line(path.parent, ground, chooser)
    _append(path, line[: chooser.randint(0, max(0, len(line) - 1))])


def _cut_in_a_character(path: Path, ground: Ground, chooser: random.Random) -> None:
    line = _missing_line(path.parent, ground, chooser)
    places = [place for place, byte in enumerate(line) if 0x80 <= byte < 0xC0]  # within a character of several bytes
    _append(path, line[: places[0]] if places else b"")


def _whole_without_newline(path: Path, ground: Ground, chooser: random.Random) -> None:
    _append(path, _missing_line(path.parent, ground, chooser))


def _zeros(path: Path, _: Ground, chooser: random.Random) -> None:
    """What a file system leaves that had the new size on disk but not the data."""
    _append(path, bytes(chooser.randint(1, 4096)))


def _garbage(path: Path, _: Ground, chooser: random.Random) -> None:
    _append(path, chooser.randbytes(chooser.randint(1, 300)).replace(b"\n", b""))


TAILS: dict[str, Callable[[Path, Ground, random.Random], None]] = {
    "cut at any byte": _cut,
    "half written": _half_written,
    "cut within a character": _cut_in_a_character,
    "whole without its newline": _whole_without_newline,
    "zeros": _zeros,
    "garbage": _garbage,
}


def tear(folder: Path, ground: Ground, chooser: random.Random, kind: str) -> None:
    """Tear the tail, where there is a journal that ends with a newline: a torn one has been torn already."""
    path = folder / JOURNAL
    if path.exists() and path.read_bytes().endswith(b"\n"):
        TAILS[kind](path, ground, chooser)
