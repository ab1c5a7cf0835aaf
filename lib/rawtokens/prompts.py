"""prompts.parquet: written from a prompt file whole or not at all, and read batch by batch.

This module does not know how a prompt file looks (conversations do) nor how a conversation becomes ids (rendering).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from .conversations import read_conversations
from .errors import InputError, RunStopped, one_line
from .journal import REJECTED, write_rejections
from .records import PROMPTS_SCHEMA, Conversation, Json, Prompt, Rejection, open_parquet
from .rendering import PromptOptions, tokenize_conversations

if TYPE_CHECKING:
    from .target_tokenizer import Tokenizer

PROMPTS = "prompts.parquet"
_BATCH = 1000
_ENCODED_TOGETHER = 256


def tokenize_file(
    path: Path,
    folder: Path,
    tokenizer: "Tokenizer",
    *,
    prompt_format: str = "auto",
    turns: str = "last",
    limit: int | None = None,
    template_kwargs: Mapping[str, Json] | None = None,
) -> tuple[int, list[Rejection]]:
    """A prompt file becomes `folder`/prompts.parquet, and what fails goes to rejected.jsonl.

    Returns the number of prompts and the rejections; rows in = prompts + rejections. Both files appear whole or
    not at all. Raises InputError where no row became a prompt: earlier prompts then stay as they were.
    """
    if turns != "last":
        raise InputError(f"turns is {turns!r}; this version knows `last`")
    rejections: list[Rejection] = []

    options = PromptOptions(template_kwargs=dict(template_kwargs or {}))

    def prompts() -> Iterator[Prompt]:
        for made in _tokenized(read_conversations(path, format=prompt_format, limit=limit), tokenizer, options):
            if isinstance(made, Rejection):
                rejections.append(made)
            else:
                yield made

    temporary = folder / f".{PROMPTS}.tmp"
    try:
        count = _write_prompts(temporary, prompts())
        write_rejections(folder, "tokenize", rejections)
        if count == 0:
            reasons = ", ".join(sorted({rejection.reason for rejection in rejections})) or "the file has no rows"
            raise InputError(
                f"{path}: no row became a prompt ({reasons}); see {folder / REJECTED}, mend the file, run again"
            )
        temporary.replace(folder / PROMPTS)
    except OSError as error:
        raise RunStopped(f"can't write {folder / PROMPTS}: {error}; mend the folder, then run it again") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count, rejections


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


def _tokenized(
    rows: Iterable[Conversation | Rejection], tokenizer: "Tokenizer", options: PromptOptions
) -> Iterator[Prompt | Rejection]:
    """The rows' prompts and rejections, in the rows' order."""
    rows = iter(rows)
    while batch := list(islice(rows, _ENCODED_TOGETHER)):
        made = iter(tokenize_conversations([row for row in batch if isinstance(row, Conversation)], tokenizer, options))
        yield from (next(made) if isinstance(row, Conversation) else row for row in batch)


def _write_prompts(path: Path, prompts: Iterable[Prompt]) -> int:
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, PROMPTS_SCHEMA, compression="zstd", use_dictionary=False) as writer:
        batch: list[Prompt] = []
        for prompt in prompts:
            batch.append(prompt)
            count += 1
            if len(batch) == _BATCH:
                writer.write_table(_table(batch))
                batch = []
        writer.write_table(_table(batch))
    return count


def _table(prompts: Sequence[Prompt]) -> pa.Table:
    return pa.Table.from_pylist([msgspec.structs.asdict(prompt) for prompt in prompts], schema=PROMPTS_SCHEMA)
