"""The run over prompts: a bounded window of requests, retries, and one record for every prompt and sample.

What stands in the journal or was rejected is not asked again, so a killed run continues where it was. A row that
can't be generated is rejected with its reason and the run goes on; storage, a refused key, NaN weights and a
server that stays away stop the run in a state that can be resumed. This module does not know what an answer looks
like on the wire (engines do) nor whether it is a good one (verification does).
"""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec

from .engines import sglang
from .engines.sglang import Failure
from .errors import RunStopped, one_line
from .journal import JOURNAL, Journal, open_journal, read_rejections, write_rejections
from .planned import Request, count_planned, planned_requests, seeded
from .progress import Progress, Tally
from .records import Rejection, Response, Sampling
from .servers import CONNECT_SECONDS, UNANSWERED, ServerPool, generate_client
from .shards import WHOLE, Shard

MAXIMUM_TRIES = 5
RETRY_SECONDS = 0.25  # at most 7.5 s over five tries: a server that fails for a moment costs no rows
DEFAULT_WINDOW = 64
_REPORT_SECONDS = 3.0
_SLOWEST_IDS_A_SECOND = 100.0  # of a whole server: the demo's makes 200 on two CPU cores


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and how: the servers, every sampling value, the ids that end a turn, the legal ids 0..size-1.

    `patience_seconds` is how long a run waits for any answer while no server can be reached. `shard` is the part of
    the data set that this run makes, into files of its own.
    """

    urls: tuple[str, ...]
    sampling: Sampling
    stop_ids: tuple[int, ...]
    vocabulary_size: int
    fingerprint: str
    patience_seconds: float = 600.0
    shard: Shard = WHOLE


async def generate(
    folder: Path,
    target: Target,
    *,
    window: int = DEFAULT_WINDOW,
    api_key: str = "",
    transport: httpx.AsyncBaseTransport | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Progress:
    """Generate what is missing of `folder`/prompts.parquet into its journal.

    `window` is the number of requests in flight over all servers; `transport` is a seam for tests. Returns the
    final counts. Raises RunStopped, LockedError, InputError.
    """
    with open_journal(folder / target.shard.file_name(JOURNAL)) as journal:
        async with generate_client(window, api_key=api_key, transport=transport) as client:
            run = _Run(folder, journal, client, target, window=window, api_key=api_key)
            requests = run.requests()
            workers = [asyncio.create_task(run.work(requests)) for _ in range(window)]
            reporter = asyncio.create_task(run.report(on_progress))
            try:
                await asyncio.gather(*workers)
            finally:
                at_end = run.progress()  # with what is in flight: what a stop cuts off tells how the rest would be
                for task in [*workers, reporter]:
                    task.cancel()
                await asyncio.gather(*workers, reporter, return_exceptions=True)
                write_rejections(folder, "generate", list(run.rejections.values()), shard=target.shard)
                if on_progress:
                    on_progress(at_end)
        return at_end


class _Run:
    """The state that workers share."""

    def __init__(
        self, folder: Path, journal: Journal, client: httpx.AsyncClient, target: Target, *, window: int, api_key: str
    ) -> None:
        self.folder, self.journal, self.client, self.target, self.api_key = folder, journal, client, target, api_key
        self.pool = ServerPool(target.urls)
        # A long generation is silent until it ends, and the longer, the more share its server.
        slowest = max(1.0, window / len(target.urls) / _SLOWEST_IDS_A_SECOND)
        self.timeout = httpx.Timeout(CONNECT_SECONDS, read=60.0 + target.sampling.max_new_tokens * slowest)
        self.rejections = {
            item.key: item
            for item in read_rejections(folder)
            if item.stage == "generate" and target.shard.holds(item.key)
        }
        self.tally, self.asked = Tally(), dict[str, float]()  # key -> when it was sent, on the monotonic clock
        self.planned, self.present = count_planned(
            folder, target.sampling.samples_per_prompt, journal.known_keys, shard=target.shard
        )
        self.started = time.monotonic()

    def requests(self) -> Iterator[Request]:
        """What is missing, read lazily, so that a million prompts take no memory."""
        samples, shard = self.target.sampling.samples_per_prompt, self.target.shard
        for request in planned_requests(self.folder, samples, shard=shard, known=self.journal.known_keys):
            if request.key not in self.rejections:
                yield request

    async def work(self, requests: Iterator[Request]) -> None:
        for request in requests:
            await self.answer(request)

    async def answer(self, request: Request) -> None:
        """One request to its record or its rejection."""
        attempt = 1
        while True:
            url = self.pool.choose()
            outcome = await self.ask(url, request, attempt)
            if isinstance(outcome, Failure):
                self.tally.failed(outcome.reason)
            if isinstance(outcome, Failure) and outcome.next == "wait":
                await self.wait(url, outcome)
                continue
            self.pool.answered(url)
            if isinstance(outcome, Response):
                self.journal.append(outcome)
                self.tally.answered(outcome)
                return
            if outcome.next == "stop":
                raise RunStopped(f"{url}: {outcome.reason}: {outcome.detail}; mend that, then run the same command")
            if outcome.next == "reject" or attempt == MAXIMUM_TRIES:
                self.reject(request, outcome)
                return
            await asyncio.sleep(random.uniform(0.0, RETRY_SECONDS * 2**attempt))
            attempt += 1

    async def ask(self, url: str, request: Request, attempt: int) -> Response | Failure:
        rid = uuid.uuid4().hex
        body = self.body(request, seeded(self.target.sampling, request.key), rid)
        started_at, started = datetime.now(UTC), time.monotonic()
        self.pool.asked_at[url][rid] = self.asked[request.key] = started
        try:
            reply = await self.client.post(f"{url}/generate", content=body, timeout=self.timeout)
        except httpx.DecodingError as error:
            return Failure(reason="malformed_answer", detail=one_line(error), next="retry")
        except UNANSWERED as error:
            await self.abort(url, rid)
            return await self.unanswered(url, request, error, started)
        finally:
            del self.pool.asked_at[url][rid]
            self.asked.pop(request.key, None)
        outcome = sglang.parse_answer(
            reply.status_code,
            reply.content,
            prompt_tokens=len(request.prompt_ids),
            vocabulary_size=self.target.vocabulary_size,
            secret=self.api_key,
        )
        if isinstance(outcome, Failure):
            return outcome
        return Response(
            key=request.key,
            prompt_ids=request.prompt_ids,
            **msgspec.structs.asdict(outcome),
            fingerprint=self.target.fingerprint,
            server=url,
            rid=rid,
            attempt=attempt,
            started_at=started_at.isoformat(),
            latency_s=round(time.monotonic() - started, 4),
        )

    def body(self, request: Request, sampling: Sampling, rid: str) -> bytes:
        size, stop_ids = self.target.vocabulary_size, self.target.stop_ids
        return sglang.request_body(request.prompt_ids, sampling, stop_ids=stop_ids, rid=rid, vocabulary_size=size)

    async def unanswered(self, url: str, request: Request, error: Exception, started: float) -> Failure:
        """A server that hangs or is gone is no fault of the row: its tries count only where the server is well.

        After a broken connection only a new request tells: a server that dies takes along rows that were out long.
        """
        late = isinstance(error, httpx.ReadTimeout)
        well = (late and self.pool.answered_at[url] > started) or await self.answers(url, request)
        detail = f"no answer within {self.timeout.read:.0f} s" if late else f"{type(error).__name__} {one_line(error)}"
        return Failure(reason="timeout" if late else "connection", detail=detail, next="retry" if well else "wait")

    async def answers(self, url: str, request: Request) -> bool:
        """Whether the server still generates one id: /health can be fine on a server that generates nothing."""
        body = self.body(request, Sampling(max_new_tokens=1), uuid.uuid4().hex)
        try:
            reply = await self.client.post(f"{url}/generate", content=body, timeout=httpx.Timeout(60.0, connect=5.0))
        except UNANSWERED:
            return False
        return reply.status_code == 200

    async def abort(self, url: str, rid: str) -> None:
        """Ask the server to forget an unanswered request, so that a retry does not decode beside it."""
        with suppress(*UNANSWERED):  # a server that is gone has forgotten it; SGLang aborts on disconnect too
            await self.client.post(f"{url}/abort_request", json={"rid": rid}, timeout=5.0)

    async def wait(self, url: str, failure: Failure) -> None:
        """Let a server that can't answer rest; end the run where none has answered for too long.

        A full queue is no silence while a request is being worked on: a long one takes longer than any patience.
        """
        pause, silent = self.pool.failed(url), self.pool.silent_seconds()
        waiting = failure.reason != "timeout" and self.pool.at_work()
        if pause and silent > self.target.patience_seconds and not waiting:
            raise RunStopped(
                f"{url} gave no answer for {silent:.0f} s ({failure.reason}: {failure.detail}); "
                "start the server, then run the same command: it goes on where it stopped"
            )
        await asyncio.sleep(pause)

    def reject(self, request: Request, failure: Failure) -> None:
        found = Rejection(stage="generate", key=request.key, line=None, reason=failure.reason, detail=failure.detail)
        self.rejections[request.key] = found

    def progress(self) -> Progress:
        now = time.monotonic()
        return self.tally.progress(
            planned=self.planned,
            present=self.present,
            rejected=len(self.rejections),
            asked={key: now - sent for key, sent in self.asked.items()},
            servers={url: len(asked) for url, asked in self.pool.asked_at.items()},
            seconds=now - self.started,
            max_new_tokens=self.target.sampling.max_new_tokens,
        )

    async def report(self, on_progress: Callable[[Progress], None] | None) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            write_rejections(self.folder, "generate", list(self.rejections.values()), shard=self.target.shard)
            if on_progress:
                on_progress(self.progress())
