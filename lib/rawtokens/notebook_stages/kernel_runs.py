"""One papermill execution: the kernel that it runs in, the signals that reach it, the lines that it prints.

papermill and nbclient run a notebook synchronously without any signal handler, and take whichever kernelspec named
python3 comes first on Jupyter's path; here the kernel is the Python that runs this. It dies with this process: within
a second, by kill -9 too, through ipykernel's parent poller, which jupyter_client tells our process id. This module
does not know what a notebook holds, nor whether its outcome is good.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import ClassVar

import papermill
import zmq
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbformat import NotebookNode

from ..errors import RunStopped
from ..reporting.display import shortened

START_SECONDS = 300  # a kernel needs 2 s on an idle machine; two busy cores have taken more than a minute
START_TRIES = 3  # another process can take the ports between their choice and the kernel's start
STOP_SECONDS = 30  # from SIGINT or SIGTERM until the kernel is killed: generation lets 10 s for what is in flight
AFTER_STOP = "after-stop"
"""Tag of a cell that says what there is; it runs after a signal too, if the cell that the signal met came to an end."""
AFTER_STOP_SECONDS = 120  # for those cells in all
LINE_LIMIT = 2000  # characters of a printed line that are passed on

Parameter = str | int | float | bool


def literal_path(path: Path) -> str:
    """A path as papermill takes it: it fills in braces as str.format does."""
    return str(path.resolve()).replace("{", "{{").replace("}", "}}")


class _Kernel(AsyncKernelManager):
    """The kernel of a run: this very Python, whatever kernelspec named python3 the machine has elsewhere."""

    latest: ClassVar["_Kernel | None"] = None

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        if self.has_trait("transport_encryption") and zmq.has("curve"):
            self.transport_encryption = "auto"  # else ipykernel 7.4 warns of plain text on every start
        type(self).latest = self

    @property
    def kernel_spec(self) -> KernelSpec:
        # ipykernel's own: its argv begins with sys.executable. Quiet, since jupyter_client interrupts a kernel before
        # it shuts it down, which a kernel that is busy with a message logs as an error on our standard error.
        spec = KernelSpec(**get_kernel_dict(["--log-level=50"]))
        # Else the debugger warns on every start, and a kernel started from JupyterLab would think it were in it.
        spec.env = {"PYDEVD_DISABLE_FILE_VALIDATION": "1", "JPY_SESSION_NAME": ""}
        return spec

    def send(self, number: int) -> None:
        """Send a signal to the kernel and its children: it leads a process group of its own."""
        process = getattr(self.provisioner, "process", None)
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)


class KernelRun:
    """One execution: whether its kernel was ready, which signal came, the line that is being printed."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self.on_line = on_line
        self.ready = False
        self.signal_name = ""
        self.unfinished_line = ""
        self._timers: list[threading.Timer] = []

    def execute(self, notebook: Path, running: Path, parameters: Mapping[str, Parameter]) -> Exception | None:
        """Run papermill into `running`; what went wrong is returned, for the notebook is rendered all the same."""
        logging.getLogger("papermill").addHandler(logging.NullHandler())  # else its warnings go to standard error
        with self._signals():
            for attempt in range(1, START_TRIES + 1):
                try:
                    self._papermill(notebook, running, parameters)
                except Exception as error:
                    failed_to_start = isinstance(error, RuntimeError) and not self.ready and not self.signal_name
                    if not failed_to_start or attempt == START_TRIES:
                        return error
                else:
                    return None
        return None

    def _papermill(self, notebook: Path, running: Path, parameters: Mapping[str, Parameter]) -> None:
        try:
            papermill.execute_notebook(
                literal_path(notebook),
                literal_path(running),
                dict(parameters),
                kernel_name="python3",
                language="python",
                progress_bar=False,
                start_timeout=START_SECONDS,
                iopub_timeout=120,  # nbclient's 4 s fail on a busy machine
                coalesce_streams=True,
                kernel_manager_class=_Kernel,
                on_notebook_start=self._started,
                on_cell_start=self._cell_starts,
                stdout_file=self,
                stderr_file=self,
            )
        finally:
            if _Kernel.latest:  # papermill has shut it down, but for errors that it doesn't foresee
                _Kernel.latest.send(signal.SIGKILL)
            if self.unfinished_line:
                self.write("\n")

    def write(self, text: str) -> None:
        """What papermill calls with printed text, in pieces of any size."""
        *lines, self.unfinished_line = (self.unfinished_line + text).replace("\r", "\n").split("\n")
        for line in lines:
            if line and self.on_line:
                self.on_line(shortened(line, LINE_LIMIT))

    def flush(self) -> None:
        """Nothing is held back."""

    def _started(self, **_: object) -> None:
        self.ready = True

    def _cell_starts(self, *, cell: NotebookNode, **_: object) -> None:
        if not self.signal_name or cell.cell_type != "code":
            return
        if AFTER_STOP not in cell.metadata.get("tags", []):  # it came between two cells, where a kernel ignores SIGINT
            raise RunStopped(f"stopped by {self.signal_name}")
        if len(self._timers) == 1:  # the first of these cells: what was stopped has ended in time
            self._kill_in(AFTER_STOP_SECONDS)

    def _kill_in(self, seconds: float) -> None:
        """Kill the kernel after this time, and no longer at the time set before."""
        for timer in self._timers:
            timer.cancel()
        self._timers.append(threading.Timer(seconds, _kill))
        self._timers[-1].daemon = True
        self._timers[-1].start()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass SIGINT and SIGTERM to the kernel as SIGINT; kill it at the second one, or when it takes too long."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def forward(number: int, _: FrameType | None) -> None:
            if self.signal_name:
                _kill()
                return
            self.signal_name = signal.Signals(number).name
            if not self.ready:  # it has nothing to end yet, and takes no interrupt while it starts
                _kill()
                return
            if _Kernel.latest:
                _Kernel.latest.send(signal.SIGINT)
            self._kill_in(STOP_SECONDS)

        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for timer in self._timers:
                timer.cancel()


def _kill() -> None:
    if _Kernel.latest:
        _Kernel.latest.send(signal.SIGKILL)
