"""What a disk, a kernel or an owner can do to a journal; the faults are real wherever a test can cause them."""

import errno
import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_journal import line, rejection, response

from rawtokens import journal
from rawtokens.capture.known_keys import KEY_START, KnownKeys
from rawtokens.errors import InputError, LockedError, RunStopped
from rawtokens.locking import lock
from rawtokens.shards import Shard

GARBAGE = st.binary(max_size=40).filter(lambda tail: b"\n" not in tail)
TESTS = Path(__file__).parent


def child(code: str, *arguments: str, mounts: bool = False) -> list[str]:
    """The lines that a process of its own prints; with `mounts` in a mount namespace that ends with it."""
    command = [*(["unshare", "-Urm"] if mounts else []), sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [TESTS, *sys.path]))}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if mounts and done.returncode and ("unshare" in done.stderr or "mount:" in done.stderr):
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@settings(deadline=None)
@given(rows=st.integers(min_value=0, max_value=4), cut=st.integers(min_value=0, max_value=2000), tail=GARBAGE)
def test_any_cut_and_any_garbage_behind_it_cost_no_whole_row(
    tmp_path_factory: pytest.TempPathFactory, rows: int, cut: int, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("cut") / journal.JOURNAL
    whole = [line(f"{number}#0/0") for number in range(rows)]
    text = b"".join(whole)[:cut] + tail
    start = text[: len(KEY_START)].partition(b"\0")[0]
    assume(start[:1] not in (b"{", b"[", b" ") or KEY_START.startswith(start))  # else it is another program's file
    path.write_bytes(text)
    kept = text[: text.rfind(b"\n") + 1]
    rest = text[len(kept) :]
    valid = journal.response_of(rest) is not None
    with journal.open_journal(path) as opened:
        there = kept.count(b"\n") + valid
        assert len(opened.known_keys) == there
        opened.append(response("new#0/0"))
    assert path.read_bytes() == kept + (rest + b"\n" if valid else b"") + line("new#0/0")
    assert [item.key for item in journal.read_responses(path)] == [f"{n}#0/0" for n in range(there)] + ["new#0/0"]
    set_aside = [fragment.read_bytes() for fragment in path.parent.glob("*.torn-*")]
    assert set_aside == ([] if valid or not rest else [rest])


@settings(deadline=None)
@given(tail=st.builds(b"\n".join, st.lists(st.binary(max_size=20), min_size=2, max_size=4)))
def test_whole_lines_of_garbage_are_refused_and_nothing_is_taken_out(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("garbage") / journal.JOURNAL
    path.write_bytes(line("a#0/0") + tail)
    with pytest.raises(InputError, match="line 2 is no record"), journal.open_journal(path):
        pass
    whole = tail[: tail.rfind(b"\n") + 1]
    assert path.read_bytes() == line("a#0/0") + whole
    assert b"".join(fragment.read_bytes() for fragment in path.parent.glob("*.torn-*")) == tail[len(whole) :]


@pytest.mark.parametrize(
    "foreign",
    [b'[{"text": "a"}]', b'[{"text": "a"},\n{"text": "b"}]', b'{"text": "a"}\n{"text": "b"', b' {"key":"a#0/0"}'],
)
def test_a_file_of_another_program_is_left_whole_to_the_last_byte(tmp_path: Path, foreign: bytes) -> None:
    """Its last line has no newline, as a torn one of this kit."""
    path = tmp_path / journal.JOURNAL
    path.write_bytes(foreign)
    with pytest.raises(InputError, match=r"line 1 is no record of this kit.*--where foreign"):
        journal.open_journal(path).__enter__()
    assert path.read_bytes() == foreign
    assert not list(tmp_path.glob("*.torn-*"))


FULL = """
import subprocess, sys
from pathlib import Path
from rawtokens import journal
from rawtokens.errors import RunStopped
from test_journal import line, response
folder = sys.argv[1]
def mount(*options): subprocess.run(["mount", *options, folder], check=True)
mount("-t", "tmpfs", "-o", "size=64k", "tmpfs")
path, written, told = Path(folder) / journal.JOURNAL, [], []
try:
    with journal.open_journal(path) as opened:
        for number in range(10_000):
            try:
                opened.append(response(f"{number}#0/0", [1008] * 300))
                written.append(number)
            except RunStopped as error:
                told.append(str(error))
                if len(told) == 3:
                    break
except RunStopped as error:
    told.append(str(error))
text = path.read_bytes()
print(len(written) > 20, len(told), "No space left" in told[0] or "cut short" in told[0], "make room" in told[0])
print(text.count(b"\\n") == len(written))
mount("-o", "remount,size=1m")
with journal.open_journal(path) as opened:
    print(len(opened.known_keys) == len(written))
    opened.append(response("later#0/0"))
again = path.read_bytes()
print(again[:text.rfind(b"\\n") + 1] == text[:text.rfind(b"\\n") + 1], again.endswith(line("later#0/0")))
print([item.key for item in journal.read_responses(path)] == [f"{n}#0/0" for n in written] + ["later#0/0"])
"""


def test_a_full_disk_stops_the_run_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    assert child(FULL, str(tmp_path), mounts=True) == ["True 4 True True", "True", "True", "True True", "True"]


READ_ONLY = """
import subprocess, sys
from pathlib import Path
from rawtokens import journal
from rawtokens.errors import RunStopped
from test_journal import rejection, response
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
with journal.open_journal(folder / journal.JOURNAL) as opened:
    opened.append(response("a#0/0"))
before = (folder / journal.JOURNAL).read_bytes()
subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
for write in (lambda: journal.open_journal(folder / journal.JOURNAL).__enter__(),
              lambda: journal.append_rejections(folder, [rejection("a")])):
    try:
        write()
    except RunStopped as error:
        print("Read-only file system" in str(error))
print((folder / journal.JOURNAL).read_bytes() == before)
"""


def test_a_read_only_folder_stops_the_run_before_anything_is_asked(tmp_path: Path) -> None:
    assert child(READ_ONLY, str(tmp_path), mounts=True) == ["True", "True", "True"]


VANISHED = """
import subprocess, sys
from pathlib import Path
from rawtokens import journal
from rawtokens.errors import RunStopped
from test_journal import response
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
try:
    with journal.open_journal(folder / journal.JOURNAL) as opened:
        opened.append(response("a#0/0"))
        subprocess.run(["umount", "-l", str(folder)], check=True)
        opened._synced_at -= 10  # as ten seconds later
        opened.append(response("b#0/0"))
        print("not told")
except RunStopped as error:
    print("mount it again, then run the same command" in str(error))
"""


def test_a_mount_that_vanished_is_told_within_seconds(tmp_path: Path) -> None:
    assert child(VANISHED, str(tmp_path), mounts=True) == ["True"]


@pytest.mark.parametrize("end", ["unlink", "rename"])
def test_a_journal_that_was_taken_away_stops_the_run(tmp_path: Path, end: str) -> None:
    path = tmp_path / journal.JOURNAL
    with path.open("ab", buffering=0) as file:
        opened = journal.Journal(path, file, KnownKeys())
        opened.append(response("a#0/0"))
        path.replace(tmp_path / "moved")
        if end == "unlink":
            (tmp_path / "moved").unlink()
        with pytest.raises(RunStopped, match="run the same command"):
            opened.sync()


SHORT = """
import resource, sys
from pathlib import Path
from rawtokens import journal
from rawtokens.errors import RunStopped
from test_journal import line, response
path = Path(sys.argv[1])
limit = 2 * len(line("a#0/0")) + 50
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
told = 0
try:
    with journal.open_journal(path) as opened:
        for key in "abcd":
            try:
                opened.append(response(f"{key}#0/0"))
            except RunStopped:
                told += 1
except RunStopped:
    told += 1
print(told)
"""


def test_a_write_cut_short_is_mended_at_once_and_nothing_is_appended_behind_it(tmp_path: Path) -> None:
    path = tmp_path / journal.JOURNAL
    assert child(SHORT, str(path)) == ["3"]  # two rows that were refused, and the end
    assert path.read_bytes() == line("a#0/0") + line("b#0/0")
    (fragment,) = tmp_path.glob("*.torn-*")
    assert fragment.read_bytes() == line("c#0/0")[:50]
    with journal.open_journal(path) as opened:
        opened.append(response("c#0/0"))
    assert path.read_bytes() == line("a#0/0") + line("b#0/0") + line("c#0/0")


def test_without_file_handles_the_run_stops_and_goes_on_with_them(tmp_path: Path) -> None:
    path = tmp_path / journal.JOURNAL
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with journal.open_journal(path) as opened:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            opened.append(response("a#0/0"))
            with pytest.raises(RunStopped, match="Too many open files"):
                journal.append_rejections(tmp_path, [rejection("b#0/0")])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        with pytest.raises(RunStopped, match="Too many open files"), journal.open_journal(path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with journal.open_journal(path) as opened:
        opened.append(response("b#0/0"))
    assert path.read_bytes() == line("a#0/0") + line("b#0/0")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(RunStopped, match=r"file system takes no locks, .* choose another folder with --outputs"),
        journal.open_journal(tmp_path / journal.JOURNAL),
    ):
        pass


def test_shared_locks_stand_beside_each_other_and_exclude_a_sole_one(tmp_path: Path) -> None:
    with (
        lock(tmp_path / "l", shared=True),
        lock(tmp_path / "l", shared=True),
        pytest.raises(LockedError, match=f"process {os.getpid()} on"),
        lock(tmp_path / "l"),
    ):
        pass
    with lock(tmp_path / "l"), pytest.raises(LockedError), lock(tmp_path / "l", shared=True):
        pass


def test_shards_write_beside_each_other(tmp_path: Path) -> None:
    first, second = (tmp_path / f"raw_responses.{number}-of-2.jsonl" for number in (1, 2))
    with journal.open_journal(first) as one, journal.open_journal(second) as two:
        one.append(response("a#0/0"))
        two.append(response("b#0/0"))
        with pytest.raises(LockedError), journal.open_journal(first, wait_seconds=0):
            pass
    assert (first.read_bytes(), second.read_bytes()) == (line("a#0/0"), line("b#0/0"))


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ("raw_responses.jsonl", "raw_responses.1-of-2.jsonl"),
        ("raw_responses.1-of-2.jsonl", "raw_responses.jsonl"),
        ("raw_responses.1-of-2.jsonl", "raw_responses.2-of-3.jsonl"),
    ],
)
def test_another_number_of_shards_at_the_same_time_is_refused(tmp_path: Path, held: str, wanted: str) -> None:
    with (
        journal.open_journal(tmp_path / held),
        pytest.raises(LockedError, match=f"process {os.getpid()} .* as a whole or in another number of shards"),
        journal.open_journal(tmp_path / wanted, wait_seconds=0),
    ):
        pass
    with journal.open_journal(tmp_path / wanted):
        pass


