from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rawtokens.journal import write_rejections
from rawtokens.planned import count_missing, planned_requests, seeded
from rawtokens.records import PROMPTS_SCHEMA, Rejection, Sampling


def write_prompts(folder: Path) -> None:
    row = {"turn": 0, "prompt_tokens": 1, "thinking": "opened", "messages": "[]", "tools": "[]"}
    row |= {"template_kwargs": "{}", "notices": []}
    rows = [{"key": f"{name}#0", "source_id": name, "prompt_ids": [number], **row} for number, name in enumerate("ab")]
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")


def test_every_prompt_and_sample_is_planned_in_order(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    planned = [(request.key, request.prompt_ids) for request in planned_requests(tmp_path, 2)]
    assert planned == [("a#0/0", [0]), ("a#0/1", [0]), ("b#0/0", [1]), ("b#0/1", [1])]


def test_what_is_generated_or_rejected_is_not_missing(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    assert count_missing(tmp_path, 2) == 4
    (tmp_path / "raw_responses.jsonl").write_text('{"key":"a#0/0","prompt_ids":[0]}\n{"key":"b#0/0","prompt_')
    write_rejections(tmp_path, "generate", [Rejection(stage="generate", key="b#0/1", line=None, reason="x", detail="")])
    assert count_missing(tmp_path, 2) == 2


def test_a_seed_differs_by_key_and_is_the_same_again() -> None:
    seeds = [seeded(Sampling(seed=1), key).seed for key in ("a#0/0", "a#0/1", "a#0/0")]
    assert seeds[0] == seeds[2] != seeds[1]
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    assert seeded(Sampling(), "a#0/0").seed is None
