"""The study's committed page, from counts that are known."""

from pathlib import Path

import pandas as pd
from test_study_results import sequences, study

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
