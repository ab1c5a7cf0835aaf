"""What another shell sees, over folders as runs leave them: going on, stopped, killed, sharded, half-present."""

import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
import small_dataset

from rawtokens.capture import run_status
from rawtokens.capture.progress import Progress
from rawtokens.capture.progress_reports import ProgressFile, ProgressReports, read_progress
from rawtokens.capture.run_status import is_going, status_lines
from rawtokens.notebook_stages.pipeline import Plan, _parts
from rawtokens.notebook_stages.stages import digest_of, write_stage_record
from rawtokens.run_file import load_run_file
from rawtokens.shards import Shard

ROOT = Path(__file__).parents[1]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "run.yaml").write_text(
        "run: tiny\nmodel: {tokenizer: ./tokenizer}\nservers: {urls: ['http://127.0.0.1:1']}\n"
        "datasets: {A: {prompts: a.jsonl}}\n"
    )
    return Plan(
        settings=load_run_file(tmp_path / "run.yaml"),
        run_folder=tmp_path / "tiny",
        notebooks=ROOT / "notebooks",
        datasets=("A",),
    )


@pytest.fixture
def folder(plan: Plan) -> Path:
    return small_dataset.write(plan.run_folder / "A")


def tell(folder: Path, *, shard: Shard | None = None, **changes: object) -> ProgressReports:
    """Let a run say where it is, over the eight records of the small data set."""
    journal = folder / "raw_responses.jsonl"
    facts: dict[str, object] = {
        "planned": 10,
        "present": 3,
        "done": 5,
        "rejected": 1,
        "in_flight": 1,
        "seconds": 12.0,
        "ids": 80,
    }
    facts |= {"asked": {"j#0/0": 9.0}, "servers": {"http://a:1": 1}, "journal_bytes": journal.stat().st_size}
    reports = ProgressReports(folder, shard=shard or Shard())
    reports(Progress(**{**facts, **changes}))  # type: ignore[arg-type]
    return reports


def change(folder: Path, **changes: object) -> ProgressFile:
    """Write the run's last word again with something else in it."""
    (record,) = read_progress(folder)
    record = msgspec.structs.replace(record, **changes)
    (folder / "progress.json").write_bytes(msgspec.json.encode(record))
    return record


def said(plan: Plan) -> list[str]:
    return list(status_lines(plan))


def test_a_folder_that_is_not_there_yet_waits_for_stage_01(plan: Plan) -> None:
    assert said(plan) == ["A: no prompts yet; not run: stage 01 makes them"]


