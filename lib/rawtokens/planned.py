"""Which generations a data set needs: every prompt times every sample, and what of it is missing.

A generation's key is SOURCE_ID#TURN/SAMPLE. This module does not know how one is made.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .journal import journal_paths, read_keys, read_rejections
from .prompts import read_prompts
from .records import Sampling


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One generation to make."""

    key: str
    prompt_ids: list[int]


def planned_keys(folder: Path, samples_per_prompt: int) -> Iterator[str]:
    """The key of every generation, in the order of `planned_requests`; reads no ids."""
    for row in read_prompts(folder, ["key"]):
        for sample in range(samples_per_prompt):
            yield f"{row['key']}/{sample}"


def planned_requests(folder: Path, samples_per_prompt: int) -> Iterator[Request]:
    """Every generation of `folder`/prompts.parquet, a prompt's samples together, read lazily."""
    for row in read_prompts(folder, ["key", "prompt_ids"]):
        for sample in range(samples_per_prompt):
            yield msgspec.convert({"key": f"{row['key']}/{sample}", "prompt_ids": row["prompt_ids"]}, Request)


def count_missing(folder: Path, samples_per_prompt: int) -> int:
    """How many generations stand neither in a journal nor among the rejections. Reads no ids, asks no server."""
    present = {key for path in journal_paths(folder) for key in read_keys(path)}
    present |= {item.key for item in read_rejections(folder) if item.stage == "generate"}
    return sum(key not in present for key in planned_keys(folder, samples_per_prompt))


def seeded(sampling: Sampling, key: str) -> Sampling:
    """The sampling with a seed of its own for every key: samples of one prompt differ, a rerun asks the same."""
    if sampling.seed is None:
        return sampling
    digest = hashlib.sha256(f"{sampling.seed} {key}".encode()).digest()
    return msgspec.structs.replace(sampling, seed=int.from_bytes(digest[:4], "big") >> 1)
