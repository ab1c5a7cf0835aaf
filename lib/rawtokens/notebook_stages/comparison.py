"""Two runs, or the data sets of one, compared by notebook 07; its report lies beside the second run's.

It is no stage of a run: it reads what runs have left, changes nothing in them but the index that leads to it, and is
made anew each time it is asked for. This module does not know what is compared (run_comparison).
"""

from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from ..locking import lock
from ..reporting.run_index import INDEX_FACTS, INDEX_LOCK, rewrite_index
from .notebook_runs import execute_notebook
from .stages import digest_of, stage_parts, write_stage_record

NOTEBOOK = "07_compare_runs"
_TURN_SECONDS = 60.0


def compare_runs(
    first: Path, second: Path | None, *, notebooks: Path, on_line: Callable[[str], None] | None = None
) -> Path:
    """Execute notebook 07 on the folders of two runs, or on the data sets of `first` alone; returns the report's path.

    A folder of a single data set does as well. The run's index, where there is one, names the report. Raises
    InputError, before a kernel starts, where one of them holds no verified data set, and as `execute_notebook` does.
    """
    files = [path for folder in (first, second) if folder for path in _verified(folder)]
    place = second or first
    name = f"07_compare_with_{_name(first)}" if second else "07_compare_data_sets"
    executed, report = place / "notebooks" / f"{name}.ipynb", place / "reports" / f"{name}.html"
    notebook = notebooks / f"{NOTEBOOK}.ipynb"
    parameters = {"run_a": str(first.resolve()), "run_b": str(second.resolve()) if second else ""}
    title = f"{_name(first)} and {_name(second)}" if second else f"Data sets of {_name(first)}"
    execute_notebook(
        notebook, executed=executed, report=report, parameters=parameters, title=f"Compare · {title}", on_line=on_line
    )
    parts = stage_parts(notebook, {}, files)
    write_stage_record(executed, digest=digest_of(parts), outputs=[executed, report], parts=parts)
    whole = place.resolve()
    run_folder = whole.parent if (whole / "verified.parquet").is_file() else whole
    if (run_folder / INDEX_FACTS).is_file():
        with lock(run_folder / INDEX_LOCK, wait_seconds=_TURN_SECONDS):
            rewrite_index(run_folder)
    return report


def _verified(folder: Path) -> list[Path]:
    found = [
        path for path in (folder / "verified.parquet", *sorted(folder.glob("*/verified.parquet"))) if path.is_file()
    ]
    if not found:
        raise InputError(
            f"{folder} holds no verified.parquet, nor does a folder in it; give the folder of a run, outputs/RUN for "
            "one, that has come through stage 03"
        )
    return found


def _name(folder: Path) -> str:
    """A run's name, or RUN_DATASET for the folder of one data set."""
    whole = folder.resolve()
    return f"{whole.parent.name}_{whole.name}" if (whole / "verified.parquet").is_file() else whole.name