def test_what_stands_in_any_journal_is_known_to_every_shard(tmp_path: Path) -> None:
    for number, name in enumerate(["raw_responses.jsonl", "raw_responses.1-of-2.jsonl", "raw_responses.3-of-5.jsonl"]):
        (tmp_path / name).write_bytes(line(f"{number}#0/0"))
    with journal.open_journal(tmp_path / "raw_responses.2-of-2.jsonl") as opened:
        assert opened.known_keys.contains_each(["0#0/0", "1#0/0", "2#0/0", "3#0/0"]).tolist() == [True] * 3 + [False]
        with pytest.raises(InputError, match="a key has one record"):
            opened.append(response("2#0/0"))


def test_shards_reject_into_files_of_their_own_and_readers_read_them_all(tmp_path: Path) -> None:
    journal.append_rejections(tmp_path, [rejection("z", "tokenize")])
    journal.append_rejections(tmp_path, [rejection("a#0/0")], shard=Shard(1, 2))
    journal.append_rejections(tmp_path, [rejection("a#0/0"), rejection("b#0/0")], shard=Shard(3, 5))
    journal.append_rejections(tmp_path, [rejection("y", "tokenize")])
    assert [path.name for path in journal.rejection_paths(tmp_path)] == [
        "rejected.1-of-2.jsonl",
        "rejected.3-of-5.jsonl",
        "rejected.jsonl",
    ]
    assert [item.key for item in journal.read_rejections(tmp_path)] == ["z", "y", "a#0/0", "b#0/0"]
    journal.remove_rejections(tmp_path, {"a#0/0", "y"})
    assert [item.key for item in journal.read_rejections(tmp_path)] == ["z", "y", "b#0/0"]


def test_a_journal_that_failed_takes_nothing_more_and_goes_on_saying_why(tmp_path: Path) -> None:
    with Path("/dev/full").open("ab", buffering=0) as file:
        opened = journal.Journal(Path("/dev/full"), file, KnownKeys())
        for _ in range(2):
            with pytest.raises(RunStopped, match="No space left on device; make room"):
                opened.append(response("a#0/0"))
        with pytest.raises(RunStopped, match="No space left on device; make room"):
            opened.sync()
        assert "a#0/0" not in opened.known_keys
