"""Data sets of the Hugging Face hub as rows, streamed by `datasets`.

The form is `hub:OWNER/NAME@REVISION#SPLIT`, or `..#CONFIG/SPLIT`; the split is `train` where none is named. A
revision that is not the full hash of a commit may give other rows another day: the rows say so, with the notice
revision_not_pinned. `hub:./FOLDER` is a data set's folder on the disk. A gated data set needs a token, which `datasets`
takes from HF_TOKEN. `datasets` (5.2) reads text that looks like dates in JSON as dates; a row that has one where text
belongs is rejected. This module does not know any format.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ..errors import InputError
from ..records import Json
from .arrow_rows import padded_row
from .rows import Row

PREFIX = "hub:"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FOLDER = (".", "/", "~")


class HubDataset(msgspec.Struct, frozen=True, kw_only=True):
    """What a hub name says; "" where it does not say it."""

    name: str
    revision: str
    config: str
    split: str

    @property
    def is_pinned(self) -> bool:
        return self.name.startswith(_FOLDER) or _COMMIT.fullmatch(self.revision) is not None


def hub_dataset(text: str) -> HubDataset:
    """The parts of a hub name. Raises InputError where it has no data set's name."""
    place, _, part = text.removeprefix(PREFIX).partition("#")
    name, _, revision = place.partition("@")
    config, _, split = part.rpartition("/")
    if not name.strip("/. "):
        raise InputError(f"{text} names no data set; expected hub:OWNER/NAME@REVISION#SPLIT or ..#CONFIG/SPLIT")
    return HubDataset(name=name, revision=revision, config=config, split=split or "train")


def hub_rows(text: str) -> Iterator[Row]:
    """The rows of a hub data set; `line` is a row's place. Raises InputError where they can't be had."""
    wanted = hub_dataset(text)
    notices = () if wanted.is_pinned else ("revision_not_pinned",)
    line = 0
    try:
        for value in _streamed(wanted):
            line += 1
            yield padded_row(line, value, notices)
    except Exception as error:  # of `datasets` and all that it stands on: no class is common to them
        why = " ".join(str(error).split())[:300] or type(error).__name__
        where = f" after row {line}" if line else ""
        raise InputError(
            f"{text} can't be read{where} ({why}); check the name, the revision, the config/split behind # "
            "and the network; a gated data set needs its terms accepted and a token in HF_TOKEN"
        ) from error


def _streamed(wanted: HubDataset) -> Iterable[dict[str, Json]]:
    from datasets import load_dataset  # type: ignore[import-untyped]  # here: its import takes 3 s

    revision = {"revision": wanted.revision} if wanted.revision else {}
    name = str(Path(wanted.name).expanduser()) if wanted.name.startswith("~") else wanted.name
    rows = load_dataset(name, wanted.config or None, split=wanted.split, streaming=True, **revision)
    has_json = "Json(" in str(rows.features)  # mixed objects, which come as text unless decoded
    made: Iterable[dict[str, Json]] = rows if has_json else rows.decode(False)  # pictures stay bytes: no row is one
    return made
