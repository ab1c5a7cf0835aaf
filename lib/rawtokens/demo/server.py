"""Start, watch and stop the demo's server: the real SGLang 0.5.23 on the CPU, in an environment of its own.

A server counts as up when it has generated a token from ids. It is stopped with everything that it started, and it
stops by itself when the process that started it dies in whatever way. It does NOT know the model, which is a folder to
it, nor how SGLang is made to run without a GPU: `engine_stubs/launch_sglang.py` does.
"""

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import httpx

from ..errors import InputError, ServerError
from .ports import HOST, reserve_port

DEFAULT_PORT = 30000
PORTS_TRIED = 100
_KILLED_SECONDS = 20.0
POLL_SECONDS = 0.25
LOG_LINES = 6
PROJECT = Path(__file__).parents[3]
LAUNCHER = Path(__file__).parent / "engine_stubs" / "launch_sglang.py"

# Without a token limit SGLang takes most of the machine's memory for its KV cache; 65,536 tokens are 134 MB for the
# demo's model and 1.4 GB for SmolLM2-135M: `extra_arguments` give another limit. 64 requests at once are as fast as
# more. An idle scheduler polls with a whole core unless told to sleep.
LAUNCH_OPTIONS = (
    *("--device", "cpu", "--host", HOST),
    *("--max-total-tokens", "65536", "--max-running-requests", "64", "--sleep-on-idle"),
)
# One compute thread: two give no more ids a second on two idle cores, and 20 times fewer (25 instead of 600) when
# something else runs there. Huge pages for the logits save 30% of the CPU time at 64 in flight.
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    "THP_MEM_ALLOC_ENABLE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# What an engine loads: a file of each line has to be there.
MODEL_FILES = {
    "config": ("config.json",),
    "weights": ("*.safetensors", "*.bin", "*.pt"),
    "tokenizer": ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json"),
}
INHERITED_TRAPS = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")


