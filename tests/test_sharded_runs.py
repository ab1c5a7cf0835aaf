"""Several runs over one data set: what they make together is what one run makes, whatever the split and its changes."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawtokens.__main__ import main
from rawtokens.capture.planned import count_missing, planned_keys
from rawtokens.demo.server import DemoServer
from rawtokens.generation import Target, generate
from rawtokens.journal import journal_paths, read_keys, read_rejections, read_responses, rejection_paths
from rawtokens.records import PROMPTS_SCHEMA, Sampling
from rawtokens.shards import WHOLE, Shard

CLOSER, END = 163607, 163586
ROWS, SAMPLES = 40, 2


def write_prompts(folder: Path, order: Sequence[int] = range(ROWS)) -> Path:
    row = {"turn": 0, "prompt_tokens": 2, "thinking": "opened", "messages": "[]", "tools": "[]"}
    row |= {"template_kwargs": "{}", "notices": []}
    rows = [{"key": f"{number}#0", "source_id": str(number), "prompt_ids": [7, number], **row} for number in order]
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")
    return folder


class Server:
    """Answers each prompt with ids of its own; refuses every tenth prompt."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/generate":
            return httpx.Response(200)
        number = json.loads(request.content)["input_ids"][1]
        self.asked.append(number)
        if number % 10 == 9:
            return httpx.Response(400, json={"error": "no"})
        ids = [1000 + number, CLOSER, 5, END]
        meta = {"finish_reason": {"type": "stop", "matched": END}, "prompt_tokens": 2, "completion_tokens": len(ids)}
        return httpx.Response(200, json={"output_ids": ids, "meta_info": meta})


def run(folder: Path, *shards: Shard) -> list[int]:
    """Run shards at the same time; returns which prompts were asked."""
    server = Server()

    async def all_shards() -> None:
        work = []
        for shard in shards:
            target = Target(
                urls=("http://one:1",),
                sampling=Sampling(max_new_tokens=16, samples_per_prompt=SAMPLES),
                stop_ids=(END,),
                vocabulary_size=163840,
                fingerprint="f" * 16,
                shard=shard,
            )
            work.append(generate(folder, target, window=4, transport=httpx.MockTransport(server)))
        await asyncio.gather(*work)

    asyncio.run(all_shards())
    return server.asked


def made(folder: Path) -> list[tuple[str, list[int], list[int]]]:
    records = [item for path in journal_paths(folder) for item in read_responses(path)]
    return sorted((item.key, item.prompt_ids, item.output_ids) for item in records)


