"""Rejected rows one at a time, in flat memory: a file of a million rows may be rejected whole.

Stage 01's lines are written beside rejected.jsonl while rows are read, and replace its earlier ones at the end. This
module does not know why a row was rejected; `journal` has what stage 02 needs, by key.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..errors import InputError
from ..journal import REJECTED, rejection_paths
from ..records import Rejection


def each_rejection(folder: Path) -> Iterator[Rejection]:
    """The rejections of a data set, those of all shards; a generation is told once.

    Raises InputError for a line that is none.
    """
    told: set[str] = set()
    for path in rejection_paths(folder):
        for rejection, _ in _lines(path):
            if rejection.stage == "generate":
                if rejection.key in told:
                    continue
                told.add(rejection.key)
            yield rejection


@contextmanager
def new_rejections(folder: Path) -> Iterator[Callable[[Iterable[Rejection]], None]]:
    """Replace stage 01's lines in rejected.jsonl by those that are given meanwhile, atomically, when all is well.

    The lines of stage 02 stay. Raises InputError for an earlier line that is no record; an OSError is the caller's.
    """
    path = folder / REJECTED
    waiting, whole = (path.with_name(f".{path.name}.{part}.tmp") for part in ("tokenize", "whole"))
    try:
        with waiting.open("w+b") as lines:
            yield lambda rejections: lines.writelines(msgspec.json.encode(item) + b"\n" for item in rejections)
            lines.seek(0)
            with whole.open("wb") as file:
                file.writelines(line for item, line in _lines(path) if item.stage != "tokenize")
                file.writelines(lines)
        whole.replace(path)
    finally:
        for leftover in (waiting, whole):
            leftover.unlink(missing_ok=True)


def _lines(path: Path) -> Iterator[tuple[Rejection, bytes]]:
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(Rejection)
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                if line.strip():  # an editor may leave an empty last line, or none
                    yield decoder.decode(line), line.rstrip(b"\n") + b"\n"
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{path}: line {number} is no record of this kit ({error}); take the line out or move the file away, "
            "then run again"
        ) from error
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}; mend or move it, then run again") from error
