"""What each reason, shape and notice means and what to do about it, as reading_the_report.md tells it.

A page explains at its end the codes that its own tables name, so that it can be passed on alone; the whole guide lies
beside the run's index. This module does not know which rows have a reason, nor whether one is bad.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from markupsafe import Markup

from .safe_html import prose_html

GUIDE = Path(__file__).with_name("reading_the_report.md")
GUIDE_PAGE = "reading_the_report.html"
HTTP_STATUS = "http_NNN"
"""The entry of every http_503 and its like."""
_CELL = re.compile(r"(<(th|td)(?: [^<>]*)?>(?:[a-z ]+: )*)([A-Za-z0-9_]+)(</\2>)")  # `flagged: loop` too
_CAPTION = re.compile(r"(?<=<figcaption>)[^<>]*(?=</figcaption>)")
_WORD = re.compile(r"\b[a-z]+_[a-z_]+\b")  # codes of one word, such as `empty`, stand in ordinary captions too


@cache
def entries() -> dict[str, str]:
    """The guide's text under each code, as Markdown, in its order."""
    parts = re.split(r"^(?:### (\w+)|## .*)$", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {code: text.strip() for code, text in zip(parts[1::2], parts[2::2], strict=True) if code}


def entry_of(code: str) -> str | None:
    """The name of the entry that explains a code; None where it is no code."""
    if re.fullmatch(r"http_\d{3}", code):
        return HTTP_STATUS
    return code if code in entries() else None


def with_links(html: Markup) -> tuple[Markup, list[str]]:
    """Cleaned HTML with every code in a table's cell or a caption as a link to its explanation, and those entries."""
    found: dict[str, None] = {}

    def link(code: str) -> str:
        entry = entry_of(code)
        if entry is None:
            return code
        found[entry] = None
        return f'<a href="#reason-{entry}">{code}</a>'

    linked = _CELL.sub(lambda match: match[1] + link(match[3]) + match[4], str(html))
    linked = _CAPTION.sub(lambda match: _WORD.sub(lambda word: link(word[0]), match[0]), linked)
    return Markup(linked), list(found)


def explanations(codes: Sequence[str]) -> list[dict[str, object]]:
    """The entries of these codes in the guide's order, each as `code` and `html`."""
    return [{"code": code, "html": prose_html(text)} for code, text in entries().items() if code in set(codes)]


def guide_html() -> Markup:
    """The whole guide, an id on every code's heading."""
    html = str(prose_html(GUIDE.read_text(encoding="utf-8")))
    return Markup(re.sub(r"<h3>(\w+)</h3>", r'<h3 id="\1">\1</h3>', html))
