"""Prompt files as rows: JSON Lines, one JSON array, or Parquet, told apart by their bytes, never by their name.

JSON Lines and Parquet are streamed; a JSON array is read whole. A line ends at \\n only (U+2028 and U+0085 occur
inside strings), a byte-order mark at the start is skipped, and blank lines are no rows. A byte that is not UTF-8
becomes a lone surrogate, so that it costs its own row and nothing else. This module does not know any format.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError
from ..records import Json
from .rows import error_text, shown, without_nulls

_BOM = b"\xef\xbb\xbf"
_BATCH = 256  # rows; OpenCodeInstruct rows of 10 kB make 2.6 MB a batch
_REFUSED = {
    b"\x1f\x8b": "gzip-compressed; unpack it with gunzip",
    b"\x28\xb5\x2f\xfd": "zstd-compressed; unpack it with zstd -d",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"\xff\xfe": "UTF-16; convert it to UTF-8 with iconv",
    b"\xfe\xff": "UTF-16; convert it to UTF-8 with iconv",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a file. Without a `fault` (reason, detail), `value` is an object; with one, whatever was there.

    `line` counts from 1: the line in JSON Lines, the place of the row in an array or in Parquet.
    """

    line: int
    value: Json
    notices: tuple[str, ...] = ()
    fault: tuple[str, str] | None = None


def open_rows(path: Path) -> Iterator[Row]:
    """The rows of a prompt file. Raises InputError where the file can't be read as a whole."""
    try:
        yield from _reader(path)(path)
    except (OSError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).split("\n")[0]
        raise InputError(
            f"{path} can't be read ({reason}); expected a readable file of JSON Lines, a JSON array or Parquet: "
            "check the path, or get the file again"
        ) from error


def _reader(path: Path) -> Callable[[Path], Iterator[Row]]:
    with path.open("rb") as file:
        start = file.read(4096)
    for magic, what in _REFUSED.items():
        if start.startswith(magic):
            raise InputError(f"{path} is {what}; expected JSON Lines, a JSON array or Parquet")
    if start.startswith(b"PAR1"):
        return _parquet_rows
    return _array_rows if start.removeprefix(_BOM).lstrip().startswith(b"[") else _line_rows


def _line_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            if line == 1:
                raw = raw.removeprefix(_BOM)
            if not raw.strip():
                continue
            text = raw.decode("utf-8", "surrogateescape")
            try:
                yield _row(line, json.loads(text))
            except (ValueError, RecursionError) as error:
                yield Row(line=line, value=text, fault=("bad_json", error_text(error)))


def _array_rows(path: Path) -> Iterator[Row]:
    text = path.read_bytes().removeprefix(_BOM).decode("utf-8", "surrogateescape")
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} begins a JSON array that is broken ({error_text(error)}); expected one array of objects: "
            "get the file again, or turn it into JSON Lines, where a bad row costs itself alone"
        ) from error
    del text
    for line, item in enumerate(items, start=1):
        yield _row(line, item)


def _parquet_rows(path: Path) -> Iterator[Row]:
    line = 0
    with pq.ParquetFile(path) as file:
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
