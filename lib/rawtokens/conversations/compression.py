"""Files as bytes, through gzip and zstd where their first bytes say so.

A stream is unpacked as it is read. This module does not know what the bytes hold.
"""

import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def open_bytes(path: Path) -> io.BufferedIOBase:
    """The file's bytes, unpacked. Raises OSError; reading damaged ones raises OSError, EOFError or zlib.error."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(_GZIP):
        return gzip.open(path, "rb")
    if magic == _ZSTD:  # pyarrow: the standard library has zstd from Python 3.14 on
        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
    return path.open("rb")


def head_of(path: Path, size: int) -> bytes:
    """The first bytes, unpacked; fewer where the file is shorter or damaged, which reading it will tell."""
    with open_bytes(path) as file:
        made = b""
        try:
            while len(made) < size and (piece := file.read1(size - len(made))):
                made += piece
        except (OSError, EOFError, zlib.error, pa.ArrowException):
            pass
    return made


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A file that can be read from any place: itself, or an unpacked copy on the disk while it is used."""
    with open_bytes(path) as file:
        if isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO):
            yield path
            return
        with tempfile.NamedTemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            yield Path(copy.name)
