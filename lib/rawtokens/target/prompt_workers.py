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
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from itertools import islice
from multiprocessing import active_children, get_context, parent_process
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from ..errors import InputError, RunStopped, TokenizerError
from ..records import PROMPTS_SCHEMA, Conversation, Prompt, Rejection
from .rendering import PromptOptions, tokenize_conversations

if TYPE_CHECKING:
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
    batches: Iterator[list[Row]], tokenizer: "Tokenizer", options: PromptOptions, workers: int
) -> Iterator[Tokenized]:
    others = set(active_children())
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker)
    waiting: deque[Future[Tokenized]] = deque()
    try:
        for batch in batches:
            waiting.append(pool.submit(_work, batch, tokenizer.source, tokenizer.identity, options))
            if len(waiting) >= workers * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise RunStopped(
            "a process that tokenizes prompts died (out of memory?); run stage 01 again, with fewer `processes` if it "
            "dies again"
        ) from error
    except BaseException:  # an interrupt too: a batch of long texts would keep the workers busy for a minute
        for worker in set(active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """A worker works on one core, leaves interrupts to its parent, and does not outlive it."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


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
