"""How fast training data is exported: reading, masking, writing and the final check against the journal, all of it.

Everything in one run, CPU seconds of one process, best of `--repeats`; by the clock too. Each format stands beside its
bare writer: for Parquet and Arrow pyarrow over ids and mask that lie in memory, for JSONL the same lines written out
from memory by msgspec, for TorchSpec the archive writer over arrays. Bytes an id stand beside the order-0 entropy of
the ids. Rows are Kimi-K2.5's: thinking, closer, answer, stop id, ordinary ids of a Zipf distribution. `--ids` and
`--length` size the data set, in ids and output ids a row.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_verification import KIMI, VOCABULARY, entropy, rate, response, responses, write_prompts

from rawtokens.training.columnar_files import SCHEMA
from rawtokens.training.export import export
from rawtokens.training.masks import mask_runs
from rawtokens.training.policies import select_rows
from rawtokens.training.rows import TrainingRows, read_training_rows
from rawtokens.training.settings import FORMATS, TrainingSettings
from rawtokens.training.survey import survey
from rawtokens.training.torch_archive import list_archive
from rawtokens.verification import verify_journal


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=8_000_000)
    parser.add_argument("--length", type=int, default=4_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = write_data_set(folder, options.ids, options.length)
        rows = list(read_training_rows(folder, KIMI, np.ones(options.ids // options.length, dtype=np.bool_)))
        every = np.concatenate([batch.inputs.ids for batch in rows])
        print(
            f"{whole:,} ids in {options.ids // options.length:,} rows, order-0 entropy {entropy(every) / 8:.2f} bytes"
        )
        print("M ids/s: read, mask, write, read back, held to the journal")
        for form in FORMATS:
            bench_format(folder, form, rows, whole, options.repeats)
        settings = TrainingSettings(held_out=0.0)
        selection = select_rows(folder, settings)
        rate(
            "loss report, counts",
            lambda: survey(folder, selection, markers=KIMI, vocabulary_size=VOCABULARY, settings=settings),
            whole,
            options.repeats,
        )


def bench_format(folder: Path, form: str, rows: list[TrainingRows], whole: int, repeats: int) -> None:
    """One format and its bare writer."""
    settings = TrainingSettings(formats=(form,), held_out=0.0)
    bare = rate(f"{form}: bare writer", lambda: BARE[form](folder / "bare", rows), whole, repeats)
    work = lambda: export(folder, markers=KIMI, settings=settings, on_line=lambda _: None)  # noqa: E731
    rate(f"{form}: export", work, whole, repeats, bare)
    rate(f"{form}: by the clock", work, whole, repeats, bare, clock=time.perf_counter)
    size = sum(path.stat().st_size for path in (folder / "training" / form).iterdir())
    print(f"  {size / whole:.2f} bytes an id")


def write_data_set(folder: Path, ids: int, length: int) -> int:
    """A journal, its prompts and verified.parquet; returns the number of ids, prompts among them."""
    columns = responses(ids, ids // length)
    lines = [msgspec.json.encode(response(columns, row)) + b"\n" for row in range(ids // length)]
    (folder / "raw_responses.jsonl").write_bytes(b"".join(lines))
    write_prompts(folder / "prompts.parquet", ids // length)
    verify_journal(folder, markers=KIMI, vocabulary_size=VOCABULARY)
    return ids + len(columns.prompts.ids)


def bare_parquet(path: Path, rows: list[TrainingRows]) -> None:
    with pq.ParquetWriter(path, _IDS, compression="zstd", compression_level=3, use_dictionary=False) as writer:
        for batch in rows:
            writer.write_table(pa.Table.from_batches([_columns(batch)]))


def bare_arrow(path: Path, rows: list[TrainingRows]) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, _IDS) as writer:
        for batch in rows:
            writer.write_batch(_columns(batch))


def bare_jsonl(path: Path, rows: list[TrainingRows]) -> None:
    with path.open("wb") as file:
        for batch in rows:
            for row, mask in zip(range(len(batch.numbers)), _masks(batch), strict=True):
                line = {"input_ids": batch.inputs.row(row).tolist(), "loss_mask": mask.tolist()}
                file.write(msgspec.json.encode(line) + b"\n")


def bare_torchspec(path: Path, rows: list[TrainingRows]) -> None:
    with list_archive(path) as append:
        for batch in rows:
            for row in range(len(batch.numbers)):
                append({"input_ids": batch.inputs.row(row).astype(np.int64)[None, :]})


BARE: dict[str, Callable[[Path, list[TrainingRows]], None]] = {
    "parquet": bare_parquet,
    "arrow": bare_arrow,
    "specforge": bare_jsonl,
    "speculators": bare_jsonl,
    "torchspec": bare_torchspec,
}
_IDS = pa.schema([SCHEMA.field("input_ids"), SCHEMA.field("loss_mask")])


def _columns(batch: TrainingRows) -> pa.RecordBatch:
    offsets = pa.array(batch.inputs.offsets, type=pa.int32())
    ones = pa.array(mask_runs(batch.runs, "sampled").per_id())
    mask = pa.ListArray.from_arrays(offsets, ones, type=_IDS.field("loss_mask").type)
    return pa.RecordBatch.from_arrays([batch.inputs.to_arrow(_IDS.field("input_ids").type), mask], schema=_IDS)


def _masks(batch: TrainingRows) -> list[np.ndarray]:
    return np.split(mask_runs(batch.runs, "sampled").per_id(), batch.inputs.offsets[1:-1])


if __name__ == "__main__":
    main()
