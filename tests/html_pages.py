"""What every page of a report must keep, checked by a parser that raises at the first error (html5lib, strict)."""

import re
from collections import Counter
from pathlib import Path
from xml.etree.ElementTree import Element

import html5lib

PAGE_LIMIT = 1_000_000  # bytes
PICTURE = re.compile(r"data:image/(png|jpeg|svg\+xml);base64,[A-Za-z0-9+/=]*")
FETCHING = {"script", "link", "iframe", "object", "embed", "base", "form", "video", "audio", "source", "svg", "math"}


def check_page(html: str, *, folder: Path | None = None) -> Element:
    """Assert that a page is valid, holds itself and can be read by everybody; returns its tree.

    Where `folder` is given, a link to another file must lead to one, from there.
    """
    tree: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(html)
    elements = list(tree.iter())
    assert len(html.encode()) < PAGE_LIMIT
    assert html.startswith("<!DOCTYPE html>")
    assert tree.get("lang") == "en"
    assert "".join(tree.find("head/title").itertext()).strip()  # type: ignore[union-attr]
    assert [item.get("content") for item in elements if item.get("name") == "viewport"]
    assert not FETCHING & {str(item.tag) for item in elements}
    assert not re.search(r"url\(|@import", html)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]", html)
    ids = Counter(item.get("id") for item in elements if item.get("id") is not None)
    assert [name for name, count in ids.items() if count > 1] == []
    assert [str(item.tag) for item in elements].count("h1") == 1
    for item in elements:
        assert not any(name.startswith("on") for name in item.keys())  # noqa: SIM118
        check_element(item, set(ids), folder)
    return tree


def check_element(item: Element, ids: set[str | None], folder: Path | None) -> None:
    if item.tag == "img":
        assert PICTURE.fullmatch(item.get("src") or "")
        assert (item.get("alt") or "").strip()
    if item.tag == "figure":
        assert "".join(item.find("figcaption").itertext()).strip()  # type: ignore[union-attr]
    if item.tag == "table":
        assert "".join(item.find("caption").itertext()).strip()  # type: ignore[union-attr]
        assert all(head.get("scope") for head in item.iter("th"))
    if item.tag == "a":
        place, _, anchor = (item.get("href") or "").partition("#")
        assert place or anchor in ids, f"no place {anchor!r}"
        if place and folder is not None and "://" not in place:
            assert (folder / place).is_file(), place
