"""Export a data set for trainers: select rows, write every format, read all of it back, then put it in place.

Each row's ids are compared with those in raw_responses.jsonl by checksum, in the files as written; only then do they
replace an earlier export, all files of a format at once. The manifest says what was asked for, what the mask means, and
where every row of verified.parquet went. This module does not know the formats, nor what a trainer will drop
(loss_report does).
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np

from ..errors import InputError, RunStopped
from ..journal import write_atomically
from ..locking import lock
from ..markers import Markers
from ..reporting.wording import counted
from .checksums import Checksums, IdTexts, journal_checksums, mask_checksums
from .columnar_files import ARROW, PARQUET
from .contamination import CONTAMINATION
from .cycles import read_rows
from .draft_vocabulary import DRAFT_VOCABULARY
from .formats import Format, Write
from .jsonl_files import SPECFORGE, SPECULATORS
from .loss_report import LOSS_REPORT
from .manifest import TRAINING, ExportedFile, ExportedFormat, differing_exports, read_exports, write_exports
from .masks import MaskRuns, convention, mask_runs
from .policies import GENERATE_LONGER, Selection, longer_prompts, select_rows
from .rows import LABELS, TrainingRows
from .settings import FORMATS, TrainingSettings
from .sharding import Shards, check_open_files, shards_of
from .torchspec_files import TORCHSPEC

BY_NAME: dict[str, Format] = {form.name: form for form in (PARQUET, ARROW, SPECFORGE, SPECULATORS, TORCHSPEC)}
_LOCK = ".export.lock"


def export(
    folder: Path,
    *,
    markers: Markers,
    settings: TrainingSettings,
    selection: Selection | None = None,
    on_line: Callable[[str], None] = print,
) -> list[ExportedFormat]:
    """Export a data set's verified rows into its `training/`, in every format of the settings.

    `selection` is `select_rows` of the same settings, where the caller has made it already.
    Memory: a batch of 1,024 rows, and some 60 bytes a row. Raises InputError where a file that is needed is missing or
    does not agree with the others, RunStopped where nothing can be written; earlier exports then stay as they were.
    """
    folder = Path(folder)
    selection = selection or select_rows(folder, settings)
    expected = journal_checksums(folder)
    if len(expected) != len(selection.kept):
        raise InputError(
            f"{folder / 'verified.parquet'} holds {len(selection.kept)} rows and the journal {len(expected)}; run "
            "notebook 03_verify_responses again"
        )
    forms = [BY_NAME[name] for name in FORMATS if name in settings.formats]
    shards = {form.name: shards_of(selection, form, settings) for form in forms}
    check_open_files(shards.values())
    for form in forms:
        on_line(_shards_in_words(form, shards[form.name]))
    try:
        with lock(folder / TRAINING / _LOCK), _temporary_folders(folder, forms) as places:
            exported = _export(folder, markers, settings, selection, expected, shards, places)
    except OSError as error:
        raise RunStopped(f"can't write {folder / TRAINING}: {error}; mend the folder, then run it again") from error
    for sentence in differing_exports(read_exports(folder), exported[0]):
        on_line(sentence)
    return exported


def _export(
    folder: Path,
    markers: Markers,
    settings: TrainingSettings,
    selection: Selection,
    expected: Checksums,
    shards: Mapping[str, Shards],
    places: Mapping[str, Path],
) -> list[ExportedFormat]:
    texts = IdTexts()
    written = _write(folder, markers, settings, selection, shards, places, texts)
    exported = []
    for name, place in places.items():
        _check(place, BY_NAME[name], shards[name], expected, written.masks, texts)
        exported.append(_described(name, place, settings, selection, shards[name], written))
    longer = longer_prompts(folder, selection.longer) if selection.longer else b""
    others = [entry for entry in read_exports(folder) if entry.format not in places]
    write_exports(folder, others)  # what is swapped now is in no manifest until all of it is
    _remove_reports(folder)
    for name, place in places.items():
        _put_in_place(place, folder / TRAINING / name)
    if longer:
        write_atomically(folder / TRAINING / GENERATE_LONGER, longer)
    else:
        (folder / TRAINING / GENERATE_LONGER).unlink(missing_ok=True)
    write_exports(folder, [*others, *exported])
    return exported


class _Written(msgspec.Struct):
    """One entry a row of verified.parquet: ids by label, ids under the mask, and the mask's checksum."""

    labels: np.ndarray
    supervised: np.ndarray
    masks: Checksums


def _write(
    folder: Path,
    markers: Markers,
    settings: TrainingSettings,
    selection: Selection,
    shards: Mapping[str, Shards],
    places: Mapping[str, Path],
    texts: IdTexts,
) -> _Written:
    rows = len(selection.kept)
    written = _Written(np.zeros((rows, len(LABELS)), np.int32), np.zeros(rows, np.int32), np.zeros(rows, dtype="S16"))
    with ExitStack() as stack:
        writers = {name: _writers(stack, BY_NAME[name], places[name], shards[name], texts) for name in places}
        for batch in read_rows(folder, markers, selection):
            for side in (False, True):
                part = batch.take(selection.held_out[batch.numbers] == side)
                mask = mask_runs(part.runs, settings.mask, boundary_shift=settings.boundary_shift)
                _count(written, part, mask)
                for name, open_files in writers.items():
                    _write_part(part, mask, shards[name], open_files, settings)
    return written


