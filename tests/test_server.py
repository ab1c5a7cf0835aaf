"""The demo server's processes: small real children that stand where SGLang's Python would, behind the real lifeline."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rawtokens.demo.server import (
    PROJECT,
    DemoServer,
    find_engine_python,
    launch_demo_server,
    serve_in_foreground,
    start_demo_server,
    weight_version,
)
from rawtokens.errors import InputError, ServerError

# What stands for `.venv-sglang/bin/python`: it runs the launcher's own lifeline, starts a child as SGLang starts its
# scheduler, and answers /generate as SGLang does. BEHAVIOUR chooses how it fails.
ENGINE = """#!{python}
import http.server, json, os, runpy, subprocess, sys, time

sys.path.insert(0, os.path.dirname(sys.argv[1]))  # as for the script that Python is given
runpy.run_path(sys.argv[1])["watch_lifeline"]()
options = sys.argv[2:]
print("options", " ".join(options), flush=True)
behaviour = os.environ.get("BEHAVIOUR", "answers")
if behaviour == "dies":
    print("OSError: no such weights")
    sys.exit(3)
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        up = behaviour == "answers" and asked["sampling_params"]["max_new_tokens"] == 1
        body = json.dumps({{"output_ids": [7], "meta_info": {{}}}} if up else {{"error": "loading"}}).encode()
        self.send_response(200 if up else 503)
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("127.0.0.1", int(options[options.index("--port") + 1])), Handler).serve_forever()
"""

Start = Callable[..., DemoServer]


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(ENGINE.format(python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
    return free


@pytest.fixture
def start(engine: Path, model: Path, port: int, tmp_path: Path) -> Iterator[Start]:
    servers: list[DemoServer] = []

    def start_one(**options: object) -> DemoServer:
        log = tmp_path / f"server-{len(servers)}.log"
        defaults = {"engine_python": engine, "port": port, "log_path": log, "patience_seconds": 20}
        servers.append(start_demo_server(model, **(defaults | options)))  # type: ignore[arg-type]
        return servers[-1]

    yield start_one
    for server in servers:
        server.stop()


def child_of(server: DemoServer) -> int:
    words = server.log_path.read_text().split()
    return int(words[words.index("child") + 1])


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not condition():
        time.sleep(0.05)
    return condition()


def test_a_server_that_generates_is_up_and_stops_with_all_that_it_started(start: Start, port: int) -> None:
    server = start()
    child = child_of(server)
    assert server.url == f"http://127.0.0.1:{port}"
    assert lives(server.pid)
    assert lives(child)
    server.stop()
    server.stop()
    assert not lives(server.pid)
    assert not lives(child)


def test_leaving_the_block_stops_the_server(start: Start) -> None:
    with start() as server:
        child = child_of(server)
    assert not lives(server.pid)
    assert not lives(child)


def test_the_model_the_port_and_further_options_reach_sglang(start: Start, model: Path, port: int) -> None:
    server = start(extra_arguments=["--tool-call-parser", "kimi_k2"])
    told = server.log_path.read_text().splitlines()[0].split()
    assert told[1:5] == ["--model-path", str(model), "--port", str(port)]
    assert told[-2:] == ["--tool-call-parser", "kimi_k2"]
    assert "--max-total-tokens" in told


def test_a_server_that_dies_says_why(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEHAVIOUR", "dies")
    with pytest.raises(ServerError, match=r"exit code 3 before it answered(.|\n)*OSError: no such weights"):
        start()


def test_a_server_that_never_generates_is_stopped(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int
) -> None:
    monkeypatch.setenv("BEHAVIOUR", "loads for ever")
    with pytest.raises(ServerError, match=f"port {port} gave no answer within 2 s"):
        start(patience_seconds=2)
    words = (tmp_path / "server-0.log").read_text().split()
    assert not lives(int(words[words.index("child") + 1]))


def test_an_occupied_port_is_named_when_no_other_will_do(start: Start, port: int) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(InputError, match=f"port {port} is occupied on 127.0.0.1"):
            start(other_port_allowed=False)


def test_an_occupied_port_gives_way_to_the_next_free_one(start: Start, port: int) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert start().port > port


def test_two_servers_that_start_at_once_never_share_a_port(
    engine: Path, model: Path, port: int, tmp_path: Path
) -> None:
    servers = [
        launch_demo_server(model, engine_python=engine, port=port, log_path=tmp_path / f"{i}.log") for i in range(2)
    ]
    assert servers[0].port == port
    assert servers[1].port > port
    for server in servers:
        server.stop()
    with launch_demo_server(model, engine_python=engine, port=port, log_path=tmp_path / "2.log") as later:
        assert later.port == port


def test_no_process_outlives_a_parent_that_is_killed(engine: Path, model: Path, port: int, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from rawtokens.demo.server import start_demo_server\n"
            "python, model, log, port = sys.argv[1:]\n"
            "server = start_demo_server(Path(model), engine_python=Path(python), log_path=Path(log), port=int(port))\n"
            "print(server.pid, flush=True); time.sleep(600)",
            *map(str, (engine, model, tmp_path / "log", port)),
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    words = (tmp_path / "log").read_text().split()
    child = int(words[words.index("child") + 1])
    assert lives(server)
    assert lives(child)
    parent.kill()
    parent.communicate()
    assert eventually(lambda: not lives(server) and not lives(child))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_foreground_command_ends_cleanly(
    sent: signal.Signals, engine: Path, model: Path, port: int, tmp_path: Path
) -> None:
    command = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from rawtokens.demo.server import serve_in_foreground\n"
            "python, model, log, port = sys.argv[1:]\n"
            "code = serve_in_foreground(Path(model), engine_python=Path(python), log_path=Path(log), port=int(port))\n"
            "sys.exit(code)",
            *map(str, (engine, model, tmp_path / "log", port)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    assert "starting SGLang" in command.stdout.readline()
    assert command.stdout.readline() == f"http://127.0.0.1:{port} answers; Ctrl-C stops it\n"
    words = (tmp_path / "log").read_text().split()
    child = int(words[words.index("child") + 1])
    command.send_signal(sent)
    assert command.communicate()[0] == "stopped\n"
    assert command.returncode == 0
    assert not lives(child)


def test_the_foreground_command_reports_a_server_that_dies(
    engine: Path, model: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEHAVIOUR", "dies")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ServerError, match="exit code 3"):
        serve_in_foreground(model, engine_python=engine, port=port, log_path=tmp_path / "log")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_other_weights_are_another_weight_version(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"one")
    first = weight_version(tmp_path)
    (tmp_path / name).write_bytes(b"two")
    assert re.fullmatch("[0-9a-f]{12}", first)
    assert weight_version(tmp_path) != first


def test_a_folder_without_a_model_is_named(engine: Path, tmp_path: Path, port: int) -> None:
    with pytest.raises(InputError, match=r"nowhere holds no model.*rawtokens demo-model"):
        launch_demo_server(tmp_path / "nowhere", engine_python=engine, port=port, log_path=tmp_path / "log")


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("config.json", "no config: config.json"),
        ("model.safetensors", r"no weights: \*.safetensors or \*.bin"),
        ("tokenizer.json", "no tokenizer: tokenizer.json"),
    ],
)
def test_what_a_folder_lacks_to_be_a_model_is_named(
    missing: str, words: str, engine: Path, model: Path, port: int, tmp_path: Path
) -> None:
    (model / missing).unlink()
    with pytest.raises(InputError, match=rf"model holds no model \({words}"):
        launch_demo_server(model, engine_python=engine, port=port, log_path=tmp_path / "log")


def test_the_engine_is_looked_for_in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAWTOKENS_ENGINE_PYTHON", raising=False)
    expected = PROJECT / ".venv-sglang" / "bin" / "python"
    if os.access(expected, os.X_OK):
        assert find_engine_python() == expected
        return
    with pytest.raises(InputError, match=r"no CPU engine at .*\.venv-sglang.*make engine.*servers\.urls"):
        find_engine_python()


def test_another_engine_can_be_named(monkeypatch: pytest.MonkeyPatch, engine: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("RAWTOKENS_ENGINE_PYTHON", str(engine))
    assert find_engine_python() == engine
    monkeypatch.setenv("RAWTOKENS_ENGINE_PYTHON", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"RAWTOKENS_ENGINE_PYTHON=.*none is no program.*make engine"):
        find_engine_python()


def test_a_killed_server_is_launched_again_on_its_port_with_its_options(start: Start, port: int) -> None:
    server = start(extra_arguments=["--dtype", "float32"])
    first = server.pid
    os.killpg(first, signal.SIGKILL)
    server.relaunch()
    server.wait_until_ready(20)
    assert server.pid != first
    assert server.url == f"http://127.0.0.1:{port}"
    told = [line for line in server.log_path.read_text().splitlines() if line.startswith("options")]
    assert len(told) == 2
    assert told[0] == told[1]
    assert told[1].endswith("--dtype float32")
