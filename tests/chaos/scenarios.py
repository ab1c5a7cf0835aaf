"""What is done to a capture: one function a kind of disturbance, each from an empty journal to a complete one.

Every function asserts what a disturbed client must say and with which code it must end; whether the ids are right is
compared by who calls it. Random moments come from the seed; how far a run has come by then does not.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from chaos import storage
from chaos.altered import NAN, REFUSED
from chaos.client_runs import ClientRun, Process, send_to_group, start_command
from chaos.ground import MAX_NEW_TOKENS, Ground
from chaos.proxy import BROKEN, KINDS, LATE, FaultProxy
from chaos.tails import TAILS, tear
from rawtokens.demo.server import DemoServer

WAYS = ("SIGKILL", "SIGTERM", "scheduler SIGKILL", "SIGKILL")


class Stage(msgspec.Struct, kw_only=True):
    """Where a scenario plays, and the counts that it leaves: client starts, kills and everything else by kind."""

    folder: Path
    ground: Ground
    servers: list[DemoServer]
    model: Path
    chooser: random.Random
    seed: int
    calm_seconds: float = 30.0  # what an undisturbed run took
    starts: int = 0
    client_kills: int = 0
    server_kills: int = 0
    events: Counter[str] = msgspec.field(default_factory=Counter)
    wire: Counter[str] = msgspec.field(default_factory=Counter)
    expected_rejections: set[str] = msgspec.field(default_factory=set)

    @property
    def rows(self) -> int:
        return len(self.ground.prompt_ids)

    def moments(self, count: int) -> list[int]:
        """So many numbers of journal lines, ascending: the last ones are those where only long answers are missing."""
        return sorted(self.chooser.sample(range(self.rows), count))

    @property
    def journal_bytes(self) -> int:
        """How long the whole journal is."""
        return sum(len(line) + 1 for line in self.ground.lines.values())

    def tally(self, client: ClientRun) -> None:
        self.starts += client.starts
        self.client_kills += client.kills


Scenario = Callable[[Stage], None]


def client_killed(stage: Stage, *, kills: int = 44) -> None:
    """kill -9 of the client at random points."""
    client = ClientRun(stage.folder, [stage.servers[0].url])
    for lines in stage.moments(kills):
        client.kill_at(lines, stage.chooser)
    client.finish()
    stage.tally(client)


def tail_torn(stage: Stage, *, kills: int = 34) -> None:
    """kill -9 of the client, and each time another torn tail."""
    client = ClientRun(stage.folder, [stage.servers[0].url])
    for number, lines in enumerate(stage.moments(kills)):
        client.kill_at(lines, stage.chooser)
        kind = list(TAILS)[number % len(TAILS)]
        tear(stage.folder, stage.ground, stage.chooser, kind)
        stage.events[f"tail {kind}"] += 1
    client.finish()
    stage.tally(client)


def server_killed(stage: Stage, *, ways: Sequence[str] = WAYS) -> None:
    """The server killed and started again while the client waits; stopped and continued between."""
    (server, *_), client = stage.servers, ClientRun(stage.folder, [stage.servers[0].url])
    client.start()
    for way, lines in zip(ways, stage.moments(len(ways)), strict=True):
        client.wait_for_lines(lines)
        _stall(stage, server)
        _kill_server(stage, server, way)
        time.sleep(stage.chooser.uniform(0.0, 2.0))
        server.relaunch()
        server.wait_until_ready()
    client.finish()
    stage.tally(client)


def two_servers(stage: Stage) -> None:
    """One of two servers killed, and back; then the other."""
    client = ClientRun(stage.folder, [server.url for server in stage.servers])
    client.start()
    for server, lines in zip(stage.servers, (stage.rows // 8, stage.rows // 2), strict=True):
        client.wait_for_lines(lines)
        _kill_server(stage, server, "SIGKILL")
        server.relaunch()
        server.wait_until_ready()
    client.finish()
    stage.tally(client)


def wire_faults(stage: Stage, *, kills: int = 0, rate: float = 0.3) -> None:
    """Every fault of the wire at a seeded rate, with client kills between where asked for."""
    # A client that gives up what a busy server still decodes never ends: twice a whole run is long enough.
    patience = 0.0 if kills else max(30.0, 2.0 * stage.calm_seconds)
    kinds = KINDS if kills else (*KINDS, LATE)
    with FaultProxy(
        stage.servers[0].url, seed=stage.seed, rate=rate, kinds=kinds, late_seconds=patience + 10.0
    ) as proxy:
        client = ClientRun(stage.folder, [proxy.url], read_timeout=patience)
        for lines in stage.moments(kills):
            client.kill_at(lines, stage.chooser)
        client.finish()
    stage.wire += proxy.injected
    stage.tally(client)


def rows_poisoned(stage: Stage) -> None:
    """Some rows never get a good answer: they alone are rejected, with the reason."""
    reasons = {
        "body cut, still 200": "malformed_answer",
        "abort with partial ids": "aborted",
        "completion_tokens wrong": "completion_tokens_differ",
        "prompt cut on the server": "prompt_tokens_differ",
        "HTTP 500": "http_500",
        "HTTP 400": "bad_request",
        BROKEN[1]: "connection",
    }
    often = Counter(stage.ground.prompt_ids.values())
    single = sorted(key for key, prompt_ids in stage.ground.prompt_ids.items() if often[prompt_ids] == 1)
    keys = dict(zip(stage.chooser.sample(single, len(reasons)), reasons, strict=True))
    always = {stage.ground.prompt_ids[key]: kind for key, kind in keys.items()}
    with FaultProxy(stage.servers[0].url, always=always) as proxy:
        client = ClientRun(stage.folder, [proxy.url])
        client.finish()
    rows = [json.loads(line) for line in (stage.folder / "rejected.jsonl").read_text().splitlines()]
    told = {row["key"]: row["reason"] for row in rows}
    poisoned = {key: reasons[always[ids]] for key, ids in stage.ground.prompt_ids.items() if ids in always}
    assert told == poisoned, (told, poisoned)
    stage.expected_rejections |= poisoned.keys()
    stage.wire += proxy.injected
    stage.tally(client)


def must_stop(stage: Stage) -> None:
    """NaN signs and a refused key stop the run, with a word and nothing of it recorded."""
    words = {**dict.fromkeys(NAN, "nan_weights"), REFUSED: "key_refused"}
    client = ClientRun(stage.folder, [])
    for kind, word in words.items():
        with FaultProxy(stage.servers[0].url, seed=stage.seed, rate=0.3, kinds=[kind]) as proxy:
            stopped = ClientRun(stage.folder, [proxy.url])
            stopped.start()
            stopped.ended(code=1, words=[word])
        stage.events[f"stopped by {kind}"] += 1
        stage.wire += proxy.injected
        stage.tally(stopped)
    client = ClientRun(stage.folder, [stage.servers[0].url])
    client.finish()
    stage.tally(client)


def file_cut_short(stage: Stage, *, times: int = 6) -> None:
    """The journal may grow no further than to a random byte: the write that crosses it is cut short."""
    client = ClientRun(stage.folder, [stage.servers[0].url])
    for _ in range(times):
        size = client.journal.stat().st_size if client.journal.exists() else 0
        client.start(
            "--largest-file", str(max(4096, size + stage.chooser.randint(1, stage.journal_bytes // (times + 2))))
        )
        client.ended(code=1, words=["raw_responses.jsonl"])
        stage.events["file limit reached"] += 1
    client.finish()
    stage.tally(client)


def disk_full(stage: Stage, *, times: int = 5) -> None:
    """The disk full in the middle of a run and freed; read-only at a start; vanished under a running client."""
    client = ClientRun(stage.folder, [stage.servers[0].url])
    most = max(1, stage.journal_bytes // (times + 2) // storage.PAGE)
    with storage.small_disk(stage.folder):
        stage.ground.copy_to(stage.folder)
        for _ in range(times):
            storage.resize(stage.folder, free_pages=stage.chooser.randint(1, most))
            client.start()
            client.ended(code=1, words=["No space left on device", "the write was cut short"])
            stage.events["disk full"] += 1
            storage.resize(stage.folder, free_pages=None)
        storage.set_read_only(stage.folder, True)
        client.start()
        client.ended(code=1, words=["Read-only file system"])
        stage.events["read-only"] += 1
        storage.set_read_only(stage.folder, False)
        client.finish()
        for path in list(stage.folder.iterdir()):
            (stage.folder.parent / f"{stage.folder.name}-kept").mkdir(exist_ok=True)
            (stage.folder.parent / f"{stage.folder.name}-kept" / path.name).write_bytes(path.read_bytes())
    stage.folder = stage.folder.parent / f"{stage.folder.name}-kept"
    stage.tally(client)


def disk_vanished(stage: Stage) -> None:
    """The file system gone from its place under a running client, and mounted again."""
    disk = stage.ground.copy_to(stage.folder.parent / f"{stage.folder.name}-disk")
    client = ClientRun(
        stage.folder, [stage.servers[0].url], window=4
    )  # the loss is noticed within seconds, not at once
    for _ in range(2):
        storage.attach(disk, stage.folder)
        lines = client.lines()
        client.start()
        client.wait_for_lines(lines + 2)
        storage.detach(stage.folder)
        client.ended(code=1, words=["raw_responses.jsonl"])
        stage.events["disk vanished"] += 1
    storage.attach(disk, stage.folder)
    client.finish()
    storage.detach(stage.folder)
    stage.folder = disk
    stage.tally(client)


def two_writers(stage: Stage) -> None:
    """A second writer is refused by name; a third takes over as soon as the first is killed."""
    url = stage.servers[0].url
    first, second = (ClientRun(stage.folder, [url], window=1) for _ in range(2))  # slow enough to outlast the waiting
    first.start()
    first.wait_for_lines(1)
    for window in (1, 48):
        assert first.process is not None
        second.start()
        second.ended(code=1, words=[f"process {first.process.pid}"])
        stage.events["second writer refused"] += 1
        third = ClientRun(stage.folder, [url], window=window)
        third.start()
        time.sleep(stage.chooser.uniform(0.5, 4.0))
        first.kill()
        stage.events["lock taken over"] += 1
        stage.tally(first)
        first = third
        first.wait_for_lines(first.lines() + 1)
    first.finish()
    stage.tally(first)
    stage.tally(second)


def everything_at_once(stage: Stage, *, kills: int = 10) -> None:
    """Wire faults, torn tails, kills of the client and of the server in one run."""
    server, server_at = stage.servers[0], kills // 2
    with FaultProxy(server.url, seed=stage.seed, rate=0.2) as proxy:
        client = ClientRun(stage.folder, [proxy.url])
        for number, lines in enumerate(stage.moments(kills)):
            if number == server_at:
                client.start()
                client.wait_for_lines(lines)
                _kill_server(stage, server, "SIGKILL")
                server.relaunch()
                client.kill()
                server.wait_until_ready()
            else:
                client.kill_at(lines, stage.chooser)
            kind = stage.chooser.choice(list(TAILS))
            tear(stage.folder, stage.ground, stage.chooser, kind)
            stage.events[f"tail {kind}"] += 1
        client.finish()
    stage.wire += proxy.injected
    stage.tally(client)


def command_killed(stage: Stage) -> None:
    """The real command, with its kernel: killed, its kernel killed, interrupted and terminated."""
    run_file = stage.folder.parent / "chaos.yaml"
    outputs = stage.folder.parent / "outputs"
    settings = {
        "run": "chaos",
        "model": {"tokenizer": str(stage.model)},
        "servers": {"urls": [stage.servers[0].url], "max_in_flight": 48},
        "sampling": {"temperature": 0.0, "max_new_tokens": MAX_NEW_TOKENS},
        "datasets": {"kinds": {"prompts": str(stage.ground.folder / "questions.jsonl")}},
    }
    run_file.write_text(json.dumps(settings))
    folder = stage.ground.copy_to(outputs / "chaos" / "kinds")
    client = ClientRun(folder, [])
    client.launch = start_command
    client.arguments = ["run", str(run_file), "--outputs", str(outputs), "--dataset", "kinds", "--stage", "02"]
    ways = ("SIGKILL", "kernel", "SIGTERM", "SIGINT")
    for way, lines in zip(ways, stage.moments(len(ways)), strict=True):
        process = client.start()
        kernel = _kernel_of(process)
        client.wait_for_lines(max(lines, client.lines() + 1))
        if process.code is not None:
            assert process.code == 0, process.words()
            break
        if way == "SIGKILL":
            client.kill()
            continue
        if way == "kernel":
            os.kill(kernel, signal.SIGKILL)
            client.kills += 1
        else:
            os.kill(process.pid, signal.Signals[way])
            stage.events[f"command {way}"] += 1
        assert process.wait() in (0, 1), process.words()  # 0: the last answers came while it drained
        assert "Traceback" not in process.words(), process.words()
    client.start()
    client.ended(code=0)
    stage.folder = folder
    stage.tally(client)


def _kernel_of(command: Process) -> int:
    """The process id of a command's kernel, as soon as there is one."""
    while command.code is None:
        children = ["ps", "-o", "pid=,args=", "--ppid", str(command.pid)]
        for line in subprocess.run(children, capture_output=True, text=True).stdout.splitlines():
            if "ipykernel" in line:
                return int(line.split()[0])
        time.sleep(0.1)
    raise AssertionError(f"the command ended before its kernel was seen: {command.words()}")


def _kill_server(stage: Stage, server: DemoServer, way: str) -> None:
    if way == "SIGTERM":  # it drains: what is in flight is still answered
        os.kill(server.pid, signal.SIGTERM)
        server.process.wait(timeout=120)
    elif way == "scheduler SIGKILL":  # the process that computes, while the one that answers HTTP lives on
        listed = subprocess.run(["ps", "-o", "pid=,args=", "-g", str(server.pid)], capture_output=True, text=True)
        found = [int(line.split()[0]) for line in listed.stdout.splitlines() if "sglang::scheduler" in line]
        os.kill(found[0], signal.SIGKILL)
        time.sleep(stage.chooser.uniform(0.0, 3.0))
    else:
        send_to_group(server.pid, signal.SIGKILL)
    stage.events[f"server {way}"] += 1
    stage.server_kills += 1


def _stall(stage: Stage, server: DemoServer) -> None:
    send_to_group(server.pid, signal.SIGSTOP)
    time.sleep(stage.chooser.uniform(1.0, 5.0))
    send_to_group(server.pid, signal.SIGCONT)
    stage.events["server stalled"] += 1
