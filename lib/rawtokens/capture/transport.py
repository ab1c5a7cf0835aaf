"""One POST over the wire, for /generate with hundreds in flight.

aiohttp carries a run: under uvloop it answers 10,000 requests/s at 256 in flight where httpx's own transport collapses
to 15. Any httpx transport can stand in its place. This module does not know what is asked, nor what an answer means.

pyreqwest 0.15.1 (Rust's reqwest) needs 0.23 to 0.32 of aiohttp 3.14's processor time a request at 1,024 in flight, 0.29
to 0.38 at 256 (outputs of 512 and 4,096 ids, slices of both in turn in one process on one of two busy cores, Python
3.11), and can't carry a run: a cancelled request's connection stays open, even when the client is closed, so that vLLM
would decode on; of 4,000 requests cancelled while answers came 262 went on unheeding; and an answer that is late raises
ConnectTimeoutError. pyqwest 0.12 cancels as it should and needs 0.8 to 1.7 of aiohttp's time.
"""

import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

import aiohttp
import httpx

from ..errors import InputError, one_line

CONNECT_SECONDS = 30.0
_IDLE_SECONDS = 3.0  # SGLang closes a connection that was idle for 5 s, sometimes just as it is used again
MOST_BYTES = 2**30
_READ_BYTES = 2**20  # an answer of 16,384 ids in one go


class Reply(NamedTuple):
    """An HTTP answer: its status and its whole body."""

    status: int
    body: bytes


class NoReplyError(Exception):
    """No usable answer came. `late` where the read timeout passed, else the connection failed or broke."""

    def __init__(self, detail: str, *, late: bool) -> None:
        super().__init__(detail)
        self.late = late


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
    """A `Post` over aiohttp, or over `transport`, on the running loop; the key goes out as a bearer token."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    if transport is not None:
        async with httpx.AsyncClient(transport=transport, headers=headers) as client:
            yield _over_httpx(client)
        return
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS, socket_factory=_kept_alive)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=_READ_BYTES
    ) as session:
        yield _over_aiohttp(session)


def _over_aiohttp(session: aiohttp.ClientSession) -> Post:
    async def post(url: str, body: bytes, seconds: float, most_bytes: int = MOST_BYTES) -> Reply:
        until = time.monotonic() + CONNECT_SECONDS + 2.0 * seconds  # aiohttp's own total costs 5 % of a request
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=seconds)
        try:
            async with session.post(url, data=body, timeout=timeout, allow_redirects=False) as reply:
                content = reply.content
                if content.is_eof() and content.total_bytes <= most_bytes:  # it came with its head, as most do
                    return Reply(reply.status, content.read_nowait())
                return Reply(reply.status, await _bounded(content.iter_any(), most_bytes, until))
        except aiohttp.SocketTimeoutError as error:
            raise NoReplyError(f"no answer within {seconds:.0f} s", late=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoReplyError(_told(error), late=False) from error

    return post


def _over_httpx(client: httpx.AsyncClient) -> Post:
    async def post(url: str, body: bytes, seconds: float, most_bytes: int = MOST_BYTES) -> Reply:
        until = time.monotonic() + CONNECT_SECONDS + 2.0 * seconds
        timeout = httpx.Timeout(CONNECT_SECONDS, read=seconds)
        try:
            async with client.stream("POST", url, content=body, timeout=timeout) as reply:
                return Reply(reply.status_code, await _bounded(reply.aiter_bytes(), most_bytes, until))
        except httpx.ReadTimeout as error:
            raise NoReplyError(f"no answer within {seconds:.0f} s", late=True) from error
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise NoReplyError(_told(error), late=False) from error

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


def _told(error: Exception) -> str:
    reason = one_line(error).replace(" ssl:default", "")  # aiohttp names its TLS settings, used or not
    return f"{type(error).__name__} {reason}"


def _kept_alive(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket whose idle connection is probed: a machine that vanished is noticed within minutes, not hours."""
    family, kind, protocol, _, _ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened
