"""A run's manifest, and the guard that keeps two runs from mixing.

The manifest (run.json in a data set's folder) holds what changes ids: tokenizer, template, its arguments and their mix
by stage 01, engine, model and sampling by the first stage 02; the fingerprint is a hash over it. URLs, window, limit
and samples_per_prompt change no id and stay outside. This module does not know how a stage does its work.
"""

import hashlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .engines.answers import ServerFacts
from .engines.sglang import sampling_parameters
from .errors import InputError, ResumeError, RunStopped, ServerError
from .journal import journal_paths, read_responses, write_atomically
from .locking import lock
from .records import Json, Sampling
from .run_file import check_sampling
from .target.rendering import PromptOptions

if TYPE_CHECKING:
    from .target.target_tokenizer import Tokenizer

MANIFEST = "run.json"
_LOCK = ".run.lock"
_SET_ASIDE = "rawtokens retry RUN.yaml --dataset NAME --where foreign"
_LOCK_SECONDS = 60.0


def read_manifest(folder: Path) -> dict[str, Json]:
    """The data set's run.json, or an empty dict where no stage has written it."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest: dict[str, Json] = msgspec.json.decode(path.read_bytes(), type=dict)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path} can't be read: {error}; restore it, or delete it and run stage 01 again") from error
    return manifest


def recorded_date(folder: Path) -> str:
    """The ISO date that the prompts of the responses that are there were rendered with; "" without either.

    Stage 01 takes it again where no date was asked for: a run that goes on tomorrow is the same run.
    """
    manifest = read_manifest(folder)
    return str(manifest.get("template_date") or "") if "fingerprint" in manifest else ""


def guard_tokenizing(folder: Path, tokenizer: "Tokenizer", options: PromptOptions) -> None:
    """Before stage 01 writes anything: refuse where it would mix, and forget how earlier prompts were made.

    Between here and `record_tokenizing` no stage 02 starts, so that prompts of one tokenizer never go out under
    the name of another. Raises ResumeError where responses were generated from another set-up's prompts.
    """
    manifest = read_manifest(folder)
    if "fingerprint" in manifest:
        _guard(folder, manifest, _tokenizing(tokenizer, options))
        return
    try:
        (folder / MANIFEST).unlink(missing_ok=True)
    except OSError as error:
        raise RunStopped(f"can't write {folder / MANIFEST}: {error}; mend the folder, then run it again") from error


def record_tokenizing(folder: Path, tokenizer: "Tokenizer", options: PromptOptions) -> None:
    """Write stage 01's part of the manifest, after prompts.parquet. Raises as `guard_tokenizing` does."""
    part = _tokenizing(tokenizer, options)
    manifest = read_manifest(folder)
    if "fingerprint" in manifest:
        _guard(folder, manifest, part)
    _write(folder, {**manifest, **part})


def _tokenizing(tokenizer: "Tokenizer", options: PromptOptions) -> dict[str, Json]:
    return {
        **tokenizer.identity,
        **_asked(options),
        "vocabulary_size": tokenizer.vocabulary_size,
        "stop_ids": list(tokenizer.markers.turn_ends),
    }


def _asked(options: PromptOptions) -> dict[str, Json]:
    """What was asked for, as run.json gives it back: lists, not tuples."""
    asked: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(options), type=dict)
    return asked


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


def guard_sampling(folder: Path, sampling: Sampling) -> None:
    """Refuse other sampling than that of the responses that are there, though none may be missing.

    Raises ResumeError, and InputError for a value that no server takes.
    """
    check_sampling(sampling)
    tokenized, manifest = read_tokenized(folder), read_manifest(folder)
    if "fingerprint" in manifest:
        _guard(folder, manifest, {"sampling": sampling_parameters(sampling, stop_ids=tokenized.stop_ids)})


def guard_settings(folder: Path, sampling: Sampling, options: PromptOptions) -> None:
    """Refuse settings that are not those of the responses that are there, whatever stage is asked for.

    Without responses nothing is guarded. Raises ResumeError with the differences.
    """
    manifest = read_manifest(folder)
    if "fingerprint" in manifest:
        _guard(folder, manifest, _asked(options))
        guard_sampling(folder, sampling)


