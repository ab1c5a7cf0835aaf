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
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec

from .engines import sglang
from .engines.sglang import Answer, Failure
from .errors import RunStopped
from .journal import JOURNAL, Journal, open_journal, read_rejections, write_rejections
from .planned import Request, planned_requests, seeded
from .records import Rejection, Response, Sampling
from .servers import generate_client

MAXIMUM_TRIES = 5
DEFAULT_WINDOW = 64
_REPORT_SECONDS = 10.0
_SLOWEST_IDS_A_SECOND = 1.0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is: counts of prompts times samples; `ids_per_second` is the mean since this start."""

    planned: int
    present: int
    done: int
    rejected: int
    in_flight: int
    ids_per_second: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.present + self.done} of {self.planned} generated, {self.rejected} rejected, "
            f"{self.in_flight} in flight, {self.ids_per_second:,.0f} ids/s, {self.seconds:,.0f} s"
        )


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and how: the servers, every sampling value, the ids that end a turn, the legal ids 0..size-1.

    `patience_seconds` is how long a run waits for any answer while no server can be reached.
    """

    urls: tuple[str, ...]
    sampling: Sampling
    stop_ids: tuple[int, ...]
    vocabulary_size: int
    fingerprint: str
    patience_seconds: float = 600.0


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
    with open_journal(folder / JOURNAL) as journal:
        async with generate_client(window, api_key=api_key, transport=transport) as client:
            run = _Run(folder, journal, client, target)
            requests = run.requests()
            workers = [asyncio.create_task(run.work(requests)) for _ in range(window)]
            reporter = asyncio.create_task(run.report(on_progress))
            try:
                await asyncio.gather(*workers)
            finally:
                for task in [*workers, reporter]:
                    task.cancel()
                await asyncio.gather(*workers, reporter, return_exceptions=True)
                write_rejections(folder, "generate", list(run.rejections.values()))
        progress = run.progress()
        if on_progress:
            on_progress(progress)
        return progress


class _Run:
    """The state that workers share."""

    def __init__(self, folder: Path, journal: Journal, client: httpx.AsyncClient, target: Target) -> None:
        self.folder, self.journal, self.client, self.target = folder, journal, client, target
        self.loads = dict.fromkeys(target.urls, 0)
        self.rejections = {item.key: item for item in read_rejections(folder) if item.stage == "generate"}
        self.planned = self.present = self.done = self.ids = 0
        self.started = self.answered_at = time.monotonic()

    def requests(self) -> Iterator[Request]:
        """What is missing, counted on the way; read lazily, so that a million prompts take no memory."""
        for request in planned_requests(self.folder, self.target.sampling.samples_per_prompt):
            self.planned += 1
            if request.key in self.journal.known_keys:
                self.present += 1
            elif request.key not in self.rejections:
                yield request

    async def work(self, requests: Iterator[Request]) -> None:
        for request in requests:
            await self.answer(request)

    async def answer(self, request: Request) -> None:
        """One request to its record or its rejection."""
        attempt = 1
        while True:
            url = min(self.loads, key=lambda name: self.loads[name])
            self.loads[url] += 1
            try:
                outcome = await self.ask(url, request, attempt)
            finally:
                self.loads[url] -= 1
            if isinstance(outcome, Response):
                self.journal.append(outcome)
                self.done += 1
                self.ids += outcome.completion_tokens
                self.answered_at = time.monotonic()
                return
            if outcome.next == "stop":
                raise RunStopped(f"{url}: {outcome.reason}: {outcome.detail}; mend that, then run the same command")
            if outcome.next == "wait":
                await self.wait(url, outcome)
                continue
            if outcome.next == "reject" or attempt == MAXIMUM_TRIES:
                self.reject(request, outcome)
                return
            attempt += 1

    async def ask(self, url: str, request: Request, attempt: int) -> Response | Failure:
        rid = uuid.uuid4().hex
        body = sglang.request_body(
            request.prompt_ids,
            seeded(self.target.sampling, request.key),
            stop_ids=self.target.stop_ids,
            rid=rid,
            vocabulary_size=self.target.vocabulary_size,
        )
        started_at, started = datetime.now(UTC), time.monotonic()
        # A long generation is silent until it ends: the read timeout allows for one id a second.
        timeout = httpx.Timeout(30.0, read=60.0 + self.target.sampling.max_new_tokens / _SLOWEST_IDS_A_SECOND)
        try:
            reply = await self.client.post(f"{url}/generate", content=body, timeout=timeout)
        except httpx.ReadTimeout:
            await self.abort(url, rid)
            return Failure(reason="timeout", detail=f"no answer within {timeout.read:.0f} s", next="retry")
        except httpx.TransportError as error:
            await self.abort(url, rid)
            return Failure(reason="connection", detail=f"{type(error).__name__} {error}".strip(), next="wait")
        outcome = sglang.parse_answer(
            reply.status_code,
            reply.content,
            prompt_tokens=len(request.prompt_ids),
            vocabulary_size=self.target.vocabulary_size,
        )
        if isinstance(outcome, Failure):
            return outcome
        return _response(request, outcome, self.target.fingerprint, url, rid, attempt, started_at, started)

    async def abort(self, url: str, rid: str) -> None:
        """Ask the server to forget an unanswered request, so that a retry does not decode beside it."""
        try:
            await self.client.post(f"{url}/abort_request", json={"rid": rid}, timeout=5.0)
        except httpx.HTTPError:
            return  # a server that is gone has forgotten it; SGLang aborts on disconnect too

    async def wait(self, url: str, failure: Failure) -> None:
        silent = time.monotonic() - self.answered_at
        if silent > self.target.patience_seconds:
            raise RunStopped(
                f"{url} gave no answer for {silent:.0f} s ({failure.reason}: {failure.detail}); "
                "start the server, then run the same command: it goes on where it stopped"
            )
        # Between 0.5 and 15 s, longer the longer nothing came back, with jitter so that workers spread out.
        await asyncio.sleep(random.uniform(0.5, min(15.0, 1.0 + silent / 4)))

    def reject(self, request: Request, failure: Failure) -> None:
        self.rejections[request.key] = Rejection(
            stage="generate", key=request.key, line=None, reason=failure.reason, detail=failure.detail
        )

    def progress(self) -> Progress:
        seconds = time.monotonic() - self.started
        return Progress(
            planned=self.planned,
            present=self.present,
            done=self.done,
            rejected=len(self.rejections),
            in_flight=sum(self.loads.values()),
            ids_per_second=self.ids / seconds if seconds > 0 else 0.0,
            seconds=seconds,
        )

    async def report(self, on_progress: Callable[[Progress], None] | None) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            write_rejections(self.folder, "generate", list(self.rejections.values()))
            if on_progress:
                on_progress(self.progress())


def _response(
    request: Request,
    answer: Answer,
    fingerprint: str,
    url: str,
    rid: str,
    attempt: int,
    started_at: datetime,
    started: float,
) -> Response:
    return Response(
        key=request.key,
        prompt_ids=request.prompt_ids,
        output_ids=answer.output_ids,
        finish_reason=answer.finish_reason,
        matched=answer.matched,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        weight_version=answer.weight_version,
        fingerprint=fingerprint,
        server=url,
        rid=rid,
        attempt=attempt,
        started_at=started_at.isoformat(),
        latency_s=round(time.monotonic() - started, 4),
    )
