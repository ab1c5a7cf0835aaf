from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawtokens.journal import write_rejections
from rawtokens.known_keys import KnownKeys
from rawtokens.planned import count_missing, count_planned, planned_keys, planned_requests, seeded
from rawtokens.records import PROMPTS_SCHEMA, Rejection, Sampling
from rawtokens.shards import Shard


def rejection(key: str) -> Rejection:
    return Rejection(stage="generate", key=key, line=None, reason="x", detail="")


def write_prompts(folder: Path, prompts: Mapping[str, list[int]] | None = None) -> None:
    row = {"turn": 0, "prompt_tokens": 1, "thinking": "opened", "messages": "[]", "tools": "[]"}
    row |= {"template_kwargs": "{}", "notices": []}
    given = prompts or {"a": [0], "b": [1]}
    rows = [{"key": f"{name}#0", "source_id": name, "prompt_ids": ids, **row} for name, ids in given.items()]
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")


def test_every_prompt_and_sample_is_planned_in_order(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    planned = [(request.key, request.prompt_ids) for request in planned_requests(tmp_path, 2)]
    assert planned == [("a#0/0", [0]), ("a#0/1", [0]), ("b#0/0", [1]), ("b#0/1", [1])]


def test_what_is_generated_or_rejected_is_not_missing(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    assert count_missing(tmp_path, 2) == 4
    (tmp_path / "raw_responses.jsonl").write_text('{"key":"a#0/0","prompt_ids":[0]}\n{"key":"b#0/0","prompt_')
    write_rejections(tmp_path, "generate", [rejection("b#0/1")])
    assert count_missing(tmp_path, 2) == 2


def test_a_seed_differs_by_key_and_is_the_same_again() -> None:
    seeds = [seeded(Sampling(seed=1), key).seed for key in ("a#0/0", "a#0/1", "a#0/0")]
    assert seeds[0] == seeds[2] != seeds[1]
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    assert seeded(Sampling(), "a#0/0").seed is None


def test_prompts_that_begin_alike_go_out_together_and_a_prompts_samples_too(tmp_path: Path) -> None:
    rows = {"a": [9, 1], "b": [5, 300, 2], "c": [5, 2], "d": [9], "e": [5, 300, 1]}
    write_prompts(tmp_path, rows)
    planned = [(request.key, request.prompt_ids) for request in planned_requests(tmp_path, 2)]
    assert [key for key, _ in planned] == [f"{name}#0/{sample}" for name in "cebda" for sample in (0, 1)]
    assert all(prompt_ids == rows[key[0]] for key, prompt_ids in planned)


def test_order_is_kept_beyond_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped early has whole blocks of the file: ordering by content must not choose what it has."""
    monkeypatch.setattr("rawtokens.planned._BLOCK_ROWS", 3)
    write_prompts(tmp_path, {name: [99 - number] for number, name in enumerate("abcdefgh")})
    assert [request.key[0] for request in planned_requests(tmp_path, 1)] == list("cbafedhg")
    assert [key[0] for key in planned_keys(tmp_path, 1)] == list("abcdefgh")


def test_what_is_known_is_not_planned_again(tmp_path: Path) -> None:
    write_prompts(tmp_path, {"a": [1], "b": [2], "c": [3]})
    known = KnownKeys([b"a#0/0", b"a#0/1", b"b#0/1", b"z#0/0"])
    assert [request.key for request in planned_requests(tmp_path, 2, known=known)] == ["b#0/0", "c#0/0", "c#0/1"]
    assert count_planned(tmp_path, 2, known) == (6, 3)


def test_what_is_missing_is_counted_anew_when_a_file_changes(tmp_path: Path) -> None:
    write_prompts(tmp_path, {"a": [1], "b": [2]})
    assert [count_missing(tmp_path, 1), count_missing(tmp_path, 2)] == [2, 4]
    journal = tmp_path / "raw_responses.1-of-2.jsonl"
    journal.write_text('{"key":"a#0/0","prompt_ids":[1]}\n')
    assert count_missing(tmp_path, 1) == 1
    journal.write_text('{"key":"z#0/0","prompt_ids":[1]}\n')
    assert count_missing(tmp_path, 1) == 2
    write_rejections(tmp_path, "generate", [rejection("b#0/0")], shard=Shard(2, 2))
    assert count_missing(tmp_path, 1) == 1
    write_prompts(tmp_path, {"a": [1], "b": [2], "c": [3]})
    assert count_missing(tmp_path, 1) == 2


def test_neighbours_in_order_go_out_soon_after_each_other_but_not_at_once(tmp_path: Path) -> None:
    """80 prompts of 20 beginnings, shuffled: a beginning's prompts come 16 places apart, each once."""
    order = sorted(range(80), key=lambda number: number * 37 % 80)
    write_prompts(tmp_path, {str(number): [number // 4, 300, number] for number in order})
    sent = [request.prompt_ids for request in planned_requests(tmp_path, 1)]
    assert sorted(sent) == [[number // 4, 300, number] for number in range(80)]
    places = {ids[2]: place for place, ids in enumerate(sent)}
    gaps = [places[number + 1] - places[number] for number in range(79) if number % 5 != 4]  # five to a lane
    assert set(gaps) == {16}
