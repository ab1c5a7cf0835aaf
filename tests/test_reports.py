"""Pages are rendered from notebooks that are built here: no kernel starts."""

from pathlib import Path

import pytest
from html_pages import check_page
from nbformat import NotebookNode, write
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from rawtokens.errors import InputError
from rawtokens.reporting.reports import render_report

HOSTILE = "</pre></code></details></main><script>alert(1)</script><img src=x onerror=alert(1)>\x00\x1b[31m\u202eevil"
ALLOWED_TAGS = """
html head meta title style body header h1 h2 main section details summary pre code div p strong a img nav ul li
"""


def page_of(tmp_path: Path, *cells: NotebookNode, title: str = "A title") -> str:
    kernelspec = {"name": "python3", "language": "python", "display_name": "Python 3"}
    notebook = new_notebook(metadata={"kernelspec": kernelspec})
    notebook.cells = list(cells)
    write(notebook, tmp_path / "executed.ipynb")
    render_report(tmp_path / "executed.ipynb", tmp_path / "reports" / "report.html", title=title)
    return (tmp_path / "reports" / "report.html").read_text(encoding="utf-8")


def code_cell(*outputs: NotebookNode, source: str = "run()", tags: tuple[str, ...] = ()) -> NotebookNode:
    cell = new_code_cell(source, outputs=list(outputs))
    cell.metadata.tags = list(tags)
    return cell


def displayed(**data: str) -> NotebookNode:
    return new_output("display_data", data={name.replace("_", "/"): text for name, text in data.items()})


def test_a_page_has_title_contents_settings_and_folded_code(tmp_path: Path) -> None:
    html = page_of(
        tmp_path,
        new_markdown_cell("# Verify responses\n\nYou do.\n\n## Lengths & shapes"),
        code_cell(source='limit: int = 3  # rows at most\nname: str = "a"', tags=("parameters",)),
        code_cell(source='# Parameters\nname = "<b>"\n', tags=("injected-parameters",)),
        new_markdown_cell("### Lengths"),
        code_cell(new_output("stream", name="stdout", text="hello"), source="print('<i>')"),
        title="demo & B1",
    )
    check_page(html)
    assert "<title>demo &amp; B1</title>" in html
    assert html.count("<h1") == 1
    assert '<li class="level2"><a href="#section-2">Lengths &amp; shapes</a></li>' in html
    assert '<h3 id="section-3">Lengths</h3>' in html
    assert '<th scope="row">limit</th><td>3</td><td>rows at most</td>' in html
    assert '<th scope="row">name</th><td>&#39;&lt;b&gt;&#39;</td><td></td>' in html
    assert html.count('<details class="code">') == 1
    assert "print(&#39;&lt;i&gt;&#39;)" in html
    assert "<pre>hello</pre>" in html


def test_a_page_of_hostile_text_runs_and_fetches_nothing(tmp_path: Path) -> None:
    html = page_of(
        tmp_path,
        new_markdown_cell(f"## {HOSTILE}"),
        code_cell(
            new_output("stream", name="stdout", text=HOSTILE),
            new_output("error", ename="E", evalue=HOSTILE, traceback=[HOSTILE, "\x1b[31mred\x1b[0m"]),
            displayed(text_html=HOSTILE, text_plain=HOSTILE),
            displayed(text_markdown=HOSTILE),
            displayed(text_plain=HOSTILE),
            new_output("display_data", data={"application/javascript": "alert(1)", "text/plain": "a script"}),
            new_output("display_data", data={"image/png": '"><script>'}, metadata={"alt": HOSTILE}),
            source=HOSTILE,
        ),
        title=HOSTILE,
    )
    tree = check_page(html)
    assert {str(item.tag) for item in tree.iter()} <= set(ALLOWED_TAGS.split())
    assert all((item.get("href") or "#").startswith("#") for item in tree.iter())
    assert html.count("⟨U+202E⟩evil") == html.count("evil") > 8


