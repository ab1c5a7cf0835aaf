"""The environment with torch and speculators, and programs that run in it. It does not know what they do."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..demo.server import PROJECT
from ..errors import InputError, RunStopped

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # a head is small: two processes do more than two threads
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": str(PROJECT / "lib"),
}
REQUIREMENTS = PROJECT / "lib" / "rawtokens" / "demo" / "speculators_requirements.txt"
SHOWN = 400  # characters of a program's last words


def find_speculators() -> Path:
    """The Python of RAWTOKENS_SPECULATORS_PYTHON, or of `.venv-speculators`. Raises InputError where there is none."""
    python = Path(os.environ.get("RAWTOKENS_SPECULATORS_PYTHON") or PROJECT / ".venv-speculators" / "bin" / "python")
    if os.access(python, os.X_OK):
        return python
    raise InputError(f"there is no speculators at {python}: build it with `make trainers`")


def requirements(package: str) -> str:
    """The pin of a package of that environment, `NAME==VERSION`."""
    lines = REQUIREMENTS.read_text("utf-8").split()
    return next(line for line in lines if line.startswith(f"{package}=="))


def called(command: Sequence[str | Path], *, log: Path, environment: dict[str, str] | None = None) -> None:
    """Run a program to its end, its output in `log`. Raises RunStopped, with its last line, where it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            command, env={**os.environ, **ENVIRONMENT, **(environment or {})}, stdout=file, stderr=subprocess.STDOUT
        )
    if done.returncode:
        last = (log.read_text("utf-8", errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise RunStopped(
            f"{' '.join(map(str, command[1:4]))} ended with exit code {done.returncode}: {last[:SHOWN]} "
            f"(its log: {log}); mend that, then run the study again"
        )
