"""Answers of two greedy runs, id by id: which are the same, and where the others first differ.

Only temperature 0 promises the same ids for the same prompt ids, and even then batching and kernels may break a tie
another way. This module does not know why two answers part.
"""

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc

from ..records import open_parquet
from ..response_checks.response_columns import IdLists
from ..runs import read_manifest

Ids = npt.NDArray[np.int32]

_ROWS = 256


class Agreement(NamedTuple):
    """Rows of two data sets by key.

    `keys` are in both; of `other_prompts` the prompt ids differ, so that their answers are not compared. `cut_short`
    are the same as far as the shorter one goes, which the length limit cut: no difference is known. `parted` are the
    positions, counted from 0, of the first id that differs (or where one answer ends), int64, one for each
    answer that differs; `part_keys` are their keys.
    """

    keys: int
    other_prompts: int
    identical: int
    cut_short: int
    parted: npt.NDArray[np.int64]
    part_keys: tuple[str, ...]


def is_greedy(folder: Path) -> bool:
    """Whether the data set's manifest says temperature 0."""
    sampling = read_manifest(folder).get("sampling")
    return isinstance(sampling, dict) and sampling.get("temperature") == 0


def agreement(first: Path, second: Path, *, most_ids: int = 1 << 26) -> Agreement:
    """Compare the answers of two data sets' folders, in bounded memory: of `second` some `most_ids` output ids (4 bytes
    each) are held at a time, and both files are read once for each such part of the keys."""
    keys = other_prompts = identical = cut_short = 0
    parted: dict[str, int] = {}
    for row, other in _pairs(first, second, parts=1 + _output_ids(second) // most_ids):
        if other is None:
            continue
        keys += 1
        if row.prompt != other.prompt:
            other_prompts += 1
            continue
        place = first_difference(row.output, other.output)
        if place is None:
            identical += 1
        elif min(row, other, key=lambda each: len(each.output)).cut and place == min(
            len(row.output), len(other.output)
        ):
            cut_short += 1
        else:
            parted[row.key] = place
    places = np.array(list(parted.values()), dtype=np.int64)
    return Agreement(keys, other_prompts, identical, cut_short, places, tuple(parted))


def first_difference(one: Ids, other: Ids) -> int | None:
    """Where two answers part, counted from 0; the shorter one's length where the other goes on; None where equal."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    if differs.any():
        return int(differs.argmax())
    return None if len(one) == len(other) else length


def agreement_table(found: dict[str, Agreement]) -> pd.DataFrame:
    """A line a data set: keys in both, other prompts, compared, identical (rows and share), the same up to a cut,
    differing, and the median position of the first id that differs."""
    lines = {}
    for name, each in found.items():
        compared = each.keys - each.other_prompts
        lines[name] = {
            "keys in both": each.keys,
            "other prompt ids": each.other_prompts,
            "compared": compared,
            "identical": each.identical,
            "share identical": each.identical / compared if compared else None,
            "same up to the limit": each.cut_short,
            "differ": len(each.parted),
            "median first difference (id)": float(np.median(each.parted)) if len(each.parted) else None,
        }
    return pd.DataFrame.from_dict(lines, orient="index")


def _pairs(first: Path, second: Path, *, parts: int) -> Iterator[tuple["_Row", "_Row | None"]]:
    """Each row of `first` with the one of the same key in `second`, a part of the keys after the other."""
    for part in range(parts):
        known = {
            row.key: row._replace(output=row.output.copy()) for row in _rows(second) if _part(row.key, parts) == part
        }
        for row in _rows(first):
            if _part(row.key, parts) == part:
                yield row, known.get(row.key)


def _part(key: str, parts: int) -> int:
    return zlib.crc32(key.encode()) % parts


def _output_ids(folder: Path) -> int:
    with open_parquet(folder / "verified.parquet") as file:
        return sum(
            pc.sum(batch["output_tokens"]).as_py() or 0 for batch in file.iter_batches(columns=["output_tokens"])
        )


class _Row(NamedTuple):
    key: str
    prompt: bytes  # a digest of its ids
    output: Ids  # a view of the block that was read
    cut: bool


def _rows(folder: Path) -> Iterator[_Row]:
    columns = ["key", "prompt_ids", "output_ids", "finish_reason"]
    with open_parquet(folder / "verified.parquet") as file:
        for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
            prompts, outputs = (IdLists.from_arrow(batch[name]) for name in ("prompt_ids", "output_ids"))
            ends = zip(batch["key"].to_pylist(), batch["finish_reason"].to_pylist(), strict=True)
            for number, (key, reason) in enumerate(ends):
                digest = hashlib.blake2b(prompts.row(number).tobytes(), digest_size=16).digest()
                yield _Row(key, digest, outputs.row(number), reason == "length")
