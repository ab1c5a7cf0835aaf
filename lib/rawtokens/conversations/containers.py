"""Prompt files as rows: JSON Lines, a JSON array, CSV, Parquet, Arrow or text lines, told apart by their bytes.

All of them are streamed, through gzip and zstd too; Parquet and Arrow that are packed are unpacked onto the disk
first. A byte-order mark at the start is skipped. A byte that is not UTF-8 becomes a lone surrogate, so that it costs
its own row and nothing else. A file that breaks off or is damaged raises at the place, after the rows before it.
Nearly any file could pass for text lines, so these are read only from a file named .txt (.txt.gz, .txt.zst) whose
bytes are none of the others, or where they are asked for. This module does not know any format, only column names.
"""

import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from ..errors import InputError
from .arrow_rows import arrow_rows, parquet_rows
from .compression import head_of, open_bytes, unpacked
from .csv_rows import csv_rows, delimiter_of
from .json_rows import array_rows, line_rows
from .rows import ROW_LIMIT, BrokenFile, Row

_BOM = b"\xef\xbb\xbf"
_HEAD = 65536  # bytes that decide the container
_ARRAY = re.compile(rb"""\s*\[\s*([\[\]{"0-9-]|(true|false|null|NaN|Infinity)\b)""")  # "[Verse] .." is text
_ARRAY_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")
_TEXT_NAME = re.compile(r"\.txt(\.gz|\.zst|\.zstd)?\Z", re.IGNORECASE)
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")
_REFUSED = {
    b"\x1f\x8b": "compressed twice; unpack it once",
    b"\x28\xb5\x2f\xfd": "compressed twice; unpack it once",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"BZh91AY&SY": "bzip2-compressed; unpack it with bunzip2",
    b"\xfd7zXZ": "xz-compressed; unpack it with xz -d",
    b"\xff\xfe": "UTF-16; convert it to UTF-8 with iconv",
    b"\xfe\xff": "UTF-16; convert it to UTF-8 with iconv",
}
EXPECTED = "JSON Lines, a JSON array of objects, CSV with a header, Parquet, Arrow, or text lines"

Reader = Callable[[Path], Iterator[Row]]


def open_rows(
    path: Path,
    *,
    columns: Collection[str],
    text_lines: bool | None = None,
    on_empty_line: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """The rows of a prompt file. Raises InputError where it can't be read, at the line that was reached.

    `columns` are names that make a first line a CSV header. `text_lines`: True takes each line as a prompt, False
    never, None where the name ends in .txt and nothing else fits. `on_empty_line` is called for each line that is no
    row because nothing stands in it.
    """
    reached = 0
    try:
        if path.is_dir():
            raise InputError(
                f"{path} is a directory; expected a file, a pattern such as {path}/*.parquet, or hub:{path} for the "
                "folder of a data set"
            )
        for row in _reader(path, columns, text_lines, on_empty_line)(path):
            yield row
            reached = row.line
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).split("\n")[0]
        where = f" after line {reached}" if reached else ""
        raise InputError(
            f"{path} can't be read{where} ({reason}); expected a readable file of {EXPECTED}, whole or packed with "
            "gzip or zstd: check the path, or get the file again"
        ) from error
    except BrokenFile as error:
        raise InputError(f"{path} {error}") from error


def _reader(path: Path, columns: Collection[str], text_lines: bool | None, on_empty_line: Callable[[], None]) -> Reader:
    json_lines, text = (partial(read, on_empty_line=on_empty_line) for read in (_line_rows, _text_rows))
    start = head_of(path, _HEAD)
    for magic, what in _REFUSED.items():
        if start.startswith(magic):
            raise InputError(f"{path} is {what}; expected {EXPECTED}")
    if start.startswith(b"PAR1"):
        return partial(_unpacked_rows, parquet_rows)
    if start.startswith(_ARROW):
        return partial(_unpacked_rows, arrow_rows)
    if text_lines:
        return text
    start = start.removeprefix(_BOM)
    lines = [line for line in start.split(b"\n") if line.strip()]
    if not lines:
        return json_lines
    if _is_utf16(start):
        raise InputError(f"{path} is UTF-16 without a mark; convert it to UTF-8 with iconv; expected {EXPECTED}")
    named_text = text_lines is None and _TEXT_NAME.search(path.name) is not None
    if (_ARRAY_OF_OBJECTS if named_text else _ARRAY).match(start) and not _is_whole_value(lines):
        return _array_rows
    if _is_json_lines(lines, torn_first=not named_text):
        return json_lines
    delimiter = delimiter_of(lines[0].decode("utf-8", "replace"), columns, unknown_too=not named_text)
    if delimiter:
        return lambda path: csv_rows(_lines(path), delimiter, on_empty_line)
    if named_text:
        return text
    raise InputError(
        f"{path} is none of the files that are read; expected {EXPECTED}. Its first line: {lines[0][:80]!r}. To take "
        "each line as a prompt, set the format to text_lines or let the name end in .txt"
    )


def _is_utf16(start: bytes) -> bool:
    """Whether every other one of the first bytes is a NUL, as in English text of UTF-16."""
    return len(start) >= 4 and (
        (start[1:8:2].count(0) == len(start[1:8:2]) and 0 not in start[0:8:2])
        or (start[0:8:2].count(0) == len(start[0:8:2]) and 0 not in start[1:8:2])
    )


def _is_whole_value(lines: list[bytes]) -> bool:
    """Whether the first of several lines is JSON by itself: then each line is a row, though the first is an array."""
    return len(lines) > 1 and _decoded(lines[0]) is not None


def _is_json_lines(lines: list[bytes], *, torn_first: bool) -> bool:
    """Whether any line is an object; or the first begins one, which may be torn."""
    if torn_first and lines[0].lstrip().startswith(b"{"):
        return True
    return any(line.lstrip().startswith(b"{") and isinstance(_decoded(line), dict) for line in lines)


def _decoded(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) with its end. Raises BrokenFile for a line that is no row's."""
    with open_bytes(path) as file:
        for line, raw in enumerate(iter(partial(file.readline, ROW_LIMIT + 1), b""), start=1):
            if len(raw) > ROW_LIMIT:
                raise BrokenFile(f"has a line of more than {ROW_LIMIT >> 20} MiB, line {line}; expected a row a line")
            yield line, (raw.removeprefix(_BOM) if line == 1 else raw).decode("utf-8", "surrogateescape")


def _line_rows(path: Path, *, on_empty_line: Callable[[], None]) -> Iterator[Row]:
    return line_rows(_lines(path), on_empty_line)


def _array_rows(path: Path) -> Iterator[Row]:
    with open_bytes(path) as file:
        yield from array_rows(file)


def _text_rows(path: Path, *, on_empty_line: Callable[[], None]) -> Iterator[Row]:
    for line, text in _lines(path):
        if text.strip():
            yield Row(line=line, value={"text_line": text.removesuffix("\n").removesuffix("\r")})
        else:
            on_empty_line()


def _unpacked_rows(read: Callable[[Path, str], Iterator[Row]], path: Path) -> Iterator[Row]:
    with unpacked(path) as source:
        yield from read(source, path.name)
