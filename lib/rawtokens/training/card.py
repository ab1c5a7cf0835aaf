"""The card of a published export: the data set's own card, with what was exported and what was left out behind it.

This module does not know where the card goes.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ..errors import InputError
from ..records import Json
from ..reporting.data_card import Exported, data_card
from ..reporting.wording import counted
from ..runs import read_manifest
from .manifest import ExportedFile, ExportedFormat

_LOADED = ("parquet", "specforge", "speculators", "arrow")
"""Formats that `datasets` loads by itself, best first; a hub data set's splits are of one of them."""


COLUMNS = {
    "input_ids": "prompt ids, and behind them the output ids",
    "loss_mask": "0 or 1 for each of them: 1 where a draft model is trained",
    "key": "SOURCE#TURN/SAMPLE: the prompt's id, which turn, which sample of it",
    "verdict": "`accept` or `flag`, which is a doubt",
    "shape": "how far the response came, as counted above",
    "finish_reason": "`stop`, or `length` where it ran into `max_new_tokens`",
    "prompt_tokens": "ids of the prompt: where the output begins in `input_ids`",
    "output_tokens": "ids of the output",
    "reasoning_tokens": "ids of its thinking, without the closer",
    "answer_tokens": "ids of its answer, without the stop id",
    "tool_tokens": "ids of its tool calls",
}
"""What the columns of the formats that `datasets` loads are; speculators has `id` in place of `key`."""


def card_text(folder: Path, exports: Sequence[ExportedFormat], *, name: str) -> str:
    """The card in Markdown, with the hub's head. Raises InputError where no format is one that `datasets` loads."""
    by_name = {entry.format: entry for entry in exports}
    loaded = by_name[loaded_format(by_name)]
    exported = Exported(
        splits={file.split: f"{loaded.format}/{file.split}-*" for file in loaded.files},
        rows=sum(file.rows for file in loaded.files),
        lead=_lead(loaded, read_manifest(folder)),
        columns=_columns(loaded),
    )
    parts = [data_card(folder, name, exported=exported).rstrip(), "## Training files", *map(_format_text, exports)]
    return "\n\n".join(parts) + "\n"


def loaded_format(formats: Collection[str]) -> str:
    """The format that a hub data set's splits are of. Raises InputError where none of these can be."""
    found = next((name for name in _LOADED if name in formats), None)
    if found is None:
        raise InputError(
            f"{', '.join(formats)} alone can't be published: a data set needs a format that `datasets` loads, one of "
            f"{', '.join(_LOADED)}; add --format parquet, or parquet to training.formats"
        )
    return found


def _lead(entry: ExportedFormat, run: Mapping[str, Json]) -> str:
    counts = entry.counts
    rows = counts["train"] + counts["held_out"]
    model = run.get("model") or run.get("tokenizer")
    return (
        f"{counted(rows, 'row')}, of {counted(counts['rows'], 'response')} of {model}: {counts['train']:,} in the "
        f"split `train`, {counts['held_out']:,} in `held_out`. Left out: {counts['left_out']:,}, counted by reason "
        'under "Training files".\n\n`input_ids` are the prompt ids and behind them the output ids. '
        f"`loss_mask` (`{entry.mask}`) is {entry.mask_convention}."
    )


def _columns(entry: ExportedFormat) -> str:
    names = {name: "id" if name == "key" and entry.format == "speculators" else name for name in COLUMNS}
    lines = [f"| `{names[name]}` | {text} |" for name, text in COLUMNS.items()]
    return "\n".join(["| column | what it is |", "|---|---|", *lines])


def _format_text(entry: ExportedFormat) -> str:
    rows = {
        "read by": entry.read_by,
        "loss mask": f"{entry.mask}; {entry.mask_convention}",
        "rows verified": f"{entry.counts['rows']:,}",
        "train": f"{entry.counts['train']:,}",
        "held out": f"{entry.counts['held_out']:,}",
        **{f"left out: {reason}": f"{count:,}" for reason, count in entry.left_out.items()},
        **{f"ids: {label}": f"{count:,}" for label, count in entry.ids.items()},
        **{f"`{file.name}`": _file_text(file) for file in entry.files},
    }
    return f"### {entry.format}\n\n{_table(rows)}"


def _file_text(file: ExportedFile) -> str:
    return f"{counted(file.rows, 'row')}, {counted(file.ids, 'id')}, {counted(file.bytes, 'byte')}"


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| what | value |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])
