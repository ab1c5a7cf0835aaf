"""The study's committed page, from counts that are known."""

import re
from itertools import takewhile
from pathlib import Path

import pandas as pd
from test_study_results import sequences, study

from rawtokens.study.forms import ARMS
from rawtokens.study.page import markdown, write_page


def test_a_table_has_fractions_in_their_form_counts_with_separators_and_a_dash_for_nothing() -> None:
    table = pd.DataFrame({"rows": [1_200, 3], "share": [0.25, float("nan")]}, index=["a", "b"]).rename_axis("arm")
    assert markdown(table, "{:.1%}").splitlines() == [
        "| arm | rows | share |",
        "|---|---:|---:|",
        "| a | 1,200 | 25.0% |",
        "| b | 3 | – |",
    ]


def test_the_page_holds_every_arm_the_command_and_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("<p>report</p>")
    given = study({"verbatim": [sequences(6)], "template": [sequences(2)]})
    page = write_page(tmp_path / "example", given, report, command="python -m rawtokens.study --form full")
    text = page.read_text("utf-8")
    assert "| as captured | 1.60 |" in text
    assert "| parsed, re-rendered by the template | 1.20 |" in text
    assert "trained by speculators==0.9.0 on captures" in text
    assert "Made by `python -m rawtokens.study --form full` on " in text
    files = sorted(path.name for path in page.parent.iterdir())
    assert files == ["drafter_study.html", "drafter_study.md", "drafter_study.svg", "drafter_study_positions.svg"]
    assert (page.parent / "drafter_study.html").read_text() == "<p>report</p>"
    before = {name: (page.parent / name).read_bytes() for name in files}
    write_page(page.parent, given, report, command="python -m rawtokens.study --form full")
    assert {name: (page.parent / name).read_bytes() for name in files} == before


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the Markdown table whose first cell is `heading`, without its head."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith(f"| {heading} |"))
    next(lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in takewhile(str.strip, lines)]


def test_the_readme_has_the_committed_pages_lengths_and_differences() -> None:
    root = Path(__file__).parents[1]
    page = table((root / "outputs" / "example" / "drafter_study.md").read_text("utf-8"), "arm")
    measured = {(length, float(low), float(high)) for _, length, *_, low, high in page[1:]}
    told = table((root / "README.md").read_text("utf-8"), "trained on")
    assert len(told) == len(page) == len(ARMS)
    assert told[0][1] == page[0][1]
    assert {(length, *map(float, re.findall(r"[+-][\d.]+", said)[-2:])) for _, length, said in told[1:]} == measured
