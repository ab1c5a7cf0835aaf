"""What a user decides about training data, checked. This module does not know how it is done."""

import math
from typing import Literal, get_args

import msgspec

from ..errors import InputError

FORMATS = ("parquet", "arrow", "specforge", "speculators", "torchspec")
MASK_NAMES = ("sampled", "reasoning", "answer", "tool_calls")

Truncated = Literal["keep", "drop", "generate_longer"]
Flagged = Literal["keep", "drop"]
Duplicates = Literal["keep", "first"]
RowOf = Literal["turn", "cycle"]


class TrainingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run file's `training`.

    Truncated rows are whole prefixes of what the target said: `keep` trains on them, `generate_longer` leaves them
    out and writes their prompts as a prompt file for a run with more new tokens. `flagged` is about rows with
    another doubt. `max_length` counts ids of prompt and output; longer rows are left out, never cut. `duplicates:
    first` keeps one row a prompt. `rows` is what a row is: `turn`, one generation, or `cycle`, turns that go on
    from one another in one row, all that was sampled marked. `held_out` is the share of prompts held out,
    `shard_gb` the RAM that a trainer may need for one shard, `hidden_size` the target's (Kimi-K2.5's by default),
    for the cost estimate. `report_lengths` are the trainers' lengths that the loss report looks at;
    `evaluation_prompts` are files that training rows are compared with. Raises ValueError.
    """

    formats: tuple[str, ...] = ("parquet",)
    mask: str = "sampled"
    boundary_shift: bool = False
    truncated_in_thinking: Truncated = "keep"
    truncated_in_answer: Truncated = "keep"
    flagged: Flagged = "drop"
    max_length: int | None = None
    duplicates: Duplicates = "keep"
    rows: RowOf = "turn"
    held_out: float = 0.02
    shard_gb: float = 16.0
    draft_vocabulary: int = 32_000
    hidden_size: int = 7_168
    report_lengths: tuple[int, ...] = (128, 512, 2_048, 4_096, 8_192, 16_384, 32_768)
    evaluation_prompts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = {
            "formats": (self.formats, FORMATS),
            "mask": ((self.mask,), MASK_NAMES),
            "truncated_in_thinking": ((self.truncated_in_thinking,), get_args(Truncated)),
            "truncated_in_answer": ((self.truncated_in_answer,), get_args(Truncated)),
            "flagged": ((self.flagged,), get_args(Flagged)),
            "duplicates": ((self.duplicates,), get_args(Duplicates)),
            "rows": ((self.rows,), get_args(RowOf)),
        }
        for name, (given, allowed) in known.items():
            for value in given:
                if value not in allowed:
                    raise ValueError(f"training.{name} is {value!r}; expected one of {', '.join(allowed)}")
        ranges = {
            "formats": (len(set(self.formats)) == len(self.formats) > 0, "one format at least, none twice"),
            "max_length": (self.max_length is None or self.max_length >= 1, "1 or more, or null for any length"),
            "held_out": (0 <= self.held_out < 1, "0 or more, less than 1"),
            "shard_gb": (math.isfinite(self.shard_gb) and self.shard_gb > 0, "more than 0"),
            "hidden_size": (self.hidden_size >= 1, "1 or more"),
            "draft_vocabulary": (self.draft_vocabulary >= 1, "1 or more"),
            "report_lengths": (
                len(self.report_lengths) > 0 and all(1 <= length < 1 << 31 for length in self.report_lengths),
                "one length at least, each from 1 to 2,147,483,647",
            ),
        }
        for name, (fits, expected) in ranges.items():
            if not fits:
                raise ValueError(f"training.{name} is {getattr(self, name)!r}; expected {expected}")


def training_settings(text: str) -> TrainingSettings:
    """Settings from a notebook's JSON object, the run file's `training`. Raises InputError."""
    try:
        return msgspec.json.decode(text, type=TrainingSettings)
    except msgspec.MsgspecError as error:
        raise InputError(f"training is {text!r}: {error}; expected a JSON object as in a run file") from error
