"""JSON Lines and a JSON array as rows, each read piece by piece.

A line ends at \\n only (U+2028 and U+0085 occur inside strings), and blank lines are no rows. A row that is no valid
JSON costs itself alone wherever its end is certain: always in JSON Lines, and in an array where its strings and
brackets close (a control character in a string, a key that stands twice, nesting too deep, a number too long).
Elsewhere an array ends with an error, for nothing after such a place can be trusted. This module does not know any
format.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase

from ..records import Json
from .rows import DECODER, ROW_LIMIT, BrokenFile, Row, error_text, shown

_PIECE = 2**20  # bytes
_LONGEST_WORD = 16  # "\\ud83d\\ude00", -Infinity, a number's tail: what a piece may cut apart
_SPACE = re.compile(r"[ \t\n\r]*")
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
_IN_STRING = ("Invalid control character", "Invalid \\")  # the string's end is certain all the same


def line_rows(lines: Iterable[tuple[int, str]], on_empty_line: Callable[[], None]) -> Iterator[Row]:
    """Each line that is not blank, as a row; the others are told one by one."""
    for line, text in lines:
        if text.strip(" \t\r\n\v\f"):
            yield _row_of(line, text.strip(" \t\r\n"))
        else:
            on_empty_line()


def array_rows(file: BufferedIOBase) -> Iterator[Row]:
    """The elements of the array that the file holds; `line` is an element's place. Raises BrokenFile."""
    window = _Window(file)
    window.next_sign()
    window.place += 1  # the bracket that told the array
    line = 0
    sign = "," if window.next_sign() != "]" else "]"
    while sign == ",":
        line += 1
        window.next_sign()
        yield _element(window, line)
        sign = window.next_sign()
        window.place += 1
        if not sign or sign not in ",]":
            raise _broken(line, f"expected , or ] after it, found {shown(sign) if sign else 'the end of the file'}")
    if line == 0:
        window.place += 1
    rest = window.next_sign()
    if rest:
        raise _broken(line, f"more follows after its end: {shown(window.text[window.place : window.place + 60])}")


class _Window:
    """The part of a file's text that is being read: what lies before `place` is forgotten as more is read."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape").decode
        self.text = ""
        self.place = 0
        self.ended = False

    def read_on(self) -> None:
        """At least as much again as is held, so that a long element is looked at a few times only."""
        kept = self.text[self.place :]
        raw = self._file.read(max(_PIECE, len(kept)))
        self.ended = not raw
        self.text, self.place = kept + self._decode(raw, self.ended), 0

    def next_sign(self) -> str:
        """The next character that is no space, which stays in front; "" at the end of the file."""
        while True:
            found = _SPACE.match(self.text, self.place)
            assert found is not None  # it matches anything
            self.place = found.end()
            if self.place < len(self.text) or self.ended:
                return self.text[self.place : self.place + 1]
            self.read_on()


def _element(window: _Window, line: int) -> Row:
    while True:
        try:
            value, end = DECODER.raw_decode(window.text, window.place)
            if window.ended or end <= len(window.text) - _LONGEST_WORD:  # 12 at the edge may be cut from 12e3
                window.place = end
                return _checked(line, value)
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated string") or error.pos > len(window.text) - _LONGEST_WORD
            if window.ended or not cut:
                if error.msg.startswith(_IN_STRING):
                    return _skipped(window, line)
                raise _broken(line, error.msg) from error
        except (ValueError, RecursionError):
            return _skipped(window, line)
        _read_on(window, line)


def _skipped(window: _Window, line: int) -> Row:
    """The element as a rejected row, passed over by its strings and brackets."""
    while (end := _end_of_value(window.text, window.place)) < 0:
        if window.ended:
            raise _broken(line, "its brackets don't close")
        _read_on(window, line)
    text = window.text[window.place : end].rstrip(" \t\r\n")
    window.place = end
    return _row_of(line, text)


def _end_of_value(text: str, start: int) -> int:
    """Where the value ends that begins at `start`; -1 where the text ends before."""
    depth = 0
    for found in _TOKEN.finditer(text, start):
        sign, is_string = found[0][0], len(found[0]) > 1
        if sign == '"' and not is_string:
            return -1
        depth += (sign in "[{") - (sign in "]}")
        if depth < 0 or (depth == 0 and sign == ","):
            return found.start()
        if depth == 0:
            return found.end()
    return -1


def _read_on(window: _Window, line: int) -> None:
    if len(window.text) - window.place > ROW_LIMIT:
        raise _broken(line, f"it is longer than {ROW_LIMIT >> 20} MiB, or a quote or a bracket is left open")
    window.read_on()


def _broken(line: int, why: str) -> BrokenFile:
    return BrokenFile(
        f"begins a JSON array that is broken at element {line} ({why}); expected one array of objects: get the file "
        "again, or turn it into JSON Lines, where a bad row costs itself alone"
    )


def _row_of(line: int, text: str) -> Row:
    try:
        return _checked(line, DECODER.decode(text))
    except (ValueError, RecursionError) as error:
        return Row(line=line, value=text, fault=("bad_json", error_text(error)))


def _checked(line: int, value: Json) -> Row:
    if isinstance(value, dict):
        return Row(line=line, value=value)
    return Row(line=line, value=value, fault=("not_an_object", f"expected a JSON object, found {shown(value)}"))