def record_generating(folder: Path, facts: ServerFacts, sampling: Sampling) -> str:
    """Write stage 02's part of the manifest at the first start, and return the run's fingerprint.

    A later start must agree with it, and so must the responses that are there. Raises ResumeError with the
    differences where they do not, InputError for a sampling value that no server takes or that this one's context
    can't hold, and ServerError where the server's vocabulary is another one than the tokenizer folder's.
    """
    check_sampling(sampling)
    tokenized = read_tokenized(folder)
    _check_facts(facts, tokenized, sampling)
    part: dict[str, Json] = {
        "engine": facts.engine,
        "engine_version": facts.version,
        "model": facts.model,
        "weight_version": facts.weight_version,
        "dtype": facts.dtype,
        "quantization": facts.quantization,
        "sampling": sampling_parameters(sampling, stop_ids=tokenized.stop_ids),
    }
    with lock(folder / _LOCK, wait_seconds=_LOCK_SECONDS):  # of shards that start together one writes, all agree
        return _record(folder, part, facts)


def _record(folder: Path, part: Mapping[str, Json], facts: ServerFacts) -> str:
    manifest = read_manifest(folder)
    known = manifest.get("fingerprint")
    if isinstance(known, str):
        _guard(folder, manifest, part)
        _check_journals(folder, known, remedy=f"give the run a new name, or set its rows aside: {_SET_ASIDE}")
        told = {name: value for name, value in part.items() if value is not None and manifest.get(name) is None}
        if told:  # what a router hid at the first start guards the later ones; the fingerprint stays
            _write(folder, {**manifest, **told})
        return known
    covered = {name: value for name, value in {**manifest, **part}.items() if name not in _OUTSIDE}
    fingerprint = hashlib.sha256(msgspec.json.encode(covered, order="sorted")).hexdigest()[:16]
    _check_journals(folder, fingerprint, remedy=f"put its {MANIFEST} and settings back, or give the run a new name")
    server = msgspec.to_builtins(facts)
    del server["served_name"]  # it may be a path
    versions = {name: metadata.version(name) for name in ("rawtokens", "transformers", "tokenizers")}
    _write(folder, {**manifest, **part, "server": server, "versions": versions, "fingerprint": fingerprint})
    return fingerprint


_OUTSIDE = ("fingerprint", "server", "versions", "tokenizer")
"""In the manifest but not in the fingerprint: a tokenizer's name is where it was found, its hash is what it does."""


def _check_facts(facts: ServerFacts, tokenized: Tokenized, sampling: Sampling) -> None:
    """Refuse what contradicts the run; what the server does not tell is no contradiction."""
    if facts.vocabulary_size and facts.vocabulary_size != tokenized.vocabulary_size:
        raise ServerError(
            f"the server's vocabulary has {facts.vocabulary_size} ids, the tokenizer's model has "
            f"{tokenized.vocabulary_size}; use the tokenizer of the model that is served, or another server"
        )
    if facts.context_length and sampling.max_new_tokens >= facts.context_length:
        raise InputError(
            f"max_new_tokens is {sampling.max_new_tokens}, the server's context holds {facts.context_length} ids, "
            "prompt included: every prompt would be refused; lower max_new_tokens, or start a server with more"
        )


def _check_journals(folder: Path, fingerprint: str, *, remedy: str) -> None:
    """Refuse a journal that begins with another set-up's response: run.json was lost, or the file was moved here."""
    for path in journal_paths(folder):
        first = next(read_responses(path), None)
        if first is not None and first.fingerprint != fingerprint:
            raise ResumeError(
                f"{path} was generated by another set-up (fingerprint {first.fingerprint}, this one's is "
                f"{fingerprint}); {remedy}"
            )


def _guard(folder: Path, manifest: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    """Refuse what differs; what either side can't tell (null, behind a router) is no contradiction."""
    differences = [
        difference
        for name, value in now.items()
        if name not in _OUTSIDE and value is not None and manifest.get(name) is not None
        for difference in _differences(name, manifest[name], value)
    ]
    if differences:
        raise ResumeError(
            f"{folder} holds responses of another set-up ({'; '.join(differences)}); "
            "give the run a new name, put the setting back, or delete that folder to start again"
        )


def _differences(name: str, was: Json, now: Json) -> list[str]:
    """What differs, in words; of two maps the entries that differ."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
        return [f"{name}.{key}: was {was.get(key)!r}, now {now.get(key)!r}" for key in keys]
    return [f"{name}: was {was!r}, now {now!r}"] if was != now else []


def _write(folder: Path, manifest: Mapping[str, Json]) -> None:
    write_atomically(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(dict(manifest)), indent=1) + b"\n")
