"""A run file: the model, the servers, the sampling and the data sets of a run, checked before anything starts.

Every key has a default but `run`, `model.tokenizer` and one data set; unknown keys and keys given twice are refused.
This module does not know whether a server answers, nor what a prompt file holds.
"""

import math
import re
from collections.abc import Hashable
from datetime import date
from pathlib import Path
from typing import get_args

import msgspec
import yaml

from .addresses import check_variable_name, server_urls
from .conversations.turns import TURNS
from .errors import InputError
from .markers import GivenMarkers
from .records import Sampling, Verdict
from .run_file_mistakes import in_words
from .target.control_tokens import ControlTokens
from .target.thinking_modes import Portion, check_arguments, check_mix
from .training.settings import TrainingSettings

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TAKEN = ("notebooks", "reports", "index.html", "server_check.json")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokenizer that renders prompts, and what its template is given.

    `prompt_encoder` is a Python function for a model without a chat template: `module:function`, or
    `path/to/file.py:function` (prompt_encoders). `template_date` is for a template that inserts the date; null is
    today's. `markers` are for a model of no known family, one that does not think above all; null looks them up.
    """

    tokenizer: str
    revision: str | None = None
    trust_remote_code: bool = False
    prompt_encoder: str | None = None
    template_date: date | None = None
    markers: GivenMarkers | None = None
    template_kwargs: dict[str, object] = {}  # JSON values


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the target is served; `api_key_env` names an environment variable, never the key itself."""

    urls: tuple[str, ...] = ("http://127.0.0.1:30000",)
    api_key_env: str | None = None
    max_in_flight: int | str = "auto"


