"""What befalls a run from outside while it goes on: its folder, clock and disk, a server that never ends or answers.

Every fault is real but the clock's jumps; a run ends in words and in a state from which the same command goes on.
"""

import asyncio
import datetime
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from test_generation import URL, answer, records, target, write_prompts
from test_journal_faults import child

from rawtokens.errors import RunStopped
from rawtokens.generation import Progress, generate
from rawtokens.journal import JOURNAL, REJECTED, read_rejections
from rawtokens.records import Sampling

TWO = "http://two:30000"


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.capture.tries.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("rawtokens.generation._REPORT_SECONDS", 0.02)
    monkeypatch.setattr("rawtokens.generation.ABORT_SECONDS", 0.2)
    monkeypatch.setattr("rawtokens.capture.asking.ABORT_SECONDS", 0.2)
    monkeypatch.setattr("rawtokens.journal._SYNC_SECONDS", 0.02)
    monkeypatch.setattr("rawtokens.capture.servers.LONGEST_REST", 0.01)


@pytest.mark.parametrize("answered", [0, 3])
def test_a_folder_that_is_deleted_stops_the_run_though_no_answer_comes_and_stays_deleted(
    tmp_path: Path, answered: int
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_prompts(folder, 8)
    asked: list[str] = []

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/generate":
            return httpx.Response(200)
        asked.append(request.url.path)
        if len(asked) <= answered:
            return answer(json.loads(request.content))
        shutil.rmtree(folder, ignore_errors=True)
        await asyncio.sleep(600.0)
        raise AssertionError("the run did not stop")

    work = generate(folder, target(), window=4, transport=httpx.MockTransport(handle))
    with pytest.raises(RunStopped, match=r"can't write .*data.*No such file or directory.*run the same command"):
        asyncio.run(work)
    assert not folder.exists()


class JumpingClock(datetime.datetime):
    """A wall clock that goes two days on, three back, and so forth, at every look."""

    looks = 0

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "JumpingClock":
        cls.looks += 1
        days = (2, -3)[cls.looks % 2] * cls.looks
        moved = datetime.datetime.now(tz) + datetime.timedelta(days=days)
        return cls.fromisoformat(moved.isoformat())


def test_a_wall_clock_that_jumps_changes_no_latency_and_cuts_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rawtokens.capture.asking.datetime", JumpingClock)
    write_prompts(tmp_path, 12)

    async def after_a_moment(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.05)
        return answer(json.loads(request.content))

    progress = asyncio.run(generate(tmp_path, target(), window=4, transport=httpx.MockTransport(after_a_moment)))
    assert (progress.done, progress.rejected, dict(progress.failures)) == (12, 0, {})
    found = records(tmp_path)
    assert len({item.started_at[:10] for item in found}) > 6  # days that only the jumps can bring
    assert all(0.04 <= item.latency_s < 3600 for item in found)  # a timer may fire early; the jumps are of days


class Endless(httpx.AsyncByteStream):
    """A body whose end never comes."""

    def __init__(self) -> None:
        self.given = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.given += 2**16
            yield b"1," * 2**15


def test_an_answer_without_end_costs_its_row_alone(tmp_path: Path) -> None:
    write_prompts(tmp_path, 3)
    bodies: list[Endless] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/generate":
            return httpx.Response(200)
        sent = json.loads(request.content)
        if sent["rid"] in poisoned(sent):
            bodies.append(Endless())
            return httpx.Response(200, stream=bodies[-1])
        return answer(sent)

    first: list[str] = []

    def poisoned(sent: dict[str, object]) -> list[str]:
        """Everything that the row asks which was asked first; a probe has one id."""
        if not first and len(sent["input_ids"]) > 1:  # type: ignore[arg-type]
            first.append(str(sent["rid"]))
        return first

    progress = asyncio.run(generate(tmp_path, target(), window=1, transport=httpx.MockTransport(handle)))
    assert (progress.done, progress.rejected, dict(progress.failures)) == (3, 0, {"connection": 1})
    assert [body.given for body in bodies] == [2**20 + 2**16]  # 1 MiB, 1 KiB an id, 16 bytes a prompt id: 17 blocks


FULL = """
import asyncio, json, resource, sys
from pathlib import Path
import httpx
from rawtokens.errors import RunStopped
from rawtokens.generation import generate
from test_generation import answer, target, write_prompts
folder = Path(sys.argv[1])
write_prompts(folder, 9)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
asked = []
def handle(request):
    asked.append(1)
    return answer(json.loads(request.content)) if len(asked) == 9 else httpx.Response(400, json={"error": "x" * 250})
try:
    asyncio.run(generate(folder, target(), window=1, transport=httpx.MockTransport(handle)))
except RunStopped as error:
    print(error)
"""


@pytest.mark.parametrize("room", [500, 1500, 2500])
def test_a_disk_that_fills_up_while_rejections_are_written_loses_no_row(tmp_path: Path, room: int) -> None:
    (told,) = child(FULL, str(tmp_path), str(room))
    assert f"can't write {tmp_path / REJECTED}: " in told
    assert "make room or mend the folder, then run the same command" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.parquet", "raw_responses.jsonl", LOCK]
    assert read_rejections(tmp_path) == []
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return answer(json.loads(request.content))

    progress = asyncio.run(generate(tmp_path, target(), window=1, transport=httpx.MockTransport(handle)))
    assert (progress.present, progress.done, len(asked)) == (1, 8, 8)
    assert sorted(item.key for item in records(tmp_path)) == [f"{number}#0/0" for number in range(9)]


LOCK = Path(JOURNAL).with_suffix(".lock").name


def test_a_server_that_hangs_beside_a_good_one_is_named_and_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rawtokens.capture.servers._SILENT_SECONDS", 0.2)
    monkeypatch.setattr("rawtokens.capture.servers.Server.patience", lambda *_: 0.6)
    monkeypatch.setattr("rawtokens.capture.asking.PROBE_SECONDS", 0.2)
    write_prompts(tmp_path, 30)
    told: list[Progress] = []

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.host == "two":
            try:
                async with asyncio.timeout(request.extensions["timeout"]["read"]):
                    await asyncio.sleep(600.0)
            except TimeoutError as error:
                raise httpx.ReadTimeout("silence") from error
        if request.url.path != "/generate":
            return httpx.Response(200)
        await asyncio.sleep(0.05)
        return answer(json.loads(request.content))

    transport = httpx.MockTransport(handle)
    chosen = target(urls=(URL, TWO), sampling=Sampling(max_new_tokens=16))
    progress = asyncio.run(generate(tmp_path, chosen, window=8, transport=transport, on_progress=told.append))
    assert (progress.done, progress.rejected) == (30, 0)
    assert {item.server for item in records(tmp_path)} == {URL}
    assert sorted(item.key for item in records(tmp_path)) == sorted(f"{number}#0/0" for number in range(30))
    assert TWO in {url for one in told for url in one.silent}
    assert progress.failures.keys() == {"timeout"}
