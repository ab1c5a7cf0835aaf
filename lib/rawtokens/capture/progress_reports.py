"""Where a run's progress goes: a line in the notebook, and a small file that `rawtokens status` reads.

The line is printed, so that papermill, a terminal and a log file show it as it comes; under JupyterLab one display is
updated in place. The file (progress.json in the data set's folder, one a shard) is replaced every few seconds and
stays when the run ends: what was in flight at a stop is on record there alone. This module does not know how a run
works, nor whether a file's writer is alive (`run_status` asks).
"""

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from ..errors import RunStopped
from ..journal import JOURNAL, write_atomically
from ..shards import WHOLE, Shard
from .progress import Progress
from .time_left import Pace, recent_ids_per_second, time_left

PROGRESS = "progress.json"
LINE_SECONDS = 10.0
_LATER_LINE_SECONDS = 60.0  # from ten minutes on: three days at a line every ten seconds are 26,000 lines
_EARLY_SECONDS = 600.0
_PACES = 400  # moments kept: ten minutes at one every three seconds, and some
INTERRUPTED = "interrupted; run the same again to go on"


class ProgressFile(msgspec.Struct, frozen=True, kw_only=True):
    """progress.json: the last word of a run of stage 02, with what a reader needs to tell whether it still holds.

    `state` is `running` until the run ends by itself; `reason` says why it stopped. `written_at` and `started_at` are
    ISO 8601, UTC.
    `left_s` is the range of seconds until the run is through, null where nothing can be said.
    """

    state: Literal["running", "complete", "stopped"]
    reason: str
    process: int
    host: str
    started_at: str
    written_at: str
    journal: str
    ids_per_second: float  # over the last minute
    left_s: tuple[float, float] | None
    progress: Progress


class ProgressReports:
    """Takes a run's `Progress` every few seconds (it is an `on_progress`), keeps the file, and shows a line."""

    def __init__(self, folder: Path, *, shard: Shard = WHOLE) -> None:
        self.path = folder / shard.file_name(PROGRESS)
        self.journal = shard.file_name(JOURNAL)
        self.label = f"{folder.name} 02_generate_responses{' ' * (shard.count > 1)}{shard}"
        self.started_at = _now()
        self._paces: deque[Pace] = deque(maxlen=_PACES)
        self._shown_at = float("-inf")
        self._written: ProgressFile | None = None
        self._display = _in_place() if os.environ.get("JPY_SESSION_NAME") else None

    def __call__(self, progress: Progress) -> None:
        """Keep and, from time to time, show where the run is. A file that can't be written stops no run."""
        if not self._paces:
            self._paces.append(Pace(0.0, progress.rejected, 0))
        self._paces.append(Pace(progress.seconds, progress.done + progress.rejected, progress.ids))
        paces = list(self._paces)
        due = LINE_SECONDS if progress.seconds < _EARLY_SECONDS else _LATER_LINE_SECONDS
        self._keep(
            ProgressFile(
                state="running",
                reason="",
                process=os.getpid(),
                host=socket.gethostname(),
                started_at=self.started_at,
                written_at=_now(),
                journal=self.journal,
                ids_per_second=recent_ids_per_second(paces),
                left_s=time_left(progress, paces),
                progress=progress,
            )
        )
        if progress.seconds - self._shown_at >= due - 0.5:
            self._shown_at = progress.seconds
            self._show()

    def finish(self, reason: str = "") -> None:
        """The run has ended, by itself or for `reason`: keep that, and show the last line."""
        if self._written:  # a run that was refused (another has the journal) has said nothing, and says nothing here
            state: Literal["complete", "stopped"] = "stopped" if reason else "complete"
            self._keep(msgspec.structs.replace(self._written, state=state, reason=reason, written_at=_now()))
            self._show()

    def _keep(self, record: ProgressFile) -> None:
        self._written = record
        with suppress(RunStopped):  # the journal's own writing tells of a full disk, and resumably
            write_atomically(self.path, msgspec.json.encode(record) + b"\n")

    def _show(self) -> None:
        if not self._written:
            return
        line = f"{self.label}: {in_words(self._written)}"
        if self._display is None:
            print(line, flush=True)
            return
        self._display(line)