def test_a_page_stays_under_a_megabyte_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    picture = f'<figure><img src="data:image/png;base64,{"A" * 300_000}" alt="a"><figcaption>b</figcaption></figure>'
    html = page_of(
        tmp_path,
        code_cell(new_output("stream", name="stdout", text="x" * 10_000_000)),
        code_cell(displayed(text_html="<p>" + "y" * 500_000)),
        code_cell(*[displayed(text_html=picture)] * 4),
        new_markdown_cell("The end."),
    )
    check_page(html)
    assert "characters left out" in html
    assert "[an output of 500,003 characters is too large for a report]" in html
    assert html.count("<figure>") == 2
    assert html.count("[left out: the report is full") == 2
    assert "The end." in html


def test_text_is_counted_as_it_stands_in_the_page(tmp_path: Path) -> None:
    html = page_of(tmp_path, code_cell(*[new_output("stream", name="stdout", text='"' * 19_000)] * 15))
    check_page(html)  # &#34; is five times as long
    assert html.count("[left out: the report is full") == 15 - 9


def test_a_failure_stands_on_top_with_the_next_step(tmp_path: Path) -> None:
    error = new_output("error", ename="ServerError", evalue="no server at X", traceback=["Traceback", "File 1"])
    html = page_of(tmp_path, new_markdown_cell("# Generate"), code_cell(source="before()"), code_cell(error))
    check_page(html)
    assert html.index("This stage did not finish.") < html.index("<main>")
    assert html.count('id="failed-cell"') == 1
    assert html.count("ServerError: no server at X") == 2
    assert "run the same command (rawtokens run RUN.yaml) again" in html
    assert "File 1" in html
    assert '<details class="code" open><summary>Code</summary><pre><code>run()' in html
    assert html.count('<details class="code" open>') == 1


def test_a_page_explains_the_reasons_that_it_names(tmp_path: Path) -> None:
    table = '<table><tbody><tr><th scope="row">never_closed</th><td>3</td></tr></tbody></table>'
    html = page_of(tmp_path, new_markdown_cell("# A\n\n## B"), code_cell(displayed(text_html=table)))
    assert '<th scope="row"><a href="#reason-never_closed">never_closed</a></th>' in html
    assert '<h3 id="reason-never_closed">never_closed</h3>' in html
    assert '<a href="#reasons">What these words mean, and what to do</a>' in html
    assert html.count('<h3 id="reason-') == 1
    assert 'id="reasons"' not in page_of(tmp_path, code_cell())


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("Half of it is true.\n", '<p class="said">Half of it is true.</p>'),
        ("One.\nTwo.", '<p class="said">One.</p>\n<p class="said">Two.</p>'),
        ("name  count\na  1.\n", "<pre>name  count\na  1.</pre>"),
        ("  indented.", "<pre>indented.</pre>"),
    ],
)
def test_sentences_are_set_as_prose_and_columns_as_columns(tmp_path: Path, printed: str, shown: str) -> None:
    assert shown in page_of(tmp_path, code_cell(new_output("stream", name="stdout", text=printed)))


def test_a_page_without_heading_gets_its_title_as_one(tmp_path: Path) -> None:
    assert "<h1>A title</h1>" in page_of(tmp_path, code_cell())


def test_a_picture_keeps_its_alternative_text(tmp_path: Path) -> None:
    picture = new_output("display_data", data={"image/png": "iVBO\nRw0K"}, metadata={"alt": "a <line>"})
    html = page_of(tmp_path, code_cell(picture))
    assert '<img src="data:image/png;base64,iVBORw0K" alt="a &lt;line&gt;">' in html


def test_what_is_no_notebook_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "executed.ipynb").write_text("{")
    with pytest.raises(InputError, match=r"executed.ipynb can't be read"):
        render_report(tmp_path / "executed.ipynb", tmp_path / "report.html", title="t")
