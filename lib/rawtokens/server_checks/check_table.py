"""The table of checks that is made of a server: a line a check, with what was seen and what to do.

This module asks nothing and judges nothing; it keeps secrets out of what is shown and stored.
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pandas as pd
from msgspec.structs import replace

from ..atomic_files import write_atomically
from ..errors import ServerError
from ..reporting.display import visible

Status = Literal["pass", "warn", "fail"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: `fail` would spoil a capture, `warn` is a doubt."""

    check: str
    status: Status
    seen: str
    to_do: str = ""


def checks_table(checks: Sequence[Check]) -> pd.DataFrame:
    """One row a check, columns check, status, seen, what to do."""
    columns = {"check": "check", "status": "status", "seen": "seen", "to_do": "what to do"}
    return pd.DataFrame([msgspec.to_builtins(check) for check in checks], columns=list(columns)).rename(columns=columns)


def checks_text(checks: Sequence[Check], *, width: int = 100) -> str:
    """The table for a terminal: status, check, what was seen, and what to do on a line of its own."""
    room = max((len(check.check) for check in checks), default=0)
    lines = []
    for check in checks:
        texts = [check.seen, *([f"-> {check.to_do}"] if check.to_do else [])]
        told = [line for text in texts for line in textwrap.wrap(visible(text), width, break_on_hyphens=False)]
        heads = [f"{check.status}  {check.check:<{room}}  ", *[" " * (room + 8)] * (len(told) - 1)]
        lines += [head + line for head, line in zip(heads, told or [""], strict=True)]
    return "\n".join(lines)


def checks_takeaway(checks: Sequence[Check]) -> str:
    """How many checks passed, and the names of those that did not."""
    names = {status: [check.check for check in checks if check.status == status] for status in ("fail", "warn")}
    passed = f"{sum(check.status == 'pass' for check in checks)} of {len(checks)} checks pass"
    told = [f"{status}: {', '.join(found)}" for status, found in names.items() if found]
    return "; ".join([passed, *told])


def require_no_failure(url: str, checks: Sequence[Check], *, table_is_shown: bool = False) -> None:
    """Raise ServerError with the first failed check, so that a run stops before it captures anything.

    Where the table is shown just above, it has said what was seen and what to do.
    """
    failed = [check for check in checks if check.status == "fail"]
    if failed and table_is_shown:
        raise ServerError(f"{url} fails the check {failed[0].check!r}; the table tells why")
    if failed:
        told = [text for text in (failed[0].seen, failed[0].to_do) if text]
        raise ServerError(f"{url} fails the check {failed[0].check!r}: {'; '.join(told)}")


def write_checks(path: Path, found: Mapping[str, Sequence[Check]]) -> None:
    """Write server_check.json: the rows of each server's table by its URL. Raises RunStopped where it can't."""
    content = {url: checks_table(checks).to_dict("records") for url, checks in found.items()}
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False).encode())


def without_secret(checks: Sequence[Check], secret: str) -> list[Check]:
    """The same lines with `secret` taken out of every text, wherever a server put it."""
    if not secret:
        return list(checks)
    return [
        replace(check, seen=check.seen.replace(secret, "[secret]"), to_do=check.to_do.replace(secret, "[secret]"))
        for check in checks
    ]
