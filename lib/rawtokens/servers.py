"""Connections to servers: the client for /generate, which server is asked next, and what a server tells of itself.

httpx is the interface; under it an aiohttp transport, since httpx's own collapses above a few dozen requests in
flight (15 requests/s at 256, against 2,714 with this one). This module does not know what a run is.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from functools import partial

import aiohttp
import httpx
import msgspec
from httpx_aiohttp import AiohttpTransport

from .engines.sglang import ServerFacts, error_text, server_facts
from .errors import ServerError, one_line
from .records import Json

UNANSWERED = (httpx.HTTPError, aiohttp.ClientError, OSError)
"""What a request without a usable answer raises; httpx-aiohttp 0.2 lets some of aiohttp's own errors through."""

CONNECT_SECONDS = 30.0
LONGEST_REST = 15.0


class ServerPool:
    """Which of several servers is asked next: the least loaded of those that are not resting after a failure."""

    def __init__(self, urls: Sequence[str]) -> None:
        now = time.monotonic()
        self.asked_at: dict[str, dict[str, float]] = {url: {} for url in urls}  # by request id, monotonic seconds
        self.answered_at = dict.fromkeys(urls, now)
        self._failures = dict.fromkeys(urls, 0)
        self._resting_until = dict.fromkeys(urls, now)

    def choose(self) -> str:
        """A server; one that rests only where all do."""
        now = time.monotonic()
        return min(self.asked_at, key=lambda url: (self._resting_until[url] > now, len(self.asked_at[url])))

    def answered(self, url: str) -> None:
        """The server is well: it rests no longer."""
        self.answered_at[url] = self._resting_until[url] = time.monotonic()
        self._failures[url] = 0

    def failed(self, url: str) -> float:
        """Let a server rest, longer with each failure in a row, and return for how many seconds to wait.

        0 where another server can be asked; jitter spreads out those that wait.
        """
        now = time.monotonic()
        if self._resting_until[url] <= now:
            self._failures[url] += 1
            self._resting_until[url] = now + min(LONGEST_REST, 0.5 * 2 ** self._failures[url])
        first = min(self._resting_until.values())
        return 0.0 if first <= now else (first - now) * random.uniform(0.5, 1.5)

    def in_flight(self) -> int:
        """How many requests are out."""
        return sum(len(asked) for asked in self.asked_at.values())

    def silent_seconds(self) -> float:
        """For how long no server has answered anything."""
        return time.monotonic() - max(self.answered_at.values())

    def at_work(self) -> bool:
        """Whether a request has been out for longer than a connection takes: a server is computing its answer."""
        line = time.monotonic() - CONNECT_SECONDS - 5.0
        return any(asked_at < line for asked in self.asked_at.values() for asked_at in asked.values())


def generate_client(
    window: int, *, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """A client that keeps `window` requests in flight; the key goes out as a bearer token."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    limits = httpx.Limits(max_connections=window + 8)
    return httpx.AsyncClient(transport=transport or AiohttpTransport(limits=limits), headers=headers)


async def facts_of(
    urls: Sequence[str], *, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
) -> ServerFacts:
    """The facts of the servers at `urls`, which must agree on model and weight version.

    Raises ServerError where one can't be reached, refuses the key, or differs from the first.
    """
    async with generate_client(len(urls), api_key=api_key, transport=transport) as client:
        answers = await asyncio.gather(*[_facts(client, url, api_key) for url in urls])
    first = answers[0]
    for url, facts in zip(urls, answers, strict=True):
        for name in ("engine", "version", "model", "weight_version", "dtype", "quantization", "vocabulary_size"):
            ours, theirs = getattr(first, name), getattr(facts, name)
            if ours is not None and theirs is not None and ours != theirs:
                raise ServerError(
                    f"{name} is {theirs!r} at {url} but {ours!r} at {urls[0]}; servers of one run must be alike"
                )
    return first


async def _facts(client: httpx.AsyncClient, url: str, api_key: str) -> ServerFacts:
    get = partial(_get, client, url, api_key=api_key)
    model_info = await get("/model_info") or await get("/get_model_info")
    server_info = await get("/server_info") or await get("/get_server_info")
    return server_facts(model_info, server_info, await get("/v1/models"), secret=api_key)


async def _get(client: httpx.AsyncClient, url: str, route: str, *, api_key: str) -> dict[str, Json] | None:
    """A control route's JSON object, or None where the server (or a router before it) has no such route."""
    try:
        reply = await client.get(f"{url}{route}", timeout=CONNECT_SECONDS)
    except UNANSWERED as error:
        reason = one_line(error).replace(" ssl:default", "")  # aiohttp names its TLS settings, used or not
        raise ServerError(
            f"no server answers at {url} ({reason}); start it (`rawtokens serve-demo` starts the "
            "demo's) or correct servers.urls"
        ) from error
    if reply.status_code in (401, 403):
        said = error_text(reply.content, secret=api_key)
        raise ServerError(f"{url} refuses the key ({said}); set servers.api_key_env to the variable that holds it")
    if reply.status_code != 200:
        return None
    try:
        content: dict[str, Json] = msgspec.json.decode(reply.content, type=dict)
    except msgspec.MsgspecError:
        return None
    return content
