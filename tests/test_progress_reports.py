import asyncio
import json
from pathlib import Path

import pytest

from rawtokens.capture.progress import Progress
from rawtokens.capture.progress_reports import (
    INTERRUPTED,
    ProgressReports,
    duration,
    failures_of,
    read_progress,
    require_through,
    until_stopped,
)
from rawtokens.errors import InputError, LockedError, RunStopped
from rawtokens.shards import Shard


def at(seconds: float, **changes: object) -> Progress:
    facts: dict[str, object] = {
        "planned": 100,
        "present": 10,
        "done": int(seconds),
        "rejected": 1,
        "in_flight": 2,
        "seconds": seconds,
    }
    facts |= {"ids": int(seconds) * 50, "truncated": int(seconds) // 10, "asked": {"a#0/0": 3.5, "b#0/0": 1.0}}
    facts |= {"latencies": {100: int(seconds)}, "request_seconds": seconds * 2, "max_new_tokens": 512}
    return Progress(**{**facts, **changes})  # type: ignore[arg-type]


def test_a_line_says_everything_there_is_to_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = ProgressReports(tmp_path / "B1", shard=Shard(2, 8))
    reports(at(40.0, failures={"timeout": 1, "http_503": 12}))
    said = capsys.readouterr().out
    assert said.startswith(
        "B1 02_generate_responses 2/8: 50 of 100 generated (50.0%), 2 in flight, 50 ids/s (mean 50), "
        "10.0% truncated, 1 rejected, failures: http_503 12, timeout 1, "
    )
    assert said.endswith(" left\n")


def test_lines_come_every_ten_seconds_and_later_every_minute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = ProgressReports(tmp_path)
    for second in range(3, 1203, 3):
        reports(at(float(second), planned=10_000))
    lines = capsys.readouterr().out.splitlines()
    assert 50 <= len(lines[:-10]) <= 60
    assert len(lines) <= 60 + 11


def test_jupyterlab_shows_one_line_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, str]] = []

    class Handle:
        def display(self, data: dict[str, str], *, raw: bool) -> None:
            shown.append(("display", data["text/plain"]))

        def update(self, data: dict[str, str], *, raw: bool) -> None:
            shown.append(("update", data["text/plain"]))

    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/02.ipynb")
    monkeypatch.setattr("IPython.display.DisplayHandle", Handle)
    reports = ProgressReports(tmp_path)
    for second in (10.0, 20.0, 30.0):
        reports(at(second))
    assert [kind for kind, _ in shown] == ["display", "update", "update"]
    assert "40 of 100 generated" in shown[-1][1]
    assert capsys.readouterr().out == ""


def test_the_file_is_what_the_run_said_last(tmp_path: Path) -> None:
    reports = ProgressReports(tmp_path, shard=Shard(2, 8))
    for second in (3.0, 6.0):
        reports(at(second, servers={"http://a:1": 2}, journal_bytes=77))
    (record,) = read_progress(tmp_path)
    assert record.state == "running"
    assert record.journal == "raw_responses.2-of-8.jsonl"
    assert record.progress == at(6.0, servers={"http://a:1": 2}, journal_bytes=77)
    assert record.progress.asked == {"a#0/0": 3.5, "b#0/0": 1.0}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["progress.2-of-8.json"]
    reports.finish("the disk is full")
    assert [(item.state, item.reason) for item in read_progress(tmp_path)] == [("stopped", "the disk is full")]


def test_a_file_that_is_no_record_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text("{")
    (tmp_path / "progress.1-of-2.json").write_text(json.dumps({"state": "running"}))
    assert read_progress(tmp_path) == []


def test_a_folder_that_cant_be_written_stops_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    ProgressReports(tmp_path / "file")(at(10.0))
    assert "20 of 100 generated" in capsys.readouterr().out


async def _ended(error: BaseException | None) -> Progress:
    if error:
        raise error
    return at(1.0)


ENDS: dict[str, tuple[BaseException | None, str]] = {
    "through": (None, ""),
    "stop button": (asyncio.CancelledError(), INTERRUPTED),
    "interrupt": (KeyboardInterrupt(), INTERRUPTED),
    "no server": (RunStopped("no server answers"), "no server answers"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_notebook_goes_on_to_say_why_a_run_stopped(tmp_path: Path, name: str) -> None:
    error, reason = ENDS[name]
    reports = ProgressReports(tmp_path)
    reports(at(1.0))
    assert asyncio.run(until_stopped(_ended(error), reports)) == reason
    assert [item.state for item in read_progress(tmp_path)] == ["stopped" if reason else "complete"]


def test_a_stop_button_is_taken_as_a_stop(tmp_path: Path) -> None:
    async def press() -> str:
        work = asyncio.ensure_future(until_stopped(asyncio.sleep(60, at(1.0)), ProgressReports(tmp_path)))
        await asyncio.sleep(0)
        work.cancel()
        return await work

    assert asyncio.run(press()) == INTERRUPTED


def test_a_run_that_was_refused_leaves_the_other_ones_word(tmp_path: Path) -> None:
    first = ProgressReports(tmp_path)
    first(at(1.0))
    with pytest.raises(LockedError):
        asyncio.run(until_stopped(_ended(LockedError("another writes")), ProgressReports(tmp_path)))
    assert [item.state for item in read_progress(tmp_path)] == ["running"]


def test_what_is_no_stop_is_raised_and_kept(tmp_path: Path) -> None:
    reports = ProgressReports(tmp_path)
    reports(at(1.0))
    with pytest.raises(InputError):
        asyncio.run(until_stopped(_ended(InputError("a key stands twice")), reports))
    assert [item.reason for item in read_progress(tmp_path)] == ["InputError: a key stands twice"]


def test_the_last_cell_stops_where_the_run_did(tmp_path: Path) -> None:
    require_through("", folder=tmp_path / "B1")
    with pytest.raises(RunStopped, match=r"^B1: interrupted; run the same again to go on$"):
        require_through(INTERRUPTED, folder=tmp_path / "B1")


def test_failures_are_those_of_all_shards(tmp_path: Path) -> None:
    for index, failures in ((1, {"timeout": 2}), (2, {"timeout": 1, "http_503": 9})):
        ProgressReports(tmp_path, shard=Shard(index, 2))(at(1.0, failures=failures))
    assert failures_of(tmp_path) == {"http_503": 9, "timeout": 3}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119, "119 s"), (150, "2.5 min"), (3000, "50 min"), (10_000, "2.8 h"), (260_000, "3.0 d")],
)
def test_a_stretch_of_time_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
