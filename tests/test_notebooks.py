"""The notebooks: their parameters as papermill sees them, and the whole run over tiny data on the real server."""

import ast
import json
import sys
from pathlib import Path

import nbformat
import papermill
import pyarrow.parquet as pq
import pytest
from html_pages import check_page

from rawtokens.__main__ import main
from rawtokens.demo.server import DemoServer
from rawtokens.notebook_stages.pipeline import NOTEBOOKS

ROOT = Path(__file__).parents[1]
NO_STAGE = ["06_compare_drafters", "07_compare_runs"]  # over a study, over whole runs
FILES = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def test_every_stage_has_its_notebook() -> None:
    assert [path.stem for path in FILES] == sorted([*NOTEBOOKS.values(), *NO_STAGE])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_papermill_sees_every_parameter_with_its_help(path: Path) -> None:
    (cell,) = [cell for cell in code_cells(path) if "parameters" in cell.metadata.get("tags", [])]
    assigned = [node.target.id for node in ast.parse(cell.source).body if isinstance(node, ast.AnnAssign)]  # type: ignore[union-attr]
    assert len(assigned) == len(ast.parse(cell.source).body)
    found = papermill.inspect_notebook(str(path))
    assert list(found) == assigned
    assert all(parameter["help"] for parameter in found.values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_cells_are_short_and_stripped_and_define_nothing(path: Path) -> None:
    cells = code_cells(path)
    assert len(cells) < 20
    for cell in cells:
        assert cell.outputs == []
        assert cell.execution_count is None
        assert cell.source.count("\n") < 16
        assert not any(line.startswith(("def ", "class ", "async def ")) for line in cell.source.splitlines())


@pytest.mark.engine
def test_a_run_goes_from_prompts_to_the_index(
    tmp_path: Path,
    demo_server: DemoServer,
    demo_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PLANTED_API_KEY", "planted-secret-value")
    prompts = ROOT / "lib" / "rawtokens" / "demo" / "prompts"
    run_file = tmp_path / "tiny.yaml"
    run_file.write_text(
        json.dumps(
            {
                "run": "tiny",
                "model": {"tokenizer": str(demo_folder), "template_kwargs": {"thinking": True}},
                "servers": {"urls": [demo_server.url], "api_key_env": "PLANTED_API_KEY"},
                "sampling": {"max_new_tokens": 48},
                "datasets": {
                    "B1_glaive": {"prompts": str(prompts / "B1_glaive.json"), "limit": 4},
                    "B2_opencodeinstruct": {"prompts": str(prompts / "B2_opencodeinstruct.parquet"), "limit": 4},
                },
            }
        )
    )
    assert main(["run", str(run_file), "--outputs", str(tmp_path / "outputs")]) == 0
    run_folder = tmp_path / "outputs" / "tiny"
    for name in ("B1_glaive", "B2_opencodeinstruct"):
        folder = run_folder / name
        prompt_ids = pq.read_table(folder / "prompts.parquet")["prompt_ids"].to_pylist()
        verified = pq.read_table(folder / "verified.parquet").to_pylist()
        assert len(prompt_ids) == len(verified) == 4
        journal = [json.loads(line) for line in (folder / "raw_responses.jsonl").read_text().splitlines()]
        for row, record in zip(verified, journal, strict=True):
            assert (row["key"], row["prompt_ids"], row["output_ids"]) == (
                record["key"],
                record["prompt_ids"],
                record["output_ids"],
            )
            assert row["prompt_ids"][-1] == 163606
        assert json.loads((folder / "summary.json").read_text())["generated"] == 4
        assert sorted(path.stem for path in (folder / "reports").iterdir()) == sorted(list(NOTEBOOKS.values())[1:])
    printed = "".join(capfd.readouterr()).replace(f"report: {run_folder / 'index.html'}", "")
    for text in [printed, *map(content_of, run_folder.rglob("*"))]:
        for planted in ("planted-secret-value", str(tmp_path), str(demo_folder), str(ROOT), sys.prefix):
            assert planted not in text
    for page in run_folder.rglob("*.html"):
        check_page(page.read_text(), folder=page.parent)
    for executed in run_folder.rglob("*.ipynb"):
        assert executed.stat().st_size < 2_000_000


def content_of(path: Path) -> str:
    """A file as text: Parquet row by row, since its pages are compressed."""
    if path.is_dir():
        return path.name
    return (
        str(pq.read_table(path).to_pylist())
        if path.suffix == ".parquet"
        else path.read_bytes().decode(errors="replace")
    )
