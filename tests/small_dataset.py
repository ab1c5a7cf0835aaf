"""A data set of eight rows in the file contract of a run: every shape once, `closed` twice, all numbers by hand."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rawtokens.records import PROMPTS_SCHEMA, VERIFIED_SCHEMA, Json, Prompt, Rejection, Response

END, SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END = 163586, 163595, 163596, 163597, 163598, 163599
OPENER, CLOSER = 163606, 163607
PROMPT = [163587, 100, END, 163588, OPENER]
_TOOL = [SECTION, CALL, 7, ARGUMENTS, 8, CALL_END, SECTION_END]

# key, output ids, verdict, reasons, shape, closer_position, reasoning, answer, tool, calls
_ROWS: list[tuple[str, list[int], str, list[str], str, int | None, int, int, int, int]] = [
    ("a#0/0", [1, 2, 3, CLOSER, 4, END], "accept", [], "closed", 3, 3, 1, 0, 0),
    ("b#0/0", [1] * 6 + [CLOSER, 4, *_TOOL, END], "accept", [], "closed", 6, 6, 1, 7, 1),
    ("c#0/0", [1, *_TOOL, *_TOOL, END], "accept", [], "tool_closed", None, 1, 0, 14, 2),
    ("d#0/0", [1] * 16, "flag", ["loop", "truncated_in_thinking"], "truncated_in_thinking", None, 16, 0, 0, 0),
    ("e#0/0", [1, CLOSER, *([5] * 14)], "flag", ["truncated_in_answer"], "truncated_in_answer", 1, 1, 14, 0, 0),
    ("f#0/0", [6, 6, END], "accept", [], "thinking_off", None, 0, 2, 0, 0),
    ("g#0/0", [9, 9, 9, 9, END], "flag", ["never_closed"], "never_closed", None, 4, 0, 0, 0),
    ("h#0/0", [9, 9], "reject", ["stop_missing"], "channels", None, 0, 2, 0, 0),
]
ROWS = len(_ROWS)


def write(folder: Path) -> Path:
    """Write the four files of a verified data set; 10 prompts, of which one was rejected and one not generated."""
    folder.mkdir(parents=True, exist_ok=True)
    verified, responses = [], []
    for number, (key, ids, verdict, reasons, shape, position, reasoning, answer, tool, calls) in enumerate(_ROWS):
        finish = "length" if shape.startswith("truncated") else "stop"
        common: dict[str, Json] = {"key": key, "prompt_ids": PROMPT, "output_ids": ids, "finish_reason": finish}
        verified.append(
            {
                **common,
                "verdict": verdict,
                "reasons": reasons,
                "shape": shape,
                "prompt_tokens": len(PROMPT),
                "output_tokens": len(ids),
                "closer_position": position,
                "closers": ids.count(CLOSER),
                "reasoning_tokens": reasoning,
                "answer_tokens": answer,
                "tool_tokens": tool,
                "tool_calls": calls,
                "ends_with_stop": ids[-1] == END,
            }
        )
        responses.append(response(key, ids, finish=finish, start=float(number), seconds=2.0))
    keys = [*(row[0].removesuffix("/0") for row in _ROWS), "i#0", "j#0"]
    rejections = [
        Rejection(stage="tokenize", key="z#0", line=11, reason="template_error", detail="no messages"),
        Rejection(stage="generate", key="i#0/0", line=None, reason="count_mismatch", detail="five tries"),
    ]
    write_lines(folder / "raw_responses.jsonl", responses)
    write_lines(folder / "rejected.jsonl", rejections)
    pq.write_table(
        pa.Table.from_pylist([msgspec.structs.asdict(prompt(key)) for key in keys], schema=PROMPTS_SCHEMA),
        folder / "prompts.parquet",
    )
    table = pa.Table.from_pylist(verified, schema=VERIFIED_SCHEMA)
    pq.write_table(table, folder / "verified.parquet", row_group_size=3)
    return folder


def write_lines(path: Path, records: list[Response] | list[Rejection]) -> None:
    """One record a line."""
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def change_prompts(folder: Path, *keys: str) -> None:
    """Let these prompts have other ids than their responses were asked for."""
    table = pq.read_table(folder / "prompts.parquet")
    rows = table.to_pylist()
    for row in rows:
        row["prompt_ids"] = [*row["prompt_ids"], 7] if row["key"] in keys else row["prompt_ids"]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "prompts.parquet")


def prompt(key: str) -> Prompt:
    """A prompt that opens thinking."""
    return Prompt(
        key=key,
        source_id=key.removesuffix("#0"),
        turn=0,
        prompt_ids=PROMPT,
        prompt_tokens=len(PROMPT),
        thinking="opened",
        messages="[]",
        tools="[]",
        template_kwargs="{}",
        notices=[],
    )


def response(key: str, ids: list[int], *, finish: str = "stop", start: float, seconds: float) -> Response:
    """A response asked for `start` seconds after noon."""
    hours, rest = divmod(12 * 3600 + start, 3600)
    minutes, second = divmod(rest, 60)
    record = {
        "key": key,
        "prompt_ids": PROMPT,
        "output_ids": ids,
        "finish_reason": finish,
        "matched": END if ids[-1:] == [END] else None,
        "prompt_tokens": len(PROMPT),
        "completion_tokens": len(ids),
        "cached_tokens": 2,
        "weight_version": "default",
        "fingerprint": "f",
        "server": "http://127.0.0.1:30000",
        "rid": key,
        "attempt": 1,
        "started_at": f"2026-01-01T{int(hours):02}:{int(minutes):02}:{second:09.6f}+00:00",
        "latency_s": seconds,
    }
    return msgspec.convert(record, Response)
