"""Conversations become prompt ids, on the client, by the model's own chat template.

Ids come from `apply_chat_template` only: text is never tokenised by another way, and ids are never edited. This
module does not know how a prompt file looks (conversations do) nor what the model will answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from .conversations import read_conversations
from .errors import InputError, RunStopped, one_line
from .journal import REJECTED, write_rejections
from .markers import thinking_mode
from .records import PROMPTS_SCHEMA, Conversation, Json, Prompt, Rejection, open_parquet

if TYPE_CHECKING:
    from .target_tokenizer import Tokenizer

PROMPTS = "prompts.parquet"
_BATCH = 1000


def tokenize_conversation(
    conversation: Conversation, tokenizer: "Tokenizer", *, template_kwargs: Mapping[str, Json] | None = None
) -> Prompt | Rejection:
    """One conversation as a prompt, or the reason why it is none."""
    arguments = {**(template_kwargs or {}), **conversation.template_kwargs}
    key = f"{conversation.source_id}#0"

    def reject(reason: str, detail: str) -> Rejection:
        return Rejection(stage="tokenize", key=key, line=conversation.line, reason=reason, detail=detail)

    found = _control_text(conversation, tokenizer)
    if found:
        return reject("control_token_in_text", f"the text holds {found!r}, which would become a control id")
    try:
        ids = tokenizer.prompt_ids(conversation.messages, tools=conversation.tools, template_kwargs=arguments)
    except jinja2.TemplateError as error:
        return reject("template_error", one_line(error))
    except (TypeError, ValueError, KeyError, AttributeError, UnicodeError) as error:
        return reject("tokenizer_error", one_line(error))
    if not ids or min(ids) < 0 or max(ids) >= tokenizer.vocabulary_size:
        return reject("id_out_of_vocabulary", f"ids must lie in 0..{tokenizer.vocabulary_size - 1} and not be empty")
    return Prompt(
        key=key,
        source_id=conversation.source_id,
        turn=0,
        prompt_ids=ids,
        prompt_tokens=len(ids),
        thinking=thinking_mode(ids, tokenizer.markers),
        messages=_json(conversation.messages),
        tools=_json(conversation.tools),
        template_kwargs=_json(arguments),
        notices=list(conversation.notices),
    )


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

    def prompts() -> Iterator[Prompt]:
        for row in read_conversations(path, format=prompt_format, limit=limit):
            made = (
                row
                if isinstance(row, Rejection)
                else tokenize_conversation(row, tokenizer, template_kwargs=template_kwargs)
            )
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


def _control_text(conversation: Conversation, tokenizer: "Tokenizer") -> str:
    """The first control token that any text of a row spells out; the encoder would make a control id of it."""
    own = conversation.template_kwargs
    found = tokenizer.control_texts.search(_json([conversation.messages, conversation.tools, own]))
    return found.group() if found else ""


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
