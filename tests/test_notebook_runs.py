"""Notebooks run for real, with kernels; each start costs seconds, so one run serves many assertions."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from nbformat import read, write
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from rawtokens.errors import InputError, RunStopped, ServerError
from rawtokens.notebook_stages.notebook_runs import check_parameters, execute_notebook
from rawtokens.notebook_stages.stages import read_stage_record, write_stage_record

PARAMETERS = (
    'dataset: str = "B1"  # which data set\nlimit: int = 3  # rows\nrate: float = 1.0  # a second\nfast: bool = False'
)


def write_notebook(path: Path, *cells: str, marker: bool = True) -> Path:
    parameters = new_code_cell(PARAMETERS)
    parameters.metadata.tags = ["parameters"]
    ending = [f"from rawtokens.reporting.display import completed\ncompleted({path.stem!r})"] if marker else []
    kernelspec = {"name": "python3", "language": "python", "display_name": "Python 3"}
    notebook = new_notebook(metadata={"kernelspec": kernelspec})
    notebook.cells = [new_markdown_cell("# Try it"), parameters, *map(new_code_cell, [*cells, *ending])]
    write(notebook, path)
    return path


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    return write_notebook(tmp_path / "01_try.ipynb", "print(dataset)")


def test_a_run_leaves_a_clean_notebook_and_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A kernelspec named python3 that comes first on Jupyter's path, and is not this Python.
    other = tmp_path / "jupyter" / "kernels" / "python3"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text(json.dumps({"argv": ["false"], "display_name": "x", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PLANTED_API_KEY", "planted-secret-value")
    monkeypatch.chdir(tmp_path)
    notebook = write_notebook(
        tmp_path / "01_{try}.ipynb",
        "import os, sys\nprint(sys.executable)\nprint(os.getcwd(), os.environ['PLANTED_API_KEY'])",
        "for step in range(3):\n    print(step, end='\\r', flush=True)\nprint(f'{dataset} {limit} {rate} {fast}')",
        "print('error line', file=sys.stderr)",
    )
    executed, report = tmp_path / "B1" / "notebooks" / "01_{try}.ipynb", tmp_path / "B1" / "reports" / "01.html"
    lines: list[str] = []

    execute_notebook(
        notebook,
        executed=executed,
        report=report,
        parameters={"dataset": "B{2}", "limit": 5, "rate": 2, "fast": True},
        title="demo B2",
        on_line=lines.append,
    )

    assert lines[:2] == ["[python]/bin/python", ". [secret]"]
    assert {"0", "1", "2", "B{2} 5 2 True", "error line"} <= set(lines)
    for text in (executed.read_text(), report.read_text()):
        assert str(tmp_path) not in text
        assert sys.prefix not in text
        assert "planted-secret-value" not in text
        assert "[secret]" in text
    assert sorted(path.name for path in executed.parent.iterdir()) == ["01_{try}.ipynb"]
    assert not {"parameters", "input_path", "output_path"} & set(read(executed, as_version=4).metadata.papermill)
    assert "<title>demo B2</title>" in report.read_text()
    assert '<th scope="row">limit</th><td>5</td><td>rows</td>' in report.read_text()


def test_what_lies_elsewhere_is_named_without_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("work", "disk/outputs/demo/B1", "disk/prompts"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PLANTED_API_KEY", "planted-secret-value")
    folder, prompts = tmp_path / "disk" / "outputs" / "demo" / "B1", tmp_path / "disk" / "prompts" / "a.jsonl"
    notebook = write_notebook(
        tmp_path / "01_try.ipynb",
        f"print(dataset, '{folder}/x.parquet', '{folder.parent}')",
        "import os\nfrom rawtokens.errors import InputError\n"
        f"raise InputError(os.environ['PLANTED_API_KEY'] + ' {prompts} {folder}')",
    )
    executed, report = folder / "notebooks" / "01_try.ipynb", folder / "reports" / "01_try.html"
    told: list[str] = []
    with pytest.raises(InputError) as refusal:
        execute_notebook(
            notebook,
            executed=executed,
            report=report,
            parameters={"dataset": str(prompts), "limit": 5},
            title="t",
            on_line=told.append,
        )
    assert told == ["a.jsonl B1/x.parquet demo"]
    said, where = str(refusal.value).split("; the report shows the cell: ")
    assert said == "01_try.ipynb: [secret] a.jsonl B1"
    assert where == str(report)
    for text in (executed.read_text(), report.read_text()):
        assert str(tmp_path) not in text
        assert "planted-secret-value" not in text


def test_an_executed_notebook_stays_under_two_megabytes(tmp_path: Path) -> None:
    show = "from IPython.display import display\ndisplay({'text/html': '<p>' + 'x' * 500_000}, raw=True)"
    notebook = write_notebook(tmp_path / "01_big.ipynb", *[show] * 4, "print(('y' * 99 + chr(10)) * 30_000)")
    executed = tmp_path / "e.ipynb"
    execute_notebook(notebook, executed=executed, report=tmp_path / "r.html", parameters={}, title="t")
    assert executed.stat().st_size < 2_000_000
    assert executed.read_text().count("bytes is left out: the notebook would be too large]") == 1
    assert executed.read_text().count("characters left out") == 1


def test_a_failed_cell_decides_the_error_and_is_shown(tmp_path: Path) -> None:
    notebook = write_notebook(
        tmp_path / "02_fail.ipynb", "from rawtokens.errors import ServerError", "raise ServerError('no server at X')"
    )
    executed, report = tmp_path / "out" / "02_fail.ipynb", tmp_path / "out" / "02_fail.html"
    executed.parent.mkdir()
    write_stage_record(executed, digest="of the last run", outputs=[])

    with pytest.raises(
        ServerError, match=r"^02_fail.ipynb: no server at X; the report shows the cell: .*02_fail.html$"
    ):
        execute_notebook(notebook, executed=executed, report=report, parameters={}, title="t")

    assert "ServerError: no server at X" in report.read_text()
    assert 'id="failed-cell"' in report.read_text()
    assert not any(cell.metadata.get("tags") == ["papermill-error-cell-tag"] for cell in read(executed, 4).cells)
    assert read_stage_record(executed) is None


def test_a_notebook_that_leaves_early_is_not_taken_for_done(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "03_exit.ipynb", "import sys\nsys.exit(0)")

    with pytest.raises(RunStopped, match="without its completion marker"):
        execute_notebook(notebook, executed=tmp_path / "e.ipynb", report=tmp_path / "r.html", parameters={}, title="t")

    assert "without its completion marker" in (tmp_path / "r.html").read_text()


def write_waiting_notebook(folder: Path) -> Path:
    """A notebook whose kernel holds a lock, as the writer of a journal does, and waits."""
    return write_notebook(
        folder / "04_wait.ipynb",
        "import fcntl, os, pathlib, time\nlock = open('lock', 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)",
        "try:\n    pathlib.Path('locked').touch()\n    time.sleep(600)\nfinally:\n    pathlib.Path('closed').touch()",
    )


def wait_for(file: Path) -> None:
    end = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < end, f"{file.name} did not come"
        time.sleep(0.05)


def lock_is_freed_within(seconds: float, folder: Path) -> bool:
    end = time.monotonic() + seconds
    with (folder / "lock").open("w") as lock:
        while time.monotonic() < end:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
            else:
                return True
    return False


PARENT = """
from pathlib import Path
from rawtokens.notebook_stages.notebook_runs import execute_notebook
execute_notebook(Path("04_wait.ipynb"), executed=Path("e.ipynb"), report=Path("r.html"), parameters={}, title="t")
"""


def test_a_kernel_dies_with_its_parent_by_kill_9(tmp_path: Path) -> None:
    write_waiting_notebook(tmp_path)
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path) as parent:
        try:
            wait_for(tmp_path / "locked")
            assert not lock_is_freed_within(0.2, tmp_path)
        finally:
            parent.send_signal(signal.SIGKILL)
    assert lock_is_freed_within(20, tmp_path)
    assert not (tmp_path / "closed").exists()


def test_a_signal_reaches_the_kernel_and_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = write_waiting_notebook(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def terminate() -> None:
        wait_for(tmp_path / "locked")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    with pytest.raises(RunStopped, match=r"^04_wait.ipynb was interrupted \(SIGTERM\); the report shows the cell: "):
        execute_notebook(notebook, executed=tmp_path / "e.ipynb", report=tmp_path / "r.html", parameters={}, title="t")

    assert (tmp_path / "closed").exists()  # the cell could end its work
    assert lock_is_freed_within(20, tmp_path)
    page = (tmp_path / "r.html").read_text()
    assert "was interrupted (SIGTERM)" in page
    assert "nothing is lost. Run the same command again" in page
    assert not list(tmp_path.glob("*.running.ipynb"))
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"limits": 3}, "has no parameter limits; did you mean limit?"),
        ({"zzz": 3}, "has no parameter zzz; it has: dataset, limit, rate, fast"),
        ({"limit": "3"}, "limit must be int, not str"),
        ({"limit": True}, "limit must be int, not bool"),
        ({"limit": 3.0}, "limit must be int, not float"),
        ({"dataset": 3}, "dataset must be str, not int"),
        ({"fast": 1}, "fast must be bool, not int"),
        ({"rate": float("inf")}, "rate must be a finite number, not inf"),
        ({"dataset": "sk-1234567890"}, "dataset looks like a key"),
        ({"dataset": "Bearer abcdef123"}, "dataset looks like a key"),
        ({"dataset": "hf_abcdefghij"}, "dataset looks like a key"),
    ],
)
def test_unusable_parameters_are_refused_before_a_kernel_starts(
    notebook: Path, tmp_path: Path, parameters: dict[str, str | int | float | bool], complaint: str
) -> None:
    executed = tmp_path / "executed.ipynb"
    with pytest.raises(InputError) as refusal:
        execute_notebook(notebook, executed=executed, report=tmp_path / "r.html", parameters=parameters, title="t")
    assert complaint in str(refusal.value)
    assert not any(secret in str(refusal.value) for secret in ("1234567890", "abcdef"))
    assert not executed.exists()


def test_usable_parameters_pass(notebook: Path) -> None:
    check_parameters(notebook, {"dataset": "", "limit": -1, "rate": 2, "fast": True})


def test_what_is_no_notebook_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no notebook .*missing.ipynb"):
        check_parameters(tmp_path / "missing.ipynb", {})
    (tmp_path / "broken.ipynb").write_text("{")
    with pytest.raises(InputError, match=r"broken.ipynb can't be read as a notebook"):
        check_parameters(tmp_path / "broken.ipynb", {})


def test_half_a_notebook_on_a_full_disk_is_one_line(
    tmp_path: Path, notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_: object, notebook: Path, running: Path, parameters: object) -> Exception:
        running.write_text('{"cells": [')
        return OSError(28, "No space left on device")

    monkeypatch.setattr("rawtokens.notebook_stages.kernel_runs.KernelRun.execute", half)
    executed = tmp_path / "out" / "01_try.ipynb"
    with pytest.raises(RunStopped, match=r"No space left on device\); make room, run it again"):
        execute_notebook(notebook, executed=executed, report=tmp_path / "r.html", parameters={}, title="t")
    assert list(executed.parent.iterdir()) == []
