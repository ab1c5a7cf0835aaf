"""How fast prompt files are read, and how far memory grows, in each container.

    python tests/benchmarks/bench_reading.py [--rows 20000] [--containers jsonl,json,..] [--folder DIR]

Made-up ShareGPT rows of 2 kB; `--rows 1000000` makes 2 GB. Each file is read by a process of its own. Rows and
MB (of JSON, whatever the container) a second stand beside `json.loads` of every line alone, the limit of a reader in
Python. Growth is the peak of resident memory over what the process held before the first row, imports included for
`hub`, which loads `datasets` while it reads.
"""

import argparse
import csv
import gzip
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

LIMIT = "json.loads a line"
_GROUP = 10_000


def make_rows(count: int) -> Iterator[dict[str, object]]:
    noise = random.Random(1)
    words = ["".join(noise.choices("abcdefghijklmnopqrstuvwxyzäé", k=noise.randint(2, 9))) for _ in range(5000)]
    texts = [" ".join(noise.choices(words, k=72)) for _ in range(1000)]
    for number in range(count):
        turns = [{"from": who, "value": f"{noise.choice(texts)} {number}"} for who in ("human", "gpt") * 2]
        yield {"id": f"row_{number}", "conversations": turns}


def write_lines(file: TextIO, count: int) -> None:
    for row in make_rows(count):
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_array(file: TextIO, count: int) -> None:
    file.write("[")
    for number, row in enumerate(make_rows(count)):
        file.write((",\n" if number else "") + json.dumps(row, ensure_ascii=False))
    file.write("]\n")


def write_csv(file: TextIO, count: int) -> None:
    writer = csv.writer(file)
    writer.writerow(["id", "conversations"])
    for row in make_rows(count):
        writer.writerow([row["id"], json.dumps(row["conversations"], ensure_ascii=False)])


def tables(count: int) -> Iterator[pa.Table]:
    group: list[dict[str, object]] = []
    for row in make_rows(count):
        group.append(row)
        if len(group) == _GROUP:
            yield pa.Table.from_pylist(group)
            group = []
    if group:
        yield pa.Table.from_pylist(group)


def write_parquet(path: Path, count: int) -> None:
    path.parent.mkdir(exist_ok=True)
    writer = None
    for table in tables(count):
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()


def write_arrow(path: Path, count: int) -> None:
    writer = None
    for table in tables(count):
        writer = writer or pa.ipc.new_stream(str(path), table.schema)
        writer.write_table(table, max_chunksize=1000)
    assert writer is not None
    writer.close()


def packed(write: Callable[[TextIO, int], None], packing: str) -> Callable[[Path, int], None]:
    def write_packed(path: Path, count: int) -> None:
        if packing == "zst":
            raw = io.BufferedWriter(pa.CompressedOutputStream(str(path), "zstd"))
        else:
            opened = gzip.open(path, "wb", 1) if packing else path.open("wb")  # noqa: SIM115 - closed below
            raw = cast(io.BufferedWriter, opened)
        with io.TextIOWrapper(raw, encoding="utf-8", newline="") as file:
            write(file, count)

    return write_packed


CONTAINERS: dict[str, Callable[[Path, int], None]] = {
    "jsonl": packed(write_lines, ""),
    "jsonl.gz": packed(write_lines, "gz"),
    "jsonl.zst": packed(write_lines, "zst"),
    "json": packed(write_array, ""),
    "json.gz": packed(write_array, "gz"),
    "json.zst": packed(write_array, "zst"),
    "csv": packed(write_csv, ""),
    "csv.gz": packed(write_csv, "gz"),
    "csv.zst": packed(write_csv, "zst"),
    "parquet": write_parquet,
    "arrow": write_arrow,
    "hub": write_parquet,
}


def memory(kind: str) -> float:
    """MB: VmRSS is what is resident, VmHWM the most that was (ru_maxrss would count the parent's too)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(kind))) / 1000


def read(name: str, container: str) -> None:
    """In a process of its own: read the file and print what it took."""
    from rawtokens.conversations import read_conversations
    from rawtokens.records import Conversation

    before, start = memory("VmRSS"), time.perf_counter()
    if container == LIMIT:
        with Path(name).open(encoding="utf-8") as file:
            rows = sum(isinstance(json.loads(line), dict) for line in file)
    else:
        rows = sum(isinstance(row, Conversation) for row in read_conversations(name))
    seconds = time.perf_counter() - start
    print(json.dumps({"rows": rows, "seconds": seconds, "growth": memory("VmHWM") - before}))


def measure(place: str, container: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--read", place, "--containers", container]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    return {key: float(value) for key, value in json.loads(made).items()}


def bench(folder: Path, wanted: list[str], count: int) -> None:
    size = sum(len(json.dumps(row, ensure_ascii=False).encode()) + 1 for row in make_rows(min(count, 1000)))
    megabytes = size / min(count, 1000) * count / 1e6
    print(f"{count:,} rows, {megabytes:,.0f} MB as JSON Lines\n")
    print(f"{'container':<20}{'rows/s':>10}{'MB/s':>8}{'of limit':>10}{'growth, MB':>12}")
    limit = 0.0
    for container in ["jsonl", *(name for name in wanted if name != "jsonl")]:
        path = folder / ("hub/train.parquet" if container == "hub" else f"rows.{container}")
        CONTAINERS[container](path, count)
        for reader in ([LIMIT] if container == "jsonl" else []) + ([container] if container in wanted else []):
            found = measure(f"hub:{path.parent}" if container == "hub" else str(path), reader)
            if found["rows"] != count:
                sys.exit(f"{container}: {found['rows']:.0f} of {count} rows were read")
            rate = count / found["seconds"]
            limit = limit or rate
            growth = f"{rate:>10,.0f}{megabytes / found['seconds']:>8.0f}{rate / limit:>10.0%}{found['growth']:>12.0f}"
            print(f"{reader:<20}{growth}", flush=True)
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--containers", default=",".join(CONTAINERS))
    parser.add_argument("--folder", help="where files of the benchmark go, one at a time")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read(given.read, given.containers)
        return
    if given.folder:
        Path(given.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        bench(Path(folder), given.containers.split(","), given.rows)


if __name__ == "__main__":
    main()
