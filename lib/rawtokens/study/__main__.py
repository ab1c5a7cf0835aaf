"""`python -m rawtokens.study`: what infidelity costs a draft model, from the capture to the report.

All of it lies in one folder; what is there is not made again, so a study that was stopped goes on. It does not know how
a step is done.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..demo.server import PROJECT
from ..errors import InputError, RawTokensError
from ..journal import write_atomically
from ..notebook_stages.notebook_runs import execute_notebook
from ..target.target_tokenizer import load_tokenizer
from . import takeaways
from .arms import ArmRow, read_rows_of
from .capture import EVALUATION, TRAINING, capture
from .confirming import confirm
from .datasets import ArmFacts, write_arms, write_evaluation
from .forms import FORMS, VERBATIM, Form, form_of
from .measuring import Ground, measure
from .page import write_page
from .results import STUDY, Study

NOTEBOOK = PROJECT / "notebooks" / "06_compare_drafters.ipynb"


def run(folder: Path, model: Path, form: Form, *, workers: int = 0) -> Study:
    """The whole study into `folder`, but for its report. Raises RawTokensError."""
    captured = capture(folder, model, form, tell)
    tokenizer = load_tokenizer(str(model))
    ground = Ground(place=folder / "arms", model=model, captured=captured[TRAINING])
    arms = write_arms(ground.place, ground.captured, tokenizer, form, tell)
    sequences = write_evaluation(ground.place / "evaluation.jsonl", captured[EVALUATION], tokenizer)
    heads = measure(ground, arms, form, tell, workers=workers)
    study = Study(
        form=form,
        arms=arms,
        heads=heads,
        sequences=sequences,
        confirmed=confirm(ground, heads, form, tell),
        conversation=one_conversation(ground.place, arms),
    )
    write_atomically(folder / STUDY, msgspec.json.encode(study))
    return study


def one_conversation(place: Path, arms: Sequence[ArmFacts]) -> dict[str, tuple[list[int], list[int]]]:
    """The ids and mask of one prompt in every arm: of those that are whole everywhere, one that most arms change."""
    found = {arm.arm: {row.id: row for row in read_rows_of(place / arm.arm / "rows.jsonl")} for arm in arms}
    shared = set.intersection(*(set(rows) for rows in found.values()))
    whole = [key for key in sorted(shared) if all(_is_whole(rows[key]) for rows in found.values())]
    if not whole:
        return {}
    changed = {key: len({tuple(rows[key].input_ids) for rows in found.values()}) for key in whole}
    key = max(whole, key=lambda each: (changed[each], -found[VERBATIM][each].supervised))
    return {name: (rows[key].input_ids, rows[key].loss_mask) for name, rows in found.items()}


def _is_whole(row: ArmRow) -> bool:
    """Whether the mask goes on to the row's end: it does not in the row that was cut to equal ids."""
    return row.loss_mask[-1] == 1


def report(folder: Path) -> Path:
    """Execute notebook 06 on a finished study; returns the page. Raises RawTokensError."""
    page = folder / "reports" / f"{NOTEBOOK.stem}.html"
    execute_notebook(
        NOTEBOOK,
        executed=folder / "notebooks" / NOTEBOOK.name,
        report=page,
        parameters={"study_dir": str(folder)},
        title="Compare drafters",
        on_line=tell,
    )
    return page


def tell(line: str) -> None:
    """A line of what is being done."""
    print(line, flush=True)


def changed_form(name: str, changes: Sequence[str]) -> Form:
    """A form with fields changed, NAME=JSON each. Raises InputError."""
    try:
        given = {field: msgspec.json.decode(value) for field, _, value in (each.partition("=") for each in changes)}
        return msgspec.convert({**msgspec.structs.asdict(form_of(name)), **given}, Form)
    except msgspec.MsgspecError as error:
        raise InputError(f"--set {' '.join(changes)}: {error}; expected NAME=JSON, prompts=60 say") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns its exit code, as `rawtokens` does."""
    parser = argparse.ArgumentParser(prog="study", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--form", choices=list(FORMS), default="full")
    parser.add_argument("--folder", type=Path, help="where all of it lies; outputs/study, or outputs/study-FORM")
    parser.add_argument("--model", type=Path, default=PROJECT / ".demo-model", help="the demo model's folder")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="change the form, prompts=60 say")
    parser.add_argument("--publish", type=Path, help="also write page, figures and report into this folder")
    parser.add_argument("--workers", type=int, default=0, help="heads trained at once; one a core, two at most")
    options = parser.parse_args(arguments)
    folder = options.folder or PROJECT / "outputs" / ("study" if options.form == "full" else f"study-{options.form}")
    try:
        form = changed_form(options.form, options.set)
        study = run(folder.resolve(), options.model.resolve(), form, workers=options.workers)
        page = report(folder.resolve())
    except RawTokensError as error:
        print(f"study: {error}", file=sys.stderr)
        return error.exit_code
    tell(takeaways.acceptance(study))
    tell(f"report: {page}")
    if options.publish:
        asked = [f"--form {options.form}", *(["--set", *options.set] if options.set else [])]
        command = f"python -m rawtokens.study {' '.join(asked)}"
        tell(f"page: {write_page(options.publish.resolve(), study, page, command=command)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
