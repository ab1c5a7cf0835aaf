"""Made-up prompt files for tests, and what comes out of them."""

import json
from collections.abc import Sequence
from pathlib import Path

from rawtokens.conversations import read_conversations
from rawtokens.records import Conversation, Rejection

Outcome = Conversation | Rejection


def read(path: Path, text: str | bytes, **options: object) -> list[Outcome]:
    """What comes out of a file with this text."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_conversations(path, **options))  # type: ignore[arg-type]


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
