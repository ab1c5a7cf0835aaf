"""Notebook 05 executed by a kernel: on a few rows, and on none that is left to train on."""

import json
import re
from pathlib import Path

import pytest
import training_data
from training_data import ROWS, Row

from rawtokens.notebook_stages.notebook_runs import execute_notebook
from rawtokens.reporting.figure_titles import figures_of
from rawtokens.reporting.wording import counted

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "05_export_training_data.ipynb"


@pytest.mark.parametrize(("rows", "kept"), [(ROWS, 7), (ROWS[7:8], 0)])
def test_the_notebook_exports_and_shows_any_number_of_rows(
    tmp_path: Path, kimi_folder: Path, rows: list[Row], kept: int
) -> None:
    folder = training_data.write(tmp_path / "run" / "small", rows)
    (tmp_path / "evaluation.jsonl").write_text('{"prompt": "What is two and two, and why is it so?"}\n')
    settings = {"formats": ["parquet", "torchspec"], "evaluation_prompts": [str(tmp_path / "evaluation.jsonl")]}
    execute_notebook(
        NOTEBOOK,
        executed=tmp_path / "05.ipynb",
        report=tmp_path / "05.html",
        parameters={
            "dataset": "small",
            "output_dir": str(folder),
            "tokenizer": str(kimi_folder),
            "training": json.dumps(settings),
        },
        title="Export",
    )
    html = (tmp_path / "05.html").read_text(encoding="utf-8")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html)
    figures = [f"small: {title}" for title in figures_of(NOTEBOOK).values()]
    assert [caption for caption in captions if not caption.startswith("key ")] == figures
    assert sum(caption.startswith("key ") for caption in captions) == (kept > 0)
    text = re.sub(r"<[^>]*>", "", html)
    assert f"{counted(len(rows), 'row')} verified = " in text
    assert f"Read back and held to raw_responses.jsonl: {counted(kept, 'row')} of every format." in text
    assert "evaluation.jsonl: 0 of 1 prompt share 13 ids" in text
    assert ("loss mask 1" in text) == (kept > 0)
    assert not re.search(r"\bnan\b", text)
    assert str(tmp_path) not in html
    made = {path.relative_to(folder / "training").as_posix() for path in (folder / "training").rglob("*.*")}
    assert {"manifest.json", "loss_report.json", "contamination.json", "draft_vocabulary/vocab_mapping.pt"} <= made
