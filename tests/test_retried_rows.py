import resource
import signal
from pathlib import Path

import pytest

from rawtokens.capture.retried_rows import (
    CHOSEN_BY_CONTENT,
    RETRIED,
    RetriedRows,
    read_retried,
    record_retried,
    retried_in_words,
)
from rawtokens.capture.retrying import GENERATION_REASONS
from rawtokens.errors import InputError, RunStopped
from rawtokens.response_checks.checks import DEFAULT_POLICY


def rows(reason: str, lines: int) -> RetriedRows:
    return RetriedRows(at="2026-01-01T00:00:00+00:00", reason=reason, lines=lines)


def test_what_was_retried_is_read_back_in_order(tmp_path: Path) -> None:
    assert read_retried(tmp_path) == []
    record_retried(tmp_path, rows("loop", 2))
    record_retried(tmp_path, rows("", 3))
    assert read_retried(tmp_path) == [rows("loop", 2), rows("", 3)]
    assert (
        (tmp_path / RETRIED).read_bytes().startswith(b'{"at":"2026-01-01T00:00:00+00:00","reason":"loop","lines":2}\n')
    )


def test_choosing_by_content_is_told_and_other_reasons_are_not_blamed(tmp_path: Path) -> None:
    assert retried_in_words(tmp_path) == "No row was set aside to be generated again."
    record_retried(tmp_path, rows("prompt_changed", 1200))
    assert retried_in_words(tmp_path) == (
        "Rows were generated again (prompt_changed 1,200), none of them for how long it was or what it said."
    )
    record_retried(tmp_path, rows("truncated_in_thinking", 7))
    record_retried(tmp_path, rows("truncated_in_thinking", 3))
    assert retried_in_words(tmp_path) == (
        "Rows were generated again (prompt_changed 1,200, truncated_in_thinking 10), some for how long they were or "
        "what they said (truncated_in_thinking): lengths and shapes are no longer a fair sample of the model's."
    )


def test_the_reasons_that_choose_are_reasons_that_rows_have() -> None:
    assert set(CHOSEN_BY_CONTENT) <= {*DEFAULT_POLICY, *GENERATION_REASONS}


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / RETRIED).write_text('{"at":\n')
    with pytest.raises(InputError, match=r"retried\.jsonl can't be read"):
        retried_in_words(tmp_path)
    (tmp_path / RETRIED).unlink()
    (tmp_path / RETRIED).mkdir()
    with pytest.raises(InputError, match=r"retried\.jsonl can't be read"):
        record_retried(tmp_path, rows("loop", 1))
    (tmp_path / RETRIED).rmdir()
    with pytest.raises(RunStopped, match=r"can't write .*retried\.jsonl"):
        with_half_a_disk(tmp_path, rows("loop", 1))


def with_half_a_disk(folder: Path, line: RetriedRows) -> None:
    """Record with room for half of the line, as a disk that is filling up has it."""
    unbounded = resource.getrlimit(resource.RLIMIT_FSIZE)
    was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        room = sum(path.stat().st_size for path in folder.glob(RETRIED)) + 20
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, unbounded[1]))
        record_retried(folder, line)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unbounded)
        signal.signal(signal.SIGXFSZ, was)


def test_a_line_that_the_disk_cuts_short_is_not_written_at_all(tmp_path: Path) -> None:
    record_retried(tmp_path, rows("loop", 2))
    before = (tmp_path / RETRIED).read_bytes()
    with pytest.raises(RunStopped, match=r"can't write .*retried\.jsonl"):
        with_half_a_disk(tmp_path, rows("empty", 1))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {RETRIED: before}


@pytest.mark.parametrize("cut", [1, 20, 57])
def test_a_torn_last_line_tells_of_no_row_and_does_not_stand_in_the_way(tmp_path: Path, cut: int) -> None:
    record_retried(tmp_path, rows("loop", 2))
    whole = (tmp_path / RETRIED).read_bytes()
    (tmp_path / RETRIED).write_bytes(whole + whole[:cut])
    assert read_retried(tmp_path) == [rows("loop", 2)]
    record_retried(tmp_path, rows("empty", 1))
    assert read_retried(tmp_path) == [rows("loop", 2), rows("empty", 1)]


def test_a_last_line_that_an_editor_left_without_newline_counts(tmp_path: Path) -> None:
    record_retried(tmp_path, rows("loop", 2))
    (tmp_path / RETRIED).write_bytes((tmp_path / RETRIED).read_bytes().rstrip(b"\n"))
    record_retried(tmp_path, rows("empty", 1))
    assert read_retried(tmp_path) == [rows("loop", 2), rows("empty", 1)]
