"""Rows that are generated again take along what was built on them: the later turns of their conversations.

This module does not set rows aside.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path

import msgspec

from ..atomic_files import write_atomically
from ..capture.rejections import each_rejection
from ..journal import key_of, read_keys
from ..records import Ending, Rejection
from .endings import ENDED, ended_files, read_endings
from .keys import TurnKey, split_key

TOOL_ENDINGS = (
    "call_not_answered",
    "call_not_kept",
    "call_not_recorded",
    "no_recorded_result",
    "tool_function_failed",
    "tool_function_timeout",
)
"""Endings for want of a result, which a mended tool function gives."""


def with_later_turns(
    folder: Path, numbers: Mapping[Path, Set[int]], rejections: Sequence[Rejection]
) -> tuple[dict[Path, set[int]], list[Rejection]]:
    """The journals' lines, counted from 0, and the rejections, with those of later turns of the same conversations."""
    first: dict[TurnKey, int] = {}
    keys = {path: [split_key(key) for key in read_keys(path)] for path in numbers}
    for path, chosen in numbers.items():
        for number in chosen:
            key = keys[path][number]
            first[key.conversation] = min(key.turn, first.get(key.conversation, key.turn))

    def follows(key: TurnKey) -> bool:
        return key.turn > first.get(key.conversation, key.turn)

    lines = {
        path: {number for number, key in enumerate(keys[path]) if number in chosen or follows(key)}
        for path, chosen in numbers.items()
    }
    told = {item.key for item in rejections}
    more = [
        item
        for item in each_rejection(folder)
        if item.stage == "generate" and item.key not in told and follows(split_key(item.key))
    ]
    return lines, [*rejections, *more]


def with_orphans(folder: Path, numbers: Mapping[Path, Set[int]]) -> tuple[dict[Path, set[int]], list[Rejection]]:
    """The journals' lines, counted from 0, with those of turns whose earlier turns do not stand; and such rejections.

    For lines that are chosen by what they are, where no key may be left to say whose they were.
    """
    there: dict[TurnKey, set[int]] = {}
    for _, _, key in _kept(numbers):
        there.setdefault(key.conversation, set()).add(key.turn)
    gaps = {found: next(n for n in range(len(turns) + 1) if n not in turns) for found, turns in there.items()}
    lines = {path: set(chosen) for path, chosen in numbers.items()}
    for path, number, key in _kept(numbers):
        if key.turn > gaps[key.conversation]:
            lines[path].add(number)
    rejections = [
        item
        for item in each_rejection(folder)
        if item.stage == "generate" and (key := split_key(item.key)).turn > gaps.get(key.conversation, 0)
    ]
    return lines, rejections


def forget_endings(folder: Path, numbers: Mapping[Path, Set[int]]) -> None:
    """Take out of ended.jsonl what is not told of all turns that stay when these lines of the journals are gone.

    Left there, it would count again once as many turns stand, whatever the model says in them this time.
    """
    turns = Counter(key.conversation for _, _, key in _kept(numbers))
    _split_endings(folder, lambda ending: ending.turns == turns[split_key(ending.key).conversation])


def endings_aside(folder: Path, reason: str, stamp: str) -> tuple[int, tuple[Path, ...]]:
    """Move the endings with this reason into a file beside ended.jsonl, so that stage 02 judges their conversations
    anew; returns how many they are, and the file."""
    aside = folder / ENDED.replace(".jsonl", f".set-aside-{stamp}.jsonl")
    gone = [line for line, ending in _endings(folder) if ending.reason == reason]
    if not gone:
        return 0, ()
    write_atomically(aside, b"".join(gone), on_disk=True)
    _split_endings(folder, lambda ending: ending.reason != reason)
    return len(gone), (aside,)


def _split_endings(folder: Path, stays: Callable[[Ending], bool]) -> None:
    read_endings(folder)  # raises InputError for a foreign line
    for path in ended_files(folder):
        lines = path.read_bytes()
        kept = b"".join(line for line, ending in _endings_of(path) if stays(ending))
        if kept != lines:
            write_atomically(path, kept, on_disk=True)


def _endings(folder: Path) -> Iterator[tuple[bytes, Ending]]:
    read_endings(folder)
    for path in ended_files(folder):
        yield from _endings_of(path)


def _endings_of(path: Path) -> Iterator[tuple[bytes, Ending]]:
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield line, msgspec.json.decode(line, type=Ending)


def _kept(numbers: Mapping[Path, Set[int]]) -> Iterator[tuple[Path, int, TurnKey]]:
    """The journals' lines that are not chosen."""
    for path, chosen in numbers.items():
        with path.open("rb") as file:
            for number, line in enumerate(file):
                if number not in chosen and line.endswith(b"\n") and (text := key_of(line)) is not None:
                    yield path, number, split_key(text)
