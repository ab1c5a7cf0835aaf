"""Notebooks 04 and 07 executed by a kernel: on a few rows, on one, on none, and on two runs side by side."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import small_dataset
from nbformat import read

from rawtokens.__main__ import main
from rawtokens.notebook_stages.notebook_runs import execute_notebook
from rawtokens.notebook_stages.stages import read_stage_record
from rawtokens.reporting.figure_titles import figures_of
from rawtokens.reporting.run_index import write_index

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
REPORT = NOTEBOOKS / "04_report_token_statistics.ipynb"


def keep_rows(folder: Path, count: int) -> None:
    """Leave the first `count` generations of a data set."""
    table = pq.read_table(folder / "verified.parquet")
    pq.write_table(table.slice(0, count), folder / "verified.parquet")
    journal = folder / "raw_responses.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:count]))
    if not count:
        pq.write_table(pq.read_table(folder / "prompts.parquet").slice(0, 0), folder / "prompts.parquet")


@pytest.mark.parametrize("count", [0, 1, 8])
def test_the_report_is_made_of_any_number_of_rows(tmp_path: Path, count: int) -> None:
    folder = small_dataset.write(tmp_path / "run" / "small")
    keep_rows(folder, count)
    lines: list[str] = []
    execute_notebook(
        REPORT,
        executed=tmp_path / "04.ipynb",
        report=tmp_path / "04.html",
        parameters={"dataset": "small", "output_dir": str(folder)},
        title="Report",
        on_line=lines.append,
    )
    html = (tmp_path / "04.html").read_text(encoding="utf-8")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html)
    assert captions == [f"small: {title}" for title in figures_of(REPORT).values()]
    pictures = re.findall(r"<img [^>]*?alt=\"(.*?)\"", html)
    assert len(pictures) == len(captions)
    for caption, alt in zip(captions, pictures, strict=True):
        assert len(alt.split()) > 8, caption  # what kind of figure it is, then what it says
    assert "nan" not in re.sub(r"<[^>]*>", "", html)
    assert json.loads((folder / "summary.json").read_bytes())["generated"] == count
    assert "Traceback" not in html
    assert all(cell.source.count("\n") < 16 for cell in read(REPORT, as_version=4).cells)


def test_two_runs_are_compared_beside_the_second(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for run, temperature in (("one", 0.0), ("two", 0.0)):
        folder = small_dataset.write(tmp_path / run / "small")
        facts = {"sampling": {"temperature": temperature, "max_new_tokens": 16 if run == "one" else 32}}
        (folder / "run.json").write_text(json.dumps(facts))
    monkeypatch.chdir(tmp_path)
    settings = {"tokenizer": str(tmp_path / "tokenizer")}
    index = write_index(tmp_path / "two", datasets=["small"], settings=settings, older={"small": "why it is older"})
    before = index.read_text(encoding="utf-8")
    assert main(["compare", "one", "two"]) == 0
    link = '<a href="reports/07_compare_with_one.html">07 compare with one</a>'
    after = index.read_text(encoding="utf-8")
    assert link not in before
    assert [line for line in after.splitlines() if line not in before] == ["<ul>", f"<li>{link}</li>", "</ul>"]
    assert "why it is older" in after
    assert str(tmp_path) not in (tmp_path / "two" / ".index.json").read_text(encoding="utf-8")
    report = tmp_path / "two" / "reports" / "07_compare_with_one.html"
    assert capsys.readouterr().out.endswith(f"report: {report.relative_to(tmp_path)}\n")
    html = report.read_text(encoding="utf-8")
    assert "Compare · one and two" in html
    assert "8 keys are in both; 8 of 8 answers are identical id by id." in html
    assert "1 setting differs: sampling.max_new_tokens." in html
    assert str(tmp_path) not in html
    assert "<script" not in html
    executed = tmp_path / "two" / "notebooks" / "07_compare_with_one.ipynb"
    assert read_stage_record(executed) is not None
    assert str(tmp_path) not in executed.read_text(encoding="utf-8")
    assert not (tmp_path / "one" / "reports").exists()
    assert not (tmp_path / "one" / "index.html").exists()
    assert main(["compare", "one/small", "two/small"]) == 0
    assert 'href="small/reports/07_compare_with_one_small.html"' in index.read_text(encoding="utf-8")


def test_the_data_sets_of_one_run_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "AB":
        small_dataset.write(tmp_path / "one" / name)
    assert main(["compare", str(tmp_path / "one")]) == 0
    said = capsys.readouterr().out
    assert "A has 8 rows; B has 8 rows." in said
    assert "no two runs" not in said
    assert (tmp_path / "one" / "reports" / "07_compare_data_sets.html").exists()


@pytest.mark.parametrize("given", [["nothing"], ["one", "nothing"]])
def test_a_folder_that_is_no_run_is_refused_in_one_line(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_dataset.write(tmp_path / "one" / "small")
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *given]) == 2
    assert capsys.readouterr().err == (
        "rawtokens: nothing holds no verified.parquet, nor does a folder in it; give the folder of a run, outputs/RUN "
        "for one, that has come through stage 03\n"
    )
