"""Rows that are generated again take along what was built on them: the later turns of their conversations.

This module does not set rows aside.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import msgspec

from ..atomic_files import write_atomically
from ..capture.rejections import each_rejection
from ..journal import key_of, read_keys
from ..records import Ending, Rejection
from .endings import ended_files
from .keys import TurnKey, split_key


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
    for path in ended_files(folder):
        lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        endings = (msgspec.json.decode(line, type=Ending) for line in lines)
        kept = [
            line
            for line, ending in zip(lines, endings, strict=True)
            if ending.turns == turns[split_key(ending.key).conversation]
        ]
        if kept != lines:
            write_atomically(path, b"".join(kept), on_disk=True)


def _kept(numbers: Mapping[Path, Set[int]]) -> Iterator[tuple[Path, int, TurnKey]]:
    """The journals' lines that are not chosen."""
    for path, chosen in numbers.items():
        with path.open("rb") as file:
            for number, line in enumerate(file):
                if number not in chosen and line.endswith(b"\n") and (text := key_of(line)) is not None:
                    yield path, number, split_key(text)
