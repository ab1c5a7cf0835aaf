"""What every format needs to read a row: the error of a bad row, exact JSON, an id from content.

This module does not know any format.
"""

import hashlib
import json

from ..records import Json


class BadRow(Exception):
    """A row that can't become a conversation; becomes a `Rejection`. `detail` never holds an unprintable character."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


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
