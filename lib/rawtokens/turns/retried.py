"""Rows that are generated again take along what was built on them: the later turns of their conversations.

This module does not set rows aside.
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from ..capture.rejections import each_rejection
from ..journal import read_keys
from ..records import Rejection
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
