"""A journal's last line after a kill: mended where it is whole, set aside where it is not.

This module never touches a line that ends with a newline, and does not know whether another process writes.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..atomic_files import write_atomically
from ..records import Response


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


def response_of(line: bytes) -> Response | None:
    """The record that a journal's line holds; None where it holds none."""
    try:
        return msgspec.json.decode(line, type=Response)
    except msgspec.MsgspecError:
        return None


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
