"""Which generations a data set needs: every prompt times every sample, and what of it is missing.

A generation's key is SOURCE_ID#TURN/SAMPLE. Memory is flat in the number of prompts but for 16 bytes a key that
stands in a journal. This module does not know how a generation is made.
"""

import hashlib
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec

from ..engines.answers import Ids
from ..journal import journal_paths, rejection_paths
from ..prompts import PROMPTS, prompt_batches
from ..records import ResponseLine, Sampling
from ..response_checks.response_columns import IdLists
from ..shards import WHOLE, Shard
from .known_keys import KnownKeys
from .rejections import each_rejection

BLOCK_ROWS = 2048
"""Rows that are put in order together: as Arrow 16 MB of prompts of 2,000 ids."""
_LANES = 16
"""On SGLang 0.5.23, requests that share a prefix and are taken up in one batch are all computed in full."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One generation to make; 4 bytes an id where `prompt_ids` is an array."""

    key: str
    prompt_ids: Ids


class Keys(Protocol):
    """Keys that can be asked for."""

    def __contains__(self, key: str, /) -> bool: ...


class Following(Protocol):
    """What knows the turns behind the first of each conversation; `planned` is how many generations it counts with."""

    @property
    def planned(self) -> int: ...

    def begin(self, samples: int, known: KnownKeys, rejected: Keys) -> int:
        """How many generations are there, and from here on what is `planned`; `known` are the journals' keys."""

    def requests(self, first: Iterable[Request]) -> Iterator[Request | Awaitable[Request | None]]:
        """What is to be asked first: conversations that had begun, each to be awaited, then the requests `first`."""

    async def after(self, request: Request, line: ResponseLine | None) -> Request | None:
        """What is asked behind an answer; `line` is None where none came."""

    def close(self) -> None:
        """The run is over, though work of this may still be under way."""


def planned_keys(folder: Path, samples_per_prompt: int, *, shard: Shard = WHOLE) -> Iterator[str]:
    """The key of every generation, in the order of the file; reads no ids."""
    for keys in _key_blocks(folder, samples_per_prompt, shard):
        yield from keys


def planned_requests(
    folder: Path, samples_per_prompt: int, *, shard: Shard = WHOLE, known: KnownKeys | None = None
) -> Iterator[Request]:
    """The generations of `folder`/prompts.parquet that `known` has not, read lazily.

    Prompts of a block that begin alike, and a prompt's samples, go out soon after each other, while the server's
    prefix cache still holds what they share, but not at the same moment, when it does not hold it yet: a block is
    put in order of its beginnings, cut into lanes, and each lane gives one in turn. That order is by hashes, so that
    a run that is stopped early has no choice by content or length.
    """
    for batch in prompt_batches(folder, ["key", "prompt_ids"], rows=BLOCK_ROWS):
        wanted = [
            [f"{key}/{sample}" for sample in range(samples_per_prompt)] if shard.holds(f"{key}/") else []
            for key in batch["key"].to_pylist()
        ]
        if known is not None:
            there = iter(known.contains_each([key for keys in wanted for key in keys]).tolist())
            wanted = [[key for key in keys if not next(there)] for keys in wanted]
        prompts = IdLists.from_arrow(batch["prompt_ids"])
        rows = sorted(range(len(wanted)), key=lambda row: _beginnings(prompts.row(row).tobytes()))
        for place, key in _in_lanes([(row, key) for row in rows for key in wanted[row]]):
            yield Request(key=key, prompt_ids=prompts.row(place).copy())


def _beginnings(ids: bytes) -> bytes:
    """Hashes of the first 32, 64, 128, ... ids and of all: sorted by them, rows that begin alike are neighbours."""
    hashed, found, start, end = hashlib.sha256(), list[bytes](), 0, 128
    while end < len(ids):
        hashed.update(ids[start:end])
        found.append(hashed.digest()[:8])
        start, end = end, 2 * end
    hashed.update(ids[start:])
    return b"".join([*found, hashed.digest()[:8]])


def _in_lanes(requests: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Neighbours, _LANES places apart."""
    length = -(-len(requests) // _LANES)
    for start in range(length):
        yield from requests[start::length]


def count_planned(folder: Path, samples_per_prompt: int, known: KnownKeys, *, shard: Shard = WHOLE) -> tuple[int, int]:
    """How many generations are planned, and how many of them `known` has. Reads no ids."""
    planned = present = 0
    for keys in _key_blocks(folder, samples_per_prompt, shard):
        planned += len(keys)
        present += int(known.contains_each(keys).sum())
    return planned, present


def count_missing(folder: Path, samples_per_prompt: int, *, shard: Shard = WHOLE) -> int:
    """How many generations stand neither in a journal nor among the rejections. Reads no ids, asks no server.

    Where every turn of conversations is generated, it is how many conversations are not over: each misses a generation
    at least. Reads the journals whole, once while they stay as they are.
    """
    from ..turns.endings import ended_files

    files = (folder / PROMPTS, *journal_paths(folder), *rejection_paths(folder), *ended_files(folder))
    return _count_missing(folder, samples_per_prompt, shard, tuple(map(_state, files)))


@lru_cache(maxsize=64)
def _count_missing(folder: Path, samples_per_prompt: int, shard: Shard, _: tuple[object, ...]) -> int:
    from ..turns.endings import count_going_on, has_turns

    known = KnownKeys.of(journal_paths(folder))
    rejected = (item.key for item in each_rejection(folder) if item.stage == "generate")
    if has_turns(folder):
        return count_going_on(folder, samples_per_prompt, known, set(rejected), shard=shard)
    for key in rejected:
        known.add(key)
    planned, present = count_planned(folder, samples_per_prompt, known, shard=shard)
    return planned - present


def _state(path: Path) -> tuple[str, int, int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return str(path), facts.st_ino, facts.st_size, facts.st_mtime_ns


def _key_blocks(folder: Path, samples_per_prompt: int, shard: Shard) -> Iterator[list[str]]:
    for batch in prompt_batches(folder, ["key"], rows=8 * BLOCK_ROWS):
        yield [
            f"{key}/{sample}"
            for key in batch["key"].to_pylist()
            if shard.holds(f"{key}/")
            for sample in range(samples_per_prompt)
        ]


def seeded(sampling: Sampling, key: str) -> Sampling:
    """The sampling with a seed of its own for every key: samples of one prompt differ, a rerun asks the same."""
    if sampling.seed is None:
        return sampling
    digest = hashlib.sha256(f"{sampling.seed} {key}".encode()).digest()
    return msgspec.structs.replace(sampling, seed=int.from_bytes(digest[:4], "big") >> 1)
