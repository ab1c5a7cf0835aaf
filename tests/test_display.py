import base64
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from rawtokens.reporting import display
from rawtokens.reporting.display import figure_html, printable, shortened, table_html


@given(st.text())
def test_nothing_invisible_passes(text: str) -> None:
    shown = printable(text)
    shown.encode()  # raises at a lone surrogate
    assert not set(shown) & {"\x00", "\x1b", "\r", "\x7f", "\u202e", "\u2066", "\u200b", "\ufeff", "\u2028"}


def test_visible_text_passes_unchanged() -> None:
    text = "tab\tnew\nline é 中文 مرحبا 👨‍👩‍👧 <script>"
    assert printable(text) == text


def test_what_is_hidden_is_named() -> None:
    assert printable("\x00\x1b[31m\u202e\ud800") == "⟨U+0000⟩⟨U+001B⟩[31m⟨U+202E⟩⟨U+D800⟩"


def test_a_long_text_says_how_much_is_left_out() -> None:
    assert shortened("a" * 6 + "b" * 6, 6) == "aaaa\n[... 6 characters left out ...]\nbb"
    assert len(printable("x" * 10_000_000)) < 7_000


def test_a_table_formats_escapes_and_aligns() -> None:
    frame = pd.DataFrame({"<name>": ["<b>", None], "ids": np.array([1234567, 8]), "share": [0.25, np.nan]})
    html = table_html(frame, caption="A & B", formats={"share": "{:.1%}"})
    number = '<td class="number" style="text-align:right">'
    assert "<caption>A &amp; B</caption>" in html
    assert '<th scope="col">&lt;name&gt;</th>' in html
    assert f"<td>&lt;b&gt;</td>{number}1,234,567</td>{number}25.0%</td>" in html
    assert f"{number}8</td>{number}–</td>" in html


def test_a_half_is_not_rounded_away() -> None:
    html = table_html(pd.DataFrame({"median": [28.5, 128.5, 1028.5, 128.4]}), caption="c")
    assert re.findall(r">([\d,.]+)</td>", html) == ["28.5", "128.5", "1,028.5", "128"]


def test_an_index_becomes_the_rows_headings() -> None:
    html = table_html(pd.DataFrame({"n": [1]}, index=["closed"]), caption="c", index=True)
    assert '<tr><th scope="col"></th><th scope="col">n</th></tr>' in html
    assert '<tr><th scope="row">closed</th>' in html


def test_a_figure_carries_its_text_and_no_date() -> None:
    def drawn() -> str:
        figure = Figure()
        figure.subplots().plot([1, 2])
        return figure_html(figure, alt='a "line"', caption="<up>")

    assert 'alt="a &quot;line&quot;"' in drawn()
    assert "<figcaption>&lt;up&gt;</figcaption>" in drawn()
    html = drawn()
    assert html.startswith('<figure><img src="data:image/svg+xml;base64,')
    drawing = base64.b64decode(html.split('"')[1].partition(",")[2])
    assert b"<text " in drawing  # letters as outlines would take three times the room
    assert drawn() == drawn()


def test_a_crowded_drawing_becomes_a_png() -> None:
    figure = Figure()
    figure.subplots().plot(np.random.default_rng(0).random(20_000), "o")
    assert figure_html(figure, alt="a", caption="c").startswith('<figure><img src="data:image/png;base64,')


def test_a_figure_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="alternative text"):
        figure_html(Figure(), alt=" ", caption="c")


def test_what_is_shown_reads_as_text_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(display, "display", lambda data, raw: shown.append(data))
    display.show_table(pd.DataFrame({"n": [1]}), caption="Counts")
    display.completed("01_try")
    assert shown[0]["text/plain"] == "Counts\n   n\n0  1"
    assert "<caption>Counts</caption>" in shown[0]["text/html"]
    assert shown[1] == {"text/plain": "rawtokens: completed 01_try"}


def test_a_table_without_rows_says_so() -> None:
    assert '<tr><td colspan="2">none</td></tr>' in table_html(pd.DataFrame({"a": [], "b": []}), caption="Empty")
