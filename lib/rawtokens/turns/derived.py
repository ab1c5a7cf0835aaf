"""Stage 03's view of conversations: every later prompt found anew from the journal's own earlier answers.

turns.parquet says of every turn how its prompt was made and where, inside a tool cycle, the template's own render is
other than what was sampled. Verification gets the prompts' digests, and so tells a turn whose prompt does not follow
from what stands before it. No tool function is asked here. This module does not know what a good answer is.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import RunStopped
from ..journal import journal_paths, key_of
from ..prompts import prompt_batches
from ..records import Response
from ..response_checks.checks import prompt_digests
from ..response_checks.response_columns import IdLists
from ..target.target_tokenizer import Tokenizer
from .endings import has_turns
from .following import COLUMNS, decoded, talk_of
from .history import Ended
from .keys import TurnKey, split_key
from .setup import reader_for
from .talk import NextTurn, Reader, Talk, next_turn
from .tool_results import ToolResults

TURNS = "turns.parquet"
TURNS_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("source_id", pa.string(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("made", pa.string(), nullable=False),  # first, question, cycle, or unknown
        pa.field("differs_at", pa.int32()),  # of a cycle: the first id of the prompt that the template's render has not
        pa.field("template_ids", pa.list_(pa.int32())),  # what that render has there, suffix.SHOWN ids at the most
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        pa.field("output_tokens", pa.int32(), nullable=False),
        pa.field("cached_tokens", pa.int32(), nullable=False),
        pa.field("messages", pa.string()),  # JSON: the conversation that the prompt renders; null where made is unknown
    ]
)


class _Place(NamedTuple):
    path: Path
    offset: int


def derive_turns(folder: Path, tokenizer: Tokenizer) -> dict[str, bytes]:
    """Write turns.parquet; returns for each later turn, by its key, the digest of the prompt that it must have.

    Empty, and nothing written, where a data set has one turn a prompt. Memory: a digest a turn and the place of each
    line. Raises InputError as `reader_for` does, RunStopped where nothing can be written.
    """
    if not has_turns(folder):
        return {}
    reader, results = reader_for(folder, tokenizer), ToolResults(folder)
    places = _places(folder)
    digests: dict[str, bytes] = {}
    temporary = folder / f".{TURNS}.tmp"
    try:
        with pq.ParquetWriter(temporary, TURNS_SCHEMA, compression="zstd") as writer, ExitStack() as stack:
            files = {path: stack.enter_context(path.open("rb")) for path in journal_paths(folder)}
            for batch in prompt_batches(folder, [*COLUMNS, "prompt_ids"], rows=256):
                rows: list[dict[str, object]] = []
                for number, row in enumerate(batch.select(COLUMNS).to_pylist()):
                    talk, _ = talk_of(row)
                    for key, turns in places.get(str(row["source_id"]), {}).items():
                        responses = [_read(files, place) for _, place in sorted(turns.items())]
                        prompt_ids = batch["prompt_ids"][number].as_py()
                        rows += _derived(key, talk, prompt_ids, responses, reader, results, digests)
                writer.write_table(pa.Table.from_pylist(rows, schema=TURNS_SCHEMA))
        temporary.replace(folder / TURNS)
    except OSError as error:
        raise RunStopped(f"can't write {folder / TURNS}: {error}; mend the folder, then run it again") from error
    finally:
        temporary.unlink(missing_ok=True)
    return digests


def _derived(
    key: TurnKey,
    talk: Talk,
    prompt_ids: list[int],
    responses: Sequence[Response],
    reader: Reader,
    results: ToolResults,
    digests: dict[str, bytes],
) -> Iterator[dict[str, object]]:
    """A row a turn that stands in the journal, in order; nothing follows from an answer to another first prompt."""
    expected: NextTurn | Ended | None = None
    for place, response in enumerate(responses):
        turn = split_key(response.key).turn
        made, differs_at = "unknown", None
        template_ids: list[int] | None = None
        if turn == 0:
            made = "first"
        elif isinstance(expected, NextTurn):
            made, differs_at = expected.made, expected.differs_at
            template_ids = expected.template_ids or None
            digests[response.key] = prompt_digests(IdLists.from_lists([expected.prompt_ids]))[0]
        yield {
            "key": response.key,
            "source_id": key.source_id,
            "sample": key.sample,
            "turn": turn,
            "made": made,
            "differs_at": differs_at,
            "template_ids": template_ids,
            "prompt_tokens": len(response.prompt_ids),
            "output_tokens": len(response.output_ids),
            "cached_tokens": response.cached_tokens,
            "messages": None if made == "unknown" else msgspec.json.encode(talk.conversation.messages).decode(),
        }
        begun = turn == 0 and response.prompt_ids == prompt_ids
        whole = turn == place and (begun or isinstance(expected, NextTurn))
        expected = next_turn(talk, response, reader, results) if whole and place + 1 < len(responses) else None
        talk = expected.talk if isinstance(expected, NextTurn) else talk


def _places(folder: Path) -> Mapping[str, dict[TurnKey, dict[int, _Place]]]:
    """Where each turn's first line stands, by source id and conversation."""
    found: dict[str, dict[TurnKey, dict[int, _Place]]] = {}
    for path in journal_paths(folder):
        offset = 0
        with path.open("rb") as file:
            for line in file:
                text = key_of(line) if line.endswith(b"\n") else None
                if text is not None:
                    key = split_key(text)
                    turns = found.setdefault(key.source_id, {}).setdefault(key.conversation, {})
                    turns.setdefault(key.turn, _Place(path, offset))
                offset += len(line)
    return found


def _read(files: Mapping[Path, BinaryIO], place: _Place) -> Response:
    file = files[place.path]
    file.seek(place.offset)
    return decoded(file.readline())
