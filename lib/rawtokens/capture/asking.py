"""One request to one server: sent with an id of its own, answered, aborted where no answer came, and judged.

What comes back is a line for the journal or a failure with what it asks for. This module does not know how often a
request is tried, nor which server is asked.
"""

import asyncio
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from ..engines.answers import Answer, Failure, Ids, Sent, ServerFacts, checked_prompt
from ..engines.choice import engine_of
from ..records import ResponseLine, Sampling
from ..shards import WHOLE, Shard
from .connections import NoReplyError
from .planned import Request, seeded
from .servers import Asked, Server
from .transport import Post

ABORT_SECONDS = 5.0
PROBE_SECONDS = 60.0
REFUSAL_SECONDS = 10.0  # engines refuse a request before they queue it


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and how: the servers, every sampling value, the ids that end a turn, the legal ids 0..size-1.

    `patience_seconds` is how long a run waits for any answer while no server can be reached, `drain_seconds` how long
    a stopped run waits for what is in flight. `shard` is the part of the data set that this run makes, into files of
    its own. `facts` are the servers': which engine they speak, the context that prompt and output must fit in, and the
    weights; an answer by other weights stops the run.
    """

    urls: tuple[str, ...]
    sampling: Sampling
    stop_ids: tuple[int, ...]
    vocabulary_size: int
    fingerprint: str
    patience_seconds: float = 600.0
    drain_seconds: float = 10.0
    shard: Shard = WHOLE
    facts: ServerFacts = ServerFacts()


class Asker:
    """Asks on behalf of one run; every method ends in an answer or a Failure, whatever the wire does."""

    def __init__(self, post: Post, target: Target, *, api_key: str, weight_version: str | None = None) -> None:
        """`weight_version` is that of the answers that are there; where nothing tells it, the first answer does."""
        self._post, self._target, self._api_key = post, target, api_key
        self._engine = engine_of(target.facts)
        self._weights = target.facts.weight_version or weight_version
        self._probes: dict[str, asyncio.Task[Failure | None]] = {}

    async def ask(self, server: Server, request: Request, attempt: int) -> ResponseLine | Failure:
        """One generation. Raises InputError for prompt ids that would kill the server; nothing is sent then.

        Nor is anything sent where prompt and output don't fit the context: vLLM would cut the output short by itself.
        """
        target = self._target
        sent = self._sent(request.prompt_ids, seeded(target.sampling, request.key))
        rid, patience = sent.rid, server.patience(target.sampling.max_new_tokens)
        if too_long := _beyond(target.facts.context_length, sent):
            return too_long
        started_at, started = datetime.now(UTC), time.monotonic()
        server.asked[rid] = Asked(request.key, started)
        try:
            status, content = await self._post(
                f"{server.url}{self._engine.generate_route}", self._engine.body(sent), patience, _most_bytes(sent)
            )
        except NoReplyError as error:
            await self.abort(server, rid)
            return await self._unanswered(server, request, error, started)
        finally:
            del server.asked[rid]
        outcome = self._judge(status, content, sent)
        if isinstance(outcome, Failure):
            return outcome
        return ResponseLine(
            key=request.key,
            prompt_ids=sent.prompt.text,
            output_ids=outcome.output_ids,
            finish_reason=outcome.finish_reason,
            matched=outcome.matched,
            prompt_tokens=outcome.prompt_tokens,
            completion_tokens=outcome.completion_tokens,
            cached_tokens=outcome.cached_tokens,
            weight_version=outcome.weight_version,
            fingerprint=target.fingerprint,
            server=server.url,
            rid=rid,
            attempt=attempt,
            started_at=started_at.isoformat(),
            latency_s=round(time.monotonic() - started, 4),
        )

    async def probe(self, server: Server, prompt_ids: Ids) -> Failure | None:
        """What keeps the server from generating one id, or None: /health can be fine where nothing is generated.

        Many that ask at the same time share one request.
        """
        running = self._probes.get(server.url)
        if running is None or running.done():
            work = self._one_answer(server, prompt_ids, Sampling(max_new_tokens=1), PROBE_SECONDS)
            running = self._probes[server.url] = asyncio.create_task(work)
        return await asyncio.shield(running)

    async def refusal(self, server: Server, prompt_ids: Ids) -> Failure | None:
        """Why the server takes no request at this run's sampling, however short the prompt; None where it takes one."""
        failure = await self._one_answer(server, prompt_ids, self._target.sampling, REFUSAL_SECONDS)
        return None if failure and failure.reason == "timeout" else failure  # it is being generated, or queued

    async def abort(self, server: Server, rid: str) -> None:
        """Ask the server to forget a request, so that another try does not decode beside it."""
        route = self._engine.abort_route
        if route is None:  # the connection that was closed has done it
            return
        with suppress(NoReplyError):  # a server that is gone has forgotten it; SGLang aborts on disconnect too
            await self._post(f"{server.url}{route}", msgspec.json.encode({"rid": rid}), ABORT_SECONDS)

    async def abort_all(self, servers: Iterable[Server]) -> None:
        """Abort what is in flight, within ABORT_SECONDS."""
        aborts = [asyncio.create_task(self.abort(server, rid)) for server in servers for rid in server.asked]
        if aborts:
            _, late = await asyncio.wait(aborts, timeout=ABORT_SECONDS)
            for task in late:
                task.cancel()

    def _sent(self, prompt_ids: Ids, sampling: Sampling) -> Sent:
        return Sent(
            prompt=checked_prompt(prompt_ids, self._target.vocabulary_size),
            sampling=sampling,
            stop_ids=self._target.stop_ids,
            vocabulary_size=self._target.vocabulary_size,
            rid=uuid.uuid4().hex,
            served_name=self._target.facts.served_name or "",
        )

    def _judge(self, status: int, content: bytes, sent: Sent) -> Answer | Failure:
        outcome = self._engine.parse(status, content, sent, self._api_key)
        if not isinstance(outcome, Answer):
            return outcome
        self._weights = self._weights or outcome.weight_version
        if outcome.weight_version and outcome.weight_version != self._weights:  # "" is not told: no contradiction
            detail = f"the run began with weights {self._weights!r}, this answer is by {outcome.weight_version!r}"
            return Failure(reason="weight_version_differs", detail=detail, next="stop")
        return outcome

    async def _one_answer(self, server: Server, prompt_ids: Ids, sampling: Sampling, seconds: float) -> Failure | None:
        sent = self._sent(prompt_ids, sampling)
        try:
            reply = await self._post(f"{server.url}{self._engine.generate_route}", self._engine.body(sent), seconds)
        except NoReplyError as error:
            if error.late:
                await self.abort(server, sent.rid)
            return Failure(reason="timeout" if error.late else "connection", detail=str(error), next="wait")
        outcome = self._judge(*reply, sent)
        return outcome if isinstance(outcome, Failure) else None

    async def _unanswered(self, server: Server, request: Request, error: NoReplyError, started: float) -> Failure:
        """A server that hangs or is gone is no fault of the row: its tries count only where the server is well.

        After a broken connection only a new request tells: a server that dies takes along rows that were out long.
        """
        waited = time.monotonic() - started
        if error.late and server.answered_at > started:
            server.kept_waiting(waited)
            return Failure(reason="timeout", detail=str(error), next="retry")
        failed_since = server.failed_at > started
        well = not failed_since and await self.probe(server, request.prompt_ids[:1]) is None
        if error.late and well:
            server.kept_waiting(waited)
        reason = "timeout" if error.late else "connection"
        return Failure(reason=reason, detail=str(error), next="retry" if well else "wait")


def _most_bytes(sent: Sent) -> int:
    """More than any honest answer has: its ids, the text of each with its escapes, and the prompt's ids again."""
    return 2**20 + 1024 * sent.sampling.max_new_tokens + 16 * sent.prompt.count


def _beyond(context_length: int | None, sent: Sent) -> Failure | None:
    prompt, output = sent.prompt.count, sent.sampling.max_new_tokens
    if context_length is None or prompt + output <= context_length:
        return None
    detail = f"{prompt} prompt ids and {output} new ones are more than the context's {context_length}; nothing was sent"
    return Failure(reason="context_exceeded", detail=detail, next="reject")
