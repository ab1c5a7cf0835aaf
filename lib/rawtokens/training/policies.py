"""Which rows of verified.parquet are trained on, and why each other one is not.

Every row is kept or left out for one reason, the first that applies; nothing is cut. This module does not know what an
id means, nor how rows are written.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import InputError
from ..prompts import prompt_batches
from ..response_checks.checks import policy_of, prompt_digests
from ..response_checks.response_columns import IdLists
from .rows import Integers, integers, verified_batches
from .settings import TrainingSettings
from .splits import held_out, places_by_source, source_of

GENERATE_LONGER = "generate_longer.jsonl"
IN_A_LATER_ROW = "in_a_later_row"
_TRUNCATED = ("truncated_in_thinking", "truncated_in_answer")
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_COLUMNS = [
    "key",
    "prompt_ids",
    "verdict",
    "reasons",
    "prompt_tokens",
    "output_tokens",
    "reasoning_tokens",
    "answer_tokens",
    "tool_tokens",
    "ends_with_stop",
]


class Selection(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One entry a row of verified.parquet, but for the counts: rows = kept + left out.

    `lengths` are ids of prompt and output. `repeated` counts kept rows whose prompt an earlier kept row has. `earlier`
    are the rows, left out as IN_A_LATER_ROW, that a kept row holds whole (cycles), in order.
    """

    kept: NDArray[np.bool_]
    held_out: NDArray[np.bool_]
    lengths: Integers
    left_out: dict[str, int]
    repeated: int
    longer: tuple[str, ...]  # keys whose prompts are to be generated again with more new tokens
    earlier: Mapping[int, tuple[int, ...]] = {}

    def counts(self) -> dict[str, int]:
        """Rows: read, train, held out and left out."""
        out = int((self.kept & self.held_out).sum())
        kept = int(self.kept.sum())
        return {"rows": len(self.kept), "train": kept - out, "held_out": out, "left_out": len(self.kept) - kept}


def select_rows(folder: Path, settings: TrainingSettings) -> Selection:
    """Decide on every row of a data set's verified.parquet. Reads prompt ids, no output ids.

    Raises InputError where verified.parquet or prompts.parquet is missing or can't be read.
    """
    places = places_by_source(folder) if settings.held_out else {}
    seen: set[bytes] = set()
    reasons: list[str] = []
    out: list[NDArray[np.bool_]] = [np.zeros(0, dtype=np.bool_)]
    lengths: list[Integers] = [np.zeros(0, dtype=np.int64)]
    longer: list[str] = []
    repeated = 0
    for batch in verified_batches(folder, _COLUMNS):
        keys, prompts = batch["key"].to_pylist(), IdLists.from_arrow(batch["prompt_ids"])
        size = integers(batch["prompt_tokens"]) + integers(batch["output_tokens"])
        for key, reason, digest in zip(keys, _reasons(batch, size, settings), prompt_digests(prompts), strict=True):
            again = not reason and digest in seen
            repeated += again and settings.duplicates == "keep"
            reasons.append("duplicate_prompt" if again and settings.duplicates == "first" else reason)
            if not reason:
                seen.add(digest)
            if reason in _TRUNCATED and getattr(settings, reason) == "generate_longer":
                longer.append(key)
        out.append(held_out(keys, prompts, places, settings.held_out))
        lengths.append(size)
    kept = np.array([not reason for reason in reasons], dtype=np.bool_)
    earlier = _earlier(folder, kept) if settings.rows == "cycle" else {}
    for row in (row for rows in earlier.values() for row in rows):
        kept[row], reasons[row] = False, IN_A_LATER_ROW
    return Selection(
        kept=kept,
        earlier=earlier,
        held_out=np.concatenate(out),
        lengths=np.concatenate(lengths),
        left_out=dict(Counter(reason for reason in reasons if reason).most_common()),
        repeated=repeated,
        longer=tuple(longer),
    )


def _earlier(folder: Path, kept: NDArray[np.bool_]) -> dict[int, tuple[int, ...]]:
    from .cycles import earlier_turns  # which reads a selection

    return earlier_turns(folder, kept)


def longer_prompts(folder: Path, keys: tuple[str, ...]) -> bytes:
    """The conversations of these generations as a prompt file (OpenAI messages): one line each, its id the SOURCE_ID.

    For a run of its own with a larger max_new_tokens; a run keeps to one sampling. A conversation of several turns is
    whole, for `turns: each`. Raises InputError where a generation's source is not in prompts.parquet.
    """
    wanted = dict.fromkeys(source_of(key) for key in keys)
    lines = []
    for batch in prompt_batches(folder, ["source_id", "messages", "tools", "template_kwargs", "later"]):
        for row in batch.to_pylist():
            if row["source_id"] in wanted:
                del wanted[row["source_id"]]
                messages = [*_LIST.decode(row["messages"]), *_LIST.decode(row["later"] or "[]")]
                texts = {name: msgspec.Raw(row[name].encode()) for name in ("tools", "template_kwargs")}
                lines.append(msgspec.json.encode({"id": row["source_id"], "messages": messages, **texts}) + b"\n")
    if wanted:
        raise InputError(
            f"{folder / 'prompts.parquet'} has no prompt of {next(iter(wanted))!r}, whose truncated row is to be "
            "generated longer; run stages 01 and 03 again, or set training.truncated_in_thinking and "
            "truncated_in_answer to drop"
        )
    return b"".join(lines)


def _reasons(batch: pa.RecordBatch, lengths: Integers, settings: TrainingSettings) -> Iterator[str]:
    """Why each row is left out; "" where it is not."""
    policy = policy_of(batch.schema)
    limit = settings.max_length or np.iinfo(np.int64).max
    pairs = zip(
        batch["verdict"].to_pylist(),
        batch["reasons"].to_pylist(),
        lengths,
        _supervised(batch, settings.mask),
        strict=True,
    )
    for verdict, reasons, length, supervised in pairs:
        truncated = next((name for name in _TRUNCATED if name in reasons), "")
        doubts = [name for name in reasons if policy.get(name) != "accept" and name not in _TRUNCATED]
        if verdict == "reject":
            worst = [name for name in reasons if policy.get(name) == "reject"]
            yield f"rejected: {[*worst, *reasons, 'no reason'][0]}"
        elif verdict == "flag" and doubts and settings.flagged == "drop":
            yield f"flagged: {doubts[0]}"
        elif truncated and getattr(settings, truncated) != "keep":
            yield truncated
        elif length > limit:
            yield "too_long"
        else:
            yield "" if supervised else "nothing_supervised"


def _supervised(batch: pa.RecordBatch, mask: str) -> Integers:
    """How many ids of each row the mask has a 1 on."""
    output, reasoning, answer, tool = (
        integers(batch[name]) for name in ("output_tokens", "reasoning_tokens", "answer_tokens", "tool_tokens")
    )
    stop = np.array(batch["ends_with_stop"].to_pylist(), dtype=np.int64)
    closers = output - reasoning - answer - tool - stop
    by_mask = {"sampled": output, "reasoning": reasoning + closers, "answer": answer + stop, "tool_calls": tool}
    return by_mask[mask]
