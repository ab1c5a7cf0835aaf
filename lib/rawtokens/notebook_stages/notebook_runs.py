"""Run a notebook under papermill, strictly, and leave an executed notebook and a report behind, come what may.

papermill 2.7 only warns of a parameter that the notebook doesn't have, takes values of any type, counts
`sys.exit(0)` as success, and writes parameters and paths in plain text; here the first two are refused before a
kernel starts, the third fails for want of the completion marker, and the last are cleaned. The kernel works in
the current folder (`kernel_runs` says which Python it is and how it dies). This module does not know what a
notebook does, nor whether it needs to run (`stages`).
"""

import difflib
import json
import math
from ast import literal_eval
from collections.abc import Callable, Mapping
from pathlib import Path

import nbformat
import papermill
from nbformat import NotebookNode

from ..errors import InputError, RawTokensError, RunStopped
from ..privacy import Scrubber, refuse_key
from ..reporting.display import COMPLETED, completed, shortened, visible
from ..reporting.reports import render_report
from .kernel_runs import KernelRun, Parameter, literal_path
from .stages import forget_stage

__all__ = ["check_parameters", "completed", "execute_notebook"]

NOTEBOOK_LIMIT = 1_800_000  # bytes of outputs; an executed notebook stays under 2 MB
PRINTED_LIMIT = 100_000  # characters of a cell's printed text that an executed notebook keeps

_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}


def execute_notebook(
    notebook: Path,
    *,
    executed: Path,
    report: Path,
    parameters: Mapping[str, Parameter],
    title: str,
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Execute `notebook` into `executed` and render it into `report`, both written whole or not at all.

    `on_line` gets each line that the notebook prints, as it comes, without paths and secrets. Raises InputError,
    before a kernel starts, for a notebook or a parameter that can't be used; afterwards the RawTokensError that a cell
    raised, or RunStopped for any other failure. The report is written in that case too, and the message says where.
    """
    check_parameters(notebook, parameters)
    executed.parent.mkdir(parents=True, exist_ok=True)
    forget_stage(executed)
    running = executed.with_name(f"{executed.stem}.running.ipynb")
    scrubber = Scrubber([*parameters.values(), executed.parent.parent])
    run = KernelRun((lambda line: on_line(scrubber.text(line))) if on_line else None)
    try:
        failure = run.execute(notebook, running, parameters)
        if not running.is_file():
            raise RunStopped(f"{notebook.name} could not be run: {_one_line(str(failure))}")
        try:
            result = nbformat.read(running, as_version=4)
        except (OSError, ValueError) as damage:  # papermill saves after every cell, on a full disk half a notebook
            cause = _one_line(str(failure or damage))
            raise RunStopped(
                f"{notebook.name}: {running} can't be written whole ({cause}); make room, run it again"
            ) from damage
    finally:
        running.unlink(missing_ok=True)
    result.cells = [cell for cell in result.cells if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])]
    # A signal stops the run even where the notebook came to its end: whoever sent it wants no next stage.
    error = _error(failure, result, notebook, run) if failure or run.signal_name else _unfinished(result, notebook)
    if error and (run.signal_name or not isinstance(failure, papermill.PapermillExecutionError)):
        _note(result, error)
    _clean(result, scrubber)
    try:
        nbformat.write(result, running)
        running.replace(executed)
    finally:
        running.unlink(missing_ok=True)
    render_report(executed, report, title=title)
    if error:
        raise type(error)(f"{scrubber.text(str(error))}; the report shows the cell: {report}")


def check_parameters(notebook: Path, parameters: Mapping[str, Parameter]) -> None:
    """Raise InputError for an unknown parameter, a value of another type than the default's, or a key-like value."""
    if not notebook.is_file():
        raise InputError(f"there is no notebook {notebook}")
    try:
        known = papermill.inspect_notebook(literal_path(notebook))
    except Exception as error:  # papermill and nbformat raise many kinds for a file that is no notebook
        raise InputError(f"{notebook} can't be read as a notebook: {_one_line(str(error))}") from error
    for name, value in parameters.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(known) or 'none'}"
            raise InputError(f"{notebook.name} has no parameter {name}; {hint}")
        kind = known[name]["inferred_type_name"]
        if kind not in _TYPES:
            kind = _type_of_default(known[name]["default"])
        if not isinstance(value, _TYPES.get(kind, ())) or (isinstance(value, bool) and kind != "bool"):
            raise InputError(
                f"{notebook.name}: {name} must be {kind or 'declared with a type'}, not {type(value).__name__}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{notebook.name}: {name} must be a finite number, not {value}")
        if isinstance(value, str):
            refuse_key(f"{notebook.name}: {name}", value)


