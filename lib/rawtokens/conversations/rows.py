"""What containers and formats share: a row, the error of a bad row, exact JSON.

This module does not know any format.
"""

import ast
import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

import msgspec

from ..records import Json

ROW_LIMIT = 64 * 2**20  # bytes or characters; a quote left open would read the rest of a file as one row


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a file. Without a `fault` (reason, detail), `value` is an object; with one, whatever was there.

    `line` counts from 1: the line in JSON Lines, CSV (a row's first) and text, the place of the row in an array or
    in Parquet. `file` is the file's name where a data set has several.
    """

    line: int
    value: Json
    notices: tuple[str, ...] = ()
    fault: tuple[str, str] | None = None
    file: str = ""


class BadRow(Exception):
    """A row that can't become a conversation; becomes a `Rejection`. `detail` never holds an unprintable character."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class BrokenFile(Exception):
    """A file that is broken from some place on, so that no row after it can be trusted; becomes an InputError."""


def shown(value: object) -> str:
    """`value` for a message: repr (which escapes lone surrogates), at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def load_json(text: str, what: str, reason: str) -> Json:
    """JSON that stands as text inside a row. Raises BadRow(reason) where it is invalid or holds NaN or a key twice."""
    try:
        value: Json = _STRICT.decode(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadRow(reason, f"{what} is not valid JSON ({error_text(error)}): {shown(text)}") from error
    return value


def with_lists(row: Mapping[str, Json]) -> Mapping[str, Json]:
    """The row with its lists of turns that stand as JSON text read, once for all formats; broken ones stay text."""
    made = dict(row)
    for name in ("conversations", "messages"):
        text = row.get(name)
        if isinstance(text, str) and text.lstrip().startswith("["):
            with suppress(BadRow):
                made[name] = load_json(text, name, "missing_field")
    return made


def load_literal(text: str, what: str, reason: str) -> Json:
    """JSON, or the Python literal that `str()` of JSON values gives. Raises BadRow(reason) where it is neither."""
    try:
        return load_json(text, what, reason)
    except BadRow:
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a literal is the file's, not the reader's
            value = ast.literal_eval(text.strip())
        made: Json = json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise BadRow(reason, f"{what} is neither JSON nor a Python literal: {shown(text)}") from error
    return made


def error_text(error: Exception) -> str:
    """An exception's message without the data it met."""
    if isinstance(error, UnicodeError):
        return "text that is not UTF-8, or a lone surrogate"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def own_arguments(row: Mapping[str, Json]) -> tuple[dict[str, Json], bool]:
    """The template arguments that a row has of its own, and whether nulls among them were left out as Arrow's padding.

    They stand in `template_kwargs` or `chat_template_kwargs`, as an object or as JSON text. Raises BadRow.
    """
    name = next((name for name in ("template_kwargs", "chat_template_kwargs") if row.get(name) is not None), "")
    found = row.get(name)
    if isinstance(found, str):
        found = load_json(found, name, "bad_template_kwargs") if found.strip() else {}
    if not isinstance(found or {}, dict):
        raise BadRow("bad_template_kwargs", f"{name} must be a JSON object, found {shown(found)}")
    given = cast("dict[str, Json]", found or {})
    kept: dict[str, Json] = {key: value for key, value in given.items() if value is not None}
    return kept, len(kept) < len(given)


def without_nulls(value: Json) -> Json:
    """`value` without the null members of its objects, at every depth; nulls in lists stay."""
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """An object's members. Python's own reader lets the last of two equal keys win, without a word."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {shown(next(key for key in keys if keys.count(key) > 1))} stands twice")
    return made


DECODER = json.JSONDecoder(object_pairs_hook=_once)
_STRICT = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse)
