"""The command `export`: every data set of a plan, handed off and, where asked, published.

This module does not know how a command line looks.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..errors import InputError
from ..notebook_stages.stage_files import check_named
from ..reporting.data_card import data_card
from ..target.target_tokenizer import load_tokenizer
from .card import loaded_format
from .handoff import hand_off
from .manifest import TRAINING
from .publish import check_place, publish
from .settings import FORMATS

if TYPE_CHECKING:
    from ..notebook_stages.pipeline import Plan


def export_datasets(
    plan: "Plan", *, formats: Sequence[str] | None, to: str, private: bool, on_line: Callable[[str], None]
) -> None:
    """Export the plan's data sets by the run file's `training`; `formats` stand in place of its formats.

    `to` publishes one data set (`publish.publish`). Raises InputError and RunStopped.
    """
    if to and len(plan.datasets) != 1:
        raise InputError(f"--to {to} takes one data set; name it by --dataset: {', '.join(plan.datasets)}")
    unknown = [name for name in formats or () if name not in FORMATS]
    if unknown:
        raise InputError(f"--format {unknown[0]} is not known; expected one of {', '.join(FORMATS)}")
    check_named(plan.settings, plan.datasets, ("05",))  # before the work, which takes minutes
    settings, model = plan.settings.training, plan.settings.model
    if formats:
        settings = msgspec.structs.replace(settings, formats=tuple(dict.fromkeys(formats)))
    if to:
        check_place(to)
        loaded_format(settings.formats)
        data_card(plan.run_folder / plan.datasets[0], plan.datasets[0])
    tokenizer = load_tokenizer(
        model.tokenizer,
        revision=model.revision or "",
        trust_remote_code=model.trust_remote_code,
        prompt_encoder=model.prompt_encoder or "",
        markers=msgspec.json.encode(model.markers).decode() if model.markers else "",
    )
    for name in plan.datasets:
        folder = plan.run_folder / name

        def say(line: str, name: str = name) -> None:
            on_line(f"{name}: {line}")

        exported = hand_off(folder, tokenizer, settings, on_line=say)
        say(f"written: {folder / TRAINING}")
        if to:
            say(f"published: {publish(folder, exported, to, name=name, private=private)}")
