"""One request to its record or its rejection: which server is asked, how often, and what each failure asks for.

This module does not know how a server is asked (`asking`), whose fault a row without a good answer is (`given_up`), nor
which request is next.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from ..engines.answers import Failure
from ..records import ResponseLine
from .asking import Asker
from .given_up import GivenUp, breaks_servers, stopped_by
from .planned import Request
from .returned import Returned
from .servers import Server, ServerPool, broke_down

MAXIMUM_TRIES = 5
MAXIMUM_BREAKDOWNS = 6  # and alone in flight at the last: a long row is in flight at the deaths that another causes
RETRY_SECONDS = 0.25  # at most 7.5 s over five tries: a server that fails for a moment costs no rows


class Tries:
    """Shared by all workers of a run; `keep` takes a record, `failed` the reason of each failure."""

    def __init__(
        self,
        asker: Asker,
        pool: ServerPool,
        given_up: GivenUp,
        returned: Returned,
        *,
        keep: Callable[[ResponseLine], None],
        failed: Callable[[str], None],
        stopping: asyncio.Event,
        patience_seconds: float,
    ) -> None:
        self._asker, self._pool, self._given_up, self._returned = asker, pool, given_up, returned
        self._keep, self._failed = keep, failed
        self._stopping, self._patience_seconds = stopping, patience_seconds

    async def answer(self, request: Request) -> ResponseLine | None:
        """One request to its record, or to its rejection (None)."""
        attempt, breakdowns = 1, 0
        while (server := await self._choose(request)) is not None:
            outcome = await self._asker.ask(server, request, attempt)
            if isinstance(outcome, ResponseLine):
                self._keep(outcome)
                server.answered()
                server.finished(outcome.completion_tokens, outcome.latency_s)
                self._given_up.release(server)
                return outcome
            self._failed(outcome.reason)
            if outcome.next == "wait" or _gone_for_the_moment(outcome, server):
                server.failed(outcome)
                breakdowns += broke_down(outcome)
                if breakdowns >= MAXIMUM_BREAKDOWNS and server.alone:
                    await self._given_up.add(server, request, breaks_servers(outcome, breakdowns))
                    return None
                continue
            if outcome.reason == "connection":  # it answers already, perhaps after a restart
                outcome = await self._returned.contradiction(server.url) or outcome
            server.answered()
            if outcome.next == "stop":
                raise stopped_by(server, outcome)
            if self._stopping.is_set():
                return None
            if outcome.next == "reject" or attempt == MAXIMUM_TRIES:
                await self._given_up.add(server, request, outcome)
                return None
            await self._pause(random.uniform(0.0, RETRY_SECONDS * 2**attempt))
            attempt += 1
        return None

    async def _choose(self, request: Request) -> Server | None:
        """A server with room, as soon as there is one; None where the run is being stopped."""
        while not self._stopping.is_set():
            server = self._pool.choose()
            if server is None:
                self._pool.check_patience(self._patience_seconds)
                await self._pause(self._pool.pause())
            elif not server.failures:
                return server
            elif failure := await self._not_well(server, request):
                if failure.next == "stop" and not _gone_for_the_moment(failure, server):
                    raise stopped_by(server, failure)
                server.failed(failure)
            elif server.failures:  # of many that waited for the same probe one says so, then all look for room
                server.answered()
        return None

    async def _not_well(self, server: Server, request: Request) -> Failure | None:
        """Why a server that failed can't be used: it generates nothing, or has come back as another one."""
        failure = await self._asker.probe(server, request.prompt_ids[:1])
        if failure is None and server.away:
            failure = await self._returned.contradiction(server.url)
        return failure

    async def _pause(self, seconds: float) -> None:
        """Sleep, but no longer than until the run is stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


def _gone_for_the_moment(failure: Failure, server: Server) -> bool:
    """Whether a route that was there is missing: a proxy whose backend restarts says 404."""
    return failure.reason == "no_generate_route" and server.proven
