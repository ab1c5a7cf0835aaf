"""How fast responses are verified: the checks on arrays, and the whole stage from journal to verified.parquet.

Everything in one run, CPU seconds of one process, best of `--repeats`; the stage by the clock too, since it writes in a
thread of its own. The checks stand beside np.max over the same
ids, which only reads them; the stage beside the bare JSON decoder (msgspec into a list of ints a row) and the bare
Parquet writer; bytes an id beside the order-0 entropy of the ids. Rows are Kimi-K2.5's: thinking, closer, answer, stop
id, ordinary ids drawn from a Zipf distribution. `--ids` and `--rows` size the arrays, `--stage-ids` the journal.
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

from rawtokens.markers import Markers
from rawtokens.records import PROMPTS_SCHEMA, VERIFIED_SCHEMA, Response, Thinking
from rawtokens.response_checks.channel_segments import segment_outputs
from rawtokens.response_checks.checks import prompt_digests
from rawtokens.response_checks.repetition import loops
from rawtokens.response_checks.response_columns import IdLists, ResponseColumns
from rawtokens.verification import verify, verify_journal

END, CLOSER, VOCABULARY = 163586, 163607, 163840
PROMPT = [163587, 2482, 163601, *range(1000, 1100), END, 163588, 69702, 163601, 163606]
KIMI = Markers(
    family="kimi",
    opener=(163606,),
    closer=(CLOSER,),
    turn_ends=(END,),
    tool_section_begin=(163595,),
    tool_section_end=(163596,),
    tool_call_begin=(163597,),
    tool_arguments_begin=(163598,),
    tool_call_end=(163599,),
    role_ids=(163587, 163588, 163594, 163601),
)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=20_000_000)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--stage-ids", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    bench_checks(options.ids, options.rows, options.repeats)
    bench_stage(options.stage_ids, options.repeats)


def bench_checks(ids: int, rows: int, repeats: int) -> None:
    """The checks on arrays."""
    columns = responses(ids, rows)
    outputs, bodies = columns.outputs, columns.outputs.lengths - 1
    known = {f"{row}#0": digest for row, digest in enumerate(prompt_digests(columns.prompts))}
    thinking: list[Thinking] = ["opened"] * rows
    print(f"{ids:,} ids in {rows:,} rows, M ids/s")
    read = rate("np.max alone", lambda: outputs.ids.max(), ids, repeats)
    matched = columns.matched_ids
    cut = lambda: segment_outputs(outputs, markers=KIMI, thinking=thinking, matched_ids=matched)  # noqa: E731
    rate("segments", cut, ids, repeats, read)
    rate("loops", lambda: loops(outputs, bodies), ids, repeats, read)
    rate(
        "verify() as a whole",
        lambda: verify(
            columns, markers=KIMI, thinking=thinking, vocabulary_size=VOCABULARY, known_prompts=known, fingerprint="f"
        ),
        ids,
        repeats,
        read,
    )


def bench_stage(ids: int, repeats: int) -> None:
    """The whole stage on a journal."""
    rows = max(1, ids // 4_000)
    columns = responses(ids, rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [msgspec.json.encode(response(columns, row)) + b"\n" for row in range(rows)]
        (folder / "raw_responses.jsonl").write_bytes(b"".join(lines))
        write_prompts(folder / "prompts.parquet", rows)
        size = (folder / "raw_responses.jsonl").stat().st_size
        whole = ids + len(columns.prompts.ids)
        print(f"\nstage: {whole:,} ids in {rows:,} rows, {size / whole:.2f} bytes an id in the journal, M ids/s")
        decoder = msgspec.json.Decoder(Response)
        decode = rate("bare JSON decoder", lambda: [decoder.decode(line) for line in lines], whole, repeats)
        write = rate("bare Parquet writer", lambda: write_parquet(folder / "bare.parquet", columns), whole, repeats)
        print(f"  {'decoder, then writer':24}{1 / (1 / decode + 1 / write):10,.1f}")
        rate(
            "the whole stage",
            lambda: verify_journal(folder, markers=KIMI, vocabulary_size=VOCABULARY),
            whole,
            repeats,
            1 / (1 / decode + 1 / write),
        )
        rate(
            "by the clock",
            lambda: verify_journal(folder, markers=KIMI, vocabulary_size=VOCABULARY),
            whole,
            repeats,
            1 / (1 / decode + 1 / write),
            clock=time.perf_counter,
        )
        stored = (folder / "verified.parquet").stat().st_size
        every = np.concatenate([columns.outputs.ids, columns.prompts.ids])
        print(f"  {stored / whole:.2f} bytes an id in verified.parquet; order-0 entropy {entropy(every) / 8:.2f}")


def rate(
    name: str,
    work: Callable[[], object],
    ids: int,
    repeats: int,
    limit: float = 0.0,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Print and return M ids a second of `clock`, best of `repeats`, as a share of `limit` where there is one."""
    taken = []
    for _ in range(repeats):
        started = clock()
        work()
        taken.append(clock() - started)
    found = ids / min(taken) / 1e6
    print(f"  {name:24}{found:10,.1f}" + (f"   {found / limit:6.1%} of the limit" if limit else ""))
    return found


