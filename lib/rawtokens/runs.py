"""A run: its file, its folders, its manifest, and the guard that keeps two runs from mixing.

The manifest (run.json in a data set's folder) holds what changes ids: tokenizer, template and its arguments by
stage 01, engine, model and sampling by the first stage 02; the fingerprint is a hash over it. URLs, window, limit
and samples_per_prompt change no id and stay outside. This module does not know how a stage does its work.
"""

import hashlib
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from .engines.sglang import ServerFacts, sampling_parameters
from .errors import InputError, ResumeError, ServerError
from .journal import write_atomically
from .records import Json, Sampling

if TYPE_CHECKING:
    from .target_tokenizer import Tokenizer

MANIFEST = "run.json"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokenizer that renders prompts, and what its template is given."""

    tokenizer: str
    revision: str | None = None
    trust_remote_code: bool = False
    template_kwargs: dict[str, object] = {}  # JSON values


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the target is served; `api_key_env` names an environment variable, never the key itself."""

    urls: tuple[str, ...] = ("http://127.0.0.1:30000",)
    api_key_env: str | None = None
    max_in_flight: int | str = "auto"


class SamplingSettings(Sampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """records.Sampling as a run file may write it."""


class DatasetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt file of the run."""

    prompts: str
    format: str = "auto"
    turns: str = "last"
    limit: int | None = None


class RunFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run file, checked; paths in it are made absolute by `load_run_file`."""

    run: str
    model: ModelSettings
    datasets: dict[str, DatasetSettings]
    servers: ServerSettings = ServerSettings()
    sampling: SamplingSettings = SamplingSettings()


def load_run_file(path: Path) -> RunFile:
    """Read and check a run file. Raises InputError that names the key and what was expected."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"run file {path} does not exist; notebooks/demo.yaml is one to start from") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"run file {path} can't be read as YAML: {' '.join(str(error).split())}") from error
    try:
        settings = msgspec.convert(content, RunFile)
    except msgspec.ValidationError as error:
        raise InputError(f"run file {path}: {error}") from error
    _check(path, settings)
    tokenizer = _resolve(path, settings.model.tokenizer, only_if_path=True)
    model = msgspec.structs.replace(settings.model, tokenizer=tokenizer)
    require_pinned_code(tokenizer, model.revision or "", trust_remote_code=model.trust_remote_code)
    return msgspec.structs.replace(
        settings,
        model=model,
        datasets={
            name: msgspec.structs.replace(dataset, prompts=_resolve(path, dataset.prompts))
            for name, dataset in settings.datasets.items()
        },
    )


def _check(path: Path, settings: RunFile) -> None:
    for name in [settings.run, *settings.datasets]:
        if not _NAME.fullmatch(name):
            raise InputError(f"run file {path}: {name!r} becomes a folder; use letters, digits, '.', '_' and '-'")
    if not settings.datasets:
        raise InputError(f"run file {path}: `datasets` is empty; name one prompt file at least")
    if not settings.servers.urls:
        raise InputError(f"run file {path}: `servers.urls` is empty; name one server at least")
    window = settings.servers.max_in_flight
    if window != "auto" and not (isinstance(window, int) and window > 0):
        raise InputError(f"run file {path}: max_in_flight is {window!r}; expected a positive number or auto")
    for name, dataset in settings.datasets.items():
        if dataset.turns != "last":
            raise InputError(f"run file {path}: turns of {name} is {dataset.turns!r}; this version knows `last`")
    sampling = settings.sampling
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.max_new_tokens < 1:
        raise InputError(f"run file {path}: sampling needs temperature >= 0, 0 < top_p <= 1, max_new_tokens >= 1")
    if sampling.samples_per_prompt < 1:
        raise InputError(f"run file {path}: samples_per_prompt is {sampling.samples_per_prompt}; expected 1 or more")


def require_pinned_code(name: str, revision: str, *, trust_remote_code: bool) -> None:
    """Refuse to run a hub repository's own Python at a moving revision. Raises InputError."""
    if trust_remote_code and not Path(name).expanduser().is_dir() and not _COMMIT.fullmatch(revision):
        raise InputError(
            f"trust_remote_code runs the Python of {name}: set `revision` to the full hash of a commit that you "
            f"reviewed, not {revision or 'nothing'!r} (README, 'Your own server', says how to find it)"
        )


def _resolve(run_file: Path, name: str, *, only_if_path: bool = False) -> str:
    """A path as seen from the run file; a hub id stays as it is."""
    here = (run_file.parent / Path(name).expanduser()).resolve()
    if only_if_path and not here.exists() and not name.startswith((".", "/", "~")):
        return name
    return str(here)


def read_manifest(folder: Path) -> dict[str, Json]:
    """The data set's run.json, or an empty dict where no stage has written it."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest: dict[str, Json] = msgspec.json.decode(path.read_bytes(), type=dict)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path} can't be read: {error}; restore it or give the run a new name") from error
    return manifest


def record_tokenizing(folder: Path, tokenizer: "Tokenizer", template_kwargs: Mapping[str, Json]) -> None:
    """Write stage 01's part of the manifest.

    Raises ResumeError where responses stand in the folder that were generated from other prompts' ids.
    """
    part: dict[str, Json] = {
        **tokenizer.identity,
        "template_kwargs": dict(template_kwargs),
        "vocabulary_size": tokenizer.vocabulary_size,
        "stop_ids": [tokenizer.markers.turn_end],
    }
    manifest = read_manifest(folder)
    if "fingerprint" in manifest:
        _guard(folder, manifest, part)
    _write(folder, {**manifest, **part})


class Tokenized(msgspec.Struct, frozen=True):
    """What stage 02 needs to know of stage 01's tokenizer."""

    vocabulary_size: int
    stop_ids: tuple[int, ...]


def read_tokenized(folder: Path) -> Tokenized:
    """Stage 01's facts from the manifest. Raises InputError where that stage has not run."""
    try:
        return msgspec.convert(read_manifest(folder), Tokenized)
    except msgspec.ValidationError as error:
        raise InputError(f"{folder / MANIFEST} does not say how the prompts were made; run stage 01 first") from error


def record_generating(folder: Path, facts: ServerFacts, sampling: Sampling) -> str:
    """Write stage 02's part of the manifest at the first start, and return the run's fingerprint.

    A later start must agree with it. Raises ResumeError with the differences where it does not, and ServerError
    where the server's vocabulary is another one than the tokenizer folder's.
    """
    tokenized = read_tokenized(folder)
    manifest = read_manifest(folder)
    if facts.vocabulary_size and facts.vocabulary_size != tokenized.vocabulary_size:
        raise ServerError(
            f"the server's vocabulary has {facts.vocabulary_size} ids, the tokenizer's model has "
            f"{tokenized.vocabulary_size}; use the tokenizer of the model that is served, or another server"
        )
    part: dict[str, Json] = {
        "engine": facts.engine,
        "engine_version": facts.version,
        "model": facts.model,
        "weight_version": facts.weight_version,
        "dtype": facts.dtype,
        "quantization": facts.quantization,
        "sampling": sampling_parameters(sampling, stop_ids=tokenized.stop_ids),
    }
    known = manifest.get("fingerprint")
    if isinstance(known, str):
        _guard(folder, manifest, part)
        return known
    covered = {name: value for name, value in {**manifest, **part}.items() if name not in _OUTSIDE}
    fingerprint = hashlib.sha256(msgspec.json.encode(covered, order="sorted")).hexdigest()[:16]
    server = msgspec.to_builtins(facts)
    versions = {name: metadata.version(name) for name in ("rawtokens", "transformers", "tokenizers")}
    _write(folder, {**manifest, **part, "server": server, "versions": versions, "fingerprint": fingerprint})
    return fingerprint


_OUTSIDE = ("fingerprint", "server", "versions", "tokenizer")
"""In the manifest but not in the fingerprint: a tokenizer's name is where it was found, its hash is what it does."""


def _guard(folder: Path, manifest: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    """Refuse what differs; what either side can't tell (null, behind a router) is no contradiction."""
    differences = [
        f"{name}: was {manifest[name]!r}, now {value!r}"
        for name, value in now.items()
        if name not in _OUTSIDE and value is not None and manifest.get(name) is not None and manifest[name] != value
    ]
    if differences:
        raise ResumeError(
            f"{folder} holds responses of another set-up ({'; '.join(differences)}); "
            "give the run a new name, or put the setting back"
        )


def _write(folder: Path, manifest: Mapping[str, Json]) -> None:
    write_atomically(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(dict(manifest)), indent=1) + b"\n")
