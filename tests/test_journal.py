import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import BinaryIO, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawtokens import journal
from rawtokens.capture.known_keys import KnownKeys
from rawtokens.capture.rejections import RejectedRows
from rawtokens.errors import InputError, LockedError, RunStopped
from rawtokens.records import Rejection, Response


def response(key: str, output_ids: list[int] | None = None) -> Response:
    ids = output_ids if output_ids is not None else [1008, 163607, 163586]
    return Response(
        key=key,
        prompt_ids=[163587, 163606],
        output_ids=ids,
        finish_reason="stop",
        matched=163586,
        prompt_tokens=2,
        completion_tokens=len(ids),
        cached_tokens=0,
        weight_version="default",
        fingerprint="f" * 16,
        server="http://127.0.0.1:30000",
        rid="r",
        attempt=1,
        started_at="2026-11-29T00:00:00+00:00",
        latency_s=1.2,
    )


def line(key: str) -> bytes:
    return msgspec.json.encode(response(key)) + b"\n"


def rejection(key: str, stage: str = "generate") -> Rejection:
    return msgspec.convert({"stage": stage, "key": key, "line": None, "reason": "x", "detail": "y"}, Rejection)


def test_a_record_is_one_line_that_starts_with_its_key(tmp_path: Path) -> None:
    path = tmp_path / journal.JOURNAL
    with journal.open_journal(path) as opened:
        opened.append(response("7#0/0"))
    assert path.read_bytes() == line("7#0/0")
    assert path.read_bytes().startswith(
        b'{"key":"7#0/0","prompt_ids":[163587,163606],"output_ids":[1008,163607,163586]'
    )
    assert [item.key for item in journal.read_responses(path)] == ["7#0/0"]


def test_a_key_has_one_record(tmp_path: Path) -> None:
    path = tmp_path / journal.JOURNAL
    with journal.open_journal(path) as opened:
        opened.append(response("a#0/0"))
    with journal.open_journal(path) as opened:
        assert "a#0/0" in opened.known_keys
        assert len(opened.known_keys) == 1
        with pytest.raises(InputError, match="a key has one record"):
            opened.append(response("a#0/0"))
    assert path.read_bytes() == line("a#0/0")


