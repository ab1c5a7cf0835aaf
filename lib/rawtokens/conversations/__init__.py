"""Prompt files of every format become conversations; a row that can't become one comes out with the reason.

Rows in = conversations + rejections, in the file's order. A format is a module of this package with NAME, COLUMNS
(a row must hold one of them), `matches(row)` and `to_conversation(row, *, source_id, line)`, entered in FORMATS;
a container is a function of `containers`. This package does not know any tokenizer or template.

Reasons: bad_json, not_an_object, bad_value, bad_id, duplicate_id, missing_field, bad_turn, unknown_role,
no_user_turn, empty_prompt, not_text, bad_tools, bad_tool_call, bad_arguments, tools_in_text,
tool_result_without_call, end_inside_turn, lone_surrogate.
Notices: leading_assistant, several_turns_after_the_last, empty_turn, nul_character, null_padding,
unanswered_call, call_ids_of_the_file, developer_as_system.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from ..errors import InputError
from ..records import Conversation, Json, Rejection
from . import glaive, openai_messages, opencodeinstruct, sharegpt
from .containers import Row, open_rows
from .rows import BadRow, content_id, shown
from .turns import checked

__all__ = ["FORMATS", "detect_format", "read_conversations"]

_HEAD = 100  # rows that decide the format


class Format(Protocol):
    """What a format module offers."""

    @property
    def NAME(self) -> str: ...
    @property
    def COLUMNS(self) -> tuple[str, ...]: ...

    def matches(self, row: Mapping[str, Json], /) -> bool:
        """Whether the row has this format's shape."""

    def to_conversation(self, row: Mapping[str, Json], /, *, source_id: str, line: int) -> Conversation:
        """The row as a conversation. Raises BadRow."""


FORMATS: dict[str, Format] = {
    sharegpt.NAME: sharegpt,
    glaive.NAME: glaive,
    opencodeinstruct.NAME: opencodeinstruct,
    openai_messages.NAME: openai_messages,
}


def read_conversations(
    path: str | PathLike[str], *, format: str = "auto", limit: int | None = None
) -> Iterator[Conversation | Rejection]:
    """The conversations of a prompt file, or for a row that is none a rejection (stage "tokenize", key `ID#0`).

    `source_id` is the row's own `id`, as text, or comes from its content. A second row of the same id (7 and "7"
    are the same) is rejected, under a key that names its line, so that no two rows share a key. `limit` is the
    number of rows read, rejected ones among them. The file is opened and its format settled at once.
    Raises InputError for a file that can't be read, an unknown format, or a missing column.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; expected a positive number of rows, or none for all")
    rows = open_rows(Path(path))
    head = list(islice(rows, _HEAD))
    chosen = _choose(Path(path), head, format)
    return _conversations(islice(chain(head, rows), limit), chosen)


def detect_format(path: str | PathLike[str]) -> str:
    """The NAME of the format that most of the first rows have. Raises InputError where none has one."""
    return _choose(Path(path), list(islice(open_rows(Path(path)), _HEAD)), "auto").NAME


def _choose(path: Path, head: Sequence[Row], wanted: str) -> Format:
    if wanted != "auto" and wanted not in FORMATS:
        raise InputError(f"format {wanted!r} is not known; expected auto or one of {', '.join(FORMATS)}")
    if not head:
        raise InputError(f"{path} holds no rows; expected at least one prompt: check the path")
    rows = [row.value for row in head if row.fault is None and isinstance(row.value, dict)]
    if not rows:
        raise InputError(
            f"{path}: none of the first {len(head)} rows is a JSON object (the first: {head[0].fault}); "
            "expected JSON Lines, a JSON array of objects or Parquet"
        )
    found = ", ".join(list(dict.fromkeys(key for row in rows for key in row))[:20])
    if wanted != "auto":
        chosen = FORMATS[wanted]
        if not any(column in row for row in rows for column in chosen.COLUMNS):
            raise InputError(
                f"{path} has no column {' or '.join(chosen.COLUMNS)}, which format {wanted} needs; "
                f"found: {found}. Set the format to auto or to the file's own"
            )
        return chosen
    votes = {name: sum(_matches(module, row) for row in rows) for name, module in FORMATS.items()}
    name = max(votes, key=lambda name: votes[name])
    if votes[name] == 0:
        needs = ", ".join(f"{name} ({' or '.join(module.COLUMNS)})" for name, module in FORMATS.items())
        raise InputError(
            f"{path} has no format that is known; found the columns {found}; expected those of one of: {needs}. "
            "Rename the columns, or name the format"
        )
    return FORMATS[name]


def _matches(module: Format, row: Mapping[str, Json]) -> bool:
    try:
        return module.matches(row)
    except BadRow:
        return False


def _conversations(rows: Iterable[Row], chosen: Format) -> Iterator[Conversation | Rejection]:
    seen: set[str] = set()
    for row in rows:
        source_id, problem = _identify(row)
        if source_id in seen:
            problem = problem or BadRow("duplicate_id", f"id {shown(source_id)} (as text) stands in an earlier row")
        while source_id in seen:
            source_id = f"{source_id}:line{row.line}"
        seen.add(source_id)
        yield _rejection(row, source_id, problem) if problem else _conversation(row, source_id, chosen)


def _conversation(row: Row, source_id: str, chosen: Format) -> Conversation | Rejection:
    assert isinstance(row.value, dict)  # a row without a fault
    try:
        made = chosen.to_conversation(row.value, source_id=source_id, line=row.line)
        return checked(replace(made, notices=(*row.notices, *made.notices)))
    except BadRow as problem:
        return _rejection(row, source_id, problem)


def _rejection(row: Row, source_id: str, problem: BadRow) -> Rejection:
    return Rejection(
        stage="tokenize", key=f"{source_id}#0", line=row.line, reason=problem.reason, detail=problem.detail
    )


def _identify(row: Row) -> tuple[str, BadRow | None]:
    """The row's id, and what is wrong with the row or its id, if anything."""
    try:
        made = content_id(row.value)
    except RecursionError:
        return f"line-{row.line}", BadRow("bad_json", "nested too deeply")
    if row.fault is not None:
        return made, BadRow(*row.fault)
    given = row.value.get("id") if isinstance(row.value, dict) else None
    if given is None or given != given or (isinstance(given, str) and not given.strip()):
        return made, None
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return made, BadRow("bad_id", f"id must be text or a number, found {shown(given)}")
    try:
        str(given).encode()
    except UnicodeEncodeError:
        return made, BadRow("lone_surrogate", f"id {shown(given)} holds a lone surrogate, or a byte that is not UTF-8")
    return str(given), None
