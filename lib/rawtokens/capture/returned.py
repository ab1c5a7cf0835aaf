"""Whether a server that was away is still the one that the run was begun with.

A restart may bring another model, another precision or a shorter context under the same address, and SGLang calls
weights `default` whatever they are. What is not told is no contradiction. This module does not know when a server was
away.
"""

import asyncio

import httpx

from ..engines.answers import Failure, ServerFacts
from ..errors import ServerError
from .server_facts import AbsentError, difference, facts_of


class Returned:
    """Holds servers to `facts`, those of the run."""

    def __init__(self, facts: ServerFacts, *, api_key: str, transport: httpx.AsyncBaseTransport | None) -> None:
        self._facts, self._api_key, self._transport = facts, api_key, transport
        self._asked: dict[str, asyncio.Task[Failure | None]] = {}

    async def contradiction(self, url: str) -> Failure | None:
        """What the server tells of itself that contradicts the run, or why it tells nothing; None where all is well.

        Many that ask at the same time share one question.
        """
        running = self._asked.get(url)
        if running is None or running.done():
            running = self._asked[url] = asyncio.create_task(self._contradiction(url))
        return await asyncio.shield(running)

    async def _contradiction(self, url: str) -> Failure | None:
        try:
            found = await facts_of([url], api_key=self._api_key, transport=self._transport)
        except AbsentError as error:
            return Failure(reason="connection", detail=str(error), next="wait")
        except ServerError as error:
            return Failure(reason="key_refused", detail=str(error), next="stop")
        name = difference(self._facts, found)
        if not name or (found.model is None and found.version is None):  # then no route told which engine it is
            return None
        was, now = getattr(self._facts, name), getattr(found, name)
        detail = f"it came back with another {name}: was {was!r}, now {now!r}"
        return Failure(reason="server_differs", detail=detail, next="stop")
