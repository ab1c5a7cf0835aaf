"""CSV as rows: a header, then one object of texts a row.

Commas, tabs or semicolons, as the header has them; quotes are doubled inside quotes, and a quoted text may run over
lines. A row of another length than the header costs itself alone; a quote that is left open, or that ends before its
cell does, leaves every later row in doubt and ends the file with an error. This module does not know any format.
"""

import csv
import re
from collections.abc import Callable, Collection, Iterator

from .rows import ROW_LIMIT, BrokenFile, Row

_DELIMITERS = ",\t;"
_NAME = re.compile(r"\w[\w.-]*")


def delimiter_of(header: str, columns: Collection[str], *, unknown_too: bool) -> str:
    """The delimiter that makes a line a header, or "".

    A cell must be one of `columns`; with `unknown_too` it does that all of several cells are names.
    """
    for delimiter in _DELIMITERS:
        try:
            cells = [cell.strip() for cell in next(csv.reader([header.rstrip("\r\n")], delimiter=delimiter), [])]
        except csv.Error:
            continue
        if any(cell in columns for cell in cells):
            return delimiter
        if unknown_too and len(cells) > 1 and all(_NAME.fullmatch(cell) for cell in cells):
            return delimiter
    return ""


def csv_rows(lines: Iterator[tuple[int, str]], delimiter: str, on_empty_line: Callable[[], None]) -> Iterator[Row]:
    """The rows; `line` is that of a row's first line. Raises BrokenFile with the line where the file is broken.

    `on_empty_line` is called for each line between rows that holds nothing.
    """
    csv.field_size_limit(ROW_LIMIT)  # of the whole process; nothing else here reads CSV
    reader = csv.reader((text for _, text in lines), delimiter=delimiter, strict=True)
    names: list[str] = []
    line = 1
    try:
        for cells in reader:
            if cells and not names:
                names = _header([cell.strip() for cell in cells])
            elif cells:
                yield _row(line, names, cells)
            else:
                on_empty_line()
            line = reader.line_num + 1
    except csv.Error as error:
        raise BrokenFile(
            f"is CSV that is broken in the row at line {line} ({error}); expected quotes in pairs, doubled inside a "
            "quoted text: mend the line, or write the file as JSON Lines"
        ) from error


def _header(names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BrokenFile(f"has a CSV header that names {twice[0]!r} twice; rename one of the columns")
    return names


def _row(line: int, names: list[str], cells: list[str]) -> Row:
    if len(cells) != len(names):
        detail = f"the row has {len(cells)} cells, the header {len(names)}"
        return Row(line=line, value=cells, fault=("bad_value", detail))
    return Row(line=line, value=dict(zip(names, cells, strict=True)))
