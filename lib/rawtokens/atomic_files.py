"""Files that are written whole or not at all. This module does not know what stands in them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import RunStopped


def write_atomically(path: Path, content: bytes, *, on_disk: bool = False) -> None:
    """Write a whole file so that readers see the old one or the new one; `on_disk` also after a power cut.

    Raises RunStopped where it can't.
    """
    with _replacing(path, on_disk=on_disk) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)


def append_atomically(path: Path, lines: bytes) -> None:
    """Add whole lines to a file, which is replaced by a longer copy. Raises RunStopped where it can't.

    An append in place can be torn by a kill; copying 20 MB takes 10 ms. A last line without newline is given one. A
    folder that is gone stays gone.
    """
    with _replacing(path) as temporary, temporary.open("wb") as file:
        last = b"\n"
        if path.exists():
            with path.open("rb") as before:
                while block := before.read(1 << 20):
                    file.write(block)
                    last = block
        file.write(lines if last.endswith(b"\n") else b"\n" + lines)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk. Raises OSError."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError:
        if not path.is_dir():  # some network file systems can't sync a folder
            raise
    finally:
        os.close(opened)


@contextmanager
def _replacing(path: Path, *, on_disk: bool = False) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if on_disk:
            sync(temporary)
        temporary.replace(path)
        if on_disk:
            sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise RunStopped(
            f"can't write {path}: {error}; make room or mend the folder, then run the same command"
        ) from error
