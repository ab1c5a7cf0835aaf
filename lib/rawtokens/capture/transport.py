"""One POST over the wire, for /generate with hundreds in flight.

`Connections` carry a run; any httpx transport can stand in their place. This module does not know what is asked, nor
what an answer means.
"""

import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import httpx

from ..errors import InputError, one_line
from .connections import CONNECT_SECONDS, MOST_BYTES, Connections, NoReplyError, Reply


class Post(Protocol):
    """POST a JSON body to a URL."""

    async def __call__(self, url: str, body: bytes, seconds: float, most_bytes: int = MOST_BYTES) -> Reply:
        """Wait so many seconds for data, and twice as many for the whole answer, of `most_bytes` at the most.

        Raises NoReplyError.
        """


def allow_connections(count: int) -> None:
    """Raise the limit of open files to what `count` connections need. Raises InputError where the system refuses."""
    needed = 2 * count + 256  # an abort goes out on a connection beside the one that it is about
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise InputError(
                f"{count} requests in flight need {needed} open files, {hard} are allowed; lower servers.max_in_flight "
                "or raise `ulimit -Hn`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@asynccontextmanager
async def open_post(*, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None) -> AsyncIterator[Post]:
    """A `Post` over kept connections, or over `transport`, on the running loop; the key goes out as a bearer token."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    if transport is not None:
        async with httpx.AsyncClient(transport=transport, headers=headers) as client:
            yield _over_httpx(client)
        return
    connections = Connections(headers)
    try:
        yield connections.post
    finally:
        await connections.close()


def _over_httpx(client: httpx.AsyncClient) -> Post:
    async def post(url: str, body: bytes, seconds: float, most_bytes: int = MOST_BYTES) -> Reply:
        until = time.monotonic() + CONNECT_SECONDS + 2.0 * seconds
        timeout = httpx.Timeout(CONNECT_SECONDS, read=seconds)
        try:
            async with client.stream("POST", url, content=body, timeout=timeout) as reply:
                return Reply(reply.status_code, await _bounded(reply.aiter_bytes(), most_bytes, until))
        except httpx.ReadTimeout as error:
            raise NoReplyError(f"no answer within {seconds:.0f} s", late=True) from error
        except (httpx.HTTPError, OSError) as error:
            raise NoReplyError(f"{type(error).__name__} {one_line(error)}", late=False) from error

    return post


async def _bounded(parts: AsyncIterator[bytes], most_bytes: int, until: float) -> bytes:
    """The whole of a body; one that never ends would fill the memory, or trickle for days."""
    found, size = list[bytes](), 0
    async for part in parts:
        size += len(part)
        if size > most_bytes:
            raise NoReplyError(f"the answer has more than {most_bytes:,} bytes; it was not read to its end", late=False)
        if time.monotonic() > until:
            raise NoReplyError("the answer trickled in and had no end in time", late=True)
        found.append(part)
    return found[0] if len(found) == 1 else b"".join(found)
