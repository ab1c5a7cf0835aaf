"""Whether a stage has to run again: a digest of what it was made from, kept beside its executed notebook.

A stage is current where its notebook's code, the kit's own sources, the versions of the libraries it stands on, the
parameters that matter and its input files are what they were, and its output files are as it left them. Files
up to 64 MiB are compared by content, larger ones by size and time of change. This module does not know which
parameters matter nor which files a stage reads and writes; the caller says so.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec

from .. import __version__
from ..errors import InputError

HASHED_WHOLE = 64 * 1024 * 1024  # bytes; reading more than that would cost more than it saves


class _Cell(msgspec.Struct):
    cell_type: str
    source: str | list[str]


class _Notebook(msgspec.Struct):
    cells: list[_Cell]


class StageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage was made from and what it left; `outputs` maps a path, relative to the record, to its state.

    `parts` are `stage_parts`, values shortened; they only say what changed, `digest` whether something did.
    """

    stage: str
    digest: str
    outputs: dict[str, str]
    finished_at: str  # ISO 8601, UTC
    parts: dict[str, str] = {}


def stage_digest(
    notebook: Path, parameters: Mapping[str, str | int | float | bool], input_files: Iterable[Path]
) -> str:
    """A digest of everything that decides what a stage makes, as hex.

    `parameters` are those that matter: leave out what changes no output (a progress interval, server addresses).
    Input files count by their order, not by their path; one that doesn't exist counts as missing. Raises InputError
    where `notebook` is no notebook.
    """
    return digest_of(stage_parts(notebook, parameters, input_files))


def stage_parts(
    notebook: Path, parameters: Mapping[str, str | int | float | bool], input_files: Iterable[Path]
) -> dict[str, str]:
    """What `stage_digest` is over, by name: `notebook`, `kit`, `setting NAME`, `file NUMBER NAME`."""
    return {
        "notebook": _hash(_code(notebook)),
        "kit": _kit_digest(),
        **{f"setting {name}": _hash(value) for name, value in sorted(parameters.items())},
        **{f"file {number} {path.name}": file_state(path) for number, path in enumerate(input_files, start=1)},
    }


def digest_of(parts: Mapping[str, str]) -> str:
    """The digest of a stage's parts, as hex; a file's name is no part of it."""
    return _hash([(name.split(" ")[:2], state) for name, state in parts.items()])


def _hash(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()


def file_state(path: Path) -> str:
    """`sha256:...` of a file up to 64 MiB, `size:...,changed:...` (nanoseconds) of a larger one, or `missing`."""
    if not path.is_file():
        return "missing"
    facts = path.stat()
    if facts.st_size > HASHED_WHOLE:
        return f"size:{facts.st_size},changed:{facts.st_mtime_ns}"
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def record_path(executed: Path) -> Path:
    """Where the record of an executed notebook lies: beside it, as `NN_name.stage.json`."""
    return executed.with_suffix(".stage.json")


def write_stage_record(
    executed: Path, *, digest: str, outputs: Iterable[Path], parts: Mapping[str, str] | None = None
) -> None:
    """Record that the stage finished. `outputs` are the files it wrote, its executed notebook and report too."""
    path = record_path(executed)
    record = StageRecord(
        stage=executed.stem,
        digest=digest,
        outputs={os.path.relpath(output, path.parent): file_state(output) for output in outputs},
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        parts=dict(parts or {}),
    )
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    unfinished.replace(path)


def read_stage_record(executed: Path) -> StageRecord | None:
    """The record of an executed notebook; None where there is none or it is damaged, for then the stage runs."""
    try:
        return msgspec.json.decode(record_path(executed).read_bytes(), type=StageRecord)
    except (OSError, msgspec.DecodeError):
        return None


def forget_stage(executed: Path) -> None:
    """Remove the record, before a stage runs: a run that is cut off must not look finished."""
    record_path(executed).unlink(missing_ok=True)


def is_current(executed: Path, *, digest: str) -> bool:
    """True where the stage finished with this digest and every file that it left is still as it was."""
    record = read_stage_record(executed)
    if record is None or record.digest != digest:
        return False
    folder = record_path(executed).parent
    return all(state != "missing" and file_state(folder / name) == state for name, state in record.outputs.items())


def why_stale(executed: Path, parts: Mapping[str, str]) -> list[str]:
    """Why a stage would run again, in words; none where it is current (as `is_current` with the digest of `parts`)."""
    record = read_stage_record(executed)
    if record is None:
        return ["stopped before its end" if executed.exists() else "not run"]
    was, now = ({_part_name(name): state for name, state in found.items()} for found in (record.parts, parts))
    found = [
        name + (" changed" if was.get(name) and now.get(name) not in ("missing", None) else _gone_or_new(name, was))
        for name in sorted({**was, **now})
        if was.get(name) != now.get(name)
    ]
    if record.digest != digest_of(parts) and not found:
        found = ["order of its files changed"]
    folder = record_path(executed).parent
    for name, state in record.outputs.items():
        if state == "missing" or file_state(folder / name) != state:
            found.append(f"its {Path(name).name} {'changed' if (folder / name).exists() else 'is gone'}")
    return found


def _part_name(name: str) -> str:
    return name.split(" ", 2)[2] if name.startswith("file ") else name


def _gone_or_new(name: str, was: Mapping[str, str]) -> str:
    return " is gone" if name in was else " is new"


def _code(notebook: Path) -> list[str]:
    # Not by nbformat: its import takes 2 s (jsonschema builds a grammar), longer than all of the check.
    try:
        cells = msgspec.json.decode(notebook.read_bytes(), type=_Notebook).cells
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{notebook} can't be read as a notebook: {error}") from error
    return ["".join(cell.source) for cell in cells if cell.cell_type == "code"]


@cache
def _kit_digest() -> str:
    """The kit's files, its version, Python's, and those of the libraries that it names as dependencies."""
    package = Path(__file__).parents[1]
    files = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    sources = [(path.relative_to(package).as_posix(), file_state(path)) for path in files]
    return hashlib.sha256(msgspec.json.encode([__version__, sys.version, _library_versions(), sources])).hexdigest()


def _library_versions() -> list[tuple[str, str]]:
    versions = []
    for requirement in metadata.requires("rawtokens") or []:
        name = re.split(r"[^\w.-]", requirement)[0]
        try:
            versions.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:  # an extra that isn't installed
            continue
    return sorted(versions)
