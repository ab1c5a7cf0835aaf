"""The stages of a run in order, each a notebook; what is current is not run again.

`notebooks_folder` holds the notebooks, `run_stages` executes them for every data set and writes the index. This
module does not know what a notebook does, nor how a demo server is started: the caller passes that in.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import msgspec

from ..addresses import api_key_from
from ..capture.planned import count_missing
from ..errors import InputError
from ..journal import REJECTED
from ..locking import lock
from ..prompts import PROMPTS
from ..reporting.wording import counted
from ..run_file import RunFile
from ..runs import MANIFEST, guard_settings
from ..shards import WHOLE, Shard
from ..turns.setup import unit_of
from .stage_files import check_made, check_named, stage_files
from .stage_parameters import Scalar, prompt_options, shown_settings, stage_parameters

NOTEBOOKS = {
    "00": "00_check_server",
    "01": "01_tokenize_prompts",
    "02": "02_generate_responses",
    "03": "03_verify_responses",
    "04": "04_report_token_statistics",
    "05": "05_export_training_data",
}
_TITLES = {
    "00": "Check a server",
    "01": "Tokenize prompts",
    "02": "Generate responses",
    "03": "Verify responses",
    "04": "Report token statistics",
    "05": "Export training data",
}
STAGES_LOCK = ".stages.lock"
_TURN_SECONDS = 600.0
# These change no output: where a run lies, which servers answer, how many requests are in flight.
_IMMATERIAL = ("output_dir", "urls", "api_key_env", "max_in_flight", "prompts")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `run_stages` is to do: a run file, where its outputs go, and the part of it that is wanted."""

    settings: RunFile
    run_folder: Path
    notebooks: Path
    datasets: tuple[str, ...]
    stages: tuple[str, ...] = tuple(NOTEBOOKS)
    one_stage: bool = False  # stage 00 runs where it was asked for by number, though nothing is to be generated
    shard: Shard = WHOLE  # stage 02 alone knows shards


def notebooks_folder(run_file: Path) -> Path:
    """The folder of the notebooks: the run file's own, or the clone's. Raises InputError where neither has them."""
    for folder in (run_file.resolve().parent, Path(__file__).parents[3] / "notebooks"):
        if (folder / f"{NOTEBOOKS['01']}.ipynb").exists():
            return folder
    raise InputError(f"no notebooks beside {run_file} nor in the clone; install the kit with `pip install -e .`")


def run_stages(
    plan: Plan,
    *,
    start_server: Callable[[], AbstractContextManager[Callable[[], str]]] | None = None,
    on_line: Callable[[str], None] = print,
) -> Path:
    """Execute what is not current, data set by data set, and write the index; returns its path.

    `start_server` starts a server of the kit's own, only where something is to be generated, and gives a function
    that waits until it is ready and returns its URL. Raises RawTokensError; what was done stays, and the same
    call goes on there.
    """
    from ..reporting.closing import older_figures
    from ..reporting.run_index import INDEX_LOCK, write_index

    _check_inputs(plan)
    with ExitStack() as stack:
        for name in plan.datasets:
            stack.enter_context(_writing(plan, name))
            options = prompt_options(plan.settings, name)
            guard_settings(plan.run_folder / name, plan.settings.sampling, options)
        urls: Sequence[str] = plan.settings.servers.urls
        # A server takes half a minute to start; prompts are tokenized meanwhile.
        ready = stack.enter_context(start_server()) if start_server and _lacking(plan) else None
        for name in plan.datasets:
            _run(plan, "01", name, on_line)
        lacking = _lacking(plan)
        if lacking:
            if start_server:
                urls = ((ready or stack.enter_context(start_server()))(),)
            _check_server(plan, on_line, urls)
        elif plan.one_stage:
            _check_server(plan, on_line, urls)
        for stage in ("02", "03", "04", "05"):
            for name in plan.datasets:
                _run(plan, stage, name, on_line, urls, again=stage == "02" and name in lacking)
        if plan.shard != WHOLE or ("03" in plan.stages and "02" not in plan.stages):
            _tell_missing(plan, on_line)
        known = [name for name in plan.settings.datasets if (plan.run_folder / name).is_dir()]
        with lock(plan.run_folder / INDEX_LOCK, wait_seconds=_TURN_SECONDS):
            settings, older = shown_settings(plan.settings), older_figures(plan, known)
            return write_index(plan.run_folder, datasets=known, settings=settings, older=older)


@contextmanager
def _writing(plan: Plan, name: str) -> Iterator[None]:
    """Keep others out of a data set's folder; shards share it, each shard runs once."""
    folder = plan.run_folder / name
    with lock(folder / STAGES_LOCK, shared=plan.shard != WHOLE):
        if plan.shard == WHOLE:
            yield
            return
        with lock(folder / plan.shard.file_name(STAGES_LOCK)):
            yield


def _tell_missing(plan: Plan, on_line: Callable[[str], None]) -> None:
    """Say what no shard has made yet: later stages take what is there."""
    for name in plan.datasets:
        missing = count_missing(plan.run_folder / name, plan.settings.sampling.samples_per_prompt)
        if missing:
            told = counted(missing, unit_of(plan.run_folder / name))
            on_line(f"{name}: missing yet: {told} of the data set; stage 02 makes what is missing")
        elif plan.shard != WHOLE:
            on_line(f"{name}: no shard misses anything; next: the same command without --shard and --stage")


