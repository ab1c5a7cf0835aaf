"""The guide explains every code that the code can give, and pages link to it."""

import ast
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest
from markupsafe import Markup
from prompt_rows import listed

import rawtokens
from rawtokens.capture.retrying import GENERATION_REASONS
from rawtokens.records import Shape
from rawtokens.reporting.reading_guide import HTTP_STATUS, entries, entry_of, explanations, guide_html, with_links
from rawtokens.response_checks.checks import DEFAULT_POLICY
from rawtokens.target import rendering
from rawtokens.training import policies
from rawtokens.turns.tool_results import FUNCTION_SECONDS

PACKAGE = Path(rawtokens.__file__).parent


def failure_codes() -> Iterator[str]:
    """What stage 02 and a replay can give: Failure(reason="..."), and _reject(.., "...", ..) of rendering."""
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "server_checks":  # those are said on page 00, with what to do
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id == "Failure":
                for word in node.keywords:
                    if word.arg == "reason":
                        yield from strings(word.value)
            if node.func.id in ("_reject", "BadRow", "Ended"):
                yield from (text for part in node.args[:2] for text in strings(part) if re.fullmatch("[a-z_]+", text))


def export_codes() -> Iterator[str]:
    """Why policies leaves a row out, but for the reasons of verification that it repeats."""
    yield "duplicate_prompt"
    for node in ast.walk(ast.parse(Path(policies.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Yield) and isinstance(node.value, ast.Constant | ast.IfExp):
            yield from filter(None, strings(node.value))


def strings(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*strings(node.body), *strings(node.orelse)]
    if isinstance(node, ast.JoinedStr):  # f"http_{status}"
        return [HTTP_STATUS]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def in_docstring(title: str) -> set[str]:
    text = rendering.tokenize_conversations.__doc__ or ""
    found = re.search(rf"^ *{title}: (.*?)\.$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return set(re.split(r",\s+", found[1].strip()))


CODES: dict[str, set[str]] = {
    "verification": set(DEFAULT_POLICY),
    "shapes": set(get_args(Shape)),
    "prompt rows": set(listed("Reasons")) | set(listed("Notices")),
    "rendering": in_docstring("Reasons") | in_docstring("Notices"),
    "generation": set(GENERATION_REASONS),
    "calls in the code": set(failure_codes()),
    "export": set(export_codes()),
}


@pytest.mark.parametrize("kind", CODES)
def test_every_code_has_an_entry_that_says_what_to_do(kind: str) -> None:
    assert CODES[kind]
    assert CODES[kind] - set(entries()) == set()
    for code in CODES[kind]:
        meaning, _, advice = entries()[code].partition("**What to do:**")
        assert len(meaning.split()) > 3, code
        assert advice.strip(), code


def test_no_entry_explains_what_no_code_gives() -> None:
    assert set(entries()) - {code for codes in CODES.values() for code in codes} == set()


def test_a_status_of_any_number_has_the_entry_of_all() -> None:
    assert entry_of("http_503") == HTTP_STATUS
    assert entry_of("never_closed") == "never_closed"
    assert entry_of("http_5") is None
    assert entry_of("kate") is None


def test_codes_in_cells_and_captions_become_links_and_nothing_else_does() -> None:
    html = Markup(
        '<table><tbody><tr><th scope="row">never_closed</th><td>loop</td><td>a loop</td><td>http_503</td>'
        "<td>left out: flagged: empty</td></tr></tbody>"
        "</table><figcaption>closed, verdict flag (empty_answer), an empty word</figcaption><pre>never_closed</pre>"
    )
    linked, codes = with_links(html)
    assert codes == ["never_closed", "loop", HTTP_STATUS, "empty", "empty_answer"]
    assert linked.count("<a href=") == 5
    assert '<td>left out: flagged: <a href="#reason-empty">empty</a></td>' in linked
    assert '<th scope="row"><a href="#reason-never_closed">never_closed</a></th>' in linked
    assert f'<td><a href="#reason-{HTTP_STATUS}">http_503</a></td>' in linked
    assert "an empty word" in linked
    assert "<pre>never_closed</pre>" in linked


def test_explanations_stand_in_the_guide_s_order_once() -> None:
    found = explanations(["loop", "closed", "loop"])
    assert [entry["code"] for entry in found] == ["closed", "loop"]
    assert "What to do:" in str(found[1]["html"])


def test_the_whole_guide_has_an_anchor_a_code() -> None:
    class Anchors(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.ids: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.ids += [value for name, value in attrs if name == "id" and value]

    anchors = Anchors()
    anchors.feed(str(guide_html()))
    assert anchors.ids == list(entries())


@pytest.mark.parametrize("page", ["README.md", "docs/run_file.md", "lib/rawtokens/reporting/reading_the_report.md"])
def test_pages_tell_for_how_long_a_tool_function_is_waited_for(page: str) -> None:
    assert f"within {FUNCTION_SECONDS / 60:.0f} minutes" in (PACKAGE.parents[1] / page).read_text(encoding="utf-8")
