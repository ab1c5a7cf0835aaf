import json
from pathlib import Path

import pytest

from rawtokens.errors import InputError
from rawtokens.notebook_stages import stages
from rawtokens.notebook_stages.stages import (
    file_state,
    forget_stage,
    is_current,
    read_stage_record,
    stage_digest,
    write_stage_record,
)


def write_notebook(path: Path, code: str, prose: str = "# A") -> Path:
    cells = [{"cell_type": "markdown", "source": prose}, {"cell_type": "code", "source": [code, "\n", "x = 1"]}]
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    return path


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    return write_notebook(tmp_path / "01_try.ipynb", "run()")


def test_a_digest_changes_with_code_parameters_and_inputs_alone(notebook: Path, tmp_path: Path) -> None:
    rows = tmp_path / "prompts.jsonl"
    rows.write_text("1")
    parameters: dict[str, str | int | float | bool] = {"limit": 1, "name": "a"}
    digest = stage_digest(notebook, parameters, [rows])

    assert stage_digest(notebook, {"name": "a", "limit": 1}, [rows]) == digest
    moved = tmp_path / "elsewhere.jsonl"
    moved.write_text("1")
    assert stage_digest(notebook, parameters, [moved]) == digest
    write_notebook(notebook, "run()", prose="# Other words")
    assert stage_digest(notebook, parameters, [rows]) == digest

    assert stage_digest(notebook, {"limit": 2, "name": "a"}, [rows]) != digest
    assert stage_digest(notebook, parameters, []) != digest
    rows.write_text("2")
    assert stage_digest(notebook, parameters, [rows]) != digest
    rows.write_text("1")
    write_notebook(notebook, "run_otherwise()")
    assert stage_digest(notebook, parameters, [rows]) != digest


def test_a_digest_changes_with_the_kit(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = stage_digest(notebook, {}, [])
    monkeypatch.setattr(stages, "_kit_digest", lambda: "another version")
    assert stage_digest(notebook, {}, []) != digest


def test_a_large_file_counts_by_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "HASHED_WHOLE", 3)
    (tmp_path / "small").write_text("abc")
    (tmp_path / "large").write_text("abcd")
    assert file_state(tmp_path / "small").startswith("sha256:ba7816bf")
    assert file_state(tmp_path / "large").startswith("size:4,changed:")
    assert file_state(tmp_path / "none") == "missing"


def test_a_stage_is_current_while_its_outputs_are_as_it_left_them(tmp_path: Path) -> None:
    executed, output = tmp_path / "notebooks" / "01_try.ipynb", tmp_path / "prompts.parquet"
    executed.parent.mkdir()
    assert not is_current(executed, digest="d")
    output.write_text("rows")
    executed.write_text("{}")
    write_stage_record(executed, digest="d", outputs=[executed, output])

    assert is_current(executed, digest="d")
    assert not is_current(executed, digest="other")
    record = read_stage_record(executed)
    assert record is not None
    assert set(record.outputs) == {"01_try.ipynb", "../prompts.parquet"}
    output.write_text("other rows")
    assert not is_current(executed, digest="d")
    output.unlink()
    assert not is_current(executed, digest="d")


def test_an_output_that_never_came_is_not_current(tmp_path: Path) -> None:
    executed = tmp_path / "01_try.ipynb"
    write_stage_record(executed, digest="d", outputs=[tmp_path / "prompts.parquet"])
    assert not is_current(executed, digest="d")


def test_a_folder_that_moved_is_still_current(tmp_path: Path) -> None:
    executed = tmp_path / "here" / "01_try.ipynb"
    executed.parent.mkdir()
    executed.write_text("{}")
    write_stage_record(executed, digest="d", outputs=[executed])
    executed.parent.rename(tmp_path / "there")
    assert is_current(tmp_path / "there" / "01_try.ipynb", digest="d")


def test_a_forgotten_or_damaged_record_is_not_current(tmp_path: Path) -> None:
    executed = tmp_path / "01_try.ipynb"
    write_stage_record(executed, digest="d", outputs=[])
    (tmp_path / "01_try.stage.json").write_text("{")
    assert not is_current(executed, digest="d")
    forget_stage(executed)
    forget_stage(executed)
    assert read_stage_record(executed) is None


def test_what_is_no_notebook_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.ipynb can't be read as a notebook"):
        stage_digest(tmp_path / "none.ipynb", {}, [])
