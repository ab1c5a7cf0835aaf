"""JSONL as SpecForge and speculators read it: a row a line, `input_ids` and `loss_mask` first, flat facts behind them.

SpecForge (0.2.0, `data.prompts_path`) decides by the first record, which must hold both lists; other keys are ignored.
speculators (0.9.0, `prepare-data --data`) loads the file by `datasets`, which guesses a column's type from its first 10
MB: no value is null, a map, or of two types. This module does not know what a trainer does with a row.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import numpy as np

from ..errors import InputError
from .checksums import IdTexts, mask_checksums, row_checksums
from .formats import Format, ReadBack, Write
from .masks import MaskRuns
from .rows import TrainingRows

_ROWS = 256


class _Line(msgspec.Struct):
    input_ids: msgspec.Raw
    loss_mask: msgspec.Raw
    key: str = ""
    id: str = ""


@contextmanager
def _write(path: Path, texts: IdTexts, *, name_of_key: str) -> Iterator[Write]:
    with path.open("wb") as file:

        def write(rows: TrainingRows, mask: MaskRuns) -> None:
            facts = rows.facts.rename_columns([name_of_key, *rows.facts.schema.names[1:]]).to_pylist()
            masks = mask_texts(mask, len(facts))
            for ids, ones, fact in zip(texts.row_texts(rows.inputs), masks, facts, strict=True):
                file.write(b'{"input_ids":[%b],"loss_mask":[%b],%b\n' % (ids, ones, msgspec.json.encode(fact)[1:]))

        yield write


def _read(path: Path, texts: IdTexts) -> Iterator[ReadBack]:
    decoder = msgspec.json.Decoder(_Line)
    with path.open("rb") as file:
        while lines := list(islice(file, _ROWS)):
            rows = [decoder.decode(line) for line in lines]
            masks = [_mask_of(row.loss_mask, path) for row in rows]
            offsets = np.concatenate([[0], np.cumsum([len(mask) for mask in masks])]).astype(np.int64)
            ids = (bytes(row.input_ids)[1:-1] for row in rows)
            checksums = row_checksums([row.key or row.id for row in rows], ids)
            yield ReadBack(checksums, mask_checksums(np.concatenate(masks), offsets))


def mask_texts(mask: MaskRuns, rows: int) -> Sequence[bytes]:
    """Each row's mask as `0,0,1`."""
    words = (b"0,", b"1,")
    bounds = np.searchsorted(mask.rows, np.arange(rows + 1)).tolist()
    lengths, values = mask.lengths.tolist(), mask.values.tolist()
    return [
        b"".join(words[values[run]] * lengths[run] for run in range(start, end))[:-1] for start, end in pairwise(bounds)
    ]


def _mask_of(text: msgspec.Raw, path: Path) -> np.ndarray:
    """`[0,0,1]` as int8."""
    characters = np.frombuffer(bytes(text)[1:-1], dtype=np.uint8)
    digits, commas = characters[::2], characters[1::2]
    if (commas != ord(",")).any() or ((digits < ord("0")) | (digits > ord("1"))).any():
        raise InputError(f"{path} holds a loss mask that is not of 0 and 1; export it again")
    return (digits - ord("0")).astype(np.int8)


SPECFORGE = Format(
    name="specforge",
    suffix="jsonl",
    ram_bytes=44.0,
    read_by="SpecForge 0.2.0: data.prompts_path",
    write=partial(_write, name_of_key="key"),
    read=_read,
)
SPECULATORS = Format(
    name="speculators",
    suffix="jsonl",
    ram_bytes=60.0,
    read_by="speculators 0.9.0: prepare-data --data",
    write=partial(_write, name_of_key="id"),
    read=_read,
)
