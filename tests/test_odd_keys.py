"""Whatever a row is called, its key means the same to the journal, the plan, a resume, a shard and verification."""

import asyncio
import json
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawtokens.capture.planned import count_missing
from rawtokens.generation import Target, generate
from rawtokens.journal import JOURNAL, journal_paths, key_of, read_keys, read_responses
from rawtokens.markers import Markers
from rawtokens.records import PROMPTS_SCHEMA, Sampling
from rawtokens.shards import WHOLE, Shard
from rawtokens.verification import verify_journal

END = 163586
ODD = [
    *("a#b", "a#0", "a/b", "a#1/2", "/", "#", " ", "."),
    *('"quoted"', "'", "back\\slash", '\\"', '","prompt_ids":[1]', '{"key":"x"}'),
    *("line\nfeed", "carriage\r\nreturn", "\t", "\u2028", "\x00", "\x7f", "\ufeff"),
    *("😀", "e\u0301", "é", "漢字", "k" * 300, "😀" * 300, "%00%2F", "../../x", "NaN", "null"),
]


def write_prompts(folder: Path) -> None:
    row = {"turn": 0, "prompt_tokens": 2, "thinking": "opened", "messages": "[]", "tools": "[]"}
    row |= {"template_kwargs": "{}", "notices": []}
    rows = [
        {"key": f"{name}#0", "source_id": name, "prompt_ids": [7, number], **row} for number, name in enumerate(ODD)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")


def run(folder: Path, shard: Shard) -> list[int]:
    """Generate a shard; returns which prompts were asked. Every other one is refused."""
    asked: list[int] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        number = sent["input_ids"][-1]
        if len(sent["input_ids"]) > 1:
            asked.append(number)
        if number % 2:
            return httpx.Response(400, json={"error": "no"})
        meta = {"finish_reason": {"type": "stop", "matched": END}, "prompt_tokens": len(sent["input_ids"])}
        return httpx.Response(200, json={"output_ids": [5, END], "meta_info": {**meta, "completion_tokens": 2}})

    target = Target(
        urls=("http://one:1",),
        sampling=Sampling(max_new_tokens=16),
        stop_ids=(END,),
        vocabulary_size=163840,
        fingerprint="f" * 16,
        shard=shard,
    )
    asyncio.run(generate(folder, target, window=4, transport=httpx.MockTransport(handle)))
    return asked


@pytest.mark.parametrize("shards", [[WHOLE], [Shard(1, 2), Shard(2, 2)]])
def test_an_odd_key_is_one_key_everywhere(tmp_path: Path, shards: list[Shard]) -> None:
    write_prompts(tmp_path)
    assert sorted(number for shard in shards for number in run(tmp_path, shard)) == list(range(len(ODD)))
    assert count_missing(tmp_path, 1) == 0
    assert [number for shard in shards for number in run(tmp_path, shard)] == []
    keys = [key for path in journal_paths(tmp_path) for key in read_keys(path)]
    assert sorted(keys) == sorted(f"{name}#0/0" for name in ODD[::2])
    assert keys == [item.key for path in journal_paths(tmp_path) for item in read_responses(path)]
    lines = [line for path in journal_paths(tmp_path) for line in path.read_bytes().split(b"\n") if line]
    assert [key_of(line) for line in lines] == keys
    markers = Markers(family="f", opener=(163606,), closer=(163607,), turn_ends=(END,))
    summary = verify_journal(tmp_path, markers=markers, vocabulary_size=163840)
    assert pq.read_table(tmp_path / "verified.parquet")["key"].to_pylist() == keys
    assert not summary.reasons.keys() & {"prompt_unknown", "prompt_changed", "key_repeated"}


def test_a_torn_line_of_an_odd_key_is_generated_again(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    run(tmp_path, WHOLE)
    lines = (tmp_path / JOURNAL).read_bytes().split(b"\n")
    assert len(lines) == len(ODD[::2]) + 1
    for torn in range(0, len(lines) - 1, 4):
        (tmp_path / JOURNAL).write_bytes(b"\n".join([*lines[:torn], lines[torn][:20]]))
        assert len(run(tmp_path, WHOLE)) == len(lines) - 1 - torn
        assert sorted(read_keys(tmp_path / JOURNAL)) == sorted(f"{name}#0/0" for name in ODD[::2])