def test_what_is_there_is_counted_and_nothing_is_written(plan: Plan, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    lines = said(plan)
    assert lines == [
        "A: 10 planned, 8 generated, 1 missing, 2 rejected",
        "  01_tokenize_prompts: not run",
        "  02_generate_responses: not run",
        "  03_verify_responses: not run",
        "  04_report_token_statistics: not run",
        "  05_export_training_data: not run",
        "  verified: 4 accept, 3 flag, 1 reject",
    ]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_run_that_goes_on_is_seen_without_reading_its_journal(
    plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> int:
        raise AssertionError("the journal was read")

    monkeypatch.setattr(run_status, "count_missing", read)
    tell(folder, failures={"timeout": 2})
    lines = said(plan)
    assert lines[0] == "A: 10 planned, 8 generated, 1 missing, 2 rejected"
    assert lines[1].startswith(
        "  8 of 10 generated (80.0%), 1 in flight, 7 ids/s (mean 7), 0.0% truncated, 1 rejected, "
    )
    assert "failures: timeout 2" in lines[1]
    assert f"process {os.getpid()} on {socket.gethostname()}, 12 s so far" in lines[1]
    assert "in flight by server: http://a:1 1; the oldest for 9 s" in lines[1]
    assert lines[3] == "  02_generate_responses: running"


def test_what_came_after_the_last_word_counts_too(plan: Plan, folder: Path) -> None:
    tell(folder)
    with (folder / "raw_responses.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(small_dataset.response("j#0/0", [1], start=9, seconds=1)) + b"\n")
        file.write(b'{"key":"torn')
    assert said(plan)[0] == "A: 10 planned, 9 generated, 0 missing, 2 rejected"


def test_a_shorter_journal_is_read_through(plan: Plan, folder: Path) -> None:
    tell(folder)
    lines = (folder / "raw_responses.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "raw_responses.jsonl").write_bytes(b"".join(lines[:6]))
    assert said(plan)[0] == "A: 10 planned, 6 generated, 3 missing, 2 rejected"


def test_prompts_made_anew_are_counted_anew(plan: Plan, folder: Path) -> None:
    tell(folder, present=0, done=9)
    change(folder, started_at=(datetime.now(UTC) - timedelta(hours=1)).isoformat())
    assert said(plan)[0] == "A: 10 planned, 8 generated, 1 missing, 2 rejected"


def test_a_killed_run_is_told_from_one_that_goes_on(plan: Plan, folder: Path) -> None:
    tell(folder)
    dead = 2**22 + 1  # above every process id that Linux gives
    record = change(folder, process=dead)
    assert not is_going(record)
    assert f"killed: process {dead} on {socket.gethostname()} is gone" in said(plan)[1]
    assert said(plan)[3] == "  02_generate_responses: not run"


@pytest.mark.parametrize(("seconds", "going"), [(5, True), (3600, False)])
def test_a_writer_elsewhere_is_known_by_its_last_word(folder: Path, seconds: int, going: bool) -> None:
    tell(folder)
    written = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    assert is_going(change(folder, host="another-machine", process=1, written_at=written)) is going


def test_a_run_that_hangs_is_called_silent(plan: Plan, folder: Path) -> None:
    tell(folder)
    change(folder, written_at=(datetime.now(UTC) - timedelta(minutes=10)).isoformat())
    assert "SILENT for 10 min" in said(plan)[1]


def test_a_stopped_run_says_why(plan: Plan, folder: Path) -> None:
    tell(folder).finish("no server answers")
    assert "stopped: no server answers; " in said(plan)[1]


def test_each_shard_has_its_line(plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(run_status, "count_missing")
    lines = (folder / "raw_responses.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "raw_responses.jsonl").unlink()
    for index, part in ((1, lines[:3]), (2, lines[3:])):
        path = folder / f"raw_responses.{index}-of-2.jsonl"
        path.write_bytes(b"".join(part))
        reports = ProgressReports(folder, shard=Shard(index, 2))
        size = path.stat().st_size
        counts = {"planned": 5, "present": 0, "done": len(part), "rejected": 0, "in_flight": 0, "seconds": 1.0}
        reports(Progress(**counts, journal_bytes=size))  # type: ignore[arg-type]
        reports.finish("" if index == 1 else "the disk is full")
    found = said(plan)
    assert found[0] == "A: 10 planned, 8 generated, 1 missing, 2 rejected"
    assert found[1].startswith("  shard 1/2: 3 of 5 generated")
    assert found[2].startswith("  shard 2/2: 5 of 5 generated")
    assert "stopped: the disk is full" in found[2]


def test_what_changed_since_a_stage_is_named(plan: Plan, folder: Path) -> None:

    executed = folder / "notebooks" / "01_tokenize_prompts.ipynb"
    executed.parent.mkdir()
    executed.write_text("{}")
    parts = _parts(plan, "01", "A")
    write_stage_record(executed, digest=digest_of(parts), outputs=[folder / "prompts.parquet"], parts=parts)
    assert said(plan)[1] == "  01_tokenize_prompts: current"
    Path(plan.settings.datasets["A"].prompts).write_text("{}\n")
    kwargs = msgspec.structs.replace(plan.settings.model, template_kwargs={"thinking": False})
    plan = msgspec.structs.replace(plan, settings=msgspec.structs.replace(plan.settings, model=kwargs))
    assert said(plan)[1] == "  01_tokenize_prompts: stale: a.jsonl changed, setting template_kwargs changed"
    table = pq.read_table(folder / "prompts.parquet")
    pq.write_table(table.slice(1), folder / "prompts.parquet")
    assert said(plan)[1].endswith("its prompts.parquet changed")


def test_an_export_by_command_is_told_from_a_stage_whose_input_changed(plan: Plan, folder: Path) -> None:
    executed, manifest = folder / "notebooks" / "05_export_training_data.ipynb", folder / "training" / "manifest.json"
    for path in (executed, manifest):
        path.parent.mkdir()
        path.write_text("{}")
    parts = _parts(plan, "05", "A")
    write_stage_record(executed, digest=digest_of(parts), outputs=[manifest], parts=parts)
    assert said(plan)[5] == "  05_export_training_data: current"
    manifest.write_text('{"exports": []}')
    assert said(plan)[5] == (
        "  05_export_training_data: exported by command since (its manifest.json changed); "
        "`rawtokens run` would run the stage again"
    )
    (folder / "verified.parquet").unlink()
    assert said(plan)[5].startswith("  05_export_training_data: stale: ")


def test_settings_that_are_not_those_of_the_responses_are_named(plan: Plan, folder: Path) -> None:
    manifest = {
        "fingerprint": "f",
        "template_kwargs": {},
        "vocabulary_size": 200,
        "stop_ids": [1],
        "sampling": {"temperature": 0.5},
    }
    (folder / "run.json").write_bytes(msgspec.json.encode(manifest))
    (line,) = [line for line in said(plan) if "settings differ" in line]
    assert "temperature" in line


@pytest.mark.parametrize("name", ["verified.parquet", "rejected.jsonl", "raw_responses.jsonl"])
def test_a_file_that_is_missing_is_no_fault(plan: Plan, folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert said(plan)[0].startswith("A: 10 planned, ")
