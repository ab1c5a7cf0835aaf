"""Rows that the next run is to generate again: their lines leave the journal or rejected.jsonl for a file beside it.

A line is set aside whole and on disk before the file that held it is replaced, so a kill at any point leaves the old
state or the new one, at worst with a second copy set aside; nothing is deleted. Which rows have a reason is what
verified.parquet says, so that must be of the journal as it is. This module does not know whether another try gives
another answer (under greedy or seeded sampling it may well be the same one), nor what choosing does to the data:
rows that were cut, drawn again until they end, make the lengths shorter than the model's.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa

from ..atomic_files import sync, write_atomically
from ..errors import InputError, RunStopped, one_line
from ..journal import (
    JOURNAL,
    REJECTED,
    journal_paths,
    key_of,
    lock_path,
    lock_paths,
    read_keys,
    read_rejections,
    remove_rejections,
    response_of,
)
from ..locking import lock
from ..notebook_stages.pipeline import STAGES_LOCK, Plan, stage_is_current
from ..prompts import PROMPTS
from ..records import Rejection, open_parquet
from ..response_checks.checks import DEFAULT_POLICY
from ..runs import read_manifest
from ..turns.endings import has_turns
from ..turns.retried import TOOL_ENDINGS, endings_aside, forget_endings, with_later_turns, with_orphans
from .planned import count_missing
from .retried_rows import RetriedRows, record_retried

FOREIGN = "foreign"
GENERATION_REASONS = (
    "aborted",
    "answer_of_another_request",
    "bad_request",
    "completion_tokens_differ",
    "connection",
    "context_exceeded",
    "duplicate_rid",
    "id_out_of_vocabulary",
    "malformed_answer",
    "prompt_tokens_differ",
    "server_died",
    "stop_id_missing",
    "timeout",
)
"""Why stage 02 rejects a row; besides these http_NNN, a server's status."""
_HTTP_REASON = re.compile(r"http_\d{3}")
_VERIFIED = "verified.parquet"
_DYING_SECONDS = 10.0


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """How many lines were set aside, in which files, and how many generations are missing that were not before.

    `again` is less than `lines` where a key has another line, or no prompt any more. After `foreign`, whose lines
    have no keys, it is all that is missing.
    """

    lines: int
    again: int
    files: tuple[Path, ...]


