"""Every page of the demo's report in a real browser; `make demo` makes them, outputs/screenshots/ gets pictures."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Tab, Visit, open_tab
from nbformat import write
from nbformat.v4 import new_code_cell, new_notebook, new_output
from test_reports import HOSTILE

from rawtokens.reporting.reports import render_report

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "outputs" / "demo"
PAGES = sorted(path.relative_to(DEMO) for path in DEMO.rglob("*.html"))
SMALLEST = 9.5  # pixels
PICTURES = ROOT / "outputs" / "screenshots"

pytestmark = pytest.mark.chromium


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with open_tab() as found:
        yield found


def test_the_demo_has_been_run() -> None:
    assert Path("index.html") in PAGES, "run make demo first"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_is_quiet_and_fits(tab: Tab, page: Path, width: int) -> None:
    visit = Visit(tab, (DEMO / page).as_uri(), width)
    picture = PICTURES / f"{'-'.join(page.with_suffix('').parts)}-{width}.png"
    picture.parent.mkdir(exist_ok=True)
    picture.write_bytes(visit.picture)
    assert visit.complaints == []
    assert visit.requests == [(DEMO / page).as_uri()]
    assert visit.scroll_width <= width
    assert visit.smallest_letters >= SMALLEST


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_prints(tab: Tab, page: Path) -> None:
    Visit(tab, (DEMO / page).as_uri(), 1280)
    printed = tab.printed()
    assert printed.startswith(b"%PDF")
    assert 1 <= printed.count(b"/Type /Page\n") <= 60


def test_hostile_text_runs_nothing_in_a_browser(tab: Tab, tmp_path: Path) -> None:
    outputs = [
        new_output("stream", name="stdout", text=HOSTILE),
        new_output("error", ename="E", evalue=HOSTILE, traceback=[HOSTILE]),
        *(new_output("display_data", data={kind: HOSTILE}) for kind in ("text/html", "text/markdown", "text/plain")),
    ]
    write(new_notebook(cells=[new_code_cell(HOSTILE, outputs=outputs)]), tmp_path / "executed.ipynb")
    render_report(tmp_path / "executed.ipynb", tmp_path / "report.html", title=HOSTILE)
    visit = Visit(tab, (tmp_path / "report.html").as_uri(), 390)
    assert visit.complaints == []
    assert visit.requests == [(tmp_path / "report.html").as_uri()]
    assert tab.value("document.scripts.length") == 0


def test_the_check_itself_hears_a_page_that_complains_and_asks(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<script>console.error('x')</script><img src=missing.png><p style='width:9000px'>a"
    )
    visit = Visit(tab, (tmp_path / "bad.html").as_uri(), 390)
    assert any("console" in complaint for complaint in visit.complaints)
    assert any(url.endswith("missing.png") for url in visit.requests)
    assert visit.scroll_width > 390
