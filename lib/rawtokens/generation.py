"""The run over prompts: a bounded window of requests, and one record for every prompt and sample.

What stands in the journal or was rejected is not asked again, so a killed run continues where it was. A row that
can't be generated is rejected with its reason and the run goes on; storage, a refused key, NaN weights and a
server that stays away stop the run in a state that can be resumed. This module does not know what an answer looks
like on the wire (engines do) nor whether it is a good one (verification does).
"""

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import msgspec

from .capture.asking import ABORT_SECONDS, Asker, Target
from .capture.given_up import GivenUp
from .capture.own_loop import in_own_loop
from .capture.planned import Following, Request, count_planned, planned_requests
from .capture.progress import Progress, Tally
from .capture.rejections import RejectedRows
from .capture.returned import Returned
from .capture.run_progress import progress_now
from .capture.servers import DEFAULT_WINDOW, ServerPool, spread
from .capture.transport import allow_connections, open_post
from .capture.tries import Tries
from .engines.answers import Ids
from .errors import RunStopped
from .journal import JOURNAL, Journal, open_journal, recorded_weights
from .records import ResponseLine

__all__ = ["DEFAULT_WINDOW", "Progress", "Target", "generate"]

_REPORT_SECONDS = 3.0


async def generate(
    folder: Path,
    target: Target,
    *,
    window: int | Mapping[str, int] = DEFAULT_WINDOW,
    away: Container[str] = (),
    api_key: str = "",
    transport: httpx.AsyncBaseTransport | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    following: Following | None = None,
) -> Progress:
    """Generate what is missing of `folder`/prompts.parquet into its journal.

    `window` is the number of requests in flight: over all servers, or by URL (`servers.windows`). `away` are the URLs
    at which nothing answers yet. `transport` is a seam for tests. `on_progress` is called in this loop; the run has a
    loop and a thread of its own. `following` knows the turns behind the first (turns.following). Returns the final
    counts.

    Cancelled (SIGINT, a notebook's stop button), it sends nothing more, waits `target.drain_seconds` for what is in
    flight, aborts the rest on the servers, and raises RunStopped; at a second cancellation it ends at once.
    Raises RunStopped, LockedError, InputError.
    """
    caller, context = asyncio.get_running_loop(), contextvars.copy_context()

    def tell(progress: Progress) -> None:
        if on_progress:
            caller.call_soon_threadsafe(on_progress, progress, context=context)

    windows = spread(target.urls, window)
    pool = ServerPool(windows, away=away)
    run = _Run(folder, target, pool, api_key=api_key, transport=transport, tell=tell, following=following)
    try:
        return await in_own_loop(run.main, on_stop=run.stop)
    finally:
        if on_progress and run.at_end:
            on_progress(run.at_end)


