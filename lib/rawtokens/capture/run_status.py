"""What `rawtokens status` says of a run, from outside, while it may be going on.

Reads only, and takes no lock: a run that starts at the same moment must not find one taken. Counts come from
progress.json and what the journal grew by since, so a journal of any size is not read while its run tells of it;
only where nothing tells, the keys are read through. This module does not know how a stage works, nor does it see a
writer on another machine but by the time of its last word.
"""

import os
import socket
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError, RawTokensError, one_line
from ..journal import journal_paths, read_rejections
from ..notebook_stages.pipeline import NOTEBOOKS, Plan, stage_changes
from ..notebook_stages.stage_parameters import prompt_options
from ..prompts import PROMPTS
from ..records import open_parquet
from ..reporting.wording import counted
from ..runs import guard_settings
from ..shards import shard_of
from ..turns.endings import has_turns
from .planned import count_missing
from .progress_reports import ProgressFile, duration, in_words, read_progress

FRESH_SECONDS = 60.0  # a run writes every three seconds; a busy disk or a clock that is off takes more
_BLOCK = 1 << 22
_MOST_CHANGES = 4
_MANIFEST_CHANGED = "its manifest.json changed"  # of training/, which `rawtokens export` writes too
_DATASET_STAGES = ("01", "02", "03", "04", "05")


def status_lines(plan: Plan) -> Iterator[str]:
    """What to print, data set by data set. Raises InputError for a file that a run could not use either."""
    for name in plan.datasets:
        yield from _dataset_lines(plan, name)


def _dataset_lines(plan: Plan, name: str) -> Iterator[str]:
    folder, sampling = plan.run_folder / name, plan.settings.sampling
    if not (folder / PROMPTS).exists():
        yield f"{name}: no prompts yet; {'; '.join(stage_changes(plan, '01', name))}: stage 01 makes them"
        return
    runs = [record for record in read_progress(folder) if (folder / record.journal).exists()]
    yield f"{name}: {_counts(folder, runs, sampling.samples_per_prompt)}"
    for record in runs:
        yield f"  {_run_line(record)}"
    try:
        guard_settings(folder, sampling, prompt_options(plan.settings, name))
    except RawTokensError as error:
        yield f"  settings differ from those of the responses: {one_line(error)}"
    for stage in _DATASET_STAGES:
        changes = _generating(plan, name, runs) if stage == "02" else stage_changes(plan, stage, name)
        yield f"  {NOTEBOOKS[stage]}: {_in_short(changes)}"
    if verdicts := _verdicts(folder):
        yield f"  verified: {verdicts}"


def _generating(plan: Plan, name: str, runs: list[ProgressFile]) -> list[str]:
    """Why stage 02 would run again, of all shards where there are shards."""
    if any(is_going(record) for record in runs):
        return ["running"]
    shards = {_shard(record) for record in runs} or {""}
    found = [stage_changes(msgspec.structs.replace(plan, shard=shard_of(shard)), "02", name) for shard in shards]
    return sorted({change for changes in found for change in changes})


