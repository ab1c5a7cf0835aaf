"""How fast notebook 04's tables and figures are made, and in how much memory, beside bare reading of the columns.

Everything in one run and one process, on a synthetic data set in a temporary folder: `--rows` rows with `--ids` output
ids in all, Kimi-K2.5's markers, log-normal lengths cut at a limit, ordinary ids from a Zipf distribution. It is a
verified.parquet as stage 03 writes it, and a journal's timings as a table. Seconds are CPU seconds of this process,
best of `--repeats`; pyarrow reads with one thread. Memory is the peak of the process's resident set so far.
"""

import argparse
import io
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rawtokens.records import VERIFIED_SCHEMA, open_parquet
from rawtokens.reporting import figures, takeaways, throughput, token_statistics, truncation
from rawtokens.reporting import vocabulary_coverage as vocabulary

END, CLOSER, LIMIT = 163586, 163607, 8192
BLOCK = 250  # rows of a batch that is written


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=25_000)
    parser.add_argument("--ids", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = write_verified(folder / "verified.parquet", options.rows, options.ids)
        size = (folder / "verified.parquet").stat().st_size
        print(f"{options.rows:,} rows, {ids:,} output ids, {size / 1e6:,.0f} MB; CPU seconds, peak memory")
        measure(folder, options.rows, options.repeats)


def measure(folder: Path, rows: int, repeats: int) -> None:
    """Every step, its seconds and the peak so far."""
    timings = request_times(rows)
    bare = seconds("bare reading, no ids", lambda: bare_columns(folder), repeats)
    read = seconds("read_verified", lambda: token_statistics.read_verified(folder), repeats, bare)
    verified = token_statistics.read_verified(folder)
    bare_ids = seconds("bare reading of output_ids", lambda: bare_blocks(folder), repeats)
    counted = seconds("count_ids", lambda: vocabulary.count_ids(folder), repeats, bare_ids)
    found = vocabulary.count_ids(folder)
    tables = seconds("every table and sentence", lambda: every_table(verified, timings, found), repeats)
    drawn = seconds("every figure, as SVG", lambda: every_figure(verified, timings, found), repeats)
    print(f"  {'reading':28}{read + bare_ids:8.2f}")
    print(f"  {'all behind reading':28}{counted - bare_ids + tables + drawn:8.2f}   (5 s is the limit)")


def seconds(name: str, work: Callable[[], object], repeats: int, limit: float = 0.0) -> float:
    """Print and return CPU seconds, best of `repeats`, as a multiple of `limit` where there is one."""
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    beside = f"   {min(taken) / limit:4.1f} x bare" if limit else ""
    print(f"  {name:28}{min(taken):8.2f}{peak:8,.0f} MB{beside}")
    return min(taken)


def bare_columns(folder: Path) -> None:
    """All columns but ids, as Arrow."""
    columns = [name for name in VERIFIED_SCHEMA.names if name not in ("prompt_ids", "output_ids")]
    pq.ParquetFile(folder / "verified.parquet").read(columns=columns)


def bare_blocks(folder: Path) -> None:
    """output_ids in blocks, thrown away."""
    with open_parquet(folder / "verified.parquet") as file:
        for _ in file.iter_batches(batch_size=256, columns=["output_ids"]):
            pass


def every_table(rows: pd.DataFrame, timings: pd.DataFrame, found: vocabulary.IdCounts) -> None:
    """What notebook 04 shows in tables and sentences."""
    line = throughput.timeline(timings)
    token_statistics.count_table(rows, "shape", "finish_reason")
    token_statistics.reason_table(rows)
    for column in ("reasoning_tokens", "answer_tokens", "output_tokens", "prompt_tokens"):
        token_statistics.length_table(rows, column)
    token_statistics.closer_position_table(rows)
    token_statistics.segment_table(rows)
    token_statistics.tool_call_table(rows)
    truncation.truncation_table(truncation.estimate(rows))
    throughput.throughput_table(timings)
    vocabulary.coverage_table(found)
    for say in (
        *(takeaways.shapes, takeaways.verdict_reasons, takeaways.reasoning_length, takeaways.truncation),
        *(takeaways.closer_position, takeaways.closer_share, takeaways.answer_length, takeaways.output_length),
        *(takeaways.segments, takeaways.tool_calls, takeaways.prompt_length),
    ):
        say(rows)
    takeaways.coverage(found)
    takeaways.cache_hits(timings)
    takeaways.ids_per_second(timings, line)
    takeaways.in_flight(timings, line)


def every_figure(rows: pd.DataFrame, timings: pd.DataFrame, found: vocabulary.IdCounts) -> None:
    """Notebook 04's figures, written as SVG."""
    line = throughput.timeline(timings)
    for figure in (
        *(figures.shapes(rows), figures.verdict_reasons(rows), figures.reasoning_length(rows)),
        *(figures.truncation(rows), figures.closer_position(rows), figures.answer_length(rows)),
        *(figures.output_length(rows), figures.segments(rows), figures.tool_calls(rows), figures.prompt_length(rows)),
        *(figures.ids_per_second(line), figures.in_flight(line)),
        *(figures.cache_hits(timings, throughput.cache_line(timings)), figures.coverage(found)),
    ):
        figure.savefig(io.BytesIO(), format="svg")


def request_times(rows: int) -> pd.DataFrame:
    """What `throughput.read_timings` would give: `rows` requests over six hours."""
    random = np.random.default_rng(5)
    started = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(np.sort(random.uniform(0, 21_600, rows)), unit="s")
    return pd.DataFrame(
        {
            "key": [f"{row}#0/0" for row in range(rows)],
            "started_at": started,
            "latency_s": random.lognormal(3, 1, rows),
            "completion_tokens": random.lognormal(7, 1, rows).astype("int64"),
            "prompt_tokens": np.full(rows, 400),
            "cached_tokens": random.integers(0, 400, rows),
            "server": "http://127.0.0.1:30000",
            "attempt": 1,
            "finish_reason": "stop",
        }
    )


def write_verified(path: Path, rows: int, ids: int) -> int:
    """verified.parquet with about `ids` output ids, block by block; returns how many they are."""
    random = np.random.default_rng(7)
    written = 0
    # As stage 03 writes it.
    with pq.ParquetWriter(path, VERIFIED_SCHEMA, compression="zstd", use_dictionary=False) as writer:
        for start in range(0, rows, BLOCK):
            batch, count = block(random, start, min(BLOCK, rows - start), ids / rows)
            writer.write_batch(batch)
            written += count
    return written


def block(random: np.random.Generator, start: int, rows: int, mean: float) -> tuple[pa.RecordBatch, int]:
    """`rows` outputs of about `mean` ids: thinking, a closer, an answer, a stop id; or cut at the limit."""
    thinking = random.lognormal(np.log(mean * 0.62), 0.8, rows).astype(np.int64) + 1
    answer = random.lognormal(np.log(mean * 0.16), 0.8, rows).astype(np.int64) + 1
    limit = max(LIMIT, int(2 * mean))
    cut = thinking >= limit
    reasoning = np.minimum(thinking, limit)
    lengths = np.where(cut, reasoning, reasoning + answer + 2)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.minimum(random.zipf(1.3, int(offsets[-1])) + 200, 150_000).astype(np.int32)
    flat[offsets[1:][~cut] - 1] = END
    flat[(offsets[:-1] + reasoning)[~cut]] = CLOSER
    prompts = random.lognormal(5, 0.8, rows).astype(np.int64) + 5
    prompt_offsets = np.concatenate([[0], np.cumsum(prompts)])
    columns = {
        "key": [f"{start + row}#0/0" for row in range(rows)],
        "prompt_ids": lists(np.zeros(int(prompt_offsets[-1]), dtype=np.int32), prompt_offsets, "prompt_ids"),
        "output_ids": lists(flat, offsets, "output_ids"),
        "verdict": np.where(cut, "flag", "accept").tolist(),
        "reasons": [["truncated_in_thinking"] if each else [] for each in cut],
        "shape": np.where(cut, "truncated_in_thinking", "closed").tolist(),
        "prompt_tokens": prompts,
        "output_tokens": lengths,
        "closer_position": pa.array(reasoning, mask=cut, type=pa.int32()),
        "closers": (~cut).astype(np.int32),
        "reasoning_tokens": reasoning,
        "answer_tokens": np.where(cut, 0, answer),
        "tool_tokens": np.zeros(rows, dtype=np.int32),
        "tool_calls": random.poisson(0.3, rows),
        "finish_reason": np.where(cut, "length", "stop").tolist(),
        "ends_with_stop": ~cut,
    }
    arrays = [pa.array(columns[field.name], type=field.type) for field in VERIFIED_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=VERIFIED_SCHEMA), len(flat)


def lists(ids: np.ndarray, offsets: np.ndarray, name: str) -> pa.ListArray:
    """ids cut at offsets, as the column `name`."""
    kind = VERIFIED_SCHEMA.field(name).type
    return pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), pa.array(ids), type=kind)


if __name__ == "__main__":
    main()