class _Run:
    """The state that workers share; everything but `stop` runs in one loop."""

    journal: Journal
    asker: Asker
    rejected: RejectedRows
    given_up: GivenUp
    tries: Tries

    def __init__(
        self,
        folder: Path,
        target: Target,
        pool: ServerPool,
        *,
        api_key: str,
        transport: httpx.AsyncBaseTransport | None,
        tell: Callable[[Progress], None],
        following: Following | None,
    ) -> None:
        self.folder, self.target, self.pool, self.tell = folder, target, pool, tell
        self.api_key, self.transport, self.following = api_key, transport, following
        self.tally = Tally()
        self.stopping, self.over = asyncio.Event(), asyncio.Event()
        self.foreseen = self.present = 0
        self.started = time.monotonic()
        self.at_end: Progress | None = None

    @property
    def planned(self) -> int:
        """Generations that the run counts with; of conversations, by what is known of their ends."""
        return self.following.planned if self.following else self.foreseen

    def stop(self) -> None:
        """Send nothing more; called in the run's own loop."""
        self.stopping.set()
        self.over.set()

    async def main(self) -> Progress:
        """The whole run; the journal is open while it lasts."""
        target, connections = self.target, sum(server.window for server in self.pool.servers)
        allow_connections(connections)
        with open_journal(self.folder / target.shard.file_name(JOURNAL)) as self.journal:
            self.rejected = RejectedRows(self.folder, shard=target.shard)
            samples, known = target.sampling.samples_per_prompt, self.journal.known_keys
            if self.following:
                self.present = self.following.begin(samples, known, self.rejected)
            else:
                self.foreseen, self.present = count_planned(self.folder, samples, known, shard=target.shard)
            async with open_post(api_key=self.api_key, transport=self.transport) as post:
                weights = recorded_weights(self.folder)
                self.asker = Asker(post, target, api_key=self.api_key, weight_version=weights)
                self.given_up = GivenUp(self.asker, self.rejected)
                self.tries = Tries(
                    self.asker,
                    self.pool,
                    self.given_up,
                    Returned(target.facts, api_key=self.api_key, transport=self.transport),
                    keep=self.keep,
                    failed=self.tally.failed,
                    stopping=self.stopping,
                    patience_seconds=target.patience_seconds,
                )
                await self.work_through(connections)
        return self.at_end or self.progress()

    async def work_through(self, count: int) -> None:
        """`count` workers take requests until none is left, one fails for good, or the run is stopped."""
        requests = self.requests()
        workers = [asyncio.create_task(self.work(requests)) for _ in range(count)]
        reporter = asyncio.create_task(self.report())
        everything = asyncio.gather(*workers)
        for task in (everything, reporter):  # a reporter ends by itself where rejections can't be written
            task.add_done_callback(lambda _: self.over.set())
        try:
            await self.over.wait()
            failed = reporter.done() or (everything.done() and everything.exception() is not None)
            if failed or self.stopping.is_set():
                self.stopping.set()
                await self.drain(workers, 0.0 if failed else self.target.drain_seconds)
                if reporter.done():
                    reporter.result()
                self.raise_stopped(everything)
            await self.given_up.settle(self.pool.servers, self.first_ids)
        finally:
            self.at_end = self.at_end or self.progress()
            for task in [*workers, reporter]:
                task.cancel()
            await asyncio.gather(*workers, reporter, everything, return_exceptions=True)
            if self.following:
                self.following.close()
            self.rejected.write()

    def requests(self) -> Iterator[Request | Awaitable[Request | None]]:
        """What is missing, read lazily, so that a million prompts take no memory."""
        samples, shard = self.target.sampling.samples_per_prompt, self.target.shard
        planned = planned_requests(self.folder, samples, shard=shard, known=self.journal.known_keys)
        first = (request for request in planned if request.key not in self.rejected)
        return self.following.requests(first) if self.following else first

    def first_ids(self) -> Ids:
        """The shortest prompt that can be sent: the first id of the first prompt."""
        return next(planned_requests(self.folder, 1)).prompt_ids[:1]

    async def work(self, requests: Iterator[Request | Awaitable[Request | None]]) -> None:
        for request in requests:
            following = request if isinstance(request, Request) else await request
            while following and not self.stopping.is_set():  # a conversation's turns, one behind the other
                line = await self.tries.answer(following)
                following = await self.following.after(following, line) if self.following else None
            if self.stopping.is_set():
                return

    def keep(self, line: ResponseLine) -> None:
        self.journal.append_line(line.key, msgspec.json.encode(line))
        self.tally.answered(line)

    async def drain(self, workers: Sequence[asyncio.Task[None]], seconds: float) -> None:
        """Let what is in flight finish, then abort it on the servers; what finished meanwhile is written."""
        await asyncio.wait(workers, timeout=seconds)
        self.at_end = self.progress()  # with what is in flight: what a stop cuts off tells how the rest would be
        await self.asker.abort_all(self.pool.servers)
        await asyncio.wait(workers, timeout=ABORT_SECONDS)

    def raise_stopped(self, everything: "asyncio.Future[list[None]]") -> None:
        """Raise what ended the run early; nothing where its last answer came while it was being stopped."""
        if everything.done():
            everything.result()
        done = self.present + self.tally.done
        if done + len(self.rejected) < self.planned:
            raise RunStopped(
                f"stopped with {done:,} of {self.planned:,} planned in the journal; run the same command again: "
                "it goes on where it stopped"
            )

    def progress(self) -> Progress:
        return progress_now(
            self.tally,
            self.pool.servers,
            planned=self.planned,
            present=self.present,
            rejected=len(self.rejected),
            started=self.started,
            max_new_tokens=self.target.sampling.max_new_tokens,
            journal=self.journal.path,
        )

    async def report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            self.journal.sync_when_due()
            self.rejected.write_when_due()
            self.tell(self.progress())
