"""The committed example is what the code of today makes of the demo: its figures, its guide, its words."""

import re
import sys
from pathlib import Path

import pytest
from html_pages import check_page
from make_example import DATASET, EXAMPLE, KEPT, PAGE, PICTURES, main

from rawtokens.reporting.figure_titles import figures_of
from rawtokens.reporting.reading_guide import entries

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*(name for name in KEPT if name.endswith(".html")), "index.html", "reading_the_report.html"]
STALE = "the example is stale: run make demo, then make example"


def test_every_figure_of_the_notebook_is_in_the_example_and_no_other() -> None:
    html = (EXAMPLE / DATASET / "reports" / f"{PAGE}.html").read_text()
    captions = re.findall(r"<figure><img[^>]*><figcaption>(?:\w+: )?(.*?)</figcaption>", html)
    assert captions == list(figures_of(ROOT / "notebooks" / f"{PAGE}.ipynb").values()), STALE


def test_the_guide_is_that_of_the_code() -> None:
    guide = (EXAMPLE / "reading_the_report.html").read_text()
    assert re.findall(r'<h3 id="(\w+)">', guide) == list(entries()), STALE


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_valid_and_holds_no_path(name: str) -> None:
    html = (EXAMPLE / name).read_text()
    check_page(html, folder=(EXAMPLE / name).parent)
    for planted in (str(ROOT), sys.prefix, "/home/", "/work/", "/tmp/"):
        assert planted not in html


def test_the_example_is_small() -> None:
    assert sum((EXAMPLE / name).stat().st_size for name in PAGES) < 500_000
    assert all((EXAMPLE / name).stat().st_size < 200_000 for name in PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_one_and_readme_shows_it(name: str) -> None:
    assert (EXAMPLE / name).read_bytes().startswith(b"\x89PNG")
    assert re.search(rf"!\[[^\]]+\]\(outputs/example/{name}\)", README)


def test_without_the_demo_s_run_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path) == 2
    assert "run make demo first" in capsys.readouterr().err
