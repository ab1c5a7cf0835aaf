"""The records of a run: one definition of every field that a stage writes and the next one reads.

A record is frozen and flat. Ids are plain ints here and list<int32> in Parquet; text fields are for looking
only. This module does not know how a record is made or judged.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""Any JSON value. Read-only types, so that a nested literal type-checks; values come from a JSON decoder."""

Thinking = Literal["opened", "off", "by_model"]
"""What the rendered prompt asks for: `opened` ends inside thinking (the opener is the prompt's last marker),
`off` closed it already (`<think></think>`), `by_model` leaves the opener to the model."""

Shape = Literal[
    "closed",  # thinking, closer, an answer or tool calls
    "tool_closed",  # a tool section opened while no closer had come
    "truncated_in_thinking",  # length reached before a closer
    "truncated_in_answer",  # length reached after the closer (or inside a tool section)
    "thinking_off",  # the prompt had closed the thinking already
    "never_closed",  # stopped by itself without a closer
    "channels",  # harmony: channels instead of a closer
]

Verdict = Literal["accept", "flag", "reject"]
Stage = Literal["tokenize", "generate"]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a prompt file, brought to the messages that a chat template takes.

    `line` is the row's place in the file, counted from 1. `messages` ends with the turn to be answered (user or
    tool), or, where `continue_final` is set, with the beginning of the assistant's answer, which the model goes on
    with. `tools` are OpenAI-style declarations. `template_kwargs` are this row's own and win over the run's.
    `later` is what the file has behind `messages` where every turn is generated (turns: each); None where one is.
    """

    source_id: str
    line: int
    messages: tuple[dict[str, Json], ...]
    tools: tuple[dict[str, Json], ...] = ()
    template_kwargs: dict[str, Json] = {}
    continue_final: bool = False
    notices: tuple[str, ...] = ()
    later: tuple[dict[str, Json], ...] | None = None


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A row that went no further, with the reason; one line of rejected.jsonl. `line` is null at stage generate."""

    stage: Stage
    key: str
    line: int | None
    reason: str
    detail: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One row of prompts.parquet: the ids that the target will see, exactly."""

    key: str  # SOURCE_ID#TURN
    source_id: str
    turn: int
    prompt_ids: list[int]
    prompt_tokens: int
    thinking: Thinking
    messages: str  # JSON
    tools: str  # JSON
    template_kwargs: str  # JSON
    notices: list[str]
    later: str | None = None  # JSON: with turns: each, what the file has behind `messages`


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """One line of raw_responses.jsonl: a finished generation as the server gave it, nothing added to its ids.

    `output_ids` holds the final stop id where the model sampled one (SGLang 0.5.23). `matched` is that stop id, the
    stop string, or null. `completion_tokens` and `prompt_tokens` are the server's counts; `latency_s` is seconds
    on the client's clock.
    """

    key: str  # SOURCE_ID#TURN/SAMPLE
    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: Literal["stop", "length"]
    matched: int | str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: str
    fingerprint: str
    server: str
    rid: str
    attempt: int
    started_at: str  # ISO 8601, UTC
    latency_s: float


class ResponseLine(msgspec.Struct, frozen=True, kw_only=True):
    """A Response on its way into the journal: ids are JSON text, the prompt's as sent, the output's as the server gave.

    The same fields in the same order; ids that are never decoded can't be altered.
    """

    key: str
    prompt_ids: msgspec.Raw
    output_ids: msgspec.Raw
    finish_reason: Literal["stop", "length"]
    matched: int | str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: str
    fingerprint: str
    server: str
    rid: str
    attempt: int
    started_at: str
    latency_s: float


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Every sampling value, all of them sent: a server's defaults never decide (SGLang 0.5.23: 128 new ids)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 512
    samples_per_prompt: int = 1
    seed: int | None = None


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation of several turns ended: one line of ended.jsonl; of a conversation the most turns count.

    `key` is the last turn's, `turns` how many were generated, `reason` is `complete` or says why it ended early.
    `script` stands for the recorded turns that it followed: where those change, the line counts no more.
    """

    key: str  # SOURCE_ID#TURN/SAMPLE
    turns: int
    reason: str
    detail: str
    script: str


_IDS = pa.list_(pa.field("item", pa.int32(), nullable=False))
_STRINGS = pa.list_(pa.field("item", pa.string(), nullable=False))


def _required(**columns: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in columns.items()]


PROMPTS_SCHEMA = pa.schema(
    [
        *_required(
            key=pa.string(),
            source_id=pa.string(),
            turn=pa.int32(),
            prompt_ids=_IDS,
            prompt_tokens=pa.int32(),
            thinking=pa.string(),
            messages=pa.string(),
            tools=pa.string(),
            template_kwargs=pa.string(),
            notices=_STRINGS,
        ),
        pa.field("later", pa.string()),
    ]
)

VERIFIED_SCHEMA = pa.schema(
    [
        *_required(
            key=pa.string(),
            prompt_ids=_IDS,
            output_ids=_IDS,
            verdict=pa.string(),
            reasons=_STRINGS,
            shape=pa.string(),
            prompt_tokens=pa.int32(),
            output_tokens=pa.int32(),
        ),
        pa.field("closer_position", pa.int32()),  # first closer's first id, counted in output_ids from 0
        *_required(
            closers=pa.int32(),
            reasoning_tokens=pa.int32(),
            answer_tokens=pa.int32(),
            tool_tokens=pa.int32(),
            tool_calls=pa.int32(),
            finish_reason=pa.string(),
            ends_with_stop=pa.bool_(),
        ),
    ]
)


def open_parquet(path: Path) -> pq.ParquetFile:
    """A Parquet file to be read batch by batch in flat memory.

    pyarrow's own defaults keep every row group that was read: 766 MB over a file of 600 MB, against 187 MB.
    """
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)
