"""Conversations become prompt ids, on the client, by the model's own chat template.

A conversation is rendered by the template and the whole text encoded, which gives the ids that `apply_chat_template`
gives; ids are never edited. This module does not know how a prompt file looks (conversations do) nor what the model
will answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from .conversations import read_conversations
from .errors import InputError, RunStopped, one_line
from .journal import REJECTED, write_rejections
from .markers import thinking_mode
from .records import PROMPTS_SCHEMA, Conversation, Json, Prompt, Rejection, open_parquet

if TYPE_CHECKING:
    from .target_tokenizer import Tokenizer

PROMPTS = "prompts.parquet"
_BATCH = 1000
_ENCODED_TOGETHER = 256
_BAD_ROW = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template or a tokenizer raises over one row; UnicodeError is a ValueError."""


class PromptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What decides a prompt's ids beside the conversation and the tokenizer."""

    template_kwargs: dict[str, Json] = {}


class _Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation with all its template arguments, and the text that the template makes of it."""

    conversation: Conversation
    text: str


def tokenize_conversations(
    batch: Sequence[Conversation], tokenizer: "Tokenizer", options: PromptOptions
) -> list[Prompt | Rejection]:
    """Each conversation as a prompt, or the reason why it is none; in order, and no row's fault costs another.

    Pure: the same batch gives the same result in every process. All texts are encoded at once.
    """
    rows = [_render(conversation, tokenizer, options) for conversation in batch]
    encoded = iter(_encode([row for row in rows if isinstance(row, _Rendered)], tokenizer))
    return [row if isinstance(row, Rejection) else _prompt(row.conversation, next(encoded), tokenizer) for row in rows]


def _render(conversation: Conversation, tokenizer: "Tokenizer", options: PromptOptions) -> _Rendered | Rejection:
    arguments = {**options.template_kwargs, **conversation.template_kwargs}
    found = _control_text(conversation, tokenizer)
    if found:
        detail = f"the text holds {found!r}, which would become a control id"
        return _reject(conversation, "control_token_in_text", detail)
    try:
        text = tokenizer.render(
            conversation.messages,
            tools=conversation.tools,
            template_kwargs=arguments,
            continue_final=conversation.continue_final,
        )
    except jinja2.TemplateError as error:
        return _reject(conversation, "template_error", one_line(error))
    except _BAD_ROW as error:
        return _reject(conversation, "tokenizer_error", one_line(error))
    return _Rendered(conversation=replace(conversation, template_kwargs=arguments), text=text)


def _encode(rows: Sequence[_Rendered], tokenizer: "Tokenizer") -> list[list[int] | Rejection]:
    """The ids of each row; where the batch as a whole fails, row by row."""
    try:
        return list(tokenizer.encode([row.text for row in rows]))
    except _BAD_ROW as error:
        if len(rows) == 1:
            return [_reject(rows[0].conversation, "tokenizer_error", one_line(error))]
    return [result for row in rows for result in _encode([row], tokenizer)]


def _prompt(conversation: Conversation, ids: list[int] | Rejection, tokenizer: "Tokenizer") -> Prompt | Rejection:
    if isinstance(ids, Rejection):
        return ids
    if not ids or min(ids) < 0 or max(ids) >= tokenizer.vocabulary_size:
        expected = f"ids must lie in 0..{tokenizer.vocabulary_size - 1} and not be empty"
        return _reject(conversation, "id_out_of_vocabulary", expected)
    return Prompt(
        key=f"{conversation.source_id}#0",
        source_id=conversation.source_id,
        turn=0,
        prompt_ids=ids,
        prompt_tokens=len(ids),
        thinking=thinking_mode(ids, tokenizer.markers),
        messages=_json(conversation.messages),
        tools=_json(conversation.tools),
        template_kwargs=_json(conversation.template_kwargs),
        notices=list(conversation.notices),
    )


def _reject(conversation: Conversation, reason: str, detail: str) -> Rejection:
    key = f"{conversation.source_id}#0"
    return Rejection(stage="tokenize", key=key, line=conversation.line, reason=reason, detail=detail)


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


def _control_text(conversation: Conversation, tokenizer: "Tokenizer") -> str:
    """The first control token that any text of a row spells out; the encoder would make a control id of it."""
    own = conversation.template_kwargs
    found = tokenizer.control_texts.search(_json([conversation.messages, conversation.tools, own]))
    return found.group() if found else ""


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
