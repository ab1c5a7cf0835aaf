"""Which rows are held out: decided by the ids of a conversation's first prompt, and by nothing else.

A prompt is held out where a hash of its ids falls below the share that is asked for. So the split knows neither keys
nor other rows: more data, another order or another sample of the same prompt change nothing, a smaller share is part
of a larger one, and equal prompts are on one side. Turns of one conversation go where its first prompt goes. This
module does not know what a row is good for.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..prompts import prompt_batches
from ..response_checks.response_columns import IdLists

SPLITS = ("train", "held_out")


def place_of(prompt_ids: NDArray[np.int32]) -> float:
    """A prompt's place from 0 to 1: the first 8 bytes of SHA-256 over its ids as little-endian int32."""
    digest = hashlib.sha256(np.ascontiguousarray(prompt_ids, dtype="<i4").data).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def places_by_source(folder: Path) -> dict[str, float]:
    """The place of each source's first prompt in prompts.parquet. Raises InputError where that can't be read."""
    first: dict[str, tuple[int, float]] = {}
    for batch in prompt_batches(folder, ["source_id", "turn", "prompt_ids"]):
        prompts = IdLists.from_arrow(batch["prompt_ids"])
        pairs = zip(batch["source_id"].to_pylist(), batch["turn"].to_pylist(), strict=True)
        for row, (source, turn) in enumerate(pairs):
            if source not in first or turn < first[source][0]:
                first[source] = (turn, place_of(prompts.row(row)))
    return {source: place for source, (_, place) in first.items()}


def source_of(key: str) -> str:
    """The SOURCE_ID of a generation's key, SOURCE_ID#TURN/SAMPLE."""
    return key.rpartition("/")[0].rpartition("#")[0]


def held_out(keys: Sequence[str], prompts: IdLists, places: dict[str, float], share: float) -> NDArray[np.bool_]:
    """Which rows are held out; a row of a source that is not in `places` goes by its own prompt."""
    if not share:
        return np.zeros(len(keys), dtype=np.bool_)
    found: Iterable[float | None] = (places.get(source_of(key)) for key in keys)
    own = [place_of(prompts.row(row)) if place is None else place for row, place in enumerate(found)]
    return np.array(own, dtype=np.float64) < share