async def until_stopped(work: Awaitable[Progress], reports: ProgressReports) -> str:
    """Await a run; returns why it stopped (an interrupt, or a RunStopped's words), "" where it came to its end.

    So that a notebook can go on to say what there is and what is missing; its last cell hands the reason to
    `require_through`. Raises every other error of the run.
    """
    try:
        await work
    except (KeyboardInterrupt, asyncio.CancelledError):
        reason = INTERRUPTED
        if task := asyncio.current_task():
            task.uncancel()
    except RunStopped as error:
        reason = str(error)
    except BaseException as error:
        reports.finish(f"{type(error).__name__}: {error}")
        raise
    else:
        reason = ""
    reports.finish(reason)
    return reason


def read_progress(folder: Path) -> list[ProgressFile]:
    """What the runs of a data set said last: none, one, or one a shard. A file that is no such record is left out."""
    found = []
    for path in sorted(folder.glob("progress*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.json.decode(path.read_bytes(), type=ProgressFile))
    return found


def failures_of(folder: Path) -> dict[str, int]:
    """Failed requests of the data set's last runs, by reason, the most frequent first."""
    counts: Counter[str] = Counter()
    for record in read_progress(folder):
        counts.update(record.progress.failures)
    return dict(counts.most_common())


def in_words(record: ProgressFile) -> str:
    """One line: done, in flight, ids a second (recent and mean), truncated, rejected, failures, time left."""
    progress = record.progress
    there = progress.present + progress.done
    share = f" ({there / progress.planned:.1%})" if progress.planned else ""
    parts = [f"{there:,} of {progress.planned:,} generated{share}", f"{progress.in_flight:,} in flight"]
    if record.state == "running":
        parts.append(f"{record.ids_per_second:,.0f} ids/s (mean {progress.ids_per_second:,.0f})")
    else:
        parts.append(f"{progress.ids_per_second:,.0f} ids/s in {duration(progress.seconds)}")
    if progress.done:
        parts.append(f"{progress.truncated / progress.done:.1%} truncated")
    if progress.rejected:
        parts.append(f"{progress.rejected:,} rejected")
    if progress.failures:
        parts.append(f"failures: {failures_in_words(progress.failures)}")
    parts += [f"{url} has answered nothing for {duration(silent)}" for url, silent in progress.silent.items()]
    parts.append(_ending(record))
    return ", ".join(parts)


def _ending(record: ProgressFile) -> str:
    if record.state == "complete":
        return "through" if not record.progress.remaining else "ended"
    if record.state == "stopped":
        return f"stopped: {record.reason.removeprefix('stopped ')}"
    if record.left_s is None:
        return "time left: not known yet"
    low, high = (duration(seconds) for seconds in record.left_s)
    return f"{low} left" if low == high else f"{low} to {high} left"


def duration(seconds: float) -> str:
    """A stretch of time in words: `40 s`, `12 min`, `5.2 h`, `3.1 d`."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def failures_in_words(failures: Mapping[str, int]) -> str:
    """Failures by reason, the most frequent first: `http_503 12, timeout 1`."""
    ordered = sorted(failures.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count:,}" for reason, count in ordered)


def require_through(reason: str, *, folder: Path) -> None:
    """What the last cell of notebook 02 asks: raise RunStopped where `until_stopped` gave a reason."""
    if reason:
        raise RunStopped(f"{folder.name}: {reason}")


def _in_place() -> Callable[[str], None]:
    """What shows a line in the place of the one before it, as JupyterLab can."""
    from IPython.display import DisplayHandle  # takes 0.8 s, which `rawtokens status` need not wait for

    handle = DisplayHandle()  # type: ignore[no-untyped-call]
    shown: list[str] = []

    def show(line: str) -> None:
        (handle.update if shown else handle.display)({"text/plain": line}, raw=True)  # type: ignore[no-untyped-call]
        shown[:] = [line]

    return show


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