def rejected(folder: Path) -> list[str]:
    return sorted(item.key for item in read_rejections(folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one run makes of the data set."""
    folder = write_prompts(tmp_path_factory.mktemp("whole"))
    run(folder, WHOLE)
    return folder


@pytest.mark.parametrize("count", [2, 3, 8])
def test_shards_at_the_same_time_make_what_one_run_makes(tmp_path: Path, whole: Path, count: int) -> None:
    folder = write_prompts(tmp_path)
    shards = [Shard(index, count) for index in range(1, count + 1)]
    parts = [count_missing(folder, SAMPLES, shard=shard) for shard in shards]
    assert sum(parts) == count_missing(folder, SAMPLES) == ROWS * SAMPLES
    asked = run(folder, *shards)
    assert sorted(asked) == sorted(list(range(ROWS)) * SAMPLES)
    assert made(folder) == made(whole)
    assert rejected(folder) == rejected(whole)
    assert count_missing(folder, SAMPLES) == 0
    for shard, part in zip(shards, parts, strict=True):
        own = set(planned_keys(folder, SAMPLES, shard=shard))
        keys = set(read_keys(folder / shard.file_name("raw_responses.jsonl")))
        refused = {item.key for item in read_rejections(folder) if shard.holds(item.key)}
        assert keys | refused == own
        assert not keys & refused
        assert len(own) == part


def test_the_split_does_not_know_the_order_of_rows(tmp_path: Path) -> None:
    one, other = write_prompts(tmp_path / "one"), write_prompts(tmp_path / "other", [*reversed(range(ROWS))])
    for shard in (Shard(1, 3), Shard(2, 3), Shard(3, 3)):
        assert set(planned_keys(one, 1, shard=shard)) == set(planned_keys(other, 1, shard=shard))


@pytest.mark.parametrize(
    "steps",
    [
        [[Shard(1, 2)], [WHOLE]],
        [[WHOLE], [Shard(1, 2), Shard(2, 2)]],
        [[Shard(1, 2), Shard(2, 2)], [Shard(1, 5)], [WHOLE]],
        [[Shard(2, 3)], [Shard(1, 8), Shard(5, 8)], [Shard(1, 2)], [Shard(2, 2)]],
    ],
)
def test_another_number_of_shards_doubles_nothing(tmp_path: Path, whole: Path, steps: list[list[Shard]]) -> None:
    folder = write_prompts(tmp_path)
    asked = [number for shards in steps for number in run(folder, *shards)]
    assert sorted(asked) == sorted(list(range(ROWS)) * SAMPLES)
    assert made(folder) == made(whole)
    assert rejected(folder) == rejected(whole)
    assert not set(rejected(folder)) & {key for key, _, _ in made(folder)}


def test_more_samples_a_prompt_add_samples_alone(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path)
    run(folder, WHOLE)
    before = (folder / "raw_responses.jsonl").read_bytes()
    assert count_missing(folder, SAMPLES + 1) == ROWS
    assert {key.rpartition("/")[2] for key in set(planned_keys(folder, 3)) - set(planned_keys(folder, 2))} == {"2"}
    assert (folder / "raw_responses.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shard", "2/8"], "goes with --stage 02 alone"),
        (["--stage", "03", "--shard", "2/8"], "goes with --stage 02 alone"),
        (["--stage", "02", "--shard", "9/8"], "shard '9/8' is not known; expected I/N"),
    ],
)
def test_a_shard_that_can_not_be_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    (tmp_path / "run.yaml").write_text(RUN.format(model=tmp_path, url="http://one:1"))
    assert main(["run", str(tmp_path / "run.yaml"), *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


RUN = """run: shards
model: {{tokenizer: {model}, template_kwargs: {{thinking: true}}}}
servers: {{urls: ["{url}"]}}
sampling: {{temperature: 1.0, max_new_tokens: 24, samples_per_prompt: 2}}
datasets: {{A: {{prompts: prompts.jsonl}}}}
"""


@pytest.mark.engine
def test_two_commands_on_a_real_server_make_every_key_once(
    demo_server: DemoServer, demo_folder: Path, tmp_path: Path
) -> None:
    prompts = [{"messages": [{"role": "user", "content": f"What is {n} + {n + 3}?"}]} for n in range(12)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    (tmp_path / "run.yaml").write_text(RUN.format(model=demo_folder, url=demo_server.url))
    command = [sys.executable, "-m", "rawtokens", "run", str(tmp_path / "run.yaml"), "--outputs", str(tmp_path / "out")]
    folder = tmp_path / "out" / "shards" / "A"

    def start(*options: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*command, *options], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    first = start("--stage", "01")
    assert first.wait() == 0, first.communicate()
    shards = [start("--stage", "02", "--shard", f"{index}/2") for index in (1, 2)]
    told = [shard.communicate() for shard in shards]
    assert [shard.returncode for shard in shards] == [0, 0], told
    assert any("A: no shard misses anything" in out for out, _ in told)
    assert sorted(key for path in journal_paths(folder) for key in read_keys(path)) == sorted(planned_keys(folder, 2))
    assert [path.name for path in journal_paths(folder)] == [f"raw_responses.{n}-of-2.jsonl" for n in (1, 2)]
    fingerprints = {item.fingerprint for path in journal_paths(folder) for item in read_responses(path)}
    assert fingerprints == {msgspec.json.decode((folder / "run.json").read_bytes())["fingerprint"]}
    assert [path.name for path in rejection_paths(folder)] == ["rejected.jsonl"]
    last = start("--stage", "03")
    assert last.wait() == 0, last.communicate()
    assert pq.read_metadata(folder / "verified.parquet").num_rows == 24
    shutil.rmtree(tmp_path / "out")
