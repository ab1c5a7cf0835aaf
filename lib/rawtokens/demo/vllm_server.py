"""Start the real vLLM 0.32.0 on the CPU with a model folder, in an environment of its own, for tests.

Watched and stopped as the demo's server is. This module does NOT know the model, which is a folder to it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from ..errors import InputError
from .engine_processes import DemoServer, launched
from .ports import HOST, reserve_port
from .server import PORTS_TRIED, PROJECT

DEFAULT_PORT = 8000
LAUNCHER = Path(__file__).parent / "engine_stubs" / "launch_vllm.py"
LAUNCH_OPTIONS = ("--host", HOST, "--max-num-seqs", "64", "--enforce-eager")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; half of the machine's memory otherwise
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it would hold its worker to one core, whoever else runs there
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": HOST,
    "VLLM_NO_USAGE_STATS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def find_vllm_python() -> Path:
    """The Python of vLLM's environment: RAWTOKENS_VLLM_PYTHON, or `.venv-vllm` in the project's root.

    Raises InputError where there is none.
    """
    python = Path(os.environ.get("RAWTOKENS_VLLM_PYTHON") or PROJECT / ".venv-vllm" / "bin" / "python")
    if os.access(python, os.X_OK):
        return python
    raise InputError(f"there is no vLLM at {python}: build it with `make vllm` (Linux only)")


@contextmanager
def serve_with_vllm(
    model_directory: Path, *, log_path: Path, extra_arguments: Sequence[str] = (), patience_seconds: float = 300
) -> Iterator[DemoServer]:
    """A vLLM that generates, stopped at the end. Raises InputError without an environment, ServerError otherwise."""
    python = find_vllm_python()
    port, reservation = reserve_port(DEFAULT_PORT, tries=PORTS_TRIED)
    options = ["--model", str(model_directory.resolve()), "--port", str(port), *LAUNCH_OPTIONS, *extra_arguments]
    with launched(
        port, reservation, [python, LAUNCHER, *options], ENVIRONMENT, _generates, log_path=log_path
    ) as server:
        yield server.wait_until_ready(patience_seconds)


def _generates(url: str, timeout: float) -> bool:
    body = {"prompt": [1], "max_tokens": 1, "temperature": 0.0, "return_token_ids": True}
    try:
        with httpx.Client(trust_env=False, timeout=timeout) as client:
            answer = client.post(f"{url}/v1/completions", json=body)
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and len(answer.json()["choices"][0]["token_ids"]) == 1
