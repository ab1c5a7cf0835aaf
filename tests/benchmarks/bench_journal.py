"""How fast a big journal's keys are found, and how much memory they and a million prompts take.

Each figure beside its limit, in one run: the scan beside a bare read of the same file, the memory beside 16 bytes a
key. Two journals: lines as long as real ones (4,096 output ids), and many keys in short lines. The files lie below
--folder and are removed. `--gib` is the size of the first, `--keys` the lines of the second, `--prompts` the rows of
prompts.parquet. A file larger than the memory that is free is read from the disk, a smaller one from the page cache.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rawtokens.records import PROMPTS_SCHEMA

SCAN = """
import resource, sys, time
from pathlib import Path
from rawtokens.capture.known_keys import KnownKeys
def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
path = Path(sys.argv[1])
buffer, bare = bytearray(1 << 20), []
for _ in range(2):
    started = time.process_time()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    bare.append(time.process_time() - started)
before, started = rss(), time.process_time()
known = KnownKeys.of([path])
seconds = time.process_time() - started
status = Path("/proc/self/status").read_text()  # ru_maxrss would be the parent's where that was larger
peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
print(len(known), min(bare), seconds, rss() - before, peak - before)
"""
COUNT = """
import resource, sys, time
from pathlib import Path
from rawtokens.capture.known_keys import KnownKeys
from rawtokens.capture.planned import count_planned, planned_requests
def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
folder, before = Path(sys.argv[1]), rss()
started = time.process_time()
known = KnownKeys.of([folder / "raw_responses.jsonl"])
planned, present = count_planned(folder, 1, known)
counted = time.process_time()
asked = sum(1 for _ in planned_requests(folder, 1, known=known))
through = time.process_time()
status = Path("/proc/self/status").read_text()  # ru_maxrss would be the parent's where that was larger
peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
print(planned, present, asked, counted - started, through - counted, peak - before)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        print("journal: lines, MB, bare read MB/CPU s, scan MB/CPU s, scan us a line, RSS growth MB (peak), bytes/key")
        path = folder / "raw_responses.jsonl"
        real = ids_text(4096, seed=1)
        write_journal(path, int(options.gib * 2**30 / (len(real) + 500)), real)
        measure_scan(path)
        write_journal(path, options.keys, "1008,163607,163586")
        measure_scan(path)
        write_prompts(folder, options.prompts)
        write_journal(path, options.prompts // 2, "1008,163607,163586")
        planned, present, asked, counting, asking, growth = run(COUNT, folder)
        print(
            f"planned: {planned:,.0f} prompts of 200 ids, {present:,.0f} of them in the journal: counted in "
            f"{counting:.1f} CPU s, the other {asked:,.0f} made ready in {asking:.1f} CPU s "
            f"({asked / asking:,.0f} a second), peak memory +{growth / 1e6:.0f} MB "
            f"(the prompts' ids alone are {planned * 800 / 1e6:,.0f} MB)"
        )


def ids_text(count: int, *, seed: int) -> str:
    """Ids of a skewed distribution, as real answers have them, with commas between."""
    draws = np.random.default_rng(seed).zipf(1.2, size=count) % 163840
    return ",".join(map(str, draws))


def write_journal(path: Path, lines: int, output_ids: str) -> None:
    """`lines` records that differ in their key."""
    tail = (
        f'","prompt_ids":[163587,163606],"output_ids":[{output_ids}],"finish_reason":"stop","matched":163586,'
        '"prompt_tokens":2,"completion_tokens":4096,"cached_tokens":0,"weight_version":"default",'
        '"fingerprint":"ffffffffffffffff","server":"http://127.0.0.1:30000","rid":"0123456789abcdef0123456789abcdef",'
        '"attempt":1,"started_at":"2026-01-01T00:00:00+00:00","latency_s":1.25}\n'
    ).encode()
    with path.open("wb") as file:
        for number in range(lines):
            file.write(b'{"key":"sample-%08d#0/0' % number + tail)


def write_prompts(folder: Path, rows: int) -> None:
    """prompts.parquet with 200 ids a prompt."""
    draw, size = np.random.default_rng(2), 100_000
    with pq.ParquetWriter(folder / "prompts.parquet", PROMPTS_SCHEMA, compression="zstd") as writer:
        for start in range(0, rows, size):
            count = min(size, rows - start)
            names = [f"sample-{number:08d}" for number in range(start, start + count)]
            ids = pa.array(draw.integers(0, 163840, count * 200, dtype=np.int32))
            offsets = pa.array(np.arange(count + 1, dtype=np.int32) * 200)
            columns = {
                "key": [f"{name}#0" for name in names],
                "source_id": names,
                "turn": [0] * count,
                "prompt_ids": pa.ListArray.from_arrays(offsets, ids, type=PROMPTS_SCHEMA.field("prompt_ids").type),
                "prompt_tokens": [200] * count,
                "thinking": ["opened"] * count,
                "notices": [[]] * count,
            }
            texts = {name: ["[]"] * count for name in PROMPTS_SCHEMA.names if name not in columns}
            writer.write_table(
                pa.table({**columns, **texts}).select(PROMPTS_SCHEMA.names).cast(PROMPTS_SCHEMA), row_group_size=1000
            )


def measure_scan(path: Path) -> None:
    """Print the scan of a journal beside a bare read of it, which fills the page cache first."""
    size = path.stat().st_size
    lines, bare, seconds, growth, peak = run(SCAN, path)
    print(
        f"  {lines:>12,.0f}  {size / 1e6:>9,.0f}  {size / bare / 1e6:>7,.0f}  {size / seconds / 1e6:>7,.0f}  "
        f"{seconds / lines * 1e6:>6.2f}  {growth / 1e6:>6.0f} ({peak / 1e6:.0f})  {growth / lines:>6.0f}"
    )


def run(code: str, path: Path) -> list[float]:
    """The numbers that a fresh process prints."""
    command = [sys.executable, "-c", code, str(path)]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(word) for word in told.stdout.split()]


if __name__ == "__main__":
    main()
