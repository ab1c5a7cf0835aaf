import json
import re
from pathlib import Path

import pytest
import small_dataset
from html_pages import check_page
from nbformat import write
from nbformat.v4 import new_code_cell, new_notebook, new_output

from rawtokens.errors import InputError
from rawtokens.notebook_stages.stages import write_stage_record
from rawtokens.reporting.run_index import run_table, write_index

HEAD = "data set,rows,without a prompt,responses,failed,accepted,flagged,rejected,median reasoning,thinking ended"
SUMMARY = {
    "dataset": "B1",
    "rows": 1200,
    "prompts": 1195,
    "rejected_before_generation": 5,
    "rejected_at_generation": 2,
    "generated": 1193,
    "accepted": 1100,
    "flagged": 90,
    "rejected": 3,
    "median_reasoning_tokens": 1234.5,
    "share_closed": 0.875,
    "shapes": {"closed": 1044},
}

FIGURE = '<figure><img src="data:image/png;base64,AA==" alt="{name}"><figcaption>{name}</figcaption></figure>'


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "demo"
    for name in ("B1/notebooks", "B1/reports", "reports", "B2"):
        (folder / name).mkdir(parents=True)
    (folder / "B1" / "summary.json").write_text(json.dumps(SUMMARY))
    for report in ("reports/00_check_server", "B1/reports/01_tokenize_prompts", "B1/reports/04_report"):
        (folder / f"{report}.html").write_text("")
    write_stage_record(folder / "B1" / "notebooks" / "04_report.ipynb", digest="d", outputs=[])
    figures = [new_output("display_data", data={"text/html": FIGURE.format(name=name)}) for name in "abc"]
    write(new_notebook(cells=[new_code_cell(outputs=figures)]), folder / "B1" / "notebooks" / "04_report.ipynb")
    return folder


def test_an_index_links_every_report_and_sums_up(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run_folder)
    settings = {"model": "<kimi>", "urls": ["http://host"], "prompts": f"{run_folder}/prompts.jsonl"}
    html = write_index(run_folder, datasets=["B1", "B2"], settings=settings).read_text()
    check_page(html, folder=run_folder)
    assert "<title>rawtokens run demo</title>" in html
    assert '<a href="reports/00_check_server.html">00 check server (not finished)</a>' in html
    assert '<a href="B1/reports/01_tokenize_prompts.html">01 tokenize prompts (not finished)</a>' in html
    assert '<a href="B1/reports/04_report.html">04 report</a>' in html
    assert ">1,193</td>" in html
    assert ">87.5%</td>" in html
    assert ">1,234 ids</td>" in html
    assert html.count("<figure>") == 2
    assert "No stage has run yet." in html
    assert '<th scope="row">model</th><td>&lt;kimi&gt;</td>' in html
    assert '<th scope="row">urls</th><td>[&#34;http://host&#34;]</td>' in html
    assert "<td>./prompts.jsonl</td>" in html
    assert str(run_folder) not in html


def test_the_closing_table_tells_rows_from_responses(run_folder: Path) -> None:
    *table, legend = run_table(run_folder, datasets=["B1", "B2"]).splitlines()
    assert [line.split("  ") for line in map(squeezed, table)] == [
        [
            "data set",
            "rows",
            "without a prompt",
            "responses",
            "failed",
            "accepted",
            "flagged",
            "rejected",
            "median reasoning",
            "thinking ended",
        ],
        ["B1", "1,200", "5", "1,193", "2", "1,100", "90", "3", "1,234 ids", "87.5%"],
        ["B2", *["-"] * 9],
    ]
    assert len({len(line) for line in table}) == 1
    assert legend.startswith("(rows and those without a prompt: of the prompt file; responses = accepted + flagged")


def test_older_figures_are_marked_in_table_and_index(run_folder: Path) -> None:
    older = {"B1": "stage 04 has not run since: raw_responses.jsonl changed"}
    table = run_table(run_folder, datasets=["B1", "B2"], older=older).splitlines()
    assert table[1].startswith("B1 (older)  1,200  ")
    assert table[-1] == "B1: older figures, stage 04 has not run since: raw_responses.jsonl changed"
    html = write_index(run_folder, datasets=["B1", "B2"], settings={}, older=older).read_text()
    check_page(html, folder=run_folder)
    assert "B1 (older)</td>" in html or "B1 (older)</th>" in html
    assert "B1: older figures, stage 04 has not run since: raw_responses.jsonl changed</caption>" in html


def test_before_the_summary_the_table_has_what_is_known(run_folder: Path) -> None:
    small_dataset.write(run_folder / "B2")
    table = run_table(run_folder, datasets=["B2"]).splitlines()
    assert squeezed(table[1]).split("  ") == ["B2", "11", "1", "8", "1", "4", "3", "1", "-", "-"]


def squeezed(line: str) -> str:
    return re.sub(r" {2,}", "  ", line)


def test_the_guide_lies_beside_the_index(run_folder: Path) -> None:
    index = write_index(run_folder, datasets=["B1"], settings={})
    assert '<a href="reading_the_report.html">' in index.read_text()
    guide = (run_folder / "reading_the_report.html").read_text()
    check_page(guide, folder=run_folder)
    assert '<h3 id="never_closed">' in guide


def test_a_damaged_summary_is_named(run_folder: Path) -> None:
    (run_folder / "B2" / "summary.json").write_text("{")
    with pytest.raises(InputError, match=r"summary.json is damaged .* run stage 04 again"):
        run_table(run_folder, datasets=["B2"])


def test_an_index_of_many_data_sets_stays_under_a_megabyte_and_says_where_the_rest_is(run_folder: Path) -> None:
    picture = FIGURE.format(name="a").replace("AA==", "A" * 100_000)
    executed = new_notebook(cells=[new_code_cell(outputs=[new_output("display_data", data={"text/html": picture})])])
    names = [f"set{number:02}" for number in range(20)]
    for name in names:
        (run_folder / name / "notebooks").mkdir(parents=True)
        write(executed, run_folder / name / "notebooks" / "04_report.ipynb")
    html = write_index(run_folder, datasets=["B1", *names], settings={}).read_text()
    check_page(html, folder=run_folder)
    assert html.count("<figure>") == 2 + 8
    assert html.count("Its figures stand on its page 04; this page is full.") == 12
    assert html.index("this page is full") > html.index(names[7])


def test_what_a_killed_run_left_half_written_is_no_report(run_folder: Path) -> None:
    (run_folder / "B1" / "notebooks" / "04_report.running.ipynb").write_text('{"cells": [')
    assert write_index(run_folder, datasets=["B1"], settings={}).read_text().count("<figure>") == 2
    (run_folder / "B1" / "notebooks" / "04_report.ipynb").write_text('{"cells": [')
    with pytest.raises(InputError, match=r"04_report\.ipynb is damaged; run stage 04 again"):
        write_index(run_folder, datasets=["B1"], settings={})
