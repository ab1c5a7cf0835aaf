import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import active_children
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from rawtokens.errors import InputError, RunStopped, TokenizerError
from rawtokens.records import PROMPTS_SCHEMA, Conversation, Json, Rejection
from rawtokens.target.prompt_workers import Row, Tokenized, tokenize_rows, usable_cores
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer

OPTIONS = PromptOptions(template_kwargs={"thinking": True})


def row(number: int, text: str = "") -> Row:
    if number % 97 == 5:
        return Rejection(stage="tokenize", key=f"{number}#0", line=number, reason="empty", detail="no messages")
    message: dict[str, Json] = {"role": "user", "content": text or f"What is {number}+{number}?"}
    return Conversation(source_id=str(number), line=number, messages=(message,))


def rows(count: int) -> Iterator[Row]:
    """Good rows, rows that reading rejected, rows with a control token, and one with a lone surrogate."""
    for number in range(count):
        yield row(number, {50: "\ud800", 60: "</think>"}.get(number, ""))


@dataclass
class Counted:
    """Rows that count how many of them were read."""

    count: int
    read: int = field(default=0)

    def __iter__(self) -> Iterator[Row]:
        for number in range(self.count):
            self.read += 1
            yield row(number)


def together(batches: Iterator[Tokenized]) -> tuple[pa.Table, list[Rejection]]:
    made = list(batches)
    return pa.concat_tables(batch.prompts for batch in made), [item for batch in made for item in batch.rejections]


def test_two_processes_make_what_one_makes_in_the_same_order(target: Tokenizer) -> None:
    alone, rejected = together(tokenize_rows(rows(1_500), target, OPTIONS, processes=1))
    prompts, rejections = together(tokenize_rows(rows(1_500), target, OPTIONS, processes=2, alone=3_000))
    assert prompts.equals(alone)
    assert rejections == rejected
    assert prompts.schema.equals(PROMPTS_SCHEMA)
    assert prompts.num_rows + len(rejections) == 1_500
    assert {rejection.reason for rejection in rejections} == {"empty", "tokenizer_error", "control_token_in_text"}
    assert prompts["source_id"].to_pylist() == sorted(prompts["source_id"].to_pylist(), key=int)
    assert active_children() == []


def test_no_rows_make_nothing(target: Tokenizer) -> None:
    assert list(tokenize_rows([], target, OPTIONS, processes=2)) == []


def test_no_process_starts_before_it_pays(target: Tokenizer) -> None:
    batches = tokenize_rows(rows(600), target, OPTIONS, processes=2, alone=10**9)
    next(batches)
    assert active_children() == []
    assert sum(batch.prompts.num_rows + len(batch.rejections) for batch in batches) == 344


def test_rows_are_read_a_bounded_number_ahead(target: Tokenizer) -> None:
    counted = Counted(50_000)
    batches = tokenize_rows(counted, target, OPTIONS, processes=2, alone=0)
    next(batches)  # by this process
    next(batches)  # by a worker
    assert counted.read <= 8 * 256
    batches.close()  # type: ignore[attr-defined]
    assert active_children() == []


def test_a_worker_that_dies_stops_the_run_with_words(target: Tokenizer) -> None:
    batches = tokenize_rows(rows(50_000), target, OPTIONS, processes=2, alone=0)
    next(batches)
    next(batches)
    for worker in active_children():
        os.kill(worker.pid or 0, signal.SIGKILL)
    with pytest.raises(RunStopped, match="a process that tokenizes prompts died"):
        list(batches)
    assert active_children() == []


def test_a_tokenizer_that_changed_meanwhile_is_refused(target: Tokenizer) -> None:
    changed = replace(target, identity={**target.identity, "tokenizer_sha256": "another"})
    with pytest.raises(TokenizerError, match="changed while it was in use"):
        list(tokenize_rows(rows(2_000), changed, OPTIONS, processes=2, alone=0))


def test_what_reading_raises_comes_through_and_leaves_no_process(target: Tokenizer) -> None:
    def failing() -> Iterator[Row]:
        yield from rows(600)
        raise InputError("line 601 is damaged")

    with pytest.raises(InputError, match="line 601 is damaged"):
        list(tokenize_rows(failing(), target, OPTIONS, processes=2, alone=0))
    assert active_children() == []


def test_a_negative_number_of_processes_is_refused(target: Tokenizer) -> None:
    with pytest.raises(InputError, match="processes is -1"):
        list(tokenize_rows([], target, OPTIONS, processes=-1))


def test_usable_cores_are_those_that_the_process_may_run_on() -> None:
    if hasattr(os, "sched_setaffinity"):
        command = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        command += "from rawtokens.target.prompt_workers import usable_cores; print(usable_cores())"
        assert subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout == "1\n"
    assert usable_cores() >= 1


SCRIPT = """
import signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_prompt_workers import OPTIONS, rows
from multiprocessing import active_children
from rawtokens.target.prompt_workers import tokenize_rows
from rawtokens.target.target_tokenizer import load_tokenizer

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    target = load_tokenizer({folder!r})
    batches = tokenize_rows(rows(10_000_000), target, OPTIONS, processes=2, alone=0)
    for number, batch in enumerate(batches):
        if number == 2:
            Path({pids!r}).write_text(" ".join(str(child.pid) for child in active_children()))
"""


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_an_interrupt_and_with_their_parents_death(
    kimi_folder: Path, tmp_path: Path, signal_number: signal.Signals
) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), folder=str(kimi_folder), pids=str(pids)))
    with subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True) as parent:
        try:
            assert _within(400, lambda: pids.exists() and pids.read_text() != "")
            workers = [int(pid) for pid in pids.read_text().split()]
            assert workers
            parent.send_signal(signal_number)
            _, printed = parent.communicate(timeout=200)
        finally:
            parent.kill()
    assert _within(100, lambda: not any(map(_runs, workers)))
    assert printed.count("Traceback") == (1 if signal_number == signal.SIGINT else 0)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True
