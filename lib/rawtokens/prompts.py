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
from .journal import write_rejections
from .markers import thinking_mode
from .records import PROMPTS_SCHEMA, Conversation, Json, Prompt, Rejection

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
    limit: int | None = None,
    template_kwargs: Mapping[str, Json] | None = None,
) -> tuple[int, list[Rejection]]:
    """A prompt file becomes `folder`/prompts.parquet, and what fails goes to rejected.jsonl.

    Returns the number of prompts and the rejections; rows in = prompts + rejections. Both files appear whole or
    not at all. Raises InputError where no row became a prompt.
    """
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

    count = _write_prompts(folder / PROMPTS, prompts())
    write_rejections(folder, "tokenize", rejections)
    if count == 0:
        reasons = ", ".join(sorted({rejection.reason for rejection in rejections})) or "the file has no rows"
        raise InputError(f"{path}: no row became a prompt ({reasons}); see rejected.jsonl, mend the file, run again")
    return count, rejections


def read_prompts(folder: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, object]]:
    """Rows of prompts.parquet as dicts, read batch by batch. Raises InputError where there is no such file."""
    path = folder / PROMPTS
    if not path.exists():
        raise InputError(f"{path} is missing; run stage 01 for this data set first")
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH, columns=columns):
            yield from batch.to_pylist()


def _write_prompts(path: Path, prompts: Iterable[Prompt]) -> int:
    temporary = path.with_name(f".{path.name}.tmp")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(temporary, PROMPTS_SCHEMA, compression="zstd", use_dictionary=False) as writer:
            batch: list[Prompt] = []
            for prompt in prompts:
                batch.append(prompt)
                count += 1
                if len(batch) == _BATCH:
                    writer.write_table(_table(batch))
                    batch = []
            writer.write_table(_table(batch))
        temporary.replace(path)
    except OSError as error:
        raise RunStopped(f"can't write {path}: {error}; mend the folder, then run the same command") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _table(prompts: Sequence[Prompt]) -> pa.Table:
    return pa.Table.from_pylist([msgspec.structs.asdict(prompt) for prompt in prompts], schema=PROMPTS_SCHEMA)


def _control_text(conversation: Conversation, tokenizer: "Tokenizer") -> str:
    """The first control token that any text of a row spells out; the encoder would make a control id of it."""
    found = tokenizer.control_texts.search(_json([conversation.messages, conversation.tools]))
    return found.group() if found else ""


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
