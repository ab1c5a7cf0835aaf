"""Prompt files of every format become conversations; a row that can't become one comes out with the reason.

Rows in = conversations + rejections, in the files' order. A format is a module of this package with NAME, COLUMNS
(a row must hold one of them), `matches(row)` and `to_conversation(row, *, source_id, line, turns)`, entered in FORMATS;
a container is told by `containers`, a hub data set read by `hub`. This package does not know any tokenizer or template.

Reasons: bad_json, not_an_object, bad_value, bad_id, duplicate_id, missing_field, bad_turn, unknown_role,
no_user_turn, empty_prompt, not_continuable, not_text, bad_tools, bad_tool_call, bad_arguments, bad_template_kwargs,
tools_in_text, tool_result_without_call, end_inside_turn, lone_surrogate.
Notices: leading_assistant, several_turns_after_the_last, empty_turn, nul_character, null_padding,
unanswered_call, call_ids_of_the_file, developer_as_system, system_column_unread, tools_out_of_text,
tools_differ, parameter_type_of_the_file, later_turns_without_answers, format_of_the_row, revision_not_pinned.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import glob, has_magic
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from ..errors import InputError
from ..records import Conversation, Json, Rejection
from . import (
    alpaca,
    bfcl,
    glaive,
    hermes,
    openai_messages,
    opencodeinstruct,
    plain,
    sharegpt,
    text_lines,
    toolace,
    xlam,
)
from .containers import EXPECTED, open_rows
from .hub import PREFIX, hub_rows
from .ids import SeenIds, identify
from .rows import BadRow, Row, own_arguments, shown, with_lists
from .tool_calls import without_padding
from .turns import TURNS, Turns, checked

__all__ = ["FORMATS", "detect_format", "prompt_files", "read_conversations"]

_HEAD = 100  # rows that decide the format


class Format(Protocol):
    """What a format module offers."""

    @property
    def NAME(self) -> str: ...
    @property
    def COLUMNS(self) -> tuple[str, ...]: ...

    def matches(self, row: Mapping[str, Json], /) -> bool:
        """Whether the row has this format's shape."""

    def to_conversation(self, row: Mapping[str, Json], /, *, source_id: str, line: int, turns: Turns) -> Conversation:
        """The row as a conversation. Raises BadRow."""


_MODULES: tuple[Format, ...] = (
    hermes,
    toolace,
    sharegpt,
    glaive,
    opencodeinstruct,
    openai_messages,
    bfcl,
    xlam,
    alpaca,
    plain,
    text_lines,
)
FORMATS: dict[str, Format] = {module.NAME: module for module in _MODULES}
"""By name; a row has the first format that matches it, so a special form stands before the general one."""

_GENERAL = {"hermes": "sharegpt", "toolace": "sharegpt", "xlam": "plain"}
"""A special form, and the general one whose rows stand among its own."""
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
_COLUMNS = {column for module in _MODULES for column in module.COLUMNS} | set(_MEDIA)


