import pytest

from rawtokens.reporting.safe_html import clean_html, prose_html

PNG = "data:image/png;base64,AA=="


@pytest.mark.parametrize(
    ("hostile", "clean"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("<img src=x onerror=alert(1)>", "[a picture that is not in this page]"),
        ('<img src="https://example.org/a.png" alt="a>b">', "[a picture that is not in this page]"),
        ('<img src="data:image/png;base64,AA==">', f'<img src="{PNG}" alt="a picture without a description">'),
        ('<img alt="" src="data:image/png;base64,AA==">', f'<img src="{PNG}" alt="a picture without a description">'),
        ('<img src="data:image/png;base64,AA==" alt="a>b">', f'<img src="{PNG}" alt="a>b">'),
        ('<img src="data:text/html;base64,PHNjcmlwdD4=">', "[a picture that is not in this page]"),
        ('<a href="javascript:alert(1)">a</a>', "<a>a</a>"),
        ('<a href="data:text/html,x">a</a>', "<a>a</a>"),
        ('<p onclick="f()" id="x" class="y">a</p>', '<p class="y">a</p>'),
        ('<p style="color: red; background: url(https://example.org)">a</p>', '<p style="color: red;">a</p>'),
        ('<iframe src="https://example.org"></iframe>', '&lt;iframe src="https://example.org"&gt;&lt;/iframe&gt;'),
        ("<svg><script>f()</script></svg>", "&lt;svg&gt;&lt;script&gt;f()&lt;/script&gt;&lt;/svg&gt;"),
        ("</pre></div>text", "text"),
        ("a\x00\x1b[31m\u202eb", "a⟨U+0000⟩⟨U+001B⟩[31m⟨U+202E⟩b"),
    ],
)
def test_hostile_html_is_inert(hostile: str, clean: str) -> None:
    assert clean_html(hostile) == clean


def test_the_kit_s_own_html_passes() -> None:
    for html in (
        '<figure><img src="data:image/svg+xml;base64,PHN2Zz4=" alt="a" style="max-width: 100%;"></figure>',
        '<div class="table" style="overflow-x: auto;"><table><caption>c</caption><thead><tr><th scope="col">n</th></tr>'
        '</thead><tbody><tr><td class="number" style="text-align: right;">1</td></tr></tbody></table></div>',
        '<pre dir="auto" style="white-space: pre-wrap;">a</pre>',
        '<a href="https://example.org">a</a>',
    ):
        assert clean_html(html) == html


def test_the_style_that_pandas_puts_before_a_table_goes() -> None:
    assert (
        clean_html("<div>\n<style scoped>\n .x {}\n</style>\n<table></table></div>") == "<div>\n\n<table></table></div>"
    )


def test_prose_becomes_html() -> None:
    assert prose_html("## A *b*\n\n![x](https://example.org/a.png) <script>f()</script>") == (
        "<h2>A <em>b</em></h2>\n<p>[a picture that is not in this page] &lt;script&gt;f()&lt;/script&gt;</p>\n"
    )