class SamplingSettings(Sampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """records.Sampling as a run file may write it."""


class DatasetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt file of the run.

    `tool_function` is a Python function that answers the model's calls where every turn is generated
    (turns.tool_results), `module:function` or `path/to/file.py:function`; null takes the file's recorded results.
    """

    prompts: str
    format: str = "auto"
    turns: str = "last"
    tool_function: str | None = None
    limit: int | None = None
    template_kwargs: dict[str, object] = {}  # JSON values; they win over the model's
    mix: tuple[Portion, ...] = ()
    control_tokens: str = "skip"


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stage 03 makes of the rows of a data set.

    `replay` rows are scored by the servers, `rerender` rows rendered again, both drawn with `seed`. `policy` says what
    a reason makes of a row (checks.DEFAULT_POLICY), where that is to be another verdict.
    """

    replay: int = 0
    rerender: int = 2_000
    seed: int = 1
    policy: dict[str, Verdict] = {}


class RunFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run file, checked; paths in it are made absolute and URLs brought to one spelling by `load_run_file`."""

    run: str
    model: ModelSettings
    datasets: dict[str, DatasetSettings]
    servers: ServerSettings = ServerSettings()
    sampling: SamplingSettings = SamplingSettings()
    audit: AuditSettings = AuditSettings()
    training: TrainingSettings = TrainingSettings()


class _Loader(yaml.SafeLoader):
    """YAML lets the last of two equal keys win: a data set would vanish without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        for number, key in enumerate(keys):
            if any(key.value == earlier.value for earlier in keys[:number]):
                raise yaml.constructor.ConstructorError(None, None, f"`{key.value}` is given twice", key.start_mark)
        return super().construct_mapping(node, deep=deep)


def load_run_file(path: Path) -> RunFile:
    """Read and check a run file. Raises InputError that names the key and what was expected."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError as error:
        raise InputError(f"run file {path} does not exist; notebooks/demo.yaml is one to start from") from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"run file {path} can't be read as YAML: {' '.join(str(error).split())}") from error
    try:
        settings = msgspec.convert(content, RunFile)
    except msgspec.ValidationError as error:
        raise InputError(f"run file {path}: {in_words(error, content, RunFile)}") from error
    try:
        _check(settings)
        urls = server_urls(settings.servers.urls)
    except InputError as error:
        raise InputError(f"run file {path}: {error}") from error
    tokenizer = settings.model.tokenizer
    if looks_like_path(tokenizer) or (path.parent / tokenizer).exists():
        tokenizer = _resolve(path, tokenizer)
    function = _function(path, settings.model.prompt_encoder)
    model = msgspec.structs.replace(settings.model, tokenizer=tokenizer, prompt_encoder=function)
    require_pinned_code(tokenizer, model.revision or "", trust_remote_code=model.trust_remote_code)
    return msgspec.structs.replace(
        settings,
        model=model,
        servers=msgspec.structs.replace(settings.servers, urls=urls),
        training=msgspec.structs.replace(
            settings.training,
            evaluation_prompts=tuple(_resolve(path, file) for file in settings.training.evaluation_prompts),
        ),
        datasets={
            name: msgspec.structs.replace(
                dataset,
                prompts=_resolve(path, dataset.prompts),
                tool_function=_function(path, dataset.tool_function),
            )
            for name, dataset in settings.datasets.items()
        },
    )


def check_sampling(sampling: Sampling) -> None:
    """Raise InputError for a value that SGLang 0.5.23 refuses: every row would be rejected, one by one."""
    rules = {
        "temperature": (math.isfinite(sampling.temperature) and sampling.temperature >= 0, "0 or more"),
        "top_p": (0 < sampling.top_p <= 1, "more than 0, at most 1"),
        "top_k": (sampling.top_k == -1 or sampling.top_k >= 1, "-1 (off), or 1 or more"),
        "max_new_tokens": (sampling.max_new_tokens >= 1, "1 or more"),
        "samples_per_prompt": (sampling.samples_per_prompt >= 1, "1 or more"),
        "seed": (sampling.seed is None or sampling.seed >= 1, "1 or more, or null for none"),
    }
    for name, (fits, expected) in rules.items():
        if not fits:
            raise InputError(f"{name} is {getattr(sampling, name)!r}; expected {expected}")


def require_pinned_code(name: str, revision: str, *, trust_remote_code: bool) -> None:
    """Refuse to run a hub repository's own Python at a moving revision. Raises InputError."""
    if trust_remote_code and not Path(name).expanduser().is_dir() and not _COMMIT.fullmatch(revision):
        raise InputError(
            f"trust_remote_code runs the Python of {name}: set `revision` to the full hash of a commit that you "
            f"reviewed, not {revision or 'nothing'!r} (README, 'Your own server', says how to find it)"
        )


def looks_like_path(name: str) -> bool:
    """Whether a tokenizer's name is a folder's: a hub id is OWNER/NAME and no folder of that name is there."""
    return Path(name).expanduser().exists() or name.startswith((".", "/", "~")) or name.count("/") != 1


def _check(settings: RunFile) -> None:
    for name in [settings.run, *settings.datasets]:
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} becomes a folder; use letters, digits, '.', '_' and '-'")
    if not settings.datasets:
        raise InputError("`datasets` is empty; name one prompt file at least")
    check_variable_name(settings.servers.api_key_env or "")
    window = settings.servers.max_in_flight
    if window != "auto" and not (isinstance(window, int) and window > 0):
        raise InputError(f"max_in_flight is {window!r}; expected a positive number or auto")
    check_arguments(settings.model.template_kwargs)
    for name, rows in (("replay", settings.audit.replay), ("rerender", settings.audit.rerender)):
        if rows < 0:
            raise InputError(f"audit.{name} is {rows}; expected a number of rows, 0 for none")
    if settings.audit.policy:
        from .response_checks.checks import complete_policy  # with numpy, which few commands need

        complete_policy(settings.audit.policy)
    for name, dataset in settings.datasets.items():
        if name in _TAKEN:
            raise InputError(f"a data set can't be called {name!r}: the run keeps its own {name} in that folder")
        for key, value, known in (
            ("turns", dataset.turns, TURNS),
            ("control_tokens", dataset.control_tokens, get_args(ControlTokens)),
        ):
            if value not in known:
                raise InputError(f"{key} of {name} is {value!r}; expected one of {', '.join(known)}")
        if dataset.tool_function and dataset.turns != "each":
            raise InputError(f"tool_function of {name} answers calls where every turn is generated; set turns: each")
        try:
            check_arguments(dataset.template_kwargs)
            check_mix(dataset.mix)
        except InputError as error:
            raise InputError(f"datasets.{name}: {error}") from error
        if dataset.limit is not None and dataset.limit < 1:
            raise InputError(f"limit of {name} is {dataset.limit}; expected a positive number of rows, or null for all")
    check_sampling(settings.sampling)


def _function(run_file: Path, name: str | None) -> str | None:
    """A user's function; its file as seen from the run file."""
    return _resolve(run_file, name) if name and name.rpartition(":")[0].endswith(".py") else name


def _resolve(run_file: Path, name: str) -> str:
    """A path as seen from the run file; a hub data set's name stays, its folder on the disk is a path too."""
    prefix = "hub:" if name.startswith("hub:") else ""
    place = name.removeprefix(prefix)
    if prefix and not place.startswith((".", "/", "~")):
        return name
    return prefix + str((run_file.parent / Path(place).expanduser()).resolve())
