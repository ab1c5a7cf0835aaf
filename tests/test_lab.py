"""`rawtokens lab`: a real JupyterLab, which opens every notebook; the demo's server is stood in for."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PROGRAM = """
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from rawtokens.__main__ import main
from rawtokens.demo import lab

@contextmanager
def stand_in(*_, **__):
    try:
        yield SimpleNamespace(port=1, wait_until_ready=lambda: SimpleNamespace(url="http://127.0.0.1:1"))
    finally:
        print("demo server: ended", flush=True)

lab.launch_demo_server = stand_in
sys.exit(main(["lab"]))
"""


def address_in(log: Path, lab: subprocess.Popen[bytes], *, seconds: float = 120) -> str:
    """Where JupyterLab says that it answers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and lab.poll() is None:
        if found := re.search(r"http://(?:localhost|127\.0\.0\.1):\d+(?=/lab)", log.read_text(errors="replace")):
            return found[0]
        time.sleep(0.2)
    raise AssertionError(log.read_text(errors="replace"))


def test_every_notebook_opens_in_jupyterlab_and_a_signal_ends_all(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = {**os.environ, "JUPYTER_TOKEN": "word", "BROWSER": "true", "HOME": str(tmp_path)}
    with log.open("wb") as file:
        lab = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=file, stderr=file, env=environment, cwd=tmp_path)
    try:
        address, allowed = address_in(log, lab), {"Authorization": "token word"}
        with httpx.Client(base_url=address, headers=allowed, timeout=60, trust_env=False) as client:
            assert client.get("/lab").status_code == 200
            listed = client.get("/api/contents").json()["content"]
            names = {item["name"] for item in listed if item["type"] == "notebook"}
            assert names == {path.name for path in NOTEBOOKS.glob("*.ipynb")}
            for name in sorted(names):
                opened = client.get(f"/api/contents/{name}").json()
                assert (opened["type"], opened["content"]["metadata"]["kernelspec"]["name"]) == ("notebook", "python3")
                assert not opened.get("message"), name  # what is wrong with a notebook that is not valid
            assert "python3" in client.get("/api/kernelspecs").json()["kernelspecs"]
        lab.send_signal(signal.SIGTERM)
        assert lab.wait(60) == 1
        said = log.read_text(errors="replace")
        assert "demo server: http://127.0.0.1:1 answers" in said
        assert "demo server: ended" in said
        assert "rawtokens: stopped by SIGTERM" in said
        assert "Traceback" not in said
    finally:
        lab.kill()
