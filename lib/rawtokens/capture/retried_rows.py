"""retried.jsonl: when rows were set aside to be generated again, why, and how many.

A row that was drawn again for what it held is no longer a fair draw of the model: cut answers that come again until
they end make the lengths shorter than the model's. This module does not set rows aside (`retrying` does), nor can it
tell how far the lengths moved.
"""

from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec

from ..atomic_files import write_atomically
from ..errors import InputError

RETRIED = "retried.jsonl"
CHOSEN_BY_CONTENT = (
    "empty",
    "empty_answer",
    "loop",
    "never_closed",
    "open_tool_section",
    "server_died",
    "timeout",
    "truncated_in_answer",
    "truncated_in_thinking",
)
"""Reasons that depend on how long an answer is or what it says; a timeout or a death takes the longest."""


class RetriedRows(msgspec.Struct, frozen=True, kw_only=True):
    """One line of retried.jsonl; `reason` is `foreign`, a code, or "" for all that stage 02 had rejected."""

    at: str  # ISO 8601, UTC
    reason: str
    lines: int


def record_retried(folder: Path, rows: RetriedRows) -> None:
    """Add a line, on disk before the rows move: a kill in between tells of them twice, never not at all.

    Raises RunStopped where it can't be written, InputError as `read_retried` does.
    """
    lines = [*read_retried(folder), rows]
    write_atomically(folder / RETRIED, b"".join(msgspec.json.encode(line) + b"\n" for line in lines), on_disk=True)


def read_retried(folder: Path) -> list[RetriedRows]:
    """The lines of retried.jsonl, none where there is no such file. Raises InputError for a line that is none.

    A beginning of a line at the end was torn before its rows moved, and tells of none.
    """
    path = folder / RETRIED
    if not path.exists():
        return []
    try:
        whole, _, rest = path.read_bytes().rpartition(b"\n")
        found = [msgspec.json.decode(line, type=RetriedRows) for line in whole.splitlines() if line]
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path} can't be read: {error}; mend or move it, then run again") from error
    with suppress(msgspec.MsgspecError):  # whole where an editor left out the last newline
        found.append(msgspec.json.decode(rest, type=RetriedRows))
    return found


def retried_in_words(folder: Path) -> str:
    """One sentence on rows that were drawn again, and whether that biases the lengths."""
    counts: Counter[str] = Counter()
    for rows in read_retried(folder):
        counts[rows.reason] += rows.lines
    if not counts:
        return "No row was set aside to be generated again."
    told = ", ".join(f"{reason or 'rejected'} {count:,}" for reason, count in counts.most_common())
    chosen = [reason for reason in counts if reason in CHOSEN_BY_CONTENT]
    if not chosen:
        return f"Rows were generated again ({told}), none of them for how long it was or what it said."
    return (
        f"Rows were generated again ({told}), some for how long they were or what they said ({', '.join(chosen)}): "
        "lengths and shapes are no longer a fair sample of the model's."
    )
