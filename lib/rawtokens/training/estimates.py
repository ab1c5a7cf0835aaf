"""What an export costs: on the disk, in a reader's RAM, and in hidden states, which a drafter is trained on.

Estimates from counts; nothing is measured here. This module does not know how long a trainer takes.
"""

from collections.abc import Sequence

import pandas as pd

from ..reporting.wording import counted, either
from .manifest import ExportedFormat

ID_BYTES = 4
_STATES = 4  # three layers' hidden states and the last one's, which EAGLE-3 takes
_STATE_BYTES = 2  # bfloat16


def hidden_state_bytes(hidden_size: int) -> int:
    """Bytes of hidden states an id: four of `hidden_size` in bfloat16 (Kimi-K2.5, 7,168: 57 kB)."""
    return hidden_size * _STATES * _STATE_BYTES


def storage_table(exports: Sequence[ExportedFormat]) -> pd.DataFrame:
    """A line a format: files, rows, ids, bytes, bytes an id, and the RAM that its largest file takes to read."""
    lines = []
    for entry in exports:
        ids, size = sum(file.ids for file in entry.files), sum(file.bytes for file in entry.files)
        lines.append(
            {
                "format": entry.format,
                "read by": entry.read_by,
                "files": len(entry.files),
                "rows": sum(file.rows for file in entry.files),
                "ids": ids,
                "MB": size / 1e6,
                "bytes an id": size / ids if ids else float("nan"),
                "MB of RAM a file": max((file.ram_bytes for file in entry.files), default=0) / 1e6,
            }
        )
    return pd.DataFrame(lines)


def cost_takeaway(exports: Sequence[ExportedFormat], *, hidden_size: int, ids_per_second: float = 0.0) -> str:
    """Ids as they are, hidden states if they are stored, and the target's time an epoch if they are made on the way.

    `ids_per_second` is the rate at which the target reads prompts; 0 where it is not known.
    """
    train = max((sum(file.ids for file in entry.files if file.split == "train") for entry in exports), default=0)
    if not train:
        return "There is no row to train on."
    states = train * hidden_state_bytes(hidden_size)
    text = (
        f"{counted(train, 'id')} of the train split {either(train, 'is', 'are')} {_size(train * ID_BYTES)} as int32. "
        f"Their hidden states ({hidden_state_bytes(hidden_size):,} bytes an id at a hidden size of {hidden_size:,}) "
        f"would be {_size(states)} on the disk; trainers that make them on the way (SpecForge online, TorchSpec) send "
        "every id through the target once an epoch instead"
    )
    if ids_per_second > 0:
        text += f", {train / ids_per_second / 3600:,.1f} hours at {ids_per_second:,.0f} ids a second"
    return text + "."


def _size(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"
