"""File systems that fill up, turn read-only or vanish under a running client: real mounts, which need root.

This module does not know who writes to them.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = 4096


def may_mount(folder: Path) -> bool:
    """Whether this process can mount at all: root in a container often can't."""
    place = folder / "may-mount"
    place.mkdir()
    mounted = os.getuid() == 0 and _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)) == 0
    if mounted:
        _run("umount", str(place))
    place.rmdir()
    return mounted


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system in memory on `place`."""
    place.mkdir(parents=True)
    assert _run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)) == 0
    try:
        yield
    finally:
        _run("umount", "-l", str(place))


def resize(place: Path, *, free_pages: int | None) -> None:
    """Leave so many pages free on a small disk; None: plenty."""
    state = os.statvfs(place)
    used = (state.f_blocks - state.f_bfree) * state.f_bsize
    size = 2**26 if free_pages is None else used + free_pages * PAGE
    assert _run("mount", "-o", f"remount,size={size}", str(place)) == 0


def set_read_only(place: Path, read_only: bool) -> None:
    """Mount it anew as it was, but for the right to write."""
    assert _run("mount", "-o", "remount,ro" if read_only else "remount,rw", str(place)) == 0


def attach(disk: Path, place: Path) -> None:
    """`disk` appears at `place`."""
    place.mkdir(parents=True, exist_ok=True)
    assert _run("mount", "--bind", str(disk), str(place)) == 0


def detach(place: Path) -> None:
    """It vanishes from there, whoever has files of it open."""
    assert _run("umount", "-l", str(place)) == 0


def _run(*command: str) -> int:
    return subprocess.run(command, capture_output=True).returncode
