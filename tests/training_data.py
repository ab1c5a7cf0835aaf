"""A verified data set of a few rows in Kimi's ids, for the tests of training data; every mask by hand."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import small_dataset
from family_tokens import markers_of
from small_dataset import ARGUMENTS, CALL, CALL_END, CLOSER, END, OPENER, SECTION, SECTION_END

from rawtokens.records import PROMPTS_SCHEMA, Prompt, Response
from rawtokens.verification import verify_journal

KIMI = markers_of("kimi_k25")
VOCABULARY = 163840
CALLS = [SECTION, CALL, 7, ARGUMENTS, 8, CALL_END, SECTION_END]

Row = tuple[str, list[int], list[int], str]
"""Key, prompt ids, output ids, finish reason."""


def prompt_of(*words: int, thinking: bool = True) -> list[int]:
    """A user's ids and the generation prompt, which opens thinking or closes it."""
    return [163587, *words, END, 163588, OPENER, *([] if thinking else [CLOSER])]


ROWS: list[Row] = [
    ("a#0/0", prompt_of(100), [1, 2, 3, CLOSER, 4, END], "stop"),
    ("b#0/0", prompt_of(101), [1, CLOSER, 4, *CALLS, END], "stop"),
    ("c#0/0", prompt_of(102), [1, 2, *CALLS, END], "stop"),  # thinking ended by the call
    ("d#0/0", prompt_of(103), [5, 6, 7, 8], "length"),  # cut while thinking
    ("e#0/0", prompt_of(104), [5, CLOSER, 7, 8], "length"),  # cut in the answer
    ("f#0/0", prompt_of(105, thinking=False), [6, 9, END], "stop"),
    ("g#0/0", prompt_of(106), [9, 9, 4, 9, END], "stop"),  # never closed: a flag
    ("h#0/0", prompt_of(107), [1, CLOSER, END, 5, END], "stop"),  # a stop id in the middle: rejected
    ("a#0/1", prompt_of(100), [3, CLOSER, 2, END], "stop"),  # the first prompt again
]
NAMES = ("sampled", "reasoning", "answer", "tool_calls")
MASKS = {
    "a#0/0": ("111111", "111100", "000011", "000000"),
    "b#0/0": ("1" * 11, "11" + "0" * 9, "001" + "0" * 7 + "1", "000" + "1" * 7 + "0"),
    "c#0/0": ("1" * 10, "11" + "0" * 8, "0" * 9 + "1", "00" + "1" * 7 + "0"),
    "d#0/0": ("1111", "1111", "0000", "0000"),
    "e#0/0": ("1111", "1100", "0011", "0000"),
    "f#0/0": ("111", "000", "111", "000"),
    "g#0/0": ("11111", "11110", "00001", "00000"),
    "a#0/1": ("1111", "1100", "0011", "0000"),
}
"""Of the outputs, a text a name of NAMES; closers go with the reasoning, stop ids with the answer."""


def write(folder: Path, rows: Sequence[Row] = ROWS) -> Path:
    """Write the journal, prompts.parquet and verified.parquet of these rows."""
    folder.mkdir(parents=True, exist_ok=True)
    responses = [response(row, number) for number, row in enumerate(rows)]
    small_dataset.write_lines(folder / "raw_responses.jsonl", responses)
    prompts = {row[0].rpartition("/")[0]: row[1] for row in rows}
    table = [msgspec.structs.asdict(_prompt(key, ids)) for key, ids in prompts.items()]
    pq.write_table(pa.Table.from_pylist(table, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")
    verify_journal(folder, markers=KIMI, vocabulary_size=VOCABULARY)
    return folder


def response(row: Row, number: int) -> Response:
    """One row as a journal's record."""
    key, prompt, output, finish = row
    made = small_dataset.response(key, output, finish=finish, start=float(number), seconds=1.0)
    return msgspec.structs.replace(made, prompt_ids=prompt, prompt_tokens=len(prompt))


def _prompt(key: str, ids: list[int]) -> Prompt:
    messages = f'[{{"role":"user","content":"say {key}"}}]'
    source, _, turn = key.rpartition("#")
    made = msgspec.structs.replace(small_dataset.prompt(key), source_id=source, turn=int(turn), messages=messages)
    return msgspec.structs.replace(made, prompt_ids=ids, prompt_tokens=len(ids))
