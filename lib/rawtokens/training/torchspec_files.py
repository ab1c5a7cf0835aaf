"""TorchSpec's and AngelSpec's cache of a tokenized data set: one list of dicts in a file of torch.save.

Both load `CACHE_DIR/tokenized_dataset/MD5.pt` in place of tokenizing, where MD5 is over their own arguments: started
once with any small `train_data_path`, they print the name that they look for; the file goes there under that name.
They load it as it is, so rows longer than their max_seq_length must be left out here. `formatted_prompt` is empty: ids
are the record. This module does not know what a trainer does with a row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np

from ..response_checks.response_columns import IdLists
from .checksums import IdTexts, mask_checksums, row_checksums
from .formats import Format, ReadBack, Write
from .masks import MaskRuns
from .rows import TrainingRows
from .torch_archive import list_archive, read_archive

_ROWS = 256


@contextmanager
def _write(path: Path, _: IdTexts) -> Iterator[Write]:
    with list_archive(path) as append:

        def write(rows: TrainingRows, mask: MaskRuns) -> None:
            for row, (key, packed) in enumerate(zip(rows.keys, packed_masks(mask, len(rows.numbers)), strict=True)):
                append(
                    {
                        "data_id": key,
                        "metadata": {},
                        "multimodal_inputs": None,
                        "formatted_prompt": "",
                        "input_ids": rows.inputs.row(row).astype(np.int64)[None, :],
                        "packed_loss_mask": packed,
                    }
                )

        yield write


def packed_masks(mask: MaskRuns, rows: int) -> list[str]:
    """Each row's mask as lengths of its runs, `prompt,response,prompt,..`, the first of them of zeros, 0 if none."""
    bounds = np.searchsorted(mask.rows, np.arange(rows + 1)).tolist()
    lengths, values = mask.lengths.tolist(), mask.values.tolist()
    return [
        ",".join(map(str, [*([0] if values[start:end][:1] == [1] else []), *lengths[start:end]]))
        for start, end in pairwise(bounds)
    ]


def _read(path: Path, texts: IdTexts) -> Iterator[ReadBack]:
    rows = cast("list[dict[str, object]]", read_archive(path))
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        ids = [cast("np.ndarray", row["input_ids"])[0].astype(np.int32) for row in some]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in ids])]).astype(np.int64)
        masks = [_unpacked(str(row["packed_loss_mask"])) for row in some]
        keys = [str(row["data_id"]) for row in some]
        inputs = IdLists(np.concatenate(ids), offsets)
        ends = np.concatenate([[0], np.cumsum([len(mask) for mask in masks])]).astype(np.int64)
        yield ReadBack(row_checksums(keys, texts.row_texts(inputs)), mask_checksums(np.concatenate(masks), ends))


def _unpacked(packed: str) -> np.ndarray:
    lengths = [int(length) for length in packed.split(",")]
    return np.repeat((np.arange(len(lengths)) % 2).astype(np.int8), lengths)


TORCHSPEC = Format(
    name="torchspec",
    suffix="pt",
    ram_bytes=8.5,
    read_by="TorchSpec, AngelSpec: cache/tokenized_dataset",
    write=_write,
    read=_read,
)
