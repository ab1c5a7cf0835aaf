"""Which row goes into which file: by order and length alone, so that equal data gives equal files.

A shard is as large as its reader's RAM allows. This module does not know how a file is written.
"""

import resource
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .formats import Format
from .policies import Selection
from .rows import Integers
from .settings import TrainingSettings
from .splits import SPLITS

_OTHER_FILES = 100  # that a process has open besides: libraries, a kernel's sockets


class Shard(NamedTuple):
    """One file; `numbers` are the rows of verified.parquet that it holds, in order."""

    name: str
    split: str
    numbers: Integers
    ids: int


class Shards(NamedTuple):
    """The files of one format; `of_row` is each row's place in `files`, -1 for one that is left out."""

    files: list[Shard]
    of_row: NDArray[np.int64]


def shards_of(selection: Selection, form: Format, settings: TrainingSettings) -> Shards:
    """Cut both splits into shards of at most `shard_gb` for the format's reader, give or take a row.

    Each split has one file at least, so that a reader finds what it looks for; with nothing held out there is none.
    """
    most = max(1, int(settings.shard_gb * 1e9 / form.ram_bytes))
    files: list[Shard] = []
    of_row = np.full(len(selection.kept), -1, dtype=np.int64)
    for split, chosen in zip(SPLITS, (~selection.held_out, selection.held_out), strict=True):
        numbers = np.flatnonzero(selection.kept & chosen)
        if not len(numbers) and split != SPLITS[0]:
            continue
        parts = list(_parts(numbers, selection.lengths[numbers], most))
        for place, part in enumerate(parts):
            name = f"{split}-{place:05}-of-{len(parts):05}.{form.suffix}"
            of_row[part] = len(files)
            files.append(Shard(name, split, part, int(selection.lengths[part].sum())))
    return Shards(files, of_row)


def check_open_files(all_shards: Iterable[Shards]) -> None:
    """Raise InputError where these are more files than a process may have open: all are written at once."""
    count, limit = sum(len(shards.files) for shards in all_shards), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and count > limit - _OTHER_FILES:
        raise InputError(
            f"training.shard_gb cuts the export into {count:,} files, and {limit:,} may be open at once; set it "
            "higher, export fewer formats at a time, or allow more by `ulimit -n`"
        )


def _parts(numbers: Integers, lengths: Integers, most: int) -> Iterator[Integers]:
    before = np.cumsum(lengths) - lengths
    starts = np.flatnonzero(np.diff(before // most, prepend=-1))
    yield from np.split(numbers, starts[1:])
