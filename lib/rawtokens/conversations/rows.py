"""What containers and formats share: a row, the error of a bad row, exact JSON, an id from content.

This module does not know any format.
"""

import ast
import hashlib
import json
import warnings

import msgspec

from ..records import Json


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
    """JSON that stands as text inside a row. Raises BadRow(reason) where it is invalid, NaN included."""
    try:
        value: Json = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadRow(reason, f"{what} is not valid JSON ({error_text(error)}): {shown(text)}") from error
    return value


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


def without_nulls(value: Json) -> Json:
    """`value` without the null members of its objects, at every depth; nulls in lists stay."""
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def content_id(value: Json) -> str:
    """An id from content: the same on every machine, whatever the container, the order of keys and the null padding."""
    text = json.dumps(without_nulls(value), sort_keys=True, separators=(",", ":"), default=str)
    return "sha256-" + hashlib.sha256(text.encode()).hexdigest()[:20]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")