def _type_of_default(source: str) -> str:
    try:
        return type(literal_eval(source)).__name__
    except (ValueError, SyntaxError):
        return ""


def _error(failure: Exception | None, result: NotebookNode, notebook: Path, run: KernelRun) -> RawTokensError:
    """The failure as one of the kit's errors, with the class that the cell raised where it is one of them."""
    if run.signal_name:
        return RunStopped(f"{notebook.name} was interrupted ({run.signal_name})")
    if not isinstance(failure, papermill.PapermillExecutionError):
        what = _one_line(str(failure)) or type(failure).__name__
        if not run.ready:
            return RunStopped(f"{notebook.name}: no kernel started: {what}")
        number = max((cell.execution_count or 0 for cell in result.cells if cell.cell_type == "code"), default=0)
        return RunStopped(f"{notebook.name} stopped at cell [{number}]: {what} (is there enough memory?)")
    kind = _kit_errors().get(failure.ename)
    if kind:
        return kind(f"{notebook.name}: {_one_line(failure.evalue)}")
    what = f"{failure.ename}: {_one_line(failure.evalue)}"
    return RunStopped(f"{notebook.name} failed in cell [{failure.exec_count}]: {what}")


def _unfinished(result: NotebookNode, notebook: Path) -> RawTokensError | None:
    marker = COMPLETED + notebook.stem
    if any(output.get("data", {}).get("text/plain") == marker for output in _outputs(result)):
        return None
    return RunStopped(f"{notebook.name} ended without its completion marker; did a cell call sys.exit?")


def _kit_errors() -> dict[str, type[RawTokensError]]:
    found: dict[str, type[RawTokensError]] = {}
    kinds = [RawTokensError]
    while kinds:
        kind = kinds.pop()
        found[kind.__name__] = kind
        kinds += kind.__subclasses__()
    return found


def _note(result: NotebookNode, error: RawTokensError) -> None:
    """Put the error, which the kernel doesn't know of, under the last cell that ran."""
    ran = [cell for cell in result.cells if cell.cell_type == "code" and cell.execution_count]
    cells = ran or [cell for cell in result.cells if cell.cell_type == "code"]
    if cells:
        output = nbformat.v4.new_output("error", ename=type(error).__name__, evalue=str(error), traceback=[str(error)])
        cells[-1].outputs.append(output)


def _clean(result: NotebookNode, scrubber: Scrubber) -> None:
    """Take out the machine's paths, secrets, what papermill stored of both, and what would make the file too large."""
    papermill_facts = result.metadata.get("papermill", {})
    for name in ("input_path", "output_path", "parameters", "environment_variables"):
        papermill_facts.pop(name, None)
    used = 0
    for output in _outputs(result):
        if output.output_type == "stream":
            output.text = shortened(output.text, PRINTED_LIMIT)
        size = len(json.dumps(output, ensure_ascii=False).encode())
        used += size
        if used > NOTEBOOK_LIMIT and output.output_type != "error" and not _is_marker(output):
            note = f"[an output of {size:,} bytes is left out: the notebook would be too large]"
            output.clear()
            output.update(nbformat.v4.new_output("stream", name="stdout", text=note))
            used -= size
    scrubber.tree(result)


def _is_marker(output: NotebookNode) -> bool:
    return str(output.get("data", {}).get("text/plain", "")).startswith(COMPLETED)


def _outputs(result: NotebookNode) -> list[NotebookNode]:
    return [output for cell in result.cells if cell.cell_type == "code" for output in cell.outputs]


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))[:2000]
