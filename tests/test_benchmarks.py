"""The programs of `make bench` at a small size: each runs through and prints its figures; one limit is held to."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"
SMALL = {  # arguments that make a program take seconds, and what stands in its last line
    "bench_audits.py": ("--rows 3 --length 100 --repeats 1", "decode by transformers"),
    "bench_export.py": ("--ids 40000 --length 400 --repeats 1", "loss report, counts"),
    "bench_journal.py": ("--gib 0.001 --keys 1000 --prompts 500", "planned: 500 prompts"),
    "bench_reading.py": ("--rows 50 --containers json.zst,parquet", "parquet"),
    "bench_statistics.py": ("--rows 25000 --ids 1000000 --repeats 1", "all behind reading"),
    "bench_verification.py": ("--ids 40000 --rows 50 --stage-ids 20000 --repeats 1", "order-0 entropy"),
}
NOT_RUN = {
    "bench_client.py": "starts servers and clients of its own for every length and window; takes minutes at any size",
    "bench_tokenizing.py": "tries every tokenizer that the tests know; takes minutes at any size",
}


def test_every_program_is_run_or_says_why_not() -> None:
    assert {path.name for path in BENCHMARKS.glob("bench_*.py")} == {*SMALL, *NOT_RUN}


@pytest.mark.parametrize("program", SMALL)
def test_a_benchmark_runs_through(program: str) -> None:
    arguments, last = SMALL[program]
    command = [sys.executable, str(BENCHMARKS / program), *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert last in done.stdout.splitlines()[-1], done.stdout
    if behind := re.search(r"all behind reading +([\d.]+)", done.stdout):
        assert float(behind[1]) < 5.0, done.stdout  # CPU seconds: every figure and table over 25,000 rows
