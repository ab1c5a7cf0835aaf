"""A run file's settings as the flat parameters of each stage's notebook, and as the index shows them.

This module does not know what a notebook does with them, nor which of them make a stage run again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import msgspec

from ..records import Json
from ..run_file import RunFile
from ..target.control_tokens import ControlTokens
from ..target.rendering import PromptOptions
from ..training.settings import TrainingSettings

Scalar = str | int | float | bool


def stage_parameters(settings: RunFile, stage: str, name: str, *, folder: Path) -> dict[str, Scalar]:
    """The parameters of a stage's notebook: maps and lists as JSON, null as "" or 0.

    `name` is the data set's, and `folder` its folder; for stage 00 the run's.
    """
    tokenizer: dict[str, Scalar] = {
        "tokenizer": settings.model.tokenizer,
        "revision": settings.model.revision or "",
        "trust_remote_code": settings.model.trust_remote_code,
        "prompt_encoder": settings.model.prompt_encoder or "",
        "markers": msgspec.json.encode(settings.model.markers).decode() if settings.model.markers else "",
    }
    servers: dict[str, Scalar] = {
        "urls": msgspec.json.encode(settings.servers.urls).decode(),
        "api_key_env": settings.servers.api_key_env or "",
    }
    template = {"template_kwargs": msgspec.json.encode(settings.model.template_kwargs).decode()}
    place: dict[str, Scalar] = {"output_dir": str(folder)}
    if stage == "00":
        return {**place, **tokenizer, **servers, **template}
    place["dataset"] = name
    if stage == "01":
        dataset, options = settings.datasets[name], prompt_options(settings, name)
        file: dict[str, Scalar] = {"prompts": dataset.prompts, "format": dataset.format, "limit": dataset.limit or 0}
        asked: dict[str, Scalar] = {
            "turns": options.turns,
            "template_kwargs": msgspec.json.encode(options.template_kwargs).decode(),
            "mix": msgspec.json.encode(options.mix).decode(),
            "control_tokens": options.control_tokens,
            "template_date": settings.model.template_date.isoformat() if settings.model.template_date else "",
        }
        return {**place, **file, **asked, **tokenizer}
    if stage == "02":
        window = settings.servers.max_in_flight
        sampling = {**msgspec.structs.asdict(settings.sampling), "seed": settings.sampling.seed or 0}
        taken = {**place, **servers, "max_in_flight": window if isinstance(window, int) else 0, **sampling}
        if settings.datasets[name].turns != "each":
            return taken
        conversations = {**tokenizer, "tool_function": settings.datasets[name].tool_function or ""}
        return {**taken, "conversations": msgspec.json.encode(conversations).decode()}
    if stage == "03":
        audit = settings.audit
        asked = {"replay_rows": audit.replay, "rerendered_rows": audit.rerender, "audit_seed": audit.seed}
        asked["policy"] = msgspec.json.encode(audit.policy).decode()
        return {**place, **tokenizer, **servers, **asked}
    if stage == "05":
        usual = TrainingSettings()
        chosen = msgspec.structs.asdict(settings.training).items()
        kept = {name: value for name, value in chosen if value != getattr(usual, name)}
        return {**place, **tokenizer, "training": msgspec.json.encode(kept).decode()}
    return place


def prompt_options(settings: RunFile, name: str) -> PromptOptions:
    """How a data set's prompts are rendered: its own template arguments win over the model's."""
    dataset = settings.datasets[name]
    arguments = cast("dict[str, Json]", {**settings.model.template_kwargs, **dataset.template_kwargs})
    return PromptOptions(
        turns=dataset.turns,
        template_kwargs=arguments,
        mix=dataset.mix,
        control_tokens=cast(ControlTokens, dataset.control_tokens),
    )


def shown_settings(settings: RunFile) -> Mapping[str, object]:
    """The settings that the index shows, flat; a folder by its name alone."""
    model, sampling = settings.model, settings.sampling
    tokenizer = Path(model.tokenizer)
    return {
        "tokenizer": tokenizer.name if tokenizer.is_absolute() else model.tokenizer,
        "revision": model.revision or "not pinned",
        "template_kwargs": msgspec.json.encode(model.template_kwargs).decode(),
        **msgspec.structs.asdict(sampling),
    }
