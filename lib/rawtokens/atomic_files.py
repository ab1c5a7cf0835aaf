"""Files that are written whole or not at all. This module does not know what stands in them."""

import os
from contextlib import suppress
from pathlib import Path

from .errors import RunStopped


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file so that readers see the old one or the new one. Raises RunStopped where it can't."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise RunStopped(f"can't write {path}: {error}; mend the folder, then run the same command") from error
