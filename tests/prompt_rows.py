"""Made-up prompt files for tests, and what comes out of them."""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import rawtokens.conversations
from rawtokens.conversations import read_conversations
from rawtokens.records import Conversation, Rejection

Outcome = Conversation | Rejection


def read(path: Path, text: str | bytes, **options: object) -> list[Outcome]:
    """What comes out of a file with this text."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = list(read_conversations(path, **options))  # type: ignore[arg-type]
    assert {row.reason for row in found if isinstance(row, Rejection)} <= listed("Reasons")
    notices = [notice for row in found if isinstance(row, Conversation) for notice in row.notices]
    assert {notice.partition(":")[0] for notice in notices} <= listed("Notices")
    return found


@cache
def listed(title: str) -> frozenset[str]:
    """The codes that the package's docstring lists under "Reasons" or "Notices"."""
    found = re.search(rf"^{title}: (.*?)\.$", rawtokens.conversations.__doc__ or "", re.DOTALL | re.MULTILINE)
    assert found is not None
    return frozenset(found[1].replace("\n", " ").split(", "))


def read_rows(folder: Path, rows: Sequence[object], **options: object) -> list[Outcome]:
    return read(folder / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows), **options)


def only(outcomes: Sequence[Outcome]) -> Conversation:
    (outcome,) = outcomes
    assert isinstance(outcome, Conversation), outcome
    return outcome


def reasons(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome.reason if isinstance(outcome, Rejection) else "" for outcome in outcomes]


def said(conversation: Conversation) -> list[tuple[object, object]]:
    return [(message["role"], message["content"]) for message in conversation.messages]


def chat(*turns: tuple[str, str], **members: object) -> dict[str, object]:
    return {**members, "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}


def glaive(text: str, system: str = "") -> dict[str, object]:
    return {"system": system, "chat": text}
