"""POSTs over kept HTTP/1.1 connections, one at a time on each, for little more than what the wire costs.

httptools (Node's llhttp) parses and the event loop carries. A request that is cancelled, late or too large closes its
connection, since vLLM knows no other abort. This module does not know what is asked, nor what an answer means; it
follows no redirection, keeps no cookie, asks for no compression and goes through no proxy.

No library does this at the price: `make bench` shows aiohttp beside it; pyreqwest 0.15.1 (Rust's reqwest), as quick,
leaves a cancelled request's connection open, and of 4,000 requests cancelled while answers came 262 went on unheeding.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple, cast
from urllib.parse import urlsplit
from weakref import WeakSet

import httptools

from ..errors import one_line
from .dialing import Dialer

CONNECT_SECONDS = 30.0
MOST_BYTES = 2**30
_IDLE_SECONDS = 3.0  # SGLang closes a connection that was idle for 5 s, sometimes just as it is used again
_MOST_HEAD_BYTES = 2**16
_MOST_OVERHEAD = 8  # bytes for each of a body: chunks of one byte have six


class Reply(NamedTuple):
    """An HTTP answer: its status and its whole body."""

    status: int
    body: bytes


class NoReplyError(Exception):
    """No usable answer came. `late` where the read timeout passed, else the connection failed or broke."""

    def __init__(self, detail: str, *, late: bool) -> None:
        super().__init__(detail)
        self.late = late


class _Route(NamedTuple):
    """Where a URL's requests go, host, port and whether encrypted; their head up to the length of the body."""

    place: tuple[str, int, bool]
    head: bytes


class _Connection(asyncio.Protocol):
    """One connection; `usable` for another request once its answer is whole."""

    def __init__(self) -> None:
        self.usable, self.idle_since = False, 0.0
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Reply] | None = None
        self._in_head = True

    def ask(self, request: bytes, seconds: float, most_bytes: int) -> asyncio.Future[Reply]:
        """Send a request; what comes of it is a Reply or a NoReplyError."""
        self._parts, self._size, self._most_bytes = list[bytes](), 0, most_bytes
        self._received, self._in_head, self._has_length = 0, True, False
        self._heard_at, self._seconds = self._loop.time(), seconds
        self._until = self._heard_at + CONNECT_SECONDS + 2.0 * seconds
        self._answer = answer = self._loop.create_future()
        self._timer = self._loop.call_later(seconds, self._look)
        self._transport.write(request)
        return answer

    def close(self) -> None:
        """Hang up now, whatever is still to be sent or read."""
        self._fail("the client hung up", late=False)

    # The event loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if self._answer is None:
            self._fail("data came that nobody had asked for", late=False)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the answer is not HTTP/1.1: {one_line(error)}", late=False)
        self._received += len(data)
        if self._received > _MOST_HEAD_BYTES + (1 + _MOST_OVERHEAD) * self._size:
            self._fail(f"the answer has more than {_MOST_HEAD_BYTES:,} bytes beside its body", late=False)

    def eof_received(self) -> None:
        if not self._in_head and not self._has_length:  # such a body ends with its connection
            self._finish(usable=False)
        self.connection_lost(None)  # the loop would first wait until the request is sent, which nobody may read

    def connection_lost(self, error: Exception | None) -> None:
        told = f": {one_line(error)}" if error else ""
        self._fail(f"the server closed the connection before the answer was whole{told}", late=False)

    # The parser calls these, also for what may follow an answer in the same packet.

    def on_message_begin(self) -> None:
        if self._answer is None:
            self.usable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        elif self._in_head and name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            told = value.decode("ascii", "replace")[:40]
            self._fail(f"the answer is compressed ({told}), which nobody had asked for", late=False)

    def on_headers_complete(self) -> None:
        self._in_head = self._parser.get_status_code() < 200  # "continue": the answer is still to come

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._most_bytes:
            self._fail(f"the answer has more than {self._most_bytes:,} bytes; it was not read to its end", late=False)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if not self._in_head:
            sent = not self._transport.get_write_buffer_size()  # an early refusal leaves half a request in the way
            self._finish(usable=sent and self._parser.should_keep_alive())

    def _look(self) -> None:
        now = self._loop.time()
        left = min(self._heard_at + self._seconds, self._until) - now
        if left > 0.0:
            self._timer = self._loop.call_later(left, self._look)
        elif now < self._until:
            self._fail(f"no answer within {self._seconds:.0f} s", late=True)
        else:
            self._fail("the answer trickled in and had no end in time", late=True)

    def _finish(self, *, usable: bool) -> None:
        if self._answer is None:
            return
        self._timer.cancel()
        self.usable, self.idle_since = usable, self._loop.time()
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if not self._answer.done():  # else its request was cancelled
            self._answer.set_result(Reply(self._parser.get_status_code(), body))
        self._answer, self._parts = None, []

    def _fail(self, detail: str, *, late: bool) -> None:
        self.usable = False
        self._transport.abort()
        if self._answer is None:
            return
        self._timer.cancel()
        if not self._answer.done():
            self._answer.set_exception(NoReplyError(detail, late=late))
        self._answer, self._parts = None, []


class Connections:
    """Connections to any number of servers, opened as they are needed; for one event loop."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._routes = dict[str, _Route]()
        self._idle = defaultdict[tuple[str, int, bool], list[_Connection]](list)
        self._dialer = Dialer()
        self._open = WeakSet[_Connection]()
        self._closed = False

    async def post(self, url: str, body: bytes, seconds: float, most_bytes: int = MOST_BYTES) -> Reply:
        """POST a body; see `transport.Post`. Raises NoReplyError."""
        route = self._routes.get(url) or self._route(url)
        idle = self._idle[route.place]
        connection = _taken(idle) or await self._connected(route)
        try:
            reply = await connection.ask(b"%b%d\r\n\r\n%b" % (route.head, len(body), body), seconds, most_bytes)
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            idle.append(connection)
        else:
            connection.close()
        return reply

    async def close(self) -> None:
        """Hang up on every server, for good."""
        self._closed = True
        for connection in list(self._open):
            connection.close()
        await asyncio.sleep(0)  # the loop closes sockets at its next round

    def _route(self, url: str) -> _Route:
        address = urlsplit(url)
        encrypted = address.scheme == "https"
        place = address.hostname or "", address.port or (443 if encrypted else 80), encrypted
        head = f"POST {address.path or '/'} HTTP/1.1\r\nHost: {address.netloc}\r\n{self._headers}Content-Length: "
        self._routes[url] = found = _Route(place, head.encode("ascii"))
        return found

    async def _connected(self, route: _Route) -> _Connection:
        host, port, _ = route.place
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._dialer.connect(_Connection, *route.place)
        except TimeoutError as error:
            raise NoReplyError(f"no connection to {host}:{port} within {CONNECT_SECONDS:.0f} s", late=False) from error
        except OSError as error:
            raise NoReplyError(f"no connection to {host}:{port}: {one_line(error)}", late=False) from error
        self._open.add(connection)
        if self._closed:
            connection.close()
            raise NoReplyError("the client hung up", late=False)
        return connection


def _taken(idle: list[_Connection]) -> _Connection | None:
    """The connection that was used last, where it can still be relied on; those that can't are closed."""
    oldest = asyncio.get_running_loop().time() - _IDLE_SECONDS
    while idle:
        connection = idle.pop()
        if connection.usable and connection.idle_since >= oldest:
            return connection
        connection.close()
    return None
