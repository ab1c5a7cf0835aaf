"""What every export format is: how rows are written into a file, and read back to be checked.

This module does not know the formats themselves: each is a module of its own, listed in export.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import msgspec

from .checksums import Checksums, IdTexts
from .masks import MaskRuns
from .rows import TrainingRows

Write = Callable[[TrainingRows, MaskRuns], None]


class ReadBack(NamedTuple):
    """Some rows of a written file, in order: checksums over key and ids, and over the mask."""

    rows: Checksums
    masks: Checksums


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A file format.

    `ram_bytes` is what its reader takes at its peak for an id and its mask entry; shards are cut by it. Measured over
    files of 1M and 5M ids: SpecForge 44 (Python lists), speculators 60 in its main process, torch.load 8.5. For
    Parquet and Arrow it is what they are in memory. `write` opens a file and gives a function that adds rows to it;
    `read` gives the rows of a written file.
    """

    name: str
    suffix: str
    ram_bytes: float
    read_by: str
    write: Callable[[Path, IdTexts], AbstractContextManager[Write]]
    read: Callable[[Path, IdTexts], Iterator[ReadBack]]
