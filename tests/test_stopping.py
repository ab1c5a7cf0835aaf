"""A run that is stopped, for real: the command, its kernel, and a server that holds what it was asked."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_dataset
from slow_server import OUTPUT_IDS, SlowServer, slow_server

from rawtokens.capture.progress_reports import read_progress
from rawtokens.records import PROMPTS_SCHEMA

WINDOW, QUICK, PROMPTS = 4, 6, 14


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run whose stage 01 is done: prompts and the manifest that goes with them."""
    folder = tmp_path / "outputs" / "tiny" / "A"
    folder.mkdir(parents=True)
    rows = [msgspec.structs.asdict(small_dataset.prompt(f"{number}#0")) for number in range(PROMPTS)]
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")
    (folder / "run.json").write_text(
        json.dumps({"template_kwargs": {}, "vocabulary_size": 163840, "stop_ids": [163586]})
    )
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "a.jsonl").write_text("")
    return tmp_path / "run.yaml"


def start(run_file: Path, server: SlowServer, *others: str) -> "subprocess.Popen[str]":
    urls = [*others, server.url]
    run_file.write_text(
        f"run: tiny\nmodel: {{tokenizer: ./tokenizer}}\nservers: {{urls: {urls}, max_in_flight: {WINDOW}}}\n"
        "datasets: {A: {prompts: a.jsonl}}\n"
    )
    arguments = ["run", str(run_file), "--outputs", str(run_file.parent / "outputs"), "--stage", "02"]
    command = [sys.executable, "-m", "rawtokens", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def keys(run_file: Path) -> list[str]:
    lines = (run_file.parent / "outputs" / "tiny" / "A" / "raw_responses.jsonl").read_bytes().splitlines()
    records = [msgspec.json.decode(line) for line in lines]
    assert all(record["output_ids"] == OUTPUT_IDS for record in records)
    return [record["key"] for record in records]


def test_a_run_is_stopped_twice_and_goes_on_where_it_was(run_file: Path) -> None:
    folder = run_file.parent / "outputs" / "tiny" / "A"
    with slow_server(quick=QUICK) as server:
        first = start(run_file, server)
        server.wait_for_held(WINDOW)
        first.send_signal(signal.SIGTERM)
        said, error = first.communicate(timeout=180)
        held = list(server.held)
    assert first.returncode == 1
    assert error.count("\n") == 1
    assert "was interrupted (SIGTERM)" in error
    assert f"; go on with: rawtokens run {run_file} " in error
    assert "Traceback" not in said + error
    assert sorted(server.aborted) == sorted(held)  # nothing decodes on for nobody
    assert len(keys(run_file)) == QUICK
    (record,) = read_progress(folder)
    assert (record.state, len(record.progress.asked)) == ("stopped", WINDOW)
    assert f"{QUICK} generated, {WINDOW} in flight at the stop, {PROMPTS - QUICK - WINDOW} not asked" in said
    states = msgspec.json.decode((folder / "completion.json").read_bytes())["states"]
    assert states["in flight at the stop"] == WINDOW
    page = (folder / "reports" / "02_generate_responses.html").read_text()
    assert "was interrupted (SIGTERM)" in page
    assert "It was interrupted and nothing is lost. Run the same command again" in page

    with slow_server(quick=1) as server:
        second = start(run_file, server)
        server.wait_for_held(WINDOW)
        second.send_signal(signal.SIGINT)
        time.sleep(1)
        asked_again = time.monotonic()
        second.send_signal(signal.SIGINT)
        _, error = second.communicate(timeout=180)
        assert time.monotonic() - asked_again < 60  # at once, and not what is in flight first
        assert not server.aborted
    assert second.returncode == 1
    assert "was interrupted (SIGINT)" in error
    assert not any("Traceback" in line for line in error.splitlines())
    assert len(keys(run_file)) == QUICK + 1

    with slow_server(quick=PROMPTS) as server:
        third = start(run_file, server)
        said, error = third.communicate(timeout=180)
    assert (third.returncode, error) == (0, "")
    assert f"Nothing is missing: all {PROMPTS} planned generations are there." in said
    planned = [f"{key}/0" for key in pq.read_table(folder / "prompts.parquet")["key"].to_pylist()]
    assert sorted(keys(run_file)) == sorted(planned)
    assert len(server.asked) == PROMPTS - QUICK - 1


def test_a_run_begins_though_one_of_its_servers_is_away(run_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        absent = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with slow_server(quick=PROMPTS) as server:
        done = start(run_file, server, absent)
        said, error = done.communicate(timeout=180)
    assert (done.returncode, error) == (0, "")
    assert f"Servers that answer: 1 of 2. Not there, and taken up once they are: {absent}." in said
    assert len(keys(run_file)) == PROMPTS


def test_a_kernel_of_papermill_itself_dies_with_its_parent(run_file: Path) -> None:
    folder = run_file.parent / "outputs" / "tiny" / "A"
    notebook = Path(__file__).parents[1] / "notebooks" / "02_generate_responses.ipynb"
    with slow_server(quick=QUICK) as server:
        parameters = {"output_dir": str(folder), "urls": json.dumps([server.url]), "max_in_flight": WINDOW}
        (folder / "parameters.json").write_text(json.dumps(parameters))
        command = [sys.executable, "-m", "papermill", str(notebook), str(folder / "out.ipynb"), "--no-progress-bar"]
        parent = subprocess.Popen([*command, "-f", str(folder / "parameters.json")], stderr=subprocess.DEVNULL)
        server.wait_for_held(WINDOW)
        while not read_progress(folder):
            time.sleep(0.1)
        (record,) = read_progress(folder)
        parent.kill()
        parent.wait()
        for _ in range(200):
            try:
                os.kill(record.process, 0)
            except ProcessLookupError:
                break
            time.sleep(0.1)
        else:
            pytest.fail("the kernel outlives its parent")
    assert len(keys(run_file)) == QUICK
