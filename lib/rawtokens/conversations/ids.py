"""The id of a row: its own, or one from its content, and whether it came before.

An id is opaque text; a key is `ID#TURN`, and `ID#TURN/SAMPLE` later, and splits from its end alone, so that an id may
hold `#`, `/` and newlines. Numbers become text as Python writes them (7 is "7", 7.0 is "7.0"). Nothing here depends
on the order of keys, on Python's hash seed or on the machine. This module does not know any format.
"""

import hashlib
import json
from array import array
from datetime import date, time, timedelta
from decimal import Decimal

from ..records import Json
from .rows import BadRow, Row, shown, without_nulls

_FIRST_SIZE = 2**16  # places; a power of two


def identify(row: Row, number: int) -> tuple[str, BadRow | None]:
    """The row's id, and what is wrong with the row or its id, if anything. `number` is its place in the data set.

    Missing, null, NaN (so pandas writes a missing number) and blank ids come from content.
    """
    given = row.value.get("id") if row.fault is None and isinstance(row.value, dict) else None
    problem = BadRow(*row.fault) if row.fault else _unfit(given)
    if problem is None and not _is_missing(given):
        return str(given), None
    try:
        return content_id(row.value), problem
    except RecursionError:
        return f"row-{number}", problem or BadRow("bad_value", "nested too deeply")


def content_id(value: Json) -> str:
    """An id from content: the same on every machine, whatever the container, the order of keys and the null padding."""
    text = json.dumps(without_nulls(value), sort_keys=True, separators=(",", ":"), default=_as_text)
    return "sha256-" + hashlib.sha256(text.encode()).hexdigest()[:20]


def _as_text(value: object) -> str:
    """What Arrow has beyond JSON; of anything else the type alone, for its text may hold an address in memory."""
    known = isinstance(value, bytes | date | time | timedelta | Decimal)
    return str(value) if known else type(value).__name__


class SeenIds:
    """A set of ids that can only grow: 64-bit digests in one table, 12 to 24 bytes an id.

    A set of strings takes 130 bytes an id, 1.3 GB for 10 million. Two ids of one digest would reject the later one
    as a duplicate: a chance of 3 in a million over 10 million ids.
    """

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * _FIRST_SIZE))
        self._count = 0

    @property
    def size_in_bytes(self) -> int:
        return len(self._table) * self._table.itemsize

    def add(self, source_id: str) -> bool:
        """Put the id in; False where it was there already."""
        digest = hashlib.blake2b(source_id.encode(), digest_size=8).digest()
        mark = int.from_bytes(digest, "big") or 1  # 0 is an empty place
        place = _place(self._table, mark)
        if self._table[place]:
            return False
        self._table[place] = mark
        self._count += 1
        if self._count * 3 > len(self._table) * 2:
            self._table = _twice_as_large(self._table)
        return True


def _place(table: "array[int]", mark: int) -> int:
    """Where the mark stands, or the empty place where it belongs."""
    last = len(table) - 1
    place = mark & last
    while table[place] and table[place] != mark:
        place = (place + 1) & last
    return place


def _twice_as_large(table: "array[int]") -> "array[int]":
    larger = array("Q", bytes(16 * len(table)))
    for mark in table:
        if mark:
            larger[_place(larger, mark)] = mark
    return larger


def _is_missing(given: Json) -> bool:
    return given is None or given != given or (isinstance(given, str) and not given.strip())


def _unfit(given: Json) -> BadRow | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return BadRow("bad_id", f"id must be text or a number, found {shown(given)}")
    try:
        str(given).encode()
    except UnicodeEncodeError:
        return BadRow("lone_surrogate", f"id {shown(given)} holds a lone surrogate, or a byte that is not UTF-8")
    return None
