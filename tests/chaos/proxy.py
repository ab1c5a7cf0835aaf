"""A proxy before a real server that spoils a seeded share of the answers of /generate, each in a way of its own.

Which request is spoilt, and how, depends on the seed, the prompt and how often it was asked, not on timing. No prompt
is spoilt more than three times in a row, for a row has five tries; those that `always` names are spoilt every time.
Other routes pass untouched. It runs in a thread. This module does not know who asks.
"""

import asyncio
import json
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self, cast

import aiohttp
from aiohttp import web

from chaos.altered import NAN, STATUSES, UNDER_200, Answer, error_body

MOST_IN_A_ROW = 3
BROKEN = (
    "reset before the server was asked",
    "reset after the server answered",
    "closed without an answer",
    "reset within the body",
    "asked twice, as a router retries",
    "another row's answer",
    "an answer too many on the connection",
    "slow drip",
)
LATE = "later than the client waits"
KINDS = (*BROKEN, *UNDER_200, *(f"HTTP {status}" for status in STATUSES))
_RESET = struct.pack("ii", 1, 0)

Body = tuple[int, bytes]


class FaultProxy:
    """A context manager; `injected` counts what was done, by kind."""

    def __init__(
        self,
        upstream: str,
        *,
        seed: int = 0,
        rate: float = 0.0,
        kinds: Sequence[str] = KINDS,
        always: Mapping[tuple[int, ...], str] | None = None,
        late_seconds: float = 0.0,
    ) -> None:
        self.upstream, self.seed, self.rate, self.kinds = upstream, seed, rate, list(kinds)
        self.always, self.late_seconds = dict(always or {}), late_seconds
        self.injected: Counter[str] = Counter()
        self.url = ""
        self._asked: Counter[tuple[int, ...]] = Counter()
        self._spoilt: Counter[tuple[int, ...]] = Counter()
        self._answers: dict[int, tuple[tuple[int, ...], bytes]] = {}  # the last one by its prompt's length
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        application = web.Application(client_max_size=2**30)
        application.router.add_route("*", "/{route:.*}", self._handle)
        # Without the cancellation a killed client's requests would go on decoding.
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = cast(asyncio.Server, site._server).sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            if request.path != "/generate":
                headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
                url = self.upstream + request.path
                async with self._session.request(request.method, url, data=body, headers=headers) as reply:
                    return web.Response(status=reply.status, body=await reply.read(), content_type="application/json")
            return await self._generate(request, body)
        except (aiohttp.ClientError, OSError):  # the server is gone, or the client is: nobody gets an answer
            _reset(request)
            return web.Response(status=502)

    async def _generate(self, request: web.Request, body: bytes) -> web.StreamResponse:
        prompt_ids = tuple(json.loads(body)["input_ids"])
        kind, chooser = self._chosen(prompt_ids)
        if kind is None:
            status, content = await self._ask(body)
            if status == 200:
                self._answers[len(prompt_ids)] = (prompt_ids, content)
            return _plain(status, content)
        self.injected[kind] += 1
        if kind == "reset before the server was asked":
            _reset(request)
            return web.Response(status=502)
        if kind == "closed without an answer":
            assert request.transport is not None
            request.transport.close()
            return web.Response(status=502)
        if kind.startswith("HTTP "):
            status = int(kind.removeprefix("HTTP "))
            return _plain(status, error_body(status, chooser))
        if kind == "asked twice, as a router retries":
            return _plain(*await self._ask_twice(body))
        if kind == "another row's answer":
            return _plain(200, self._other_answer(prompt_ids))
        status, content = await self._ask(body)
        if status != 200:
            return _plain(status, content)
        return await self._spoil(kind, request, prompt_ids, content)

    async def _spoil(
        self, kind: str, request: web.Request, prompt_ids: tuple[int, ...], content: bytes
    ) -> web.StreamResponse:
        alter = {**UNDER_200, **NAN}.get(kind)
        if alter is not None:
            return _plain(200, alter(cast(Answer, json.loads(content)), prompt_ids))
        if kind == LATE:
            await asyncio.sleep(self.late_seconds)
            return _plain(200, content)
        if kind == "reset after the server answered":
            _reset(request)
            return web.Response(status=502)
        reply = web.StreamResponse(headers={"Content-Length": str(len(content)), "Content-Type": "application/json"})
        await reply.prepare(request)
        if kind == "reset within the body":
            await reply.write(content[: len(content) // 2])
            _reset(request)
            return reply
        if kind == "slow drip":
            step = max(1, len(content) // 20)
            for start in range(0, len(content), step):
                await reply.write(content[start : start + step])
                await asyncio.sleep(0.05)
        else:
            await reply.write(content)
        await reply.write_eof()
        if kind == "an answer too many on the connection":
            await asyncio.sleep(0.05)  # the client has put the connection back by then
            other = self._other_answer(prompt_ids)
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(other)}\r\n\r\n"
            if request.transport is not None:
                request.transport.write(head.encode() + other)
        return reply

    def _chosen(self, prompt_ids: tuple[int, ...]) -> tuple[str | None, random.Random]:
        self._asked[prompt_ids] += 1
        chooser = random.Random(f"{self.seed} {self._asked[prompt_ids]} {prompt_ids}")
        if prompt_ids in self.always:
            return self.always[prompt_ids], chooser
        if self._spoilt[prompt_ids] >= MOST_IN_A_ROW or chooser.random() >= self.rate:
            self._spoilt[prompt_ids] = 0
            return None, chooser
        self._spoilt[prompt_ids] += 1
        kind = chooser.choice(self.kinds)
        if kind in ("another row's answer", "an answer too many on the connection") and not self._answers:
            kind = "closed without an answer"
        return kind, chooser

    def _other_answer(self, prompt_ids: tuple[int, ...]) -> bytes:
        """The answer of another prompt, as long where there is one: then its id alone tells."""
        found, content = self._answers.get(len(prompt_ids), ((), b""))
        if content and found != prompt_ids:
            return content
        return next(content for _, content in self._answers.values())

    async def _ask(self, body: bytes) -> Body:
        async with self._session.post(
            f"{self.upstream}/generate", data=body, headers={"Content-Type": "application/json"}
        ) as reply:
            return reply.status, await reply.read()

    async def _ask_twice(self, body: bytes) -> Body:
        tasks = [asyncio.create_task(self._ask(body)) for _ in range(2)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _plain(status: int, content: bytes) -> web.Response:
    return web.Response(status=status, body=content, content_type="application/json")


def _reset(request: web.Request) -> None:
    """Close the connection with a TCP reset."""
    if request.transport is None:
        return
    opened = request.transport.get_extra_info("socket")
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    request.transport.abort()
