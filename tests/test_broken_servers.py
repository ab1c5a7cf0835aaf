"""Servers that break down, and the row that breaks them: what is in flight at a death is not at fault for it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawtokens.capture.tries import MAXIMUM_BREAKDOWNS
from rawtokens.engines.answers import ServerFacts
from rawtokens.errors import InputError, RunStopped
from rawtokens.generation import Progress, Target, generate
from rawtokens.journal import JOURNAL, REJECTED, read_keys, read_rejections
from rawtokens.records import PROMPTS_SCHEMA, Sampling

URL = "http://one:30000"
END = 163586
POISON = 999


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.capture.tries.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("rawtokens.capture.servers.LONGEST_REST", 0.005)


def write_prompts(folder: Path, numbers: list[int]) -> None:
    row: dict[str, object] = {"turn": 0, "prompt_tokens": 2, "thinking": "opened", "messages": "[]", "tools": "[]"}
    row |= {"template_kwargs": "{}", "notices": []}
    rows = [{"key": f"{number}#0", "source_id": str(number), "prompt_ids": [7, number], **row} for number in numbers]
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")


def answer(sent: dict[str, list[int]], weight_version: str = "default") -> httpx.Response:
    meta: dict[str, object] = {"id": sent["rid"]}
    meta |= {"finish_reason": {"type": "stop", "matched": END}, "weight_version": weight_version}
    meta |= {"prompt_tokens": len(sent["input_ids"]), "completion_tokens": 2}
    return httpx.Response(200, json={"output_ids": [5, END], "meta_info": meta})


class Dying:
    """Is killed by a poisoned prompt, takes along whatever is in flight, and is back after four refused connections."""

    def __init__(self, broken: Callable[[httpx.Request], httpx.Response]) -> None:
        self.broken = broken
        self.deaths = 0
        self.refuses = 0
        self.dead = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/generate":
            return httpx.Response(200)
        if self.refuses:
            self.refuses -= 1
            raise httpx.ConnectError("refused")
        sent, life = json.loads(request.content), self.dead
        if sent["input_ids"][1:] == [POISON]:
            await asyncio.sleep(0.002)
            if not life.is_set():
                self.die()
        try:
            async with asyncio.timeout(0.01 if len(sent["input_ids"]) > 1 else 0.0):
                await life.wait()
        except TimeoutError:
            return answer(sent)
        return self.broken(request)

    def die(self) -> None:
        self.deaths += 1
        self.refuses = 4
        self.dead.set()
        self.dead = asyncio.Event()


def reset(_: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("reset")


def bad_gateway(_: httpx.Request) -> httpx.Response:
    return httpx.Response(502, text="upstream closed")


def run(folder: Path, broken: Callable[[httpx.Request], httpx.Response], *, window: int) -> tuple[Progress, int]:
    async def everything() -> tuple[Progress, int]:
        server = Dying(broken)
        work = generate(folder, target(patience_seconds=60.0), window=window, transport=httpx.MockTransport(server))
        return await work, server.deaths

    return asyncio.run(everything())


def target(**changes: object) -> Target:
    settings: dict[str, object] = {
        "urls": (URL,),
        "sampling": Sampling(max_new_tokens=16),
        "stop_ids": (END,),
        "vocabulary_size": 163840,
        "fingerprint": "f" * 16,
        "patience_seconds": 0.0,
    }
    return Target(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [1, 16])
@pytest.mark.parametrize("broken", [reset, bad_gateway])
def test_a_row_that_breaks_its_server_each_time_is_rejected_and_its_neighbours_are_not(
    tmp_path: Path, broken: Callable[[httpx.Request], httpx.Response], window: int
) -> None:
    numbers = [*range(60), POISON]
    write_prompts(tmp_path, numbers)
    progress, deaths = run(tmp_path, broken, window=window)
    assert [(item.key, item.reason) for item in read_rejections(tmp_path)] == [(f"{POISON}#0/0", "server_died")]
    assert sorted(read_keys(tmp_path / JOURNAL)) == sorted(f"{number}#0/0" for number in range(60))
    assert (progress.done, progress.rejected) == (60, 1)
    assert deaths >= MAXIMUM_BREAKDOWNS


def test_where_every_row_breaks_the_server_the_run_stops_and_rejects_none(tmp_path: Path) -> None:
    write_prompts(tmp_path, [POISON])
    rows = pq.read_table(tmp_path / "prompts.parquet").to_pylist()
    many = [{**rows[0], "key": f"{number}#0", "source_id": str(number)} for number in range(30)]
    pq.write_table(pa.Table.from_pylist(many, schema=PROMPTS_SCHEMA), tmp_path / "prompts.parquet")
    with pytest.raises(RunStopped, match=r"20 rows in a row no good answer \(server_died"):
        run(tmp_path, reset, window=4)
    assert read_rejections(tmp_path) == []


def weights(folder: Path, versions: list[str], facts: ServerFacts) -> Progress:
    """A run whose answers are by these weights, one after the other, then by the last."""
    left = list(versions)

    def handle(request: httpx.Request) -> httpx.Response:
        return answer(json.loads(request.content), left.pop(0) if len(left) > 1 else left[0])

    return asyncio.run(generate(folder, target(facts=facts), window=1, transport=httpx.MockTransport(handle)))


@pytest.mark.parametrize("told", [None, "first"])
def test_weights_that_change_during_a_run_stop_it_whether_or_not_the_server_tells_its_own(
    tmp_path: Path, told: str | None
) -> None:
    write_prompts(tmp_path, [*range(4)])
    with pytest.raises(RunStopped, match="began with weights 'first', this answer is by 'second'"):
        weights(tmp_path, ["first", "first", "second"], ServerFacts(weight_version=told))
    assert len(list(read_keys(tmp_path / JOURNAL))) == 2


def test_weights_that_changed_between_two_runs_stop_the_second_where_nothing_else_tells(tmp_path: Path) -> None:
    write_prompts(tmp_path, [*range(4)])
    weights(tmp_path, ["first"], ServerFacts())
    write_prompts(tmp_path, [*range(6)])
    with pytest.raises(RunStopped, match="began with weights 'first', this answer is by 'second'"):
        weights(tmp_path, ["second"], ServerFacts())
    assert len(list(read_keys(tmp_path / JOURNAL))) == 4
    assert weights(tmp_path, ["first"], ServerFacts()).done == 2


def test_a_redirect_is_told_by_its_number(tmp_path: Path) -> None:
    write_prompts(tmp_path, [1])
    moved = httpx.MockTransport(lambda _: httpx.Response(301, headers={"Location": "https://elsewhere/"}))
    with pytest.raises(RunStopped, match="no_generate_route: HTTP 301 without a word"):
        asyncio.run(generate(tmp_path, target(), transport=moved))


def test_a_run_that_can_not_write_its_rejections_stops_at_once_though_answers_are_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rawtokens.generation._REPORT_SECONDS", 0.01)
    write_prompts(tmp_path, [POISON, 1, 2])

    async def refuses_one_and_hangs(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        if "input_ids" not in sent:
            return httpx.Response(200)
        if sent["input_ids"] == [7, POISON]:
            (tmp_path / REJECTED).mkdir()
            return httpx.Response(400, json={"error": "no"})
        await asyncio.sleep(600.0 if sent["input_ids"] == [7, 2] else 0.05)
        return answer(sent)

    work = generate(tmp_path, target(drain_seconds=0.0), window=3, transport=httpx.MockTransport(refuses_one_and_hangs))
    with pytest.raises(RunStopped, match=r"can't write .*rejected\.jsonl"):
        asyncio.run(work)


def test_a_line_of_another_program_among_the_rejections_is_kept_and_named_at_the_next_start(tmp_path: Path) -> None:
    write_prompts(tmp_path, [POISON, 1])

    def refuses_one(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        if sent.get("input_ids") != [7, POISON]:
            return answer(sent)
        (tmp_path / REJECTED).write_text("what another program wrote\n")
        return httpx.Response(400, json={"error": "no"})

    work = generate(tmp_path, target(), window=1, transport=httpx.MockTransport(refuses_one))
    assert asyncio.run(work).rejected == 1
    lines = (tmp_path / REJECTED).read_bytes().splitlines()
    assert lines[0] == b"what another program wrote"
    assert json.loads(lines[1])["key"] == f"{POISON}#0/0"
    with pytest.raises(InputError, match=r"rejected\.jsonl: line 1 is no record"):
        asyncio.run(generate(tmp_path, target(), window=1, transport=httpx.MockTransport(refuses_one)))
