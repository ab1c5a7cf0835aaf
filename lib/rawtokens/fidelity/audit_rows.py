"""The rows that audits read: verified rows with their ids, and the conversations that they answer.

This module does not know what is asked of a row.
"""

from collections.abc import Collection, Container, Iterator, Mapping
from pathlib import Path

import msgspec

from ..errors import InputError
from ..records import Conversation, Json, open_parquet
from ..reporting.samples import Sample
from ..response_checks.response_columns import IdLists

_COLUMNS = ("key", "shape", "verdict", "reasons", "finish_reason", "reasoning_tokens", "ends_with_stop")


def read_rows(path: Path, *, places: Container[int] | None = None) -> Iterator[tuple[int, list[Sample]]]:
    """The rows of verified.parquet with their ids, batch by batch, each with the place of its first row.

    Where `places` are given, the rows in those alone.
    """
    start = 0
    columns = [*_COLUMNS, "prompt_ids", "output_ids"]
    with open_parquet(path) as file:
        for batch in file.iter_batches(batch_size=256, columns=columns):
            ids = {name: IdLists.from_arrow(batch[name]) for name in ("prompt_ids", "output_ids")}
            others = batch.drop_columns(list(ids)).to_pylist()
            yield (
                start,
                [
                    msgspec.convert(
                        {**row, **{name: found.row(number).tolist() for name, found in ids.items()}, "rows": 1}, Sample
                    )
                    for number, row in enumerate(others)
                    if places is None or start + number in places
                ],
            )
            start += len(others)


def read_keys(path: Path, *, rejected: bool = True) -> dict[int, str]:
    """The key of every row of verified.parquet by its place, those with verdict `reject` only where asked for.

    Raises InputError where the file is missing.
    """
    if not path.exists():
        raise InputError(f"{path} is missing; run notebook 03_verify_responses for this data set first")
    with open_parquet(path) as file:
        batches = file.iter_batches(columns=["key", "verdict"])
        rows = [row for batch in batches for row in batch.to_pylist()]
    return {place: row["key"] for place, row in enumerate(rows) if rejected or row["verdict"] != "reject"}


def read_conversations(folder: Path, keys: Collection[str]) -> dict[str, Conversation]:
    """The conversations of the generations `keys`: by prompt key as prompts.parquet has them, and later turns' by key.

    A later turn's is the one that its prompt was made of (turns.parquet); there is none where that is not known.
    """
    later = _later_messages(folder, keys)
    wanted = {prompt_key(key) for key in keys} | {_first_prompt(key) for key in later}
    found: dict[str, Conversation] = {}
    decode = msgspec.json.decode
    with open_parquet(folder / "prompts.parquet") as file:
        for batch in file.iter_batches(batch_size=1024, columns=["key", "messages", "tools", "template_kwargs"]):
            for row in batch.to_pylist():
                if row["key"] in wanted:
                    messages = tuple(decode(row["messages"]))
                    found[row["key"]] = Conversation(
                        source_id=row["key"],
                        line=0,
                        messages=messages,
                        tools=tuple(decode(row["tools"])),
                        template_kwargs=decode(row["template_kwargs"]),
                        continue_final=bool(messages) and messages[-1].get("role") == "assistant",
                    )
    for key, messages in later.items():
        if first := found.get(_first_prompt(key)):
            found[key] = msgspec.structs.replace(first, messages=messages)
    return found


def conversation_of(conversations: Mapping[str, Conversation], key: str) -> Conversation | None:
    """The conversation of a generation, of what `read_conversations` gave."""
    return conversations.get(key) or conversations.get(prompt_key(key))


def _later_messages(folder: Path, keys: Collection[str]) -> dict[str, tuple[dict[str, Json], ...]]:
    """The messages of later turns among `keys`."""
    path = folder / "turns.parquet"
    if not path.exists():
        return {}
    with open_parquet(path) as file:
        return {
            row["key"]: tuple(msgspec.json.decode(row["messages"]))
            for batch in file.iter_batches(batch_size=1024, columns=["key", "turn", "messages"])
            for row in batch.to_pylist()
            if row["turn"] and row["messages"] and row["key"] in keys
        }


def _first_prompt(key: str) -> str:
    return f"{prompt_key(key).rpartition('#')[0]}#0"


def prompt_key(key: str) -> str:
    """The prompt's key of a generation's: without `/SAMPLE`."""
    return key.rpartition("/")[0]
