"""Parquet and Arrow files as rows, a batch at a time.

Arrow gives every nested object the union of all keys: the padding is taken out, with the notice null_padding, and
explicit nulls go with it. This module does not know any format.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from ..records import Json, open_parquet
from .rows import Row, error_text, without_nulls

_BATCH = 256  # rows; OpenCodeInstruct rows of 10 kB make 2.6 MB a batch


def parquet_rows(path: Path, name: str) -> Iterator[Row]:
    """The rows of a Parquet file; `name` stands for the file in the ids of rows that can't be read."""
    with open_parquet(path) as file:
        yield from _rows(file.iter_batches(batch_size=_BATCH), name)


def arrow_rows(path: Path, name: str) -> Iterator[Row]:
    """The rows of an Arrow file, or of an Arrow stream, as `datasets` keeps a data set on the disk.

    Raises pyarrow.ArrowInvalid where a batch is damaged, a text that is not UTF-8 included.
    """
    with pa.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            file = pa.ipc.open_file(source)
            batches: Iterable[pa.RecordBatch] = map(file.get_batch, range(file.num_record_batches))
        else:
            source.seek(0)
            batches = pa.ipc.open_stream(source)
        yield from _rows(_small(batches), name)


def padded_row(line: int, value: dict[str, Json], notices: tuple[str, ...] = ()) -> Row:
    """A row as Arrow gives it, without the padding."""
    present = {key: member for key, member in value.items() if member is not None}
    stripped = {key: without_nulls(member) for key, member in present.items()}
    return Row(line=line, value=stripped, notices=("null_padding", *notices) if stripped != present else notices)


def _small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        batch.validate(full=True)  # Arrow trusts its bytes: a damaged offset would end the process, without an error
        yield from (batch.slice(start, _BATCH) for start in range(0, batch.num_rows, _BATCH))


def _rows(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[Row]:
    line = 0
    for batch in batches:
        for value in _values(batch):
            line += 1
            if isinstance(value, ValueError):
                yield Row(line=line, value=f"{name}:{line}", fault=("bad_value", error_text(value)))
            else:
                yield padded_row(line, value)


def _values(batch: pa.RecordBatch) -> Iterator[dict[str, Json] | ValueError]:
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
