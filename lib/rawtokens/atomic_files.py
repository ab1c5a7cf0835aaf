"""Files that are written whole or not at all. This module does not know what stands in them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import RunStopped


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file so that readers see the old one or the new one. Raises RunStopped where it can't."""
    with _replacing(path) as temporary:
        temporary.write_bytes(content)


def append_atomically(path: Path, lines: bytes) -> None:
    """Add whole lines to a file, which is replaced by a longer copy. Raises RunStopped where it can't.

    An append in place can be torn by a kill; copying 20 MB takes 10 ms. A last line without newline is given one.
    """
    with _replacing(path) as temporary, temporary.open("wb") as file:
        last = b"\n"
        if path.exists():
            with path.open("rb") as before:
                while block := before.read(1 << 20):
                    file.write(block)
                    last = block
        file.write(lines if last.endswith(b"\n") else b"\n" + lines)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise RunStopped(f"can't write {path}: {error}; mend the folder, then run the same command") from error
