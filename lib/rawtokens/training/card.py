"""The card of a published export: the data set's own card, with what was exported and what was left out behind it.

This module does not know where the card goes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import InputError
from ..reporting.data_card import data_card
from .manifest import ExportedFormat

_LOADED = ("parquet", "specforge", "speculators", "arrow")
"""Formats that `datasets` loads by itself, best first; a hub data set's splits are of one of them."""


def card_text(folder: Path, exports: Sequence[ExportedFormat], *, name: str) -> str:
    """The card in Markdown, with the hub's head. Raises InputError where no format is one that `datasets` loads."""
    by_name = {entry.format: entry for entry in exports}
    loaded = next((by_name[form] for form in _LOADED if form in by_name), None)
    if loaded is None:
        raise InputError(f"a hub data set needs one of {', '.join(_LOADED)}; export parquet too, then publish")
    splits = {file.split: f"{loaded.format}/{file.split}-*" for file in loaded.files}
    parts = [data_card(folder, name, splits=splits).rstrip(), "## Training files", *map(_format_text, exports)]
    return "\n\n".join(parts) + "\n"


def _format_text(entry: ExportedFormat) -> str:
    rows = {
        "read by": entry.read_by,
        "loss mask": f"{entry.mask}; {entry.mask_convention}",
        "rows verified": f"{entry.counts['rows']:,}",
        "train": f"{entry.counts['train']:,}",
        "held out": f"{entry.counts['held_out']:,}",
        **{f"left out: {reason}": f"{count:,}" for reason, count in entry.left_out.items()},
        **{f"ids: {label}": f"{count:,}" for label, count in entry.ids.items()},
        **{f"`{file.name}`": f"{file.rows:,} rows, {file.ids:,} ids, {file.bytes:,} bytes" for file in entry.files},
    }
    return f"### {entry.format}\n\n{_table(rows)}"


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| what | value |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])
