import asyncio
import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise, takewhile
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawtokens.capture.known_keys import KnownKeys
from rawtokens.capture.planned import count_missing, count_planned, planned_keys, planned_requests, seeded
from rawtokens.demo.server import DemoServer, start_demo_server
from rawtokens.generation import Target, generate
from rawtokens.journal import JOURNAL, append_rejections, read_responses
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


def test_every_prompt_and_sample_is_planned(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    planned = sorted((request.key, list(request.prompt_ids)) for request in planned_requests(tmp_path, 2))
    assert planned == [("a#0/0", [0]), ("a#0/1", [0]), ("b#0/0", [1]), ("b#0/1", [1])]


def test_what_is_generated_or_rejected_is_not_missing(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    assert count_missing(tmp_path, 2) == 4
    (tmp_path / "raw_responses.jsonl").write_text('{"key":"a#0/0","prompt_ids":[0]}\n{"key":"b#0/0","prompt_')
    append_rejections(tmp_path, [rejection("b#0/1")])
    assert count_missing(tmp_path, 2) == 2


def test_a_seed_differs_by_key_and_is_the_same_again() -> None:
    seeds = [seeded(Sampling(seed=1), key).seed for key in ("a#0/0", "a#0/1", "a#0/0")]
    assert seeds[0] == seeds[2] != seeds[1]
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    assert seeded(Sampling(), "a#0/0").seed is None


def test_a_prompts_samples_go_out_together_with_its_ids(tmp_path: Path) -> None:
    rows = {"a": [9, 1], "b": [5, 300, 2], "c": [5, 2], "d": [9], "e": [5, 300, 1]}
    write_prompts(tmp_path, rows)
    planned = [(request.key, list(request.prompt_ids)) for request in planned_requests(tmp_path, 2)]
    names = [key[0] for key, _ in planned[::2]]
    assert sorted(names) == list("abcde")
    assert [key for key, _ in planned] == [f"{name}#0/{sample}" for name in names for sample in (0, 1)]
    assert all(prompt_ids == rows[key[0]] for key, prompt_ids in planned)


def test_order_is_kept_beyond_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.capture.planned.BLOCK_ROWS", 3)
    write_prompts(tmp_path, {name: [99 - number] for number, name in enumerate("abcdefgh")})
    planned = [request.key[0] for request in planned_requests(tmp_path, 1)]
    assert [sorted(planned[start : start + 3]) for start in (0, 3, 6)] == [list("abc"), list("def"), list("gh")]
    assert [key[0] for key in planned_keys(tmp_path, 1)] == list("abcdefgh")


def test_what_is_known_is_not_planned_again(tmp_path: Path) -> None:
    write_prompts(tmp_path, {"a": [1], "b": [2], "c": [3]})
    known = KnownKeys([b"a#0/0", b"a#0/1", b"b#0/1", b"z#0/0"])
    planned = sorted(request.key for request in planned_requests(tmp_path, 2, known=known))
    assert planned == ["b#0/0", "c#0/0", "c#0/1"]
    assert count_planned(tmp_path, 2, known) == (6, 3)


def test_what_is_missing_is_counted_anew_when_a_file_changes(tmp_path: Path) -> None:
    write_prompts(tmp_path, {"a": [1], "b": [2]})
    assert [count_missing(tmp_path, 1), count_missing(tmp_path, 2)] == [2, 4]
    journal = tmp_path / "raw_responses.1-of-2.jsonl"
    journal.write_text('{"key":"a#0/0","prompt_ids":[1]}\n')
    assert count_missing(tmp_path, 1) == 1
    journal.write_text('{"key":"z#0/0","prompt_ids":[1]}\n')
    assert count_missing(tmp_path, 1) == 2
    append_rejections(tmp_path, [rejection("b#0/0")], shard=Shard(2, 2))
    assert count_missing(tmp_path, 1) == 1
    write_prompts(tmp_path, {"a": [1], "b": [2], "c": [3]})
    assert count_missing(tmp_path, 1) == 2


def test_prompts_that_begin_alike_go_out_soon_after_each_other_but_not_at_once(tmp_path: Path) -> None:
    """80 prompts of 16 beginnings, shuffled: a beginning's five prompts come 16 places apart, each once."""
    order = sorted(range(80), key=lambda number: number * 37 % 80)
    prompts = {str(number): [number // 5] * 40 + [300, number] for number in order}
    write_prompts(tmp_path, prompts)
    sent = [list(request.prompt_ids) for request in planned_requests(tmp_path, 1)]
    assert sorted(sent) == sorted(prompts.values())
    for beginning in range(16):
        places = [place for place, ids in enumerate(sent) if ids[0] == beginning]
        assert {later - earlier for earlier, later in pairwise(places)} == {16}


def test_the_order_of_a_block_is_no_choice_by_length_or_content(tmp_path: Path) -> None:
    """The first half of 1,000 prompts, of 1 to 1,000 ids in the file's order, is as long as the second."""
    write_prompts(tmp_path, {str(number): [7] * number for number in range(1, 1001)})
    lengths = [len(request.prompt_ids) for request in planned_requests(tmp_path, 1)]
    assert sorted(lengths) == list(range(1, 1001))
    assert abs(sum(lengths[:500]) / 500 - 500.5) < 60  # a fixed order: five standard errors of a random half are 65


def test_reading_prompts_imports_no_large_library_while_the_loop_of_a_run_waits(tmp_path: Path) -> None:
    write_prompts(tmp_path)
    program = (
        "import sys; from pathlib import Path; from rawtokens.capture.planned import planned_requests as planned\n"
    )
    program += "before = set(sys.modules); list(planned(Path(sys.argv[1]), 1))\n"
    program += "print(*sorted({name.partition('.')[0] for name in {*sys.modules} - before} & {'pandas', 'datasets'}))\n"
    program += "print('pyarrow.compute' in {*sys.modules} - before)"
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True)
    assert ran.stdout == "\nFalse\n"


class PrefixCache:
    """A server's prefix cache: pages of 16 ids behind all ids before them, the least used thrown out first.

    What is computed at the same time is not in it yet.
    """

    def __init__(self, pages: int) -> None:
        self.room, self.pages = pages, OrderedDict[bytes, None]()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        ids = sent["input_ids"]
        pages = [bytes(str(ids[:end]), "ascii") for end in range(16, len(ids) + 1, 16)]
        cached = 16 * len(list(takewhile(self.pages.__contains__, pages)))
        await asyncio.sleep(0.002)
        for page in pages:
            self.pages[page] = None
            self.pages.move_to_end(page)
        while len(self.pages) > self.room:
            self.pages.popitem(last=False)
        meta = {"id": sent["rid"], "finish_reason": {"type": "length"}, "cached_tokens": cached}
        meta |= {"prompt_tokens": len(ids), "completion_tokens": 1}
        return httpx.Response(200, json={"output_ids": [5], "meta_info": meta})


def cached_share(
    folder: Path, *, samples: int = 1, url: str = "http://one:1", transport: httpx.MockTransport | None = None
) -> float:
    """The share of prompt ids that a server had: 64 beginnings of 160 ids, eight prompts each, shuffled."""
    folder.mkdir()
    write_prompts(folder, {str(number): [5 + number % 64] * 160 + [300, number] for number in range(512)})
    sampling = Sampling(max_new_tokens=1, samples_per_prompt=samples)
    asked = Target(urls=(url,), sampling=sampling, stop_ids=(163586,), vocabulary_size=163840, fingerprint="f")
    asyncio.run(generate(folder, asked, window=16, transport=transport))
    found = list(read_responses(folder / JOURNAL))
    assert len(found) == 512 * samples
    return sum(item.cached_tokens for item in found) / sum(item.prompt_tokens for item in found)


def keep_the_order_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.capture.planned._beginnings", lambda ids: b"")
    monkeypatch.setattr("rawtokens.capture.planned._LANES", 1)


@pytest.mark.parametrize("samples", [1, 4])
def test_a_prefix_cache_serves_what_prompts_share_and_would_not_in_the_order_of_the_file(
    samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache holds 24 of the 64 beginnings."""
    ordered = cached_share(tmp_path / "ordered", samples=samples, transport=httpx.MockTransport(PrefixCache(240)))
    keep_the_order_of_the_file(monkeypatch)
    assert ordered > 0.8
    in_file = cached_share(tmp_path / "file", samples=samples, transport=httpx.MockTransport(PrefixCache(240)))
    assert in_file < {1: 0.05, 4: 0.75}[samples]


@pytest.mark.engine
def test_the_real_prefix_cache_serves_more_than_in_the_order_of_the_file(
    tmp_path: Path, demo_folder: Path, demo_server: DemoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for 38 of the 64 beginnings, less what runs."""
    small, log = ["--max-total-tokens", "6144"], tmp_path / "log"
    with start_demo_server(demo_folder, log_path=log, port=demo_server.port + 2, extra_arguments=small) as server:
        ordered = cached_share(tmp_path / "ordered", url=server.url)
        keep_the_order_of_the_file(monkeypatch)
        in_file = cached_share(tmp_path / "file", url=server.url)
    assert ordered > in_file + 0.2
