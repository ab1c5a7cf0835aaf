"""Rows to prompts over processes: the same prompts in the same order as one process makes, sooner.

A worker is a fresh Python (spawned: a fork of a process that has threads can hang in the tokenizer), loads the
tokenizer by itself from where the caller's came from, and refuses to work with another one. Few batches are on the
way at a time, so that memory stays flat over a file of any size. Work goes to processes only after as many ids as
repay their start. This module does not know how a row becomes a prompt (rendering does), nor what becomes of it.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context, parent_process
from queue import SimpleQueue
from typing import TYPE_CHECKING, cast

import msgspec
import pyarrow as pa

from ..errors import InputError, RunStopped, TokenizerError
from ..records import PROMPTS_SCHEMA, Conversation, Prompt, Rejection
from .rendering import PromptOptions, tokenize_conversations

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from .target_tokenizer import Tokenizer, TokenizerSource

Row = Conversation | Rejection

ALONE = 8_000_000
"""Prompt ids that one process makes before others start: a worker is ready after some 5 s, in which one process makes
half as many."""
_ROWS = 256  # encoded together
_AHEAD = 3  # batches a worker, on the way at a time
_MOST = 16  # workers by default: reading rows and writing Parquet in one process feeds no more


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of rows, tokenized: rows in = rows of `prompts` (PROMPTS_SCHEMA) + rejections, each in order."""

    prompts: pa.Table
    rejections: list[Rejection]


def tokenize_rows(
    rows: Iterable[Row], tokenizer: "Tokenizer", options: PromptOptions, *, processes: int = 0, alone: int = ALONE
) -> Iterator[Tokenized]:
    """The rows' prompts and rejections, batch by batch in the rows' order; what was rejected already stays so.

    `processes` is the number of workers, 0 for one a usable core, up to 16; 1 starts none. `alone` is the number of
    prompt ids that are made before any starts. Raises InputError for a negative number, RunStopped where a worker
    dies, TokenizerError where one finds another tokenizer than the caller's, and what `rows` raises.
    """
    if processes < 0:
        raise InputError(f"processes is {processes}; expected a positive number, or 0 for one a core")
    workers = processes or min(usable_cores(), _MOST)
    batches = _batches(rows)
    made = 0
    for batch in batches:
        done = _tokenized(batch, tokenizer, options)
        made += len(done.prompts["prompt_ids"].combine_chunks().flatten())
        yield done
        if workers > 1 and made >= alone:
            yield from _by_workers(batches, tokenizer, options, workers)


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    left = iter(rows)
    while batch := list(islice(left, _ROWS)):
        yield batch


def _tokenized(batch: Sequence[Row], tokenizer: "Tokenizer", options: PromptOptions) -> Tokenized:
    results = iter(tokenize_conversations([row for row in batch if isinstance(row, Conversation)], tokenizer, options))
    ordered = [next(results) if isinstance(row, Conversation) else row for row in batch]
    prompts = [msgspec.structs.asdict(made) for made in ordered if isinstance(made, Prompt)]
    return Tokenized(
        prompts=pa.Table.from_pylist(prompts, schema=PROMPTS_SCHEMA),
        rejections=[made for made in ordered if isinstance(made, Rejection)],
    )


def _by_workers(
    batches: Iterator[list[Row]], tokenizer: "Tokenizer", options: PromptOptions, count: int
) -> Iterator[Tokenized]:
    workers: list[_Worker] = []
    idle: SimpleQueue[_Worker] = SimpleQueue()
    threads = ThreadPoolExecutor(count)  # one waits for each worker
    waiting: deque[Future[Tokenized]] = deque()

    def ask(batch: list[Row]) -> Tokenized:
        worker = idle.get()
        try:
            return worker.tokenized(batch)
        finally:
            idle.put(worker)

    try:
        for _ in range(count):
            workers.append(_Worker(tokenizer, options))
            idle.put(workers[-1])
        for batch in batches:
            waiting.append(threads.submit(ask, batch))
            if len(waiting) >= count * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except _DeadWorkerError as error:
        raise RunStopped(
            "a process that tokenizes prompts died (out of memory?); run stage 01 again, with fewer `processes` if it "
            "dies again"
        ) from error
    finally:  # after an interrupt too: a batch of long texts would keep a worker busy for a minute
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.end()
        threads.shutdown()


class _DeadWorkerError(Exception):
    pass


class _Worker:
    """A process that tokenizes, with a pipe of its own.

    A pool of the standard library shares one pipe among its processes: one that is ended while it writes leaves half
    a result in it, and its reader waits for the rest for ever.
    """

    def __init__(self, tokenizer: "Tokenizer", options: PromptOptions) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, tokenizer.source, tokenizer.identity, options), daemon=True
        )
        self._process.start()
        theirs.close()

    def tokenized(self, batch: list[Row]) -> Tokenized:
        """Raises what the worker raised, _DeadWorkerError where it is gone."""
        try:
            self._pipe.send(batch)
            made = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise _DeadWorkerError from error
        if isinstance(made, Exception):
            raise made
        return cast("Tokenized", made)

    def end(self) -> None:
        self._process.terminate()
        self._process.join()


def _serve(pipe: "Connection", source: "TokenizerSource", identity: dict[str, str], options: PromptOptions) -> None:
    """A worker works on one core, leaves interrupts to its parent, and does not outlive it."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            batch = pipe.recv()
            try:
                made: Tokenized | Exception = _work(batch, source, identity, options)
            except Exception as error:
                made = error
            pipe.send(made)


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(batch: list[Row], source: "TokenizerSource", identity: dict[str, str], options: PromptOptions) -> Tokenized:
    tokenizer = _load(source)
    if tokenizer.identity != identity:
        raise TokenizerError(f"tokenizer {source.name!r} changed while it was in use; run stage 01 again")
    return _tokenized(batch, tokenizer, options)


@lru_cache(maxsize=1)
def _load(source: "TokenizerSource") -> "Tokenizer":
    from .target_tokenizer import load_tokenizer

    return load_tokenizer(
        source.name,
        revision=source.revision,
        trust_remote_code=source.trust_remote_code,
        template_date=source.template_date,
        prompt_encoder=source.prompt_encoder,
        markers=source.markers,
    )
