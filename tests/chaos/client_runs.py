"""One client over one folder: started, watched, killed and started again, until everything is there.

This module does not know what happens to servers and disks meanwhile.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path

from chaos.ground import JOURNAL, MAX_NEW_TOKENS

HOST = Path(__file__).with_name("client_host.py")
POLL_SECONDS = 0.001
LONGEST_SECONDS = 900.0
_numbers = count()


class Process:
    """A process by its id: `code` is None while it lives."""

    def __init__(self, pid: int, said: Path, code: Callable[[], int | None]) -> None:
        self.pid, self.said, self._code = pid, said, code

    @property
    def code(self) -> int | None:
        return self._code()

    def wait(self) -> int:
        """Its exit code, minus the signal that killed it."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while (code := self.code) is None:
            assert time.monotonic() < deadline, f"still running after {LONGEST_SECONDS} s: {self.words()}"
            time.sleep(0.01)
        return code

    def words(self) -> str:
        """What it printed."""
        return self.said.read_text(errors="replace")


@lru_cache(maxsize=1)
def _host() -> tuple[subprocess.Popen[str], Path]:
    """The forking host of all clients of this process, and a folder for what they say."""
    command = [sys.executable, str(HOST)]
    host = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    return host, Path(tempfile.mkdtemp(prefix="chaos-clients-"))


def start_client(arguments: Sequence[str]) -> Process:
    """A client (client.py) with these arguments."""
    host, place = _host()
    assert host.stdin is not None
    assert host.stdout is not None
    said = place / f"{next(_numbers)}"
    code = said.with_suffix(".code")
    host.stdin.write(json.dumps([list(arguments), str(said), str(code)]) + "\n")
    host.stdin.flush()
    pid = int(host.stdout.readline())
    return Process(pid, said, lambda: int(code.read_text()) if code.exists() else None)


def start_command(arguments: Sequence[str]) -> Process:
    """The command `rawtokens` itself."""
    _, place = _host()
    said = place / f"{next(_numbers)}"
    with said.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "rawtokens", *arguments], stdout=file, stderr=file)
    return Process(process.pid, said, process.poll)


class ClientRun:
    """The client of one folder over all its processes: `starts` and `kills` are counted, `process` is the last one."""

    def __init__(self, folder: Path, urls: Sequence[str], *, window: int = 48, read_timeout: float = 0.0) -> None:
        self.folder, self.journal = folder, folder / JOURNAL
        self.arguments = [str(folder), "--window", str(window), "--max-new-tokens", str(MAX_NEW_TOKENS)]
        self.arguments += [part for url in urls for part in ("--url", url)]
        if read_timeout:
            self.arguments += ["--read-timeout", str(read_timeout)]
        self.launch = start_client
        self.starts = self.kills = 0
        self.process: Process | None = None
        self._read, self._lines = 0, 0

    def start(self, *more: str) -> Process:
        """The same command again."""
        self.starts += 1
        self.process = self.launch([*self.arguments, *more])
        return self.process

    def kill(self) -> bool:
        """kill -9; False where it had ended by itself, which it may only when everything was there."""
        assert self.process is not None
        if self.process.code is not None:
            assert self.process.code == 0, self.process.words()
            return False
        os.kill(self.process.pid, signal.SIGKILL)
        killed = self.process.wait() == -signal.SIGKILL
        self.kills += killed
        return killed

    def wait_for_lines(self, count: int) -> bool:
        """Return as soon as the journal has that many lines: True; False where the client ends before."""
        assert self.process is not None
        deadline = time.monotonic() + LONGEST_SECONDS
        while self.lines() < count:
            if self.process.code is not None:
                return self.lines() >= count
            assert time.monotonic() < deadline, f"{self.folder}: {self.lines()} lines after {LONGEST_SECONDS} s"
            time.sleep(POLL_SECONDS)
        return True

    def lines(self) -> int:
        """Newlines in the journal; only what is new is read."""
        size = self.journal.stat().st_size if self.journal.exists() else 0
        if size < self._read:  # cut, or mended
            self._read = self._lines = 0
        if size > self._read:
            with self.journal.open("rb") as file:
                file.seek(self._read)
                new = file.read(size - self._read)
            self._read += len(new)
            self._lines += new.count(b"\n")
        return self._lines

    def ended(self, *, code: int, words: Sequence[str] = ("",)) -> str:
        """Wait for the end; the exit code must be as expected, and one of `words` in the message, which is returned."""
        assert self.process is not None
        found, said = self.process.wait(), self.process.words()
        assert found == code, f"exit code {found}, expected {code}: {said}"
        assert any(word in said for word in words), f"expected {words!r} in: {said}"
        assert "Traceback" not in said, said
        return said

    def finish(self) -> None:
        """Run the same command to its end, and once more, which must change nothing."""
        if self.process is None or self.process.code is not None:
            self.start()
        self.ended(code=0)
        before = self.journal.read_bytes()
        self.start()
        self.ended(code=0)
        assert self.journal.read_bytes() == before

    def kill_at(self, lines: int, chooser: random.Random) -> bool:
        """Start and kill -9: in one case of five while it starts, else when so many lines stand, half the time at once.

        False where the run was complete before.
        """
        self.start()
        if chooser.random() < 0.2:
            time.sleep(chooser.uniform(0.0, 0.5))
        else:
            self.wait_for_lines(lines)
            time.sleep(chooser.choice([0.0, chooser.uniform(0.0, 0.5)]))
        return self.kill()


def send_to_group(leader: int, number: signal.Signals) -> None:
    """Signal a server and everything that it started."""
    os.killpg(leader, number)
