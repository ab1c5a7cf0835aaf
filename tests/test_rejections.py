"""The rows that stage 02 rejects: known by key, added to the file once, and seldom where that takes long."""

from pathlib import Path

import pytest
from test_journal import rejection

from rawtokens.capture import rejections
from rawtokens.capture.rejections import RejectedRows
from rawtokens.journal import REJECTED, append_rejections, read_rejections
from rawtokens.shards import WHOLE, Shard


def test_a_row_is_rejected_once_however_often_it_is_added(tmp_path: Path) -> None:
    rows = RejectedRows(tmp_path)
    rows.add([rejection("a#0/0"), rejection("b#0/0")])
    rows.add([rejection("a#0/0")])
    assert ("a#0/0" in rows, "c#0/0" in rows, len(rows)) == (True, False, 2)
    rows.write()
    rows.write()
    assert [item.key for item in read_rejections(tmp_path)] == ["a#0/0", "b#0/0"]
    again = RejectedRows(tmp_path)
    again.add([rejection("b#0/0"), rejection("c#0/0")])
    again.write()
    assert (tmp_path / REJECTED).read_bytes().count(b"\n") == 3
    assert len(again) == 3


def test_what_stage_01_rejected_stays_and_counts_for_nothing(tmp_path: Path) -> None:
    append_rejections(tmp_path, [rejection("a", "tokenize")])
    rows = RejectedRows(tmp_path)
    assert (len(rows), "a" in rows) == (0, False)
    rows.add([rejection("b#0/0")])
    rows.write()
    assert [item.stage for item in read_rejections(tmp_path)] == ["tokenize", "generate"]


def test_a_run_without_rejections_leaves_an_empty_file_and_a_shard_none(tmp_path: Path) -> None:
    RejectedRows(tmp_path, shard=Shard(1, 2)).write()
    assert list(tmp_path.iterdir()) == []
    RejectedRows(tmp_path).write()
    assert (tmp_path / REJECTED).read_bytes() == b""


def test_a_shard_knows_what_was_rejected_of_it_in_any_file_and_writes_its_own(tmp_path: Path) -> None:
    keys = [f"{number}#0/0" for number in range(40)]
    append_rejections(tmp_path, [rejection(key) for key in keys])
    shards = [Shard(1, 2), Shard(2, 2)]
    held = [RejectedRows(tmp_path, shard=shard) for shard in shards]
    assert [sum(key in rows for rows in held) for key in keys] == [1] * 40
    assert sum(map(len, held)) == 40
    own = next(key for key in (f"new{number}#0/0" for number in range(99)) if shards[1].holds(key))
    held[1].add([rejection(own)])
    held[1].write()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["rejected.2-of-2.jsonl", REJECTED]
    assert own in RejectedRows(tmp_path, shard=shards[1])


def test_a_file_that_takes_long_is_written_seldom_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, written = [100.0], list[int]()

    def slow(folder: Path, items: list[object], *, shard: Shard = WHOLE) -> None:
        written.append(len(items))
        now[0] += 0.5

    monkeypatch.setattr("rawtokens.capture.rejections.time.monotonic", lambda: now[0])
    monkeypatch.setattr(rejections, "append_rejections", slow)
    (tmp_path / REJECTED).touch()
    rows = RejectedRows(tmp_path)
    for number in range(30):  # one a report, every three seconds
        rows.add([rejection(f"{number}#0/0")])
        rows.write_when_due()
        now[0] += 3.0
    rows.write()
    assert written == [1, 17, 12]  # half a second of writing is 1 % of fifty
