"""The body of `rawtokens lab`: JupyterLab on the notebooks, with the demo's server running while it is open."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from .server import launch_demo_server


def open_lab(model_directory: Path, *, notebooks: Path, log_path: Path) -> int:
    """JupyterLab until it is closed; returns 0 where it ended as asked, else 1. Raises as `launch_demo_server` does."""
    root = ["--allow-root"] if os.getuid() == 0 else []  # Jupyter refuses it else, and a container is often root's
    with launch_demo_server(model_directory, log_path=log_path, other_port_allowed=False) as server:
        print(f"demo server: starting on port {server.port}", flush=True)
        print(f"demo server: {server.wait_until_ready().url} answers", flush=True)
        jupyter = subprocess.Popen([sys.executable, "-m", "jupyterlab", *root, str(notebooks)])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # JupyterLab asks whether Ctrl-C was meant, and ends itself
        try:
            return 0 if jupyter.wait() in (0, -signal.SIGINT) else 1
        finally:
            jupyter.terminate()
            jupyter.wait()