@given(cut=st.integers(min_value=1, max_value=len(line("b#0/0")) - 2))
def test_a_torn_tail_is_set_aside_and_earlier_rows_stay(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / journal.JOURNAL
    path.write_bytes(line("a#0/0") + line("b#0/0")[:cut])
    assert [item.key for item in journal.read_responses(path)] == ["a#0/0"]
    with journal.open_journal(path) as opened:
        opened.append(response("c#0/0"))
    assert path.read_bytes() == line("a#0/0") + line("c#0/0")
    (fragment,) = path.parent.glob("*.torn-*")
    assert fragment.read_bytes() == line("b#0/0")[:cut]


def test_a_whole_last_record_without_newline_gets_its_newline(tmp_path: Path) -> None:
    path = tmp_path / journal.JOURNAL
    path.write_bytes(line("a#0/0") + line("b#0/0")[:-1])
    with journal.open_journal(path) as opened:
        assert opened.known_keys.contains_each(["a#0/0", "b#0/0", "c#0/0"]).tolist() == [True, True, False]
    assert path.read_bytes() == line("a#0/0") + line("b#0/0")


@given(key=st.text(min_size=1).filter(lambda text: text.encode("utf-8", "ignore").decode() == text))
def test_keys_are_read_back_without_decoding_ids(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    path = tmp_path_factory.mktemp("keys") / journal.JOURNAL
    path.write_bytes(line(key))
    assert list(journal.read_keys(path)) == [key]


@pytest.mark.parametrize("foreign", [b'{"id":1,"text":"hello"}\n', b"not json\n", b"\n"])
def test_a_foreign_line_is_refused_with_its_number(tmp_path: Path, foreign: bytes) -> None:
    path = tmp_path / journal.JOURNAL
    path.write_bytes(line("a#0/0") + foreign)
    with pytest.raises(InputError, match="line 2 is no record"), journal.open_journal(path):
        pass
    with pytest.raises(InputError, match=r"line 2 is no record .* --where foreign"):
        list(journal.read_responses(path))
    assert path.read_bytes() == line("a#0/0") + foreign


def test_a_second_writer_is_refused_and_the_owner_named(tmp_path: Path) -> None:
    path = tmp_path / journal.JOURNAL
    with (
        journal.open_journal(path),
        pytest.raises(LockedError, match=f"process {os.getpid()} on"),
        journal.open_journal(path, wait_seconds=0),
    ):
        pass


def test_a_killed_owners_lock_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / journal.JOURNAL
    code = (
        "import sys, time, pathlib; from rawtokens import journal\n"
        f"with journal.open_journal(pathlib.Path({str(path)!r})): print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "locked\n"
        owner.kill()
        with journal.open_journal(path) as opened:
            opened.append(response("a#0/0"))
    assert path.read_bytes() == line("a#0/0")


def test_a_start_waits_for_an_owner_that_is_dying(tmp_path: Path) -> None:
    path = tmp_path / journal.JOURNAL
    owner = ExitStack()
    owner.enter_context(journal.open_journal(path))
    Timer(0.3, owner.close).start()
    with journal.open_journal(path) as opened:
        opened.append(response("a#0/0"))
    assert path.read_bytes() == line("a#0/0")


class Counted:
    """A file that counts its writes."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.writes, self.fileno = file, 0, file.fileno

    def write(self, content: bytes) -> int:
        self.writes += 1
        return self.file.write(content)


def test_a_record_is_one_write_and_on_the_disk_within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, synced = [100.0], list[int]()
    monkeypatch.setattr("rawtokens.journal.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("rawtokens.journal.os.fsync", synced.append)
    path = tmp_path / journal.JOURNAL
    with path.open("ab", buffering=0) as opened_file:
        file = Counted(opened_file)
        opened = journal.Journal(path, cast("BinaryIO", file), KnownKeys())
        for number in range(3):
            opened.append(response(f"{number}#0/0", [5] * 100_000))
        assert (file.writes, synced) == (3, [])
        assert len(list(journal.read_keys(path))) == 3  # nothing waits in this process
        clock[0] += 5.1
        opened.append(response("3#0/0"))
        opened.append(response("4#0/0"))
        assert synced == [file.fileno()]
        clock[0] += 5.1
        opened.sync_when_due()  # while no answer comes
        opened.sync_when_due()
        assert synced == [file.fileno()] * 2


def test_a_journal_is_on_the_disk_when_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    with journal.open_journal(tmp_path / journal.JOURNAL) as opened:
        opened.append(response("a#0/0"))
        monkeypatch.setattr("rawtokens.journal.os.fsync", synced.append)
    assert len(synced) == 1


def test_a_full_disk_stops_the_run_and_the_next_start_repairs() -> None:
    with pytest.raises(RunStopped, match="make room"), Path("/dev/full").open("ab", buffering=0) as file:
        journal.Journal(Path("/dev/full"), file, KnownKeys()).append(response("a#0/0"))


def test_a_folder_that_cant_be_written_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunStopped, match="choose another folder"), journal.open_journal(tmp_path / "file" / "x.jsonl"):
        pass


def test_rejections_are_added_to_those_that_stand_there(tmp_path: Path) -> None:
    journal.append_rejections(tmp_path, [rejection("a", "tokenize")])
    journal.append_rejections(tmp_path, [rejection("b")])
    journal.append_rejections(tmp_path, [])
    journal.append_rejections(tmp_path, [rejection("c"), rejection("d")])
    assert [(item.stage, item.key) for item in journal.read_rejections(tmp_path)] == [
        ("tokenize", "a"),
        ("generate", "b"),
        ("generate", "c"),
        ("generate", "d"),
    ]
    first = (tmp_path / journal.REJECTED).read_text().splitlines()[0]
    assert json.loads(first) == {"stage": "tokenize", "key": "a", "line": None, "reason": "x", "detail": "y"}
    assert [path.name for path in tmp_path.iterdir()] == [journal.REJECTED]


def test_shards_are_journals_too(tmp_path: Path) -> None:
    copies = ("raw_responses (copy).jsonl", "raw_responses.old.jsonl", "raw_responses_backup.jsonl")
    for name in ("raw_responses.2-of-2.jsonl", "raw_responses.1-of-2.jsonl", "rejected.jsonl", *copies):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in journal.journal_paths(tmp_path)] == [
        "raw_responses.1-of-2.jsonl",
        "raw_responses.2-of-2.jsonl",
    ]


@pytest.mark.parametrize(
    "broken", [b"not json\n", b'{"stage":"generate"}\n', b'{"stage":"generate","key":"b', b"\xff\n"]
)
def test_a_broken_rejection_is_named_and_never_rewritten_away(tmp_path: Path, broken: bytes) -> None:
    journal.append_rejections(tmp_path, [rejection("a", "tokenize")])
    path = tmp_path / journal.REJECTED
    path.write_bytes(path.read_bytes() + broken)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"rejected\.jsonl: line 2 is no record"):
        journal.read_rejections(tmp_path)
    with pytest.raises(InputError, match="line 2"):
        RejectedRows(tmp_path)
    assert path.read_bytes() == before


def test_a_rejection_without_newline_counts_like_any_other(tmp_path: Path) -> None:
    journal.append_rejections(tmp_path, [rejection("a", "tokenize"), rejection("b", "tokenize")])
    path = tmp_path / journal.REJECTED
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert [item.key for item in journal.read_rejections(tmp_path)] == ["a", "b"]
    journal.append_rejections(tmp_path, [rejection("c", "tokenize")])
    assert [item.key for item in journal.read_rejections(tmp_path)] == ["a", "b", "c"]


@pytest.mark.parametrize("name", [journal.JOURNAL, journal.REJECTED])
def test_a_folder_in_a_files_place_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"{name} can't be read: Is a directory"):
        _ = journal.read_rejections(tmp_path) or list(journal.read_keys(tmp_path / journal.JOURNAL))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    journal.write_atomically(path, b"old")

    def half(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(RunStopped, match="No space left on device; make room or mend the folder"):
        journal.write_atomically(path, b"new")
    assert [item.name for item in tmp_path.iterdir()] == ["run.json"]
    assert path.read_bytes() == b"old"


def test_a_torn_tail_stays_where_it_is_while_it_cant_be_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / journal.JOURNAL
    torn = line("a#0/0") + line("b#0/0")[:30]
    path.write_bytes(torn)

    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(RunStopped), journal.open_journal(path):
            pass
    assert path.read_bytes() == torn
    assert list(tmp_path.glob("*.torn-*")) == []
    with journal.open_journal(path) as opened:
        assert "a#0/0" in opened.known_keys
        assert len(opened.known_keys) == 1
