"""training/manifest.json: what was exported, how, and where every row went. It does not know how rows are written."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import InputError
from ..journal import write_atomically
from ..records import Json
from ..reporting.wording import counted
from ..runs import read_manifest
from .settings import TrainingSettings

TRAINING = "training"
MANIFEST = "manifest.json"
_RUN = (
    "fingerprint",
    "weight_version",
    "tokenizer_sha256",
    "chat_template_sha256",
    "engine",
    "engine_version",
    "sampling",
)
_MATERIAL = (
    "rows",
    "mask",
    "boundary_shift",
    "truncated_in_thinking",
    "truncated_in_answer",
    "flagged",
    "max_length",
    "duplicates",
    "held_out",
)
"""Settings that decide which rows an export has, and their masks."""


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file, its name relative to training/; `ram_bytes` is what its reader takes for it, estimated."""

    name: str
    split: str
    rows: int
    ids: int
    supervised_ids: int
    bytes: int
    ram_bytes: int


class ExportedFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One format. In `counts` rows = train + held_out + left_out; `left_out` has the reasons; `ids` are by label.

    `checked_rows` were read back from the files and had the ids that raw_responses.jsonl has.
    """

    format: str
    read_by: str
    mask: str
    mask_convention: str
    settings: TrainingSettings
    counts: dict[str, int]
    left_out: dict[str, int]
    repeated_prompts: int
    ids: dict[str, int]
    checked_rows: int
    files: list[ExportedFile]


class _Manifest(msgspec.Struct, kw_only=True):
    run: dict[str, object]  # JSON values
    exports: list[ExportedFormat]


def read_exports(folder: Path) -> list[ExportedFormat]:
    """What the manifest of a data set's folder tells of; none where there is no manifest. Raises InputError."""
    path = folder / TRAINING / MANIFEST
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Manifest).exports
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path} can't be read ({error}); delete it, then export again") from error


def write_exports(folder: Path, exports: Sequence[ExportedFormat]) -> None:
    """Write the manifest, whole or not at all."""
    write_atomically(folder / TRAINING / MANIFEST, manifest_content(folder, exports))


def manifest_content(folder: Path, exports: Sequence[ExportedFormat]) -> bytes:
    """The manifest of these exports of a data set, as JSON."""
    made_by: dict[str, Json] = read_manifest(folder)
    run: dict[str, object] = {name: made_by[name] for name in _RUN if name in made_by}
    content = _Manifest(run=run, exports=list(exports))
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def differing_exports(exports: Sequence[ExportedFormat], latest: ExportedFormat) -> list[str]:
    """A sentence for each export that was made with other settings, or of other rows, than the latest."""
    sentences = []
    for entry in exports:
        pairs = {name: (getattr(entry.settings, name), getattr(latest.settings, name)) for name in _MATERIAL}
        differing = [f"{name} was {was}, is {new}" for name, (was, new) in pairs.items() if was != new]
        if differing:
            sentences.append(
                f"{entry.format} was exported with other settings ({'; '.join(differing)}), so what one holds out "
                f"another may train on; export it again, or remove training/{entry.format}"
            )
        elif (entry.counts, entry.left_out, entry.ids) != (latest.counts, latest.left_out, latest.ids):
            sentences.append(
                f"{entry.format} was exported of an earlier verified.parquet ({counted(entry.counts['rows'], 'row')}, "
                f"now {latest.counts['rows']:,}), and has other rows; export it again, or remove "
                f"training/{entry.format}"
            )
    return sentences
