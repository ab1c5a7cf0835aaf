"""The notebooks: their parameters as papermill sees them, and the whole run over tiny data on the real server."""

import ast
import json
import re
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_notebook_begins_with_what_one_does_needs_and_gets(path: Path) -> None:
    first = nbformat.read(path, as_version=4).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert re.findall(r"^\*\*(.*?):\*\*", first.source, flags=re.MULTILINE) == [
        "What you do",
        "What you need",
        "What you get",
    ]


def shown(cell: nbformat.NotebookNode) -> list[str]:
    """What a code cell calls to show something, in order: show (a figure), show_table, print; of what it prints no
    text of its own alone."""
    calls = [node for node in ast.walk(compile_cell(cell.source)) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    computed = [call for call in calls if not (call.args and isinstance(call.args[0], ast.Constant))]
    names = [ast.unparse(call.func).removeprefix("display.") for call in computed]
    return [name for name in names if name in ("show", "show_table", "print")]


def compile_cell(source: str) -> ast.Module:
    tree: ast.Module = compile(source, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return tree


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_under_each_figure_stands_a_computed_sentence_and_beside_it_a_table(path: Path) -> None:
    cells = [shown(cell) for cell in code_cells(path)]
    for cell, following in zip(cells, [*cells[1:], []], strict=True):
        for place, name in enumerate(cell):
            if name == "show":
                assert "print" in cell[place:], "no sentence under a figure"
                assert "show_table" in [*cell, *following], "no table beside a figure"


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
