"""retried.jsonl: when rows were set aside to be generated again, why, and how many.

A row that was drawn again for what it held is no longer a fair draw of the model: cut answers that come again until
they end make the lengths shorter than the model's. This module does not set rows aside (`retrying` does), nor can it
tell how far the lengths moved.
"""

import os
from collections import Counter
from pathlib import Path

import msgspec

from ..errors import InputError, RunStopped

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
    """Append a line, on disk before the rows move: a kill in between tells of them twice, never not at all.

    Raises RunStopped where it can't be written.
    """
    path = folder / RETRIED
    try:
        with path.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(rows) + b"\n")
            os.fsync(file.fileno())
    except OSError as error:
        raise RunStopped(f"can't write {path}: {error}; make room or mend the folder, then run it again") from error


def read_retried(folder: Path) -> list[RetriedRows]:
    """The lines of retried.jsonl, none where there is no such file. Raises InputError for a line that is none."""
    path = folder / RETRIED
    if not path.exists():
        return []
    try:
        return [msgspec.json.decode(line, type=RetriedRows) for line in path.read_bytes().splitlines() if line]
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path} can't be read: {error}; mend or move it, then run again") from error


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