def is_going(record: ProgressFile) -> bool:
    """Whether the run that wrote this still goes on: its process lives, or, elsewhere, it has just said a word."""
    if record.state != "running":
        return False
    if record.host != socket.gethostname():
        return _age(record) < FRESH_SECONDS
    try:
        os.kill(record.process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _run_line(record: ProgressFile) -> str:
    label = f"shard {_shard(record)}: " if _shard(record) else ""
    progress, age = record.progress, _age(record)
    if record.state == "running" and not is_going(record):
        record_words = f"killed: process {record.process} on {record.host} is gone, last heard of {duration(age)} ago"
        return f"{label}{record_words}, with {progress.in_flight:,} in flight"
    text = f"{label}{in_words(record)}"
    if record.state != "running":
        return f"{text}; {duration(age)} ago"
    servers = ", ".join(f"{url} {count:,}" for url, count in progress.servers.items())
    oldest = max(progress.asked.values(), default=0.0)
    text += f"; process {record.process} on {record.host}, {duration(progress.seconds)} so far"
    text += f"; in flight by server: {servers}; the oldest for {duration(oldest)}" if progress.in_flight else ""
    return f"{text}; SILENT for {duration(age)}" if age > FRESH_SECONDS else text


def _shard(record: ProgressFile) -> str:
    """`2/8` of raw_responses.2-of-8.jsonl, "" of the whole data set's journal."""
    return record.journal.removeprefix("raw_responses").removesuffix(".jsonl").lstrip(".").replace("-of-", "/")


def _counts(folder: Path, runs: list[ProgressFile], samples_per_prompt: int) -> str:
    rejections = read_rejections(folder)
    at_generation = sum(item.stage == "generate" for item in rejections)
    planned = _rows(folder / PROMPTS) * samples_per_prompt
    if has_turns(folder):
        going_on = count_missing(folder, samples_per_prompt)
        generated = sum(_lines_behind(path, 0) for path in journal_paths(folder))
        return (
            f"{counted(planned, 'conversation')} planned, {counted(generated, 'turn')} generated, "
            f"{going_on:,} to go on, {len(rejections):,} rejected"
        )
    told = _generated_by_runs(folder, runs, planned)
    if told is None:
        missing = count_missing(folder, samples_per_prompt)
        generated = sum(_lines_behind(path, 0) for path in journal_paths(folder))
    else:
        generated, missing = told, max(0, planned - told - at_generation)
    return f"{planned:,} planned, {generated:,} generated, {missing:,} missing, {len(rejections):,} rejected"


def _generated_by_runs(folder: Path, runs: list[ProgressFile], planned: int) -> int | None:
    """The journals' records by the runs' own counts and the lines that came since; None where that can't be told."""
    shards = max(runs, key=lambda record: record.written_at).journal.rpartition("-of-")[2] if runs else ""
    latest = [record for record in runs if record.journal.rpartition("-of-")[2] == shards]
    everything_told = sum(record.progress.planned for record in latest) == planned
    if not everything_told and {record.journal for record in latest} != {path.name for path in journal_paths(folder)}:
        return None
    changed = (folder / PROMPTS).stat().st_mtime
    generated = 0
    for record in latest:
        path, progress = folder / record.journal, record.progress
        since = datetime.fromisoformat(record.started_at).timestamp()
        if not progress.journal_bytes or path.stat().st_size < progress.journal_bytes or changed > since:
            return None
        generated += progress.present + progress.done + _lines_behind(path, progress.journal_bytes)
    return generated


def _rows(path: Path) -> int:
    try:
        with open_parquet(path) as file:
            return int(file.metadata.num_rows)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} can't be read ({one_line(error)}); run stage 01 again") from error


def _lines_behind(path: Path, offset: int) -> int:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


def _in_short(changes: list[str]) -> str:
    if not changes:
        return "current"
    more = f", and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    text = ", ".join(changes[:_MOST_CHANGES]) + more
    if _MANIFEST_CHANGED in changes and all(change.startswith("its ") for change in changes):
        return f"exported by command since ({text}); `rawtokens run` would run the stage again"
    return text if changes[0] in ("running", "not run", "stopped before its end") else f"stale: {text}"


def _verdicts(folder: Path) -> str:
    path = folder / "verified.parquet"
    if not path.exists():
        return ""
    counts: Counter[str] = Counter()
    try:
        with open_parquet(path) as file:
            for batch in file.iter_batches(columns=["verdict"], batch_size=1 << 16):
                counts.update(
                    {item["values"]: item["counts"] for item in pc.value_counts(batch["verdict"]).to_pylist()}
                )
    except (OSError, pa.ArrowException) as error:
        return f"{path} can't be read ({one_line(error)}); run stage 03 again"
    return ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(counts.items())) or "no rows"


def _age(record: ProgressFile) -> float:
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(record.written_at)).total_seconds())
