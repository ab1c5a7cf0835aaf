"""Prompt files as rows: JSON Lines, a JSON array, CSV, Parquet or text lines, told apart by their bytes alone.

All but a JSON array are streamed, through gzip and zstd too; an array is read whole. A line ends at \\n only (U+2028
and U+0085 occur inside strings), a byte-order mark at the start is skipped, and blank lines are no rows. A byte that
is not UTF-8 becomes a lone surrogate, so that it costs its own row and nothing else. A file that breaks off or is
damaged raises at the place, after the rows before it. This module does not know any format, only column names.
"""

import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pyarrow as pa

from ..errors import InputError
from ..records import Json, open_parquet
from .compression import head_of, open_bytes, unpacked
from .csv_rows import csv_rows, delimiter_of
from .rows import BrokenFile, Row, error_text, shown, without_nulls

_BOM = b"\xef\xbb\xbf"
_BATCH = 256  # rows; OpenCodeInstruct rows of 10 kB make 2.6 MB a batch
_HEAD = 65536  # bytes that decide the container
_ARRAY = re.compile(rb"""\s*\[\s*[\[\]{"0-9-]""")  # "[Verse] .." is text
_REFUSED = {
    b"\x1f\x8b": "compressed twice; unpack it once",
    b"\x28\xb5\x2f\xfd": "compressed twice; unpack it once",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"BZh91AY&SY": "bzip2-compressed; unpack it with bunzip2",
    b"\xfd7zXZ": "xz-compressed; unpack it with xz -d",
    b"ARROW1": "an Arrow file; write it as Parquet",
    b"\xff\xff\xff\xff": "an Arrow stream; write it as Parquet",
    b"\xff\xfe": "UTF-16; convert it to UTF-8 with iconv",
    b"\xfe\xff": "UTF-16; convert it to UTF-8 with iconv",
}
EXPECTED = "JSON Lines, a JSON array of objects, CSV with a header, Parquet, or text lines"

Reader = Callable[[Path], Iterator[Row]]


def open_rows(path: Path, *, columns: Collection[str], text_lines: bool | None = None) -> Iterator[Row]:
    """The rows of a prompt file. Raises InputError where it can't be read, at the line that was reached.

    `columns` are names that make a first line a CSV header. `text_lines`: True takes each line as a prompt, False
    never, None where nothing else fits.
    """
    reached = 0
    try:
        for row in _reader(path, columns, text_lines)(path):
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


def _reader(path: Path, columns: Collection[str], text_lines: bool | None) -> Reader:
    start = head_of(path, _HEAD)
    for magic, what in _REFUSED.items():
        if start.startswith(magic):
            raise InputError(f"{path} is {what}; expected {EXPECTED}")
    if start.startswith(b"PAR1"):
        return _parquet_rows
    if text_lines:
        return _text_rows
    start = start.removeprefix(_BOM)
    if _ARRAY.match(start):
        return _array_rows
    lines = [line for line in start.split(b"\n") if line.strip()]
    if not lines or _is_json_lines(lines):
        return _json_rows
    delimiter = delimiter_of(lines[0].decode("utf-8", "replace"), columns)
    if delimiter:
        return lambda path: csv_rows(_lines(path), delimiter)
    return _json_rows if text_lines is False or b"\0" in start else _text_rows


def _is_json_lines(lines: list[bytes]) -> bool:
    """Whether the first line begins an object, which may be torn, or any line is one."""
    if lines[0].lstrip().startswith(b"{"):
        return True
    for line in lines:
        try:
            if line.lstrip().startswith(b"{") and isinstance(json.loads(line), dict):
                return True
        except (ValueError, RecursionError):
            continue
    return False


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) with its end."""
    with open_bytes(path) as file:
        for line, raw in enumerate(file, start=1):
            yield line, (raw.removeprefix(_BOM) if line == 1 else raw).decode("utf-8", "surrogateescape")


def _json_rows(path: Path) -> Iterator[Row]:
    for line, text in _lines(path):
        if not text.strip(" \t\r\n\v\f"):
            continue
        try:
            yield _row(line, json.loads(text))
        except (ValueError, RecursionError) as error:
            yield Row(line=line, value=text, fault=("bad_json", error_text(error)))


def _text_rows(path: Path) -> Iterator[Row]:
    for line, text in _lines(path):
        if text.strip():
            yield Row(line=line, value={"text_line": text.removesuffix("\n").removesuffix("\r")})


def _array_rows(path: Path) -> Iterator[Row]:
    with open_bytes(path) as file:
        text = file.read().removeprefix(_BOM).decode("utf-8", "surrogateescape")
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenFile(
            f"begins a JSON array that is broken ({error_text(error)}); expected one array of objects: "
            "get the file again, or turn it into JSON Lines, where a bad row costs itself alone"
        ) from error
    del text
    for line, item in enumerate(items, start=1):
        yield _row(line, item)


def _parquet_rows(path: Path) -> Iterator[Row]:
    line = 0
    with unpacked(path) as source, open_parquet(source) as file:
        for batch in file.iter_batches(batch_size=_BATCH):
            for value in _parquet_values(batch):
                line += 1
                if isinstance(value, ValueError):
                    yield Row(line=line, value=f"{path.name}:{line}", fault=("bad_value", error_text(value)))
                else:
                    yield _parquet_row(line, value)


def _parquet_values(batch: pa.RecordBatch) -> Iterator[dict[str, Json] | ValueError]:
    """A batch as Python values; where a value can't be had (bytes that are not UTF-8), row by row."""
    try:
        yield from batch.to_pylist()
        return
    except ValueError:
        pass
    for index in range(batch.num_rows):
        try:
            yield batch.slice(index, 1).to_pylist()[0]
        except ValueError as error:
            yield error


def _parquet_row(line: int, value: dict[str, Json]) -> Row:
    """Arrow gives every nested object the union of all keys: the padding is taken out, and said."""
    present = {key: member for key, member in value.items() if member is not None}
    stripped = {key: without_nulls(member) for key, member in present.items()}
    return Row(line=line, value=stripped, notices=("null_padding",) if stripped != present else ())


def _row(line: int, value: Json) -> Row:
    if isinstance(value, dict):
        return Row(line=line, value=value)
    return Row(line=line, value=value, fault=("not_an_object", f"expected a JSON object, found {shown(value)}"))
