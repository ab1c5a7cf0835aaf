"""Start and stop the demo's server: the real SGLang 0.5.23 on the CPU, in an environment of its own.

A server counts as up when it has generated a token from ids. This module does NOT know the model, which is a folder to
it, nor how SGLang is made to run without a GPU: `engine_stubs/launch_sglang.py` does.
"""

import hashlib
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from ..errors import InputError, ServerError
from .engine_processes import DemoServer, how_it_ended, launched
from .ports import HOST, reserve_port

__all__ = ["DemoServer", "find_engine_python", "launch_demo_server", "serve_in_foreground", "start_demo_server"]

DEFAULT_PORT = 30000
PORTS_TRIED = 100
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
    patience_seconds: float = 300,
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
                raise ServerError(f"the demo server {how_it_ended(code)}. {server.end_of_log()}")
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
