"""What a notebook shows: figures with a text for those who can't see them, tables, text made fit to be looked at.

Everything is shown as HTML that holds no script and that JupyterLab and the report (`reports`) show alike. Text
that a model or a prompt file wrote goes through `printable` and is escaped; it can neither run nor hide. This
module does not know what a figure means, and nothing here reads a file.
"""

import base64
import io
import math
import re
import sys
import unicodedata
from collections.abc import Mapping
from html import escape
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal

from IPython.display import display

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COMPLETED = "rawtokens: completed "
"""The completion marker; papermill counts `sys.exit(0)` and `!false` as success, so a caller looks for this."""

SVG_LIMIT = (
    70_000  # bytes; a larger drawing becomes a PNG (about 50 kB), so that a report of ten figures stays under 1 MB
)
TEXT_LIMIT = 6_000  # characters of one text that a page shows

_UNUSUAL = re.compile(r"[^\x20-\x7e\n\t]")


def completed(name: str) -> None:
    """What the last cell of a notebook calls, with the notebook's name without its ending: shows the marker."""
    display({"text/plain": COMPLETED + name}, raw=True)  # type: ignore[no-untyped-call]


def show(figure: "Figure", *, alt: str, caption: str, image: Literal["svg", "png"] = "svg") -> None:
    """Show a matplotlib figure with its alternative text and its caption, and close it.

    `image="png"` suits dense scatter plots. An SVG above 70 kB is shown as PNG. Raises ValueError where `alt` or
    `caption` is empty.
    """
    _display(figure_html(figure, alt=alt, caption=caption, image=image), plain=f"{caption}\n{alt}")
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close(figure)


def show_table(
    frame: "pd.DataFrame", *, caption: str, formats: Mapping[str, str] | None = None, index: bool = False
) -> None:
    """Show a DataFrame as a table with a caption.

    `formats` maps a column to a format string (`{"share": "{:.1%}"}`); else counts get thousands separators and
    other numbers three significant digits, halves in full. `index=True` makes the index the rows' headings.
    """
    _display(table_html(frame, caption=caption, formats=formats, index=index), plain=f"{caption}\n{frame.to_string()}")


def printable(text: str, *, limit: int = TEXT_LIMIT) -> str:
    """`text` fit to be looked at: at most `limit` characters, with everything invisible made visible.

    Control characters, direction overrides, zero-width characters and lone surrogates become their number, such as
    ⟨U+202E⟩ (fonts that have the symbols ␀ and ␛ are rare). What is left out of a long text is counted in its place.
    """
    return visible(shortened(text, limit))


def shortened(text: str, limit: int) -> str:
    """Head and tail of a text longer than `limit` characters, with the number left out in between."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[... {len(text) - head - tail:,} characters left out ...]\n{text[-tail:]}"


def visible(text: str) -> str:
    """`text` in full, its invisible characters made visible as `printable` says."""
    return _UNUSUAL.sub(lambda match: _visible(match[0]), text)


def figure_html(figure: "Figure", *, alt: str, caption: str, image: Literal["svg", "png"] = "svg") -> str:
    """The `<figure>` that `show` displays, its picture inside as a data address."""
    if not alt.strip() or not caption.strip():
        raise ValueError("a figure needs an alternative text and a caption")
    kind, data = "svg+xml", b""
    if image == "svg":
        data = _drawn(figure, "svg")
    if not data or len(data) > SVG_LIMIT:
        kind, data = "png", _drawn(figure, "png")
    address = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return (
        f'<figure><img src="{address}" alt="{escape(printable(alt))}" style="max-width:100%;height:auto">'
        f"<figcaption>{escape(printable(caption))}</figcaption></figure>"
    )


def table_html(
    frame: "pd.DataFrame", *, caption: str, formats: Mapping[str, str] | None = None, index: bool = False
) -> str:
    """The table that `show_table` displays; it scrolls sideways where the page is narrow."""
    formats = formats or {}
    names = [str(name) for name in frame.columns]
    heads = [""] * index + names
    rows = []
    for label, *values in frame.itertuples(name=None):
        head = f'<th scope="row">{escape(_cell(label))}</th>' if index else ""
        cells = (_table_cell(value, formats.get(name)) for name, value in zip(names, values, strict=True))
        rows.append(f"<tr>{head}{''.join(cells)}</tr>")
    if not rows:
        rows.append(f'<tr><td colspan="{len(heads)}">none</td></tr>')
    head = "".join(f'<th scope="col">{escape(printable(name))}</th>' for name in heads)
    return (
        f'<div class="table" style="overflow-x:auto"><table><caption>{escape(printable(caption))}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _display(html: str, *, plain: str) -> None:
    display({"text/html": html, "text/plain": printable(plain)}, raw=True)  # type: ignore[no-untyped-call]


def _drawn(figure: "Figure", kind: Literal["svg", "png"]) -> bytes:
    import matplotlib as mpl

    drawing = io.BytesIO()
    # A fixed salt and no date: the same figure gives the same bytes. Letters as text, not as outlines: 15 kB a figure
    # in place of 41. Verdana has the widths of DejaVu Sans, which lays the figure out here.
    fonts = ["DejaVu Sans", "Verdana", "sans-serif"]
    with mpl.rc_context({"svg.hashsalt": "rawtokens", "svg.fonttype": "none", "font.sans-serif": fonts}):
        if kind == "svg":
            figure.savefig(drawing, format="svg", facecolor="white", metadata={"Date": None})
        else:
            figure.savefig(drawing, format="png", facecolor="white", dpi=144)
    return drawing.getvalue()


def _table_cell(value: object, form: str | None) -> str:
    text = form.format(value) if form and not _missing(value) else _cell(value)
    style = (
        ' class="number" style="text-align:right"' if isinstance(value, Real) and not isinstance(value, bool) else ""
    )
    return f"<td{style}>{escape(text)}</td>"


def _cell(value: object) -> str:
    if _missing(value):
        return "–"
    if isinstance(value, Integral) and not isinstance(value, bool):
        return f"{int(value):,}"
    if isinstance(value, Real) and not isinstance(value, bool):
        return _real(float(value))
    return printable(str(value))


def _real(value: float) -> str:
    if value % 1 == 0.5:  # as a median of counts has it; rounded, 28.5 and 29.5 would lie two apart
        return f"{value:,.1f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _missing(value: object) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and math.isnan(value))
    )


def _visible(character: str) -> str:
    # The joiners stay: emoji and several scripts are written with them.
    if character in "\u200c\u200d" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return f"⟨U+{ord(character):04X}⟩"
