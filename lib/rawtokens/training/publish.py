"""Publish an export: to a data set on the Hugging Face hub, or as the same folder on the disk.

What goes out is put together in one folder first: the files that the manifest names, the manifest, the reports beside
it, and a card whose head tells `datasets` where the splits are. A folder gets exactly what the hub would get. Nothing
with a server's address, a key or a path is among it. This module does not know how rows were made.
"""

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError, RunStopped, one_line
from .card import card_text
from .contamination import CONTAMINATION
from .draft_vocabulary import DRAFT_VOCABULARY
from .loss_report import LOSS_REPORT
from .manifest import MANIFEST, TRAINING, ExportedFormat, manifest_content, read_exports

HUB = "hub:"
_TO_DO = "; its license is unknown: fill it in at the head of README.md before you share it"
_REPOSITORY = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


def check_place(to: str) -> None:
    """Raise InputError where `to` is neither `hub:OWNER/NAME` nor a folder that does not exist yet."""
    if to.startswith(HUB):
        if not _REPOSITORY.fullmatch(to.removeprefix(HUB)):
            raise InputError(f"{to!r} names no hub data set; expected hub:OWNER/NAME")
        return
    if Path(to).exists():
        raise InputError(f"{to} exists; publish into a new folder, or remove it first")


def publish(folder: Path, exports: Sequence[ExportedFormat], to: str, *, name: str, private: bool = True) -> str:
    """Publish these exports of a data set; returns where they are, and what is left to do.

    `to` is `hub:OWNER/NAME`, or a folder that does not exist yet; `name` is the data set's. The hub's token is that of
    `hf auth login` or HF_TOKEN. Raises InputError where the place is none, RunStopped
    where it can't be written or the hub refuses.
    """
    check_place(to)
    if to.startswith(HUB):
        with tempfile.TemporaryDirectory(prefix="rawtokens-") as place:
            gather(folder, Path(place) / "card", exports, name=name)
            return _upload(Path(place) / "card", to.removeprefix(HUB), private=private) + _TO_DO
    place_on_disk = Path(to)
    try:
        gather(folder, place_on_disk, exports, name=name)
    except OSError as error:
        shutil.rmtree(place_on_disk, ignore_errors=True)
        raise RunStopped(f"can't write {place_on_disk}: {error}; make room, then run the same command") from error
    return f"{place_on_disk}{_TO_DO}"


def gather(folder: Path, place: Path, exports: Sequence[ExportedFormat], *, name: str) -> None:
    """Put what is published into `place`: links to the export's files where the disk can, else copies.

    Raises RunStopped where another export has replaced these files: an export takes its formats out of the manifest
    before it touches them.
    """
    training = folder / TRAINING
    card = card_text(folder, exports, name=name)
    beside = [path for path in (LOSS_REPORT, CONTAMINATION) if (training / path).exists()]
    vocabulary = [path.relative_to(training).as_posix() for path in sorted((training / DRAFT_VOCABULARY).glob("[!.]*"))]
    files = [file.name for entry in exports for file in entry.files]
    for path in [*files, *beside, *vocabulary]:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        _copy(training / path, place / path)
    now = read_exports(folder)
    if any(entry not in now for entry in exports):
        shutil.rmtree(place, ignore_errors=True)
        raise RunStopped(f"{training} was exported anew before it was published; nothing was: run the same command")
    (place / "README.md").write_text(card, encoding="utf-8")
    (place / MANIFEST).write_bytes(manifest_content(folder, exports))


def _copy(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _upload(place: Path, repository: str, *, private: bool) -> str:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        done = api.upload_folder(
            folder_path=place, repo_id=repository, repo_type="dataset", commit_message="Training data of rawtokens"
        )
    except (
        Exception
    ) as error:  # what its HTTP client raises depends on its version: httpx2's, in 2.4, have no base of ours
        raise RunStopped(
            f"the hub did not take {repository}: {one_line(error)}; log in by `hf auth login` with a token that may "
            "write, then run the same command"
        ) from error
    return str(done.commit_url)
