"""One writer at a time: locks that the operating system takes back from a dead owner, and that name a live one.

The lock is flock's, which Linux carries over NFS too. This module does not know what is guarded.
"""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from .errors import LockedError, RunStopped


@contextmanager
def lock(path: Path, *, wait_seconds: float = 0.0, shared: bool = False) -> Iterator[None]:
    """Hold a lock on `path`, whose text names the owner; `shared` ones exclude only the others.

    Waits `wait_seconds` for another owner, who may be dying. Raises LockedError where another keeps it, RunStopped
    where the file can't be written or its file system takes no locks.
    """
    deadline = time.monotonic() + wait_seconds
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise RunStopped(f"can't write {path}: {error}; choose another folder with --outputs DIR") from error
    with file:
        while not _taken(file, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                raise LockedError(
                    f"{path.parent} is being written by {_owner(file)}; wait for it or stop it, then run again"
                )
            time.sleep(0.1)
        try:
            file.truncate(0)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}\n".encode())
            file.flush()
        except OSError as error:
            raise RunStopped(f"can't write {path}: {error}; make room, then run the same command") from error
        yield


def refuse_locked(path: Path) -> None:
    """Raise LockedError where another holds the lock on `path`; RunStopped where that can't be told."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunStopped(f"can't read {path}: {error}; mend the folder, then run the same command") from error
    with file:
        if not _taken(file, path, fcntl.LOCK_SH):
            raise LockedError(
                f"{path.parent} is being written by {_owner(file)} as a whole or in another number of shards "
                f"({path.name}); wait for it or stop it, then run again"
            )


def _taken(file: BinaryIO, path: Path, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise RunStopped(
            f"{path} can't be locked ({error.strerror}): its file system takes no locks, and two writers could mix; "
            "mount it with locks, or choose another folder with --outputs DIR"
        ) from error
    return True


def _owner(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip() or "an unnamed process"