def read_conversations(
    path: str | PathLike[str],
    *,
    format: str = "auto",
    turns: str = "last",
    limit: int | None = None,
    on_empty_line: Callable[[], None] = lambda: None,
) -> Iterator[Conversation | Rejection]:
    """The conversations of a prompt file, or for a row that is none a rejection (stage "tokenize", key `ID#0`).

    `path` may be a glob: its files are read in the order of their names as one data set of one format; `line` is
    the line in its file, and a rejection's detail begins with the file's name. It may be a hub data set,
    `hub:OWNER/NAME@REVISION#SPLIT` (see `hub`).
    `format="auto"`: each row is read by the format that it has itself; where that is not the format of most of the
    first rows, it says so with the notice format_of_the_row and its name. `turns`: see `turns`.
    `source_id` is the row's own `id`, as text, or comes from its content. A second row of the same id (7 and "7"
    are the same) is rejected, under the key `ID#rowN`, N its place in the data set, so that no two rows share a key.
    `limit` is the number of rows read, rejected ones among them. `on_empty_line` is called for each line that is no row
    because nothing stands in it. The first file is opened and the format settled at
    once. Raises InputError for a file that can't be read (at the place where it breaks, after the rows before it), an
    unknown format, or a missing column.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; expected a positive number of rows, or none for all")
    if format != "auto" and format not in FORMATS:
        raise InputError(f"format {format!r} is not known; expected auto or one of {', '.join(FORMATS)}")
    asked = next((known for known in TURNS if known == turns), None)
    if asked is None:
        raise InputError(f"turns is {turns!r}; expected one of {', '.join(TURNS)}")
    rows = _rows(path, format, on_empty_line)
    head = list(islice(rows, _HEAD))
    chosen = _choose(path, head, format)
    asked_for = islice(chain(head, rows), limit and min(limit, sys.maxsize))  # islice takes no more than that
    return _conversations(asked_for, chosen, asked, mixed=format == "auto")


def detect_format(path: str | PathLike[str]) -> str:
    """The NAME of the format that most of the first rows have. Raises InputError where none has one."""
    return _choose(path, list(islice(_rows(path, "auto"), _HEAD)), "auto").NAME


def prompt_files(path: str | PathLike[str]) -> list[Path]:
    """The file, or the files of a glob, sorted; none for a hub data set.

    Raises InputError for a glob that finds none.
    """
    if str(path).startswith(PREFIX):
        return []
    if Path(path).exists() or not has_magic(str(path)):
        return [Path(path)]
    names = glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob finds hidden files: half-done downloads
    found = sorted(Path(name) for name in names if Path(name).is_file())
    if not found:
        raise InputError(f"{path} finds no file; expected a prompt file, or a pattern that finds some: check the path")
    return found


def _rows(path: str | PathLike[str], wanted: str, on_empty_line: Callable[[], None] = lambda: None) -> Iterator[Row]:
    if str(path).startswith(PREFIX):
        yield from hub_rows(str(path))
        return
    files = prompt_files(path)
    as_text = None if wanted == "auto" else wanted == text_lines.NAME
    for file in files:
        rows = open_rows(file, columns=_COLUMNS, text_lines=as_text, on_empty_line=on_empty_line)
        yield from rows if len(files) == 1 else (replace(row, file=file.name) for row in rows)


def _choose(path: str | PathLike[str], head: Sequence[Row], wanted: str) -> Format:
    if not head:
        raise InputError(f"{path} holds no rows; expected at least one prompt: check the path")
    rows = [with_lists(row.value) for row in head if row.fault is None and isinstance(row.value, dict)]
    if not rows:
        fault = head[0].fault[1] if head[0].fault else ""
        raise InputError(
            f"{path}: none of the first {len(head)} rows is a JSON object (the first: {fault}); expected {EXPECTED}"
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
    votes = Counter(module.NAME for row in rows if (module := _format_of(row)))
    if not votes:
        needs = ", ".join(f"{name} ({' or '.join(module.COLUMNS)})" for name, module in FORMATS.items())
        raise InputError(
            f"{path} has no format that is known; found the columns {found}; expected those of one of: {needs}. "
            "Rename the columns, or name the format"
        )
    name = max(FORMATS, key=lambda name: votes[name])
    special = next((name for name, general in _GENERAL.items() if votes[name] and votes[general]), name)
    return FORMATS[special if name == _GENERAL.get(special) else name]


def _format_of(row: Mapping[str, Json]) -> Format | None:
    return next((module for module in _MODULES if _matches(module, row)), None)


def _format_by_column(row: Mapping[str, Json], chosen: Format) -> Format:
    """For a row of no format's shape the one whose column it holds: that one says what is wrong with it.

    A column `input` alone is no sign of its format, which would take it.
    """
    asked = (chosen, *(module for module in _MODULES if module is not opencodeinstruct))
    return next((module for module in asked if not set(module.COLUMNS).isdisjoint(row)), chosen)


def _matches(module: Format, row: Mapping[str, Json]) -> bool:
    try:
        return module.matches(row)
    except BadRow:
        return False


def _conversations(
    rows: Iterable[Row], chosen: Format, turns: Turns, *, mixed: bool
) -> Iterator[Conversation | Rejection]:
    seen = SeenIds()
    for number, row in enumerate(rows, start=1):
        source_id, problem = identify(row, number)
        if not seen.add(source_id):
            twice = BadRow("duplicate_id", f"id {shown(source_id)} (as text) stands in an earlier row")
            yield _rejection(row, f"{source_id}#row{number}", problem or twice)
        elif problem:
            yield _rejection(row, f"{source_id}#0", problem)
        else:
            yield _conversation(row, source_id, chosen, turns, mixed=mixed)


def _conversation(row: Row, source_id: str, chosen: Format, turns: Turns, *, mixed: bool) -> Conversation | Rejection:
    assert isinstance(row.value, dict)  # a row without a fault
    value = with_lists(row.value)
    own = _format_of(value) or _format_by_column(value, chosen) if mixed else chosen
    notices = row.notices
    if own is not chosen and _GENERAL.get(chosen.NAME) != own.NAME:
        notices = (*notices, f"format_of_the_row: {own.NAME}")
    try:
        media = next((name for name in _MEDIA if value.get(name)), None)
        if media:
            raise BadRow("not_text", f"{media} is not empty; only text is read")
        made = own.to_conversation(value, source_id=source_id, line=row.line, turns=turns)
        tools = without_padding(made.tools)
        arguments, padded = own_arguments(value)
        padding = () if tools is made.tools and not padded else ("null_padding",)
        notices = tuple(dict.fromkeys((*notices, *padding, *made.notices)))
        return checked(replace(made, tools=tools, template_kwargs=arguments, notices=notices), turns)
    except BadRow as problem:
        return _rejection(row, f"{source_id}#0", problem)
    except RecursionError:
        return _rejection(row, f"{source_id}#0", BadRow("bad_value", "nested too deeply"))


def _rejection(row: Row, key: str, problem: BadRow) -> Rejection:
    detail = f"{row.file}: {problem.detail}" if row.file else problem.detail
    return Rejection(stage="tokenize", key=key, line=row.line, reason=problem.reason, detail=detail)