def _check_server(plan: Plan, on_line: Callable[[str], None], urls: Sequence[str]) -> None:
    """Stage 00, which belongs to the run and not to a data set: runs of other data sets take turns."""
    if "00" in plan.stages:
        with lock(plan.run_folder / STAGES_LOCK, wait_seconds=_TURN_SECONDS):
            _run(plan, "00", "", on_line, urls)


def _check_inputs(plan: Plan) -> None:
    """Refuse a missing file, tokenizer folder or key before a kernel starts."""
    check_named(plan.settings, plan.datasets, plan.stages)
    for name in plan.datasets if "01" not in plan.stages else ():
        check_made(plan.run_folder / name, plan.stages[0], name)
    if "00" in plan.stages or _lacking(plan):
        api_key_from(plan.settings.servers.api_key_env or "")


def _lacking(plan: Plan) -> set[str]:
    """The data sets that stage 02 has to ask a server for; reads whole journals, so ask it once where it will do."""
    return {name for name in plan.datasets if "02" in plan.stages and _lacks_responses(plan, name)}


def _lacks_responses(plan: Plan, name: str) -> bool:
    folder = plan.run_folder / name
    if not (folder / PROMPTS).exists():
        return True
    try:
        return count_missing(folder, plan.settings.sampling.samples_per_prompt, shard=plan.shard) > 0
    except InputError:
        if "01" in plan.stages and not stage_is_current(plan, "01", name):
            return True  # damaged prompts are about to be written anew
        raise


def _run(
    plan: Plan,
    stage: str,
    name: str,
    on_line: Callable[[str], None],
    urls: Sequence[str] = (),
    *,
    again: bool = False,
) -> None:
    """Execute a stage's notebook unless what it left is current; `again` executes it all the same."""
    from .notebook_runs import execute_notebook
    from .stages import digest_of, write_stage_record

    if stage not in plan.stages:
        return
    executed = _executed(plan, stage, name)
    label = f"{name or plan.settings.run} {NOTEBOOKS[stage]}{' ' * (plan.shard != WHOLE)}{plan.shard}"
    if stage != "00" and not again and stage_is_current(plan, stage, name):
        on_line(f"{label}: unchanged")
        return
    folder, notebook = plan.run_folder / name, plan.notebooks / f"{NOTEBOOKS[stage]}.ipynb"
    report = folder / "reports" / f"{executed.stem}.html"
    parameters = _parameters(plan, stage, name)
    if stage in ("00", "02", "03"):
        parameters["urls"] = msgspec.json.encode(list(urls)).decode()
    started = time.monotonic()
    on_line(f"{label}: running")
    execute_notebook(
        notebook,
        executed=executed,
        report=report,
        parameters=parameters,
        title=f"{_TITLES[stage]} · {name or plan.settings.run}",
        on_line=lambda line: on_line(f"  {line}"),
    )
    parts, outputs = _parts(plan, stage, name), [executed, report, *_files(plan, stage, name)[1]]
    write_stage_record(executed, digest=digest_of(parts), outputs=outputs, parts=parts)
    on_line(f"{label}: done in {time.monotonic() - started:.0f} s")


def stage_is_current(plan: Plan, stage: str, name: str) -> bool:
    """Whether a stage finished with the files, settings and code that are there now; `name` is "" for stage 00."""
    from .stages import digest_of, is_current

    if stage == "01" and not all((plan.run_folder / name / file).exists() for file in (REJECTED, MANIFEST)):
        return False  # later stages write them too, so that stage 01's record can't hold their digest
    if stage == "03" and plan.one_stage and plan.settings.audit.replay and not _replayed(plan.run_folder / name):
        return False  # no server was there then; asked for by number, the stage tries again
    return is_current(_executed(plan, stage, name), digest=digest_of(_parts(plan, stage, name)))


def _replayed(folder: Path) -> bool:
    from ..fidelity.audit_records import read_audits

    try:
        return read_audits(folder).replay is not None
    except InputError:
        return False


def stage_changes(plan: Plan, stage: str, name: str) -> list[str]:
    """Why a stage would run again, in words; none where it is current. Starts nothing and writes nothing."""
    from .stages import why_stale

    return why_stale(_executed(plan, stage, name), _parts(plan, stage, name))


def _parts(plan: Plan, stage: str, name: str) -> dict[str, str]:
    from .stages import stage_parts

    parameters = {key: value for key, value in _parameters(plan, stage, name).items() if key not in _IMMATERIAL}
    return stage_parts(plan.notebooks / f"{NOTEBOOKS[stage]}.ipynb", parameters, _files(plan, stage, name)[0])


def _parameters(plan: Plan, stage: str, name: str) -> dict[str, Scalar]:
    parameters = stage_parameters(plan.settings, stage, name, folder=plan.run_folder / name)
    return {**parameters, "shard": str(plan.shard)} if stage == "02" else parameters


def _executed(plan: Plan, stage: str, name: str) -> Path:
    return plan.run_folder / name / "notebooks" / plan.shard.file_name(f"{NOTEBOOKS[stage]}.ipynb")


def _files(plan: Plan, stage: str, name: str) -> tuple[list[Path], list[Path]]:
    return stage_files(plan.settings, stage, name, folder=plan.run_folder / name, shard=plan.shard)
