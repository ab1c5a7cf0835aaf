"""prompts.parquet: written from a prompt file whole or not at all, and read batch by batch.

This module does not know how a prompt file looks (conversations do) nor how a conversation becomes ids (rendering).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from .capture.rejections import new_rejections
from .conversations import read_conversations
from .errors import InputError, RunStopped, one_line
from .journal import REJECTED
from .records import PROMPTS_SCHEMA, open_parquet
from .target.prompt_workers import tokenize_rows
from .target.rendering import PromptOptions, check_options

if TYPE_CHECKING:
    from .target.target_tokenizer import Tokenizer

PROMPTS = "prompts.parquet"
_BATCH = 1000


class FileCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a prompt file: rows in = prompts + rejected; a line that nothing stands in is no row."""

    prompts: int
    rejected: int
    empty_lines: int = 0


def tokenize_file(
    path: Path,
    folder: Path,
    tokenizer: "Tokenizer",
    options: PromptOptions,
    *,
    prompt_format: str = "auto",
    limit: int | None = None,
    processes: int = 1,
) -> FileCounts:
    """A prompt file becomes `folder`/prompts.parquet, and what fails goes to rejected.jsonl; memory stays flat.

    `path` may be what `read_conversations` takes: a file, a glob, a hub data set. `processes` as `tokenize_rows` has
    it. Both files appear whole or not at all. Raises InputError where no row became a prompt: earlier prompts then stay
    as they were.
    """
    check_options(options)
    empty_lines = 0

    def count_empty_line() -> None:
        nonlocal empty_lines
        empty_lines += 1

    rows = read_conversations(
        path, format=prompt_format, turns=options.turns, limit=limit, on_empty_line=count_empty_line
    )
    temporary = folder / f".{PROMPTS}.tmp"
    prompts = rejected = 0
    reasons: set[str] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_rejections(folder) as reject, _writer(temporary) as write:
            for done in tokenize_rows(rows, tokenizer, options, processes=processes):
                write(done.prompts)
                reject(done.rejections)
                prompts += done.prompts.num_rows
                rejected += len(done.rejections)
                reasons.update(rejection.reason for rejection in done.rejections)
        if prompts == 0:
            why = ", ".join(sorted(reasons)) or "the file has no rows"
            raise InputError(
                f"{path}: no row became a prompt ({why}); see {folder / REJECTED}, mend the file, run again"
            )
        temporary.replace(folder / PROMPTS)
    except OSError as error:
        raise RunStopped(f"can't write {folder / PROMPTS}: {error}; mend the folder, then run it again") from error
    finally:
        temporary.unlink(missing_ok=True)
    return FileCounts(prompts=prompts, rejected=rejected, empty_lines=empty_lines)


def read_prompts(folder: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, object]]:
    """Rows of prompts.parquet as dicts, read batch by batch. Raises InputError where it is missing or damaged."""
    for batch in prompt_batches(folder, columns):
        yield from batch.to_pylist()


def prompt_batches(
    folder: Path, columns: Sequence[str] | None = None, *, rows: int = _BATCH
) -> Iterator[pa.RecordBatch]:
    """The columns of prompts.parquet, at most `rows` rows at a time. Raises as `read_prompts` does."""
    path = folder / PROMPTS
    if not path.exists():
        raise InputError(f"{path} is missing; run stage 01 for this data set first")
    wanted = list(columns or PROMPTS_SCHEMA.names)
    try:
        with open_parquet(path) as file:
            absent = [name for name in wanted if name not in file.schema_arrow.names]
            if absent:
                raise InputError(f"{path} has no column {absent[0]}; move it away and run stage 01 again")
            yield from file.iter_batches(batch_size=rows, columns=wanted)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} can't be read ({one_line(error)}); run stage 01 again") from error


@contextmanager
def _writer(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    """Write tables into one Parquet file, in row groups of about 1,000 rows."""
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(path, PROMPTS_SCHEMA, compression="zstd", use_dictionary=False) as file:

        def write(table: pa.Table) -> None:
            waiting.append(table)
            if sum(part.num_rows for part in waiting) >= _BATCH:
                file.write_table(pa.concat_tables(waiting))
                waiting.clear()

        yield write
        file.write_table(pa.concat_tables([PROMPTS_SCHEMA.empty_table(), *waiting]))