def _count(written: _Written, rows: TrainingRows, mask: MaskRuns) -> None:
    np.add.at(written.labels, (rows.numbers[rows.runs.rows], rows.runs.labels), rows.runs.lengths)
    np.add.at(written.supervised, rows.numbers[mask.rows], mask.lengths * mask.values)
    written.masks[rows.numbers] = mask_checksums(mask.per_id(), rows.inputs.offsets)


def _writers(stack: ExitStack, form: Format, place: Path, shards: Shards, texts: IdTexts) -> list[Write]:
    return [stack.enter_context(form.write(place / file.name, texts)) for file in shards.files]


def _write_part(
    rows: TrainingRows, mask: MaskRuns, shards: Shards, open_files: Sequence[Write], settings: TrainingSettings
) -> None:
    """Write rows of one split into the shards that they belong to, most often one."""
    of_row = shards.of_row[rows.numbers]
    for number in np.unique(of_row).tolist():
        if (of_row == number).all():
            open_files[number](rows, mask)
            continue
        part = rows.take(of_row == number)
        open_files[number](part, mask_runs(part.runs, settings.mask, boundary_shift=settings.boundary_shift))


def _check(place: Path, form: Format, shards: Shards, expected: Checksums, masks: Checksums, texts: IdTexts) -> None:
    """Read a format's files back. Raises InputError where a row is not the journal's, or its mask not the one made."""
    for file in shards.files:
        done = 0
        for found in form.read(place / file.name, texts):
            numbers = file.numbers[done : done + len(found.rows)]
            done += len(found.rows)
            if len(numbers) < len(found.rows):
                break
            for what, own, wanted in (("ids", found.rows, expected), ("mask", found.masks, masks)):
                if (own != wanted[numbers]).any():
                    row = int(numbers[np.argmax(own != wanted[numbers])])
                    raise InputError(
                        f"{form.name}: the {what} of row {row} of verified.parquet came back from {file.name} not as "
                        "raw_responses.jsonl has them; nothing was exported. Run notebook 03_verify_responses again, "
                        "then export; if it happens again, the disk alters files"
                    )
        if done != len(file.numbers):
            raise InputError(
                f"{form.name}: {file.name} came back with {done} rows of {len(file.numbers)}; export again"
            )


def _described(
    name: str, place: Path, settings: TrainingSettings, selection: Selection, shards: Shards, written: _Written
) -> ExportedFormat:
    form = BY_NAME[name]
    files = [
        ExportedFile(
            name=f"{name}/{file.name}",
            split=file.split,
            rows=len(file.numbers),
            ids=file.ids,
            supervised_ids=int(written.supervised[file.numbers].sum(dtype=np.int64)),
            bytes=(place / file.name).stat().st_size,
            ram_bytes=int(file.ids * form.ram_bytes),
        )
        for file in shards.files
    ]
    totals = written.labels.sum(axis=0, dtype=np.int64).tolist()
    return ExportedFormat(
        format=name,
        read_by=form.read_by,
        mask=settings.mask,
        mask_convention=convention(boundary_shift=settings.boundary_shift, cycles=settings.rows == "cycle"),
        settings=msgspec.structs.replace(
            settings, evaluation_prompts=tuple(Path(path).name for path in settings.evaluation_prompts)
        ),
        counts=selection.counts(),
        left_out=selection.left_out,
        repeated_prompts=selection.repeated,
        ids=dict(zip(LABELS, totals, strict=True)),
        checked_rows=int(selection.kept.sum()),
        files=files,
    )


@contextmanager
def _temporary_folders(folder: Path, forms: Sequence[Format]) -> Iterator[dict[str, Path]]:
    """A fresh folder a format, beside the place that it will take; gone again where the export does not end.

    A killed export leaves its own, which hold as much as an export: those of every format go first.
    """
    every = {name: folder / TRAINING / f".{name}.tmp" for name in BY_NAME}
    places = {form.name: every[form.name] for form in forms}
    try:
        for left in every.values():
            shutil.rmtree(left, ignore_errors=True)
        for place in places.values():
            place.mkdir(parents=True)
        yield places
    finally:
        for place in places.values():
            shutil.rmtree(place, ignore_errors=True)


def _remove_reports(folder: Path) -> None:
    """What was reported of an earlier export's rows goes with them: a later step may stop, or not report it again."""
    for name in (LOSS_REPORT, CONTAMINATION):
        (folder / TRAINING / name).unlink(missing_ok=True)
    shutil.rmtree(folder / TRAINING / DRAFT_VOCABULARY, ignore_errors=True)


def _put_in_place(made: Path, place: Path) -> None:
    """Swap a finished folder in for an earlier one."""
    earlier = place.with_name(f".{place.name}.old")
    _remove(earlier)
    if place.exists() or place.is_symlink():
        place.rename(earlier)
    made.rename(place)
    _remove(earlier)


def _remove(earlier: Path) -> None:
    if earlier.is_symlink() or earlier.is_file():  # a user's link to a larger disk: what it leads to is theirs
        earlier.unlink()
    else:
        shutil.rmtree(earlier, ignore_errors=True)


def _shards_in_words(form: Format, shards: Shards) -> str:
    largest = max((file.ids for file in shards.files), default=0) * form.ram_bytes
    size = f"{largest / 1e9:,.1f} GB" if largest >= 1e9 else f"{largest / 1e6:,.1f} MB"
    files = counted(len(shards.files), "file")
    return f"{form.name}: {files}, at most {size} of RAM to read one ({form.ram_bytes:g} bytes an id)"
