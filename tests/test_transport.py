"""The wire of a run, against real sockets: a server that sends given bytes and closes or keeps the connection."""

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable
from errno import ECONNREFUSED

import httpx
import pytest

from rawtokens.capture.connections import NoReplyError, Reply
from rawtokens.capture.transport import Post, allow_connections, open_post
from rawtokens.errors import InputError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


async def served(
    answers: list[bytes], ask: Callable[[Post, str], Awaitable[object]], *, api_key: str = "", close: bool = False
) -> list[bytes]:
    """Give `answers` in turn, one a request, and return the requests; a last answer of b"" is never given."""
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(requests) < len(answers):
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            requests.append(head + await reader.readexactly(size))
            answer = answers[len(requests) - 1]
            if not answer:
                await asyncio.sleep(5.0)
            writer.write(answer)
            await writer.drain()
            if close:
                break
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server, open_post(api_key=api_key) as post:
        await ask(post, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate")
    return requests


def test_a_body_goes_out_and_the_whole_answer_comes_back() -> None:
    big = b"x" * 500_000

    async def ask(post: Post, url: str) -> None:
        assert await post(url, b'{"input_ids":[1]}', 5.0) == Reply(200, b"hello")
        assert await post(url, b"{}", 5.0) == Reply(200, big)

    answers = [OK, b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n" + big]
    requests = asyncio.run(served(answers, ask))
    assert requests[0].startswith(b"POST /generate HTTP/1.1\r\n")
    assert requests[0].endswith(b'\r\n\r\n{"input_ids":[1]}')
    assert b"authorization" not in requests[0].lower()


def test_the_key_goes_out_as_a_bearer_token() -> None:
    requests = asyncio.run(served([OK], lambda post, url: post(url, b"{}", 5.0), api_key="k-1"))
    assert b"Authorization: Bearer k-1\r\n" in requests[0]


def test_an_error_and_a_redirection_are_answers() -> None:
    moved = b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
    failed = b"HTTP/1.1 503 Unavailable\r\nContent-Length: 4\r\n\r\nfull"

    async def ask(post: Post, url: str) -> None:
        assert await post(url, b"{}", 5.0) == Reply(307, b"")
        assert await post(url, b"{}", 5.0) == Reply(503, b"full")

    assert len(asyncio.run(served([moved, failed], ask))) == 2


def test_silence_is_late_and_a_broken_connection_is_not() -> None:
    async def late(post: Post, url: str) -> None:
        with pytest.raises(NoReplyError, match="no answer within 0 s") as caught:
            await post(url, b"{}", 0.1)
        assert caught.value.late

    async def broken(post: Post, url: str) -> None:
        with pytest.raises(NoReplyError) as caught:
            await post(url, b"{}", 5.0)
        assert not caught.value.late

    asyncio.run(served([b""], late))
    for torn in (
        OK[:-2],
        OK[:10],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"no HTTP at all\r\n\r\n",
    ):
        asyncio.run(served([torn], broken, close=True))


@pytest.mark.parametrize("seam", ["own", "httpx"])
def test_an_answer_without_end_is_read_no_further_than_its_bound(seam: str) -> None:
    """Real bytes: chunk after chunk until the client hangs up."""
    sent, hung_up = [0], asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"1," * 2**15 + b"\r\n")
                sent[0] += 2**16
                await writer.drain()
        except ConnectionError:
            hung_up.set()
            writer.close()

    async def ask() -> None:
        transport = httpx.AsyncHTTPTransport() if seam == "httpx" else None
        async with await asyncio.start_server(flood, "127.0.0.1", 0) as server, open_post(transport=transport) as post:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate"
            with pytest.raises(NoReplyError, match="more than 1,000,000 bytes") as caught:
                await post(url, b"{}", 5.0, 10**6)
            assert not caught.value.late
            await asyncio.wait_for(hung_up.wait(), 5.0)

    asyncio.run(ask())
    assert 10**6 < sent[0] < 30 * 10**6  # what the sockets between hold is beyond the client's say


def test_an_answer_in_one_piece_is_held_to_its_bound_too() -> None:
    async def ask(post: Post, url: str) -> None:
        assert await post(url, b"{}", 5.0, 5) == Reply(200, b"hello")
        with pytest.raises(NoReplyError, match="more than 4 bytes") as caught:
            await post(url, b"{}", 5.0, 4)
        assert not caught.value.late

    asyncio.run(served([OK, OK], ask))


def test_a_cancelled_request_hangs_up() -> None:
    """vLLM knows no other abort: it decodes on to the end for a connection that stays open."""
    asked, hung_up = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        asked.set()
        assert await reader.read() == b""
        hung_up.set()
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server, open_post() as post:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate"
            request = asyncio.create_task(post(url, b"{}", 60.0))
            await asyncio.wait_for(asked.wait(), 5.0)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            await asyncio.wait_for(hung_up.wait(), 5.0)

    asyncio.run(ask())


def test_a_cancellation_is_heard_also_as_the_answer_comes() -> None:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n{}")
                writer.write(OK)
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(answered, "127.0.0.1", 0) as server, open_post() as post:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate"

            async def work() -> None:
                while True:
                    await post(url, b"{}", 60.0)

            for milliseconds in range(100, 105):
                workers = [asyncio.create_task(work()) for _ in range(100)]
                await asyncio.sleep(milliseconds / 1e3)
                for worker in workers:
                    worker.cancel()
                _, deaf = await asyncio.wait(workers, timeout=5.0)
                assert not deaf
                assert all(worker.cancelled() for worker in workers)

    asyncio.run(ask())


def test_an_answer_that_trickles_without_end_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.capture.connections.CONNECT_SECONDS", 0.3)

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.02)

    async def ask() -> None:
        async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server, open_post() as post:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate"
            with pytest.raises(NoReplyError, match="had no end in time") as caught:
                await post(url, b"{}", 0.2)
            assert caught.value.late

    asyncio.run(ask())


def test_nobody_there_is_no_connection() -> None:
    async def ask() -> None:
        async with open_post() as post:
            with pytest.raises(NoReplyError, match=rf"^no connection to 127\.0\.0\.1:9: .*{ECONNREFUSED}") as caught:
                await post("http://127.0.0.1:9/generate", b"{}", 5.0)
            assert not caught.value.late

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("error", "late"),
    [(httpx.ReadTimeout("slow"), True), (httpx.ConnectTimeout("slow"), False), (ConnectionResetError("gone"), False)],
)
def test_any_httpx_transport_can_stand_in(error: Exception, late: bool) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/fails":
            raise error
        return httpx.Response(201, content=request.content[::-1])

    async def ask() -> None:
        async with open_post(transport=httpx.MockTransport(handle)) as post:
            assert await post("http://one/ok", b"abc", 5.0) == Reply(201, b"cba")
            with pytest.raises(NoReplyError) as caught:
                await post("http://one/fails", b"", 5.0)
            assert caught.value.late == late

    asyncio.run(ask())


def test_more_connections_than_the_system_allows_are_refused_in_words() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_connections(64)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(before[0], 384)
    with pytest.raises(InputError, match=r"requests in flight need 2\d+ open files, \d+ are allowed; lower servers"):
        allow_connections(10**9)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == before[1]