def retry(plan: Plan, name: str, *, where: str | None = None) -> Retried:
    """Set aside what data set `name` is to generate again; no file changes where that is nothing.

    `where` is None for every row that stage 02 rejected; `reason=CODE` for rows rejected there with that code and
    rows of verified.parquet that have it, or for conversations that ended for want of a tool's result; `foreign` for
    journal lines that are no records of this run. Raises InputError for another `where`, where there is no such run or
    verified.parquet is not current, LockedError where a run is writing, RunStopped where nothing can be written.
    """
    reason = _reason(where)
    folder, samples = plan.run_folder / name, plan.settings.sampling.samples_per_prompt
    if not (folder / PROMPTS).exists():
        raise InputError(f"{folder} has no {PROMPTS}, so nothing was generated there; run stage 01 for {name} first")
    with _writers_locked(folder):
        before = 0 if where == FOREIGN else count_missing(folder, samples)
        rejections: list[Rejection] = []
        numbers: Mapping[Path, Set[int]] = {}
        if where == FOREIGN:
            numbers = _foreign_lines(folder)
            if has_turns(folder):
                numbers, rejections = with_orphans(folder, numbers)
        elif reason in TOOL_ENDINGS:
            ended, files_aside = endings_aside(folder, reason, f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
            return Retried(lines=ended, again=count_missing(folder, samples) - before, files=files_aside)
        else:
            generate = [item for item in read_rejections(folder) if item.stage == "generate"]
            rejections = [item for item in generate if where is None or item.reason == reason]
        if reason in DEFAULT_POLICY and any(path.stat().st_size for path in journal_paths(folder)):
            numbers = _lines_with_reason(plan, name, reason)
            if has_turns(folder):
                numbers, rejections = with_later_turns(folder, numbers, rejections)
        lines = len(rejections) + sum(len(found) for found in numbers.values())
        if not lines:
            return Retried(lines=0, again=0, files=())
        now = datetime.now(UTC)
        why = reason or where or ""
        record_retried(folder, RetriedRows(at=now.isoformat(timespec="seconds"), reason=why, lines=lines))
        stamp = f"{now:%Y%m%dT%H%M%S%f}"
        if has_turns(folder):  # before the lines: a conversation without its ending is only judged anew
            forget_endings(folder, {path: numbers.get(path, set()) for path in journal_paths(folder)})
        # Rejections first: verified.parquet stays current over a kill in between, so that the same command goes on.
        files = [_set_rejections_aside(folder, rejections, stamp)] if rejections else []
        files += [_set_lines_aside(path, found, stamp) for path, found in numbers.items() if found]
        again = count_missing(folder, samples) - before
    return Retried(lines=lines, again=again, files=tuple(files))


def _reason(where: str | None) -> str:
    """The code of `reason=CODE`; "" for all rejected rows and for foreign lines."""
    if where is None or where == FOREIGN:
        return ""
    name, _, reason = where.partition("=")
    if name != "reason":
        raise InputError(f"--where {where!r} is not known; expected reason=CODE, or {FOREIGN}")
    known = dict.fromkeys([*DEFAULT_POLICY, *GENERATION_REASONS, *TOOL_ENDINGS])
    if reason not in known and not _HTTP_REASON.fullmatch(reason):
        raise InputError(
            f"no row that was sent has reason {reason!r}; a row that stage 01 rejected it judges anew at each run: "
            "mend the prompt file or the settings, then run again. Reasons of rows that were sent: "
            f"{', '.join(known)} and http_NNN"
        )
    return reason


@contextmanager
def _writers_locked(folder: Path) -> Iterator[None]:
    """Keep out `rawtokens run` and every stage 02, however it was started."""
    with ExitStack() as stack:
        stack.enter_context(lock(folder / STAGES_LOCK))
        # A shard that starts meanwhile finds the whole journal's lock taken, and is refused.
        for path in sorted({lock_path(folder / JOURNAL), *map(lock_path, journal_paths(folder)), *lock_paths(folder)}):
            stack.enter_context(lock(path, wait_seconds=_DYING_SECONDS))
        yield


def _lines_with_reason(plan: Plan, name: str, reason: str) -> dict[Path, set[int]]:
    """The lines of each journal, counted from 0, whose rows have the reason.

    By place, not by key: of two lines with one key, each is judged by itself. Raises InputError where
    verified.parquet is not of these journals.
    """
    folder = plan.run_folder / name
    stale = InputError(f"{folder / _VERIFIED} is not of the journal as it is now; run stage 03 for {name} first")
    if not stage_is_current(plan, "03", name):
        raise stale
    rows = _verified_rows(folder / _VERIFIED, reason)
    found: dict[Path, set[int]] = {}
    for path in journal_paths(folder):
        found[path] = set()
        for number, key in enumerate(read_keys(path)):
            verified_key, has_reason = next(rows, ("", False))
            if verified_key != key:
                raise stale
            if has_reason:
                found[path].add(number)
    if next(rows, None):
        raise stale
    return found


def _verified_rows(path: Path, reason: str) -> Iterator[tuple[str, bool]]:
    """Each row's key and whether it has the reason, in the file's order."""
    try:
        with open_parquet(path) as file:
            for batch in file.iter_batches(columns=["key", "reasons"]):
                reasons = batch["reasons"].to_pylist()
                yield from zip(batch["key"].to_pylist(), (reason in own for own in reasons), strict=True)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise InputError(f"{path} can't be read ({one_line(error)}); run stage 03 again") from error


def _foreign_lines(folder: Path) -> dict[Path, set[int]]:
    """The lines of each journal, counted from 0, that are no records or have another fingerprint than run.json."""
    fingerprint = read_manifest(folder).get("fingerprint")

    def foreign(line: bytes) -> bool:
        response = response_of(line) if key_of(line) is not None else None
        return response is None or (fingerprint is not None and response.fingerprint != fingerprint)

    found: dict[Path, set[int]] = {}
    for path in journal_paths(folder):
        with path.open("rb") as lines:
            found[path] = {number for number, line in enumerate(lines) if foreign(line)}
    return found


def _set_lines_aside(path: Path, numbers: Set[int], stamp: str) -> Path:
    """Move lines of a journal, counted from 0, into a file beside it; the others stay byte for byte, in order."""
    aside = path.with_name(f"{path.stem}.set-aside-{stamp}.jsonl")
    unfinished, unfinished_aside = (path.with_name(f".{path.name}.{part}.tmp") for part in ("kept", "set-aside"))
    try:
        with path.open("rb") as lines, unfinished.open("wb") as kept, unfinished_aside.open("wb") as left:
            for number, line in enumerate(lines):
                (left if number in numbers else kept).write(line)
        shutil.copymode(path, unfinished)
        sync(unfinished_aside)
        sync(unfinished)
        unfinished_aside.replace(aside)
        sync(path.parent)
        unfinished.replace(path)
        sync(path.parent)
    except OSError as error:
        raise RunStopped(f"can't write {path}: {error}; make room or mend the folder, then run it again") from error
    finally:
        for leftover in (unfinished, unfinished_aside):
            with suppress(OSError):
                leftover.unlink(missing_ok=True)
    return aside


def _set_rejections_aside(folder: Path, rejections: Sequence[Rejection], stamp: str) -> Path:
    """Move rejections of stage 02 from rejected.jsonl into a file beside it."""
    aside = (folder / REJECTED).with_suffix(f".set-aside-{stamp}.jsonl")
    write_atomically(aside, b"".join(msgspec.json.encode(item) + b"\n" for item in rejections), on_disk=True)
    remove_rejections(folder, {item.key for item in rejections})
    return aside