@dataclass(kw_only=True)
class DemoServer:
    """A launched server, up or not; a context manager that stops it.

    `pid` leads the process group of everything that the server starts. `log_path` takes what they print. `generates`
    tells whether a URL has generated a token within some seconds.
    """

    port: int
    log_path: Path
    command: Sequence[str | Path]
    environment: Mapping[str, str]
    generates: Callable[[str, float], bool]
    process: subprocess.Popen[bytes]
    reservation: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until_ready(self, patience_seconds: float = 180) -> Self:
        """Return once the server has generated one token; a server that dies or takes longer raises ServerError."""
        deadline = time.monotonic() + patience_seconds
        while self.process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ServerError(
                    f"the demo server on port {self.port} gave no answer within {patience_seconds:.0f} s; "
                    f"start it again when the machine is less busy. {self._end_of_log()}"
                )
            if self.generates(self.url, left):
                return self
            time.sleep(POLL_SECONDS)
        raise ServerError(
            f"the demo server {_how_it_ended(self.process.returncode)} before it answered. {self._end_of_log()}"
        )

    def stop(self) -> None:
        """Stop the server and all that it started; returns when none of them is left. Stopping twice is harmless."""
        assert self.process.stdin is not None
        self.process.stdin.close()  # the launcher's lifeline
        _end_group(self.process)
        self.reservation.close()

    def relaunch(self) -> None:
        """Launch it again on its port with the same options, what is left of it ended first; returns at once."""
        self.stop()
        self.reservation = _reserved_again(self.port)
        self.process = _launched(self.command, self.log_path, self.environment, self.reservation)

    def _end_of_log(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        told = [line.strip()[:300] for line in lines if line.strip()][-LOG_LINES:]
        return "\n".join([f"The log {self.log_path} ends with:", *told])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def _reserved_again(port: int) -> IO[bytes]:
    """The port's lock, as soon as the last of a killed server's processes is gone: each holds it, and 2 GB to free."""
    deadline = time.monotonic() + _KILLED_SECONDS
    while True:
        try:
            return reserve_port(port, tries=1)[1]
        except InputError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def find_engine_python() -> Path:
    """The Python of the CPU engine's environment: RAWTOKENS_ENGINE_PYTHON, or `.venv-sglang` in the project's root.

    Raises InputError where there is none, with the two ways out.
    """
    named = os.environ.get("RAWTOKENS_ENGINE_PYTHON")
    python = Path(named) if named else PROJECT / ".venv-sglang" / "bin" / "python"
    if os.access(python, os.X_OK):
        return python
    wrong = f"RAWTOKENS_ENGINE_PYTHON={named} is no program" if named else f"there is no CPU engine at {python}"
    raise InputError(
        f"{wrong}: build the engine with `make engine` (Linux only), or give the run file's servers.urls a server "
        "of your own"
    )


def launch_demo_server(
    model_directory: Path,
    *,
    log_path: Path,
    engine_python: Path | None = None,
    port: int = DEFAULT_PORT,
    other_port_allowed: bool = True,
    extra_arguments: Sequence[str] = (),
) -> DemoServer:
    """Launch SGLang on a model folder and return at once; `wait_until_ready` tells when it answers.

    The port is `port`, or the next free one where that is allowed. `extra_arguments` are SGLang's own. Raises
    InputError for a folder without a model, a missing engine, or an occupied port.
    """
    python = engine_python or find_engine_python()
    for kind, names in MODEL_FILES.items():
        if not any(next(model_directory.glob(name), None) for name in names):
            raise InputError(
                f"{model_directory} holds no model (no {kind}: {' or '.join(names)}); name the folder of a Hugging "
                "Face model, or write the demo's with `rawtokens demo-model DIR`"
            )
    port, reservation = reserve_port(port, tries=PORTS_TRIED if other_port_allowed else 1)
    model = str(model_directory.resolve())
    version = ["--weight-version", weight_version(model_directory)]
    options = ["--model-path", model, "--port", str(port), *version, *LAUNCH_OPTIONS, *extra_arguments]
    return launched(port, reservation, [python, LAUNCHER, *options], ENVIRONMENT, _generates, log_path=log_path)


def launched(
    port: int,
    reservation: IO[bytes],
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    generates: Callable[[str, float], bool],
    *,
    log_path: Path,
) -> DemoServer:
    """Launch any engine's command on a port reserved for it (`reserve_port`), and return at once."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_bytes(b"")
    return DemoServer(
        port=port,
        log_path=log_path,
        command=command,
        environment=environment,
        generates=generates,
        process=_launched(command, log_path, environment, reservation),
        reservation=reservation,
    )


def _launched(
    command: Sequence[str | Path], log_path: Path, environment: Mapping[str, str], reservation: IO[bytes]
) -> subprocess.Popen[bytes]:
    with log_path.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={key: value for key, value in os.environ.items() if key not in INHERITED_TRAPS} | dict(environment),
            start_new_session=True,
            pass_fds=[reservation.fileno()],
        )


def weight_version(model_directory: Path) -> str:
    """A name for a folder's weights, by their content: a run must not go on with others under the same path."""
    digest = hashlib.sha256()
    for path in sorted(path for name in MODEL_FILES["weights"] for path in model_directory.glob(name)):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def start_demo_server(
    model_directory: Path,
    *,
    log_path: Path,
    engine_python: Path | None = None,
    port: int = DEFAULT_PORT,
    other_port_allowed: bool = True,
    patience_seconds: float = 180,
    extra_arguments: Sequence[str] = (),
) -> DemoServer:
    """Launch a server and wait until it generates; a server that doesn't is stopped, and ServerError says why."""
    server = launch_demo_server(
        model_directory,
        log_path=log_path,
        engine_python=engine_python,
        port=port,
        other_port_allowed=other_port_allowed,
        extra_arguments=extra_arguments,
    )
    try:
        return server.wait_until_ready(patience_seconds)
    except BaseException:
        server.stop()
        raise


def serve_in_foreground(
    model_directory: Path, *, port: int = DEFAULT_PORT, log_path: Path | None = None, engine_python: Path | None = None
) -> int:
    """Serve until Ctrl-C or SIGTERM, then stop and return 0; a server that ends by itself raises ServerError."""
    log = log_path or PROJECT / "outputs" / f"demo-server-{port}.log"
    with _interrupted_by_sigterm():
        try:
            with launch_demo_server(
                model_directory, log_path=log, engine_python=engine_python, port=port, other_port_allowed=False
            ) as server:
                print(f"starting SGLang on port {port} (its log: {log})", flush=True)
                server.wait_until_ready()
                print(f"{server.url} answers; Ctrl-C stops it", flush=True)
                code = server.process.wait()
                raise ServerError(f"the demo server {_how_it_ended(code)}. {server._end_of_log()}")
        except KeyboardInterrupt:
            print("stopped", flush=True)
            return 0


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _generates(url: str, timeout: float) -> bool:
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
    try:
        with httpx.Client(trust_env=False, timeout=timeout) as client:
            answer = client.post(f"{url}/generate", json=body)
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and len(answer.json()["output_ids"]) == 1


def _how_it_ended(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _end_group(leader: subprocess.Popen[bytes]) -> None:
    """Return when no process of a group lives: it has 2 s to end by itself, then SIGKILL and 3 s more."""
    for tick in range(100):
        if leader.poll() is not None and not _lives(leader.pid):
            return
        if tick >= 40:
            with suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGKILL)
        time.sleep(0.05)


def _lives(group: int) -> bool:
    """Whether a process group has a member that is no zombie: init may take seconds to reap those."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, members_group = path.read_text().rsplit(")", 1)[1].split()[:3]
            if int(members_group) == group and state not in "ZX":
                return True
    return False
