"""A launched server as a group of processes: watched until it generates, stopped with everything that it started.

It stops by itself when the process that started it dies in whatever way. This module does NOT know which engine it
runs, nor with which options.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from ..errors import InputError, ServerError
from .ports import HOST, reserve_port

POLL_SECONDS = 0.25
LOG_LINES = 6
_KILLED_SECONDS = 20.0
_INHERITED_TRAPS = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")


@dataclass(kw_only=True)
class DemoServer:
    """A launched server, up or not; a context manager that stops it.

    `pid` leads the process group of everything that the server starts. `log_path` takes what they print. `generates`
    tells whether a URL has generated a token within some seconds.
    """

    port: int
    log_path: Path
    command: Sequence[str | Path]
    environment: Mapping[str, str]
    generates: Callable[[str, float], bool]
    process: subprocess.Popen[bytes]
    reservation: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until_ready(self, patience_seconds: float = 300) -> Self:
        """Return once the server has generated one token; a server that dies or takes longer raises ServerError."""
        deadline = time.monotonic() + patience_seconds
        while self.process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ServerError(
                    f"the demo server on port {self.port} gave no answer within {patience_seconds:.0f} s; "
                    f"start it again when the machine is less busy. {self.end_of_log()}"
                )
            if self.generates(self.url, left):
                return self
            time.sleep(POLL_SECONDS)
        raise ServerError(
            f"the demo server {how_it_ended(self.process.returncode)} before it answered. {self.end_of_log()}"
        )

    def stop(self) -> None:
        """Stop the server and all that it started; returns when none of them is left. Stopping twice is harmless."""
        assert self.process.stdin is not None
        self.process.stdin.close()  # the launcher's lifeline
        _end_group(self.process)
        self.reservation.close()

    def relaunch(self) -> None:
        """Launch it again on its port with the same options, what is left of it ended first; returns at once."""
        self.stop()
        self.reservation = _reserved_again(self.port)
        self.process = _launched(self.command, self.log_path, self.environment, self.reservation)

    def end_of_log(self) -> str:
        """The last lines that the server printed."""
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        told = [line.strip()[:300] for line in lines if line.strip()][-LOG_LINES:]
        return "\n".join([f"The log {self.log_path} ends with:", *told])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def _reserved_again(port: int) -> IO[bytes]:
    """The port's lock, as soon as the last of a killed server's processes is gone: each holds it, and 2 GB to free."""
    deadline = time.monotonic() + _KILLED_SECONDS
    while True:
        try:
            return reserve_port(port, tries=1)[1]
        except InputError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def launched(
    port: int,
    reservation: IO[bytes],
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    generates: Callable[[str, float], bool],
    *,
    log_path: Path,
) -> DemoServer:
    """Launch any engine's command on a port reserved for it (`reserve_port`), and return at once."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_bytes(b"")
    return DemoServer(
        port=port,
        log_path=log_path,
        command=command,
        environment=environment,
        generates=generates,
        process=_launched(command, log_path, environment, reservation),
        reservation=reservation,
    )


def _launched(
    command: Sequence[str | Path], log_path: Path, environment: Mapping[str, str], reservation: IO[bytes]
) -> subprocess.Popen[bytes]:
    with log_path.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={key: value for key, value in os.environ.items() if key not in _INHERITED_TRAPS} | dict(environment),
            start_new_session=True,
            pass_fds=[reservation.fileno()],
        )


def how_it_ended(code: int) -> str:
    """A process's exit code in words."""
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _end_group(leader: subprocess.Popen[bytes]) -> None:
    """Return when no process of a group lives: it has 2 s to end by itself, then SIGKILL and 3 s more."""
    for tick in range(100):
        if leader.poll() is not None and not _lives(leader.pid):
            return
        if tick >= 40:
            with suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGKILL)
        time.sleep(0.05)


def _lives(group: int) -> bool:
    """Whether a process group has a member that is no zombie: init may take seconds to reap those."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, members_group = path.read_text().rsplit(")", 1)[1].split()[:3]
            if int(members_group) == group and state not in "ZX":
                return True
    return False
