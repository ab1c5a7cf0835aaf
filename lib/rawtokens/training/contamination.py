"""Whether evaluation prompts stand in the training rows: runs of n equal ids (n-grams), prompts and outputs alike.

An evaluation prompt is the texts of its user messages, encoded alone, so that the chat template's own ids overlap with
nothing. n-grams are compared by 64-bit hashes: over 1e9 ids and a million n-grams one false match is expected in 20,000
checks. What is found is reported and nothing is taken out. This module does not know what an overlap means: short
instructions that many tasks share overlap too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..conversations import read_conversations
from ..errors import InputError
from ..journal import write_atomically
from ..records import Conversation
from ..reporting.wording import counted, either
from ..response_checks.response_columns import IdLists
from .manifest import TRAINING
from .rows import TrainingRows

CONTAMINATION = "contamination.json"
N = 13
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_FILTER_BITS = 22
_KEYS_TOLD = 100
_TEXTS = 512

Hashes = NDArray[np.uint64]
Encode = Callable[[Sequence[str]], list[list[int]]]


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """One file of evaluation prompts: prompts = too_short + clean + overlapping.

    `left_out` rows are no conversation, or have the content of an earlier one. `overlapping` share an n-gram with a
    training row, `mostly` at least half of theirs. `rows` is how many training rows hold one, `keys` the first hundred
    of them.
    """

    file: str
    n: int
    prompts: int
    left_out: int
    too_short: int
    overlapping: int
    mostly: int
    rows: int
    keys: list[str]


class Contamination:
    """Compares training rows with one file of evaluation prompts, batch by batch."""

    def __init__(self, path: str, encode: Encode, *, n: int = N) -> None:
        """Read and encode the file. Raises InputError where it can't be read, or n is below 1."""
        if n < 1:
            raise InputError(f"n-grams of {n} ids; expected 1 or more")
        self._path, self._n = path, n
        prompts, self._left_out = _evaluation_prompts(path, encode)
        hashes, valid = ngrams(prompts, n)
        self._grams, self._of_prompt = hashes[valid], prompts.rows_of(np.flatnonzero(valid))
        self._prompts = len(prompts.lengths)
        self._known = np.unique(self._grams)
        self._found = np.zeros(len(self._known), dtype=np.bool_)
        self._filter = np.zeros(1 << _FILTER_BITS, dtype=np.bool_)
        self._filter[_slot(self._known)] = True
        self._rows, self._keys = 0, list[str]()

    def add(self, rows: TrainingRows) -> None:
        """Compare a batch."""
        hashes, valid = ngrams(rows.inputs, self._n)
        places = np.flatnonzero(self._filter[_slot(hashes)] & valid)
        if not len(places) or not len(self._known):
            return
        slots = np.minimum(np.searchsorted(self._known, hashes[places]), len(self._known) - 1)
        same = self._known[slots] == hashes[places]
        self._found[slots[same]] = True
        touched = np.unique(rows.inputs.rows_of(places[same])).tolist()
        self._rows += len(touched)
        self._keys += [rows.keys[row] for row in touched[: max(0, _KEYS_TOLD - len(self._keys))]]

    def overlap(self) -> Overlap:
        """What was found so far."""
        hit = self._found[np.searchsorted(self._known, self._grams)] if len(self._known) else np.zeros(0, np.bool_)
        grams = np.bincount(self._of_prompt, minlength=self._prompts)
        hits = np.bincount(self._of_prompt, hit, minlength=self._prompts)
        return Overlap(
            file=Path(self._path).name,
            n=self._n,
            prompts=self._prompts,
            left_out=self._left_out,
            too_short=int((grams == 0).sum()),
            overlapping=int((hits > 0).sum()),
            mostly=int(((grams > 0) & (2 * hits >= grams)).sum()),
            rows=self._rows,
            keys=self._keys,
        )


def ngrams(lists: IdLists, n: int) -> tuple[Hashes, NDArray[np.bool_]]:
    """The hash of the n ids from each position on, and whether they lie in one row."""
    ids = lists.ids.astype(np.uint64) + np.uint64(1)
    padded = np.concatenate([ids, np.zeros(n, dtype=np.uint64)])
    hashes = np.zeros(len(ids), dtype=np.uint64)
    for ahead in range(n):
        hashes *= _PRIME
        hashes += padded[ahead : ahead + len(ids)]
    hashes ^= hashes >> np.uint64(29)
    hashes *= _PRIME
    valid = np.ones(len(ids), dtype=np.bool_)
    last = lists.offsets[1:, None] - np.arange(1, n)
    valid[last[last >= lists.offsets[:-1, None]]] = False
    return hashes, valid


def write_contamination(folder: Path, found: Iterable[Overlap]) -> Path:
    """Write training/contamination.json, whole or not at all. Returns its path."""
    path = folder / TRAINING / CONTAMINATION
    write_atomically(path, msgspec.json.format(msgspec.json.encode(list(found)), indent=1) + b"\n")
    return path


def contamination_table(found: Sequence[Overlap]) -> pd.DataFrame:
    """A line a file of evaluation prompts."""
    names = {
        "file": "evaluation prompts",
        "prompts": "prompts",
        "left_out": "left out",
        "too_short": "too short",
        "overlapping": "overlapping",
        "mostly": "half or more",
        "rows": "training rows",
    }
    lines = [[getattr(overlap, field) for field in names] for overlap in found]
    return pd.DataFrame(lines, columns=list(names.values()))


def contamination_takeaway(found: Sequence[Overlap]) -> str:
    """One sentence a file."""
    if not found:
        return "No evaluation prompts are given; name their files under training.evaluation_prompts."
    return " ".join(
        f"{overlap.file}: {overlap.overlapping:,} of {counted(overlap.prompts, 'prompt')} "
        f"{either(overlap.overlapping, 'shares', 'share')} {counted(overlap.n, 'id')} in a row "
        f"with {counted(overlap.rows, 'training row')}, {overlap.mostly:,} of them half of what they have; "
        f"{overlap.too_short:,} {either(overlap.too_short, 'is', 'are')} too short to tell."
        for overlap in found
    )


def _evaluation_prompts(path: str, encode: Encode) -> tuple[IdLists, int]:
    lists: list[list[int]] = []
    waiting: list[str] = []
    left_out = 0
    for row in read_conversations(path):
        if isinstance(row, Conversation):
            waiting.append("\n".join(_user_texts(row)))
        else:
            left_out += 1
        if len(waiting) == _TEXTS:
            lists += encode(waiting)
            waiting = []
    return IdLists.from_lists([*lists, *encode(waiting)]), left_out


def _user_texts(row: Conversation) -> Iterator[str]:
    for message in row.messages:
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            yield content


def _slot(hashes: Hashes) -> NDArray[np.int64]:
    return (hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)
