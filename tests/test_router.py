"""Several real servers: behind sglang-router 0.3.2 as one address, and listed one by one.

Every run is compared, id by id, with one in which nothing happened.
"""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chaos.client_runs import ClientRun
from chaos.ground import Ground, Outcome

from rawtokens.capture import server_facts
from rawtokens.demo.dialogue_record import VOCABULARY_SIZE
from rawtokens.demo.server import DemoServer, find_engine_python, weight_version
from rawtokens.journal import read_responses
from rawtokens.prompts import PROMPTS
from rawtokens.records import PROMPTS_SCHEMA
from rawtokens.server_checks import server_check
from rawtokens.target.target_tokenizer import Tokenizer

pytestmark = pytest.mark.engine

WHOLE = Outcome(missing=0, doubled=0, altered=0, rejected=0, lengths_equal=True)
# `python -m sglang_router.launch_router` imports SGLang for a debugging balancer of its own, and SGLang wants a GPU's
# packages: this is what that module starts.
ROUTER = """
import argparse
from sglang_router.router import Router
from sglang_router.router_args import RouterArgs
parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser, use_router_prefix=False)
Router.from_args(RouterArgs.from_cli_args(parser.parse_args(), use_router_prefix=False)).start()
"""


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def workers(demo_server: DemoServer, parsing_server: DemoServer) -> list[DemoServer]:
    """Two servers that answer, whatever an earlier test did to them."""
    return [demo_server.wait_until_ready(), parsing_server.wait_until_ready()]


@pytest.fixture
def router(workers: list[DemoServer], tmp_path: Path) -> Iterator[str]:
    """The router's address, as soon as it takes connections: it has no workers yet then."""
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    options += ["--policy", "round_robin", "--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"]
    options += ["--worker-urls", *(worker.url for worker in workers)]
    with (tmp_path / "router.log").open("wb") as log:
        process = subprocess.Popen([find_engine_python(), "-c", ROUTER, *options], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, (tmp_path / "router.log").read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def generations(server: DemoServer) -> int:
    """How often a server answered /generate."""
    return server.log_path.read_text(errors="replace").count('"POST /generate HTTP/1.1" 200')


def test_a_run_through_a_router_that_has_no_workers_yet_gives_what_a_direct_run_gives(
    router: str, workers: list[DemoServer], undisturbed: Ground, tmp_path: Path
) -> None:
    before = [generations(worker) for worker in workers]
    client = ClientRun(undisturbed.copy_to(tmp_path / "run"), [router])
    client.finish()
    assert undisturbed.compare(client.folder) == WHOLE
    assert {response.server for response in read_responses(client.journal)} == {router}
    assert all(generations(worker) > count + 5 for worker, count in zip(workers, before, strict=True))


def test_what_a_router_does_not_tell_is_unknown_and_no_contradiction(
    router: str, demo_folder: Path, demo_target: Tokenizer
) -> None:
    while httpx.get(f"{router}/get_model_info").status_code == 503:
        time.sleep(0.1)
    assert httpx.get(f"{router}/model_info").status_code == 404
    facts = asyncio.run(server_facts.facts_of([router]))
    assert facts.weight_version == weight_version(demo_folder)
    assert facts.model == demo_folder.name
    assert (facts.version, facts.context_length, facts.running_limit) == (None, None, None)
    found = {check.check: check.status for check in asyncio.run(server_check.check_server(router, demo_target))}
    assert "fail" not in found.values()
    assert {found[name] for name in ("context", "vocabulary", "auto-truncate", "tokenizer on the server")} == {"warn"}
    assert found["generates from ids"] == found["stop id is kept"] == "pass"


def test_a_worker_killed_behind_a_router_costs_no_row(
    router: str, workers: list[DemoServer], undisturbed: Ground, tmp_path: Path
) -> None:
    client = ClientRun(undisturbed.copy_to(tmp_path / "run"), [router], window=8)
    client.start()
    client.wait_for_lines(4)
    os.killpg(workers[1].pid, signal.SIGKILL)
    workers[1].relaunch()
    client.finish()
    assert undisturbed.compare(client.folder) == WHOLE


def test_two_listed_servers_share_the_work_and_one_killed_costs_no_row(
    workers: list[DemoServer], undisturbed: Ground, tmp_path: Path
) -> None:
    steady, killed = workers
    client = ClientRun(undisturbed.copy_to(tmp_path / "run"), [steady.url, killed.url], window=4)
    client.start()
    client.wait_for_lines(6)
    early = {response.server for response in read_responses(client.journal)}
    os.killpg(killed.pid, signal.SIGKILL)
    killed.relaunch()
    client.ended(code=0)
    killed.wait_until_ready()  # a start asks every server what it is
    client.finish()
    assert undisturbed.compare(client.folder) == WHOLE
    assert early == {steady.url, killed.url}


@pytest.mark.parametrize("bad", [163840, -1])
def test_an_id_that_kills_servers_never_reaches_them(
    router: str, workers: list[DemoServer], undisturbed: Ground, tmp_path: Path, bad: int
) -> None:
    folder = undisturbed.copy_to(tmp_path / "run")
    rows = pq.read_table(folder / PROMPTS).to_pylist()
    rows[7]["prompt_ids"][1] = bad
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / PROMPTS)
    client = ClientRun(folder, [router], window=4)
    client.start()
    client.ended(code=2, words=[f"prompt ids must lie in 0..{VOCABULARY_SIZE - 1}"])
    for worker in workers:
        assert worker.process.poll() is None
        worker.wait_until_ready(30)
