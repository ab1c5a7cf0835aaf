"""Parquet to store and publish, Arrow to read rows at random; flat columns in both.

Parquet is zstd without dictionaries, `input_ids` as list<int32>, `loss_mask` as list<int8>. Arrow is an uncompressed
IPC stream, for `datasets` maps such a file into memory and reads single rows of it. This module does not know what a
row is used for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..records import VERIFIED_SCHEMA, open_parquet
from ..response_checks.response_columns import IdLists
from .checksums import IdTexts, mask_checksums, row_checksums
from .formats import Format, ReadBack, Write
from .masks import MaskRuns
from .rows import FACTS, TrainingRows

_MASK = pa.list_(pa.field("item", pa.int8(), nullable=False))
SCHEMA = pa.schema(
    [
        pa.field("input_ids", VERIFIED_SCHEMA.field("output_ids").type, nullable=False),
        pa.field("loss_mask", _MASK, nullable=False),
        *(VERIFIED_SCHEMA.field(name) for name in FACTS),
    ]
)
_GROUP_IDS = 1 << 21  # of a row group; 8 MB of ids before compression
_READ_ROWS = 1024


@contextmanager
def _write_parquet(path: Path, _: IdTexts) -> Iterator[Write]:
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", compression_level=3, use_dictionary=False) as file:

        def flush() -> None:
            if waiting:
                file.write_table(pa.concat_tables(waiting))
                waiting.clear()

        def write(rows: TrainingRows, mask: MaskRuns) -> None:
            waiting.append(pa.Table.from_batches([_batch(rows, mask)]))
            if sum(len(table["input_ids"].chunk(0).values) for table in waiting) >= _GROUP_IDS:
                flush()

        yield write
        flush()


@contextmanager
def _write_arrow(path: Path, _: IdTexts) -> Iterator[Write]:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, SCHEMA) as stream:
        yield lambda rows, mask: stream.write_batch(_batch(rows, mask))


def _batch(rows: TrainingRows, mask: MaskRuns) -> pa.RecordBatch:
    offsets = pa.array(rows.inputs.offsets, type=pa.int32())
    ids = rows.inputs.to_arrow(SCHEMA.field("input_ids").type)
    ones = pa.ListArray.from_arrays(offsets, pa.array(mask.per_id()), type=_MASK)
    return pa.RecordBatch.from_arrays([ids, ones, *rows.facts.columns], schema=SCHEMA)


def _read_parquet(path: Path, texts: IdTexts) -> Iterator[ReadBack]:
    with open_parquet(path) as file:
        for batch in file.iter_batches(batch_size=_READ_ROWS, columns=["key", "input_ids", "loss_mask"]):
            yield _read_back(batch, texts)


def _read_arrow(path: Path, texts: IdTexts) -> Iterator[ReadBack]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            yield _read_back(batch, texts)


def _read_back(batch: pa.RecordBatch, texts: IdTexts) -> ReadBack:
    inputs = IdLists.from_arrow(batch["input_ids"])
    ones = batch["loss_mask"]
    offsets = np.from_dlpack(ones.offsets).astype(np.int64)
    mask = np.asarray(np.from_dlpack(ones.values), dtype=np.int8)
    return ReadBack(row_checksums(batch["key"].to_pylist(), texts.row_texts(inputs)), mask_checksums(mask, offsets))


PARQUET = Format(
    name="parquet",
    suffix="parquet",
    ram_bytes=5.0,
    read_by="datasets, pyarrow, polars",
    write=_write_parquet,
    read=_read_parquet,
)
ARROW = Format(
    name="arrow",
    suffix="arrow",
    ram_bytes=5.0,
    read_by="datasets: Dataset.from_file",
    write=_write_arrow,
    read=_read_arrow,
)