def responses(ids: int, rows: int) -> ResponseColumns:
    """`rows` finished answers of equal length, the closer after three quarters."""
    random = np.random.default_rng(7)
    flat = np.minimum(random.zipf(1.3, ids) + 200, 150_000).astype(np.int32)
    offsets = np.linspace(0, ids, rows + 1).astype(np.int64)
    flat[offsets[1:] - 1] = END
    flat[offsets[:-1] + np.diff(offsets) * 3 // 4] = CLOSER
    return ResponseColumns(
        keys=[f"{row}#0/0" for row in range(rows)],
        prompts=IdLists(np.tile(np.array(PROMPT, dtype=np.int32), rows), np.arange(rows + 1) * len(PROMPT)),
        outputs=IdLists(flat, offsets),
        finish_reasons=["stop"] * rows,
        matched_ids=np.full(rows, END),
        unmatched=np.zeros(rows, dtype=np.bool_),
        fingerprints=["f"] * rows,
        prompt_tokens=np.full(rows, len(PROMPT)),
        completion_tokens=np.diff(offsets),
    )


def response(columns: ResponseColumns, row: int) -> Response:
    """One row as a journal's record."""
    output = columns.outputs.row(row).tolist()
    return Response(
        key=columns.keys[row],
        prompt_ids=PROMPT,
        output_ids=output,
        finish_reason="stop",
        matched=END,
        prompt_tokens=len(PROMPT),
        completion_tokens=len(output),
        cached_tokens=0,
        weight_version="default",
        fingerprint="f",
        server="http://127.0.0.1:30000",
        rid="0" * 32,
        attempt=1,
        started_at="2026-11-29T12:00:00Z",
        latency_s=1.0,
    )


def write_prompts(path: Path, rows: int) -> None:
    """prompts.parquet for them."""
    texts = {name: [""] * rows for name in ("thinking", "messages", "tools", "template_kwargs")}
    keys = [f"{row}#0" for row in range(rows)]
    columns = {"key": keys, "source_id": keys, "turn": [0] * rows, "prompt_ids": [PROMPT] * rows, **texts}
    columns |= {"prompt_tokens": [len(PROMPT)] * rows, "notices": [[]] * rows, "later": [None] * rows}
    pq.write_table(pa.table(columns, schema=PROMPTS_SCHEMA), path)


def write_parquet(path: Path, columns: ResponseColumns) -> None:
    """The ids alone, as verified.parquet stores them."""
    names = ("key", "prompt_ids", "output_ids")
    schema = pa.schema([VERIFIED_SCHEMA.field(name) for name in names])
    ids = [columns.prompts.to_arrow(schema.field(1).type), columns.outputs.to_arrow(schema.field(2).type)]
    table = pa.table([pa.array(columns.keys), *ids], schema=schema)
    pq.write_table(table, path, compression="zstd", compression_level=3, use_dictionary=False)


def entropy(ids: np.ndarray) -> float:
    """Bits an id when each is drawn on its own."""
    counts = np.unique(ids, return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


if __name__ == "__main__":
    main()
