"""Kept connections against real sockets: what a server may send, and what becomes of the connection then."""

import asyncio
import gc
import itertools
import ssl
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trustme
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from rawtokens.capture import connections
from rawtokens.capture.connections import Connections, NoReplyError, Reply

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: t\r\n\r\n"
HELLO = Reply(200, b"hello")


async def served(
    answers: Sequence[bytes | list[bytes]],
    ask: Callable[[Connections, str], Awaitable[object]],
    *,
    hang_up: bool = False,
    encryption: ssl.SSLContext | None = None,
) -> list[int]:
    """Give `answers` in turn, in the pieces given; returns how many requests each connection brought."""
    rest, found = list(answers), list[int]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(found)
        found.append(0)
        try:
            while rest:
                await reader.readuntil(b"\r\n\r\n{}")
                found[place] += 1
                answer = rest.pop(0)
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    writer.write(piece)
                    await asyncio.sleep(0)
                if hang_up:
                    break
            else:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    connected = Connections({"X-Test": "1"})
    async with await asyncio.start_server(handle, "127.0.0.1", 0, ssl=encryption) as server:
        scheme = "https" if encryption else "http"
        try:
            await ask(connected, f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}/generate")
        finally:
            await connected.close()
    return found


async def twice(connected: Connections, url: str) -> None:
    for _ in range(2):
        assert await connected.post(url, b"{}", 5.0) == HELLO


def failing(match: str) -> Callable[[Connections, str], Awaitable[None]]:
    async def ask(connected: Connections, url: str) -> None:
        with pytest.raises(NoReplyError, match=match) as caught:
            await connected.post(url, b"{}", 5.0)
        assert not caught.value.late

    return ask


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize(
    "answer",
    [OK, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + OK, OK.replace(b"OK\r\n", b"OK\r\nContent-Encoding: \r\n")],
)
def test_a_connection_is_used_again_once_its_answer_is_whole(run: Callable[..., list[int]], answer: bytes) -> None:
    assert run(served([answer, answer], twice)) == [2]


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        OK.replace(b"1.1", b"1.0"),
        OK + b"more than was promised",
        OK + OK,
    ],
)
def test_a_connection_that_ends_or_says_too_much_is_not_used_again(answer: bytes) -> None:
    assert asyncio.run(served([answer, answer], twice)) == [1, 1]


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"
    assert asyncio.run(served([answer, answer], twice, hang_up=True)) == [1, 1]


def test_data_that_comes_while_nothing_is_asked_costs_the_connection_alone() -> None:
    async def ask(connected: Connections, url: str) -> None:
        assert await connected.post(url, b"{}", 5.0) == HELLO
        await asyncio.sleep(0.1)
        assert await connected.post(url, b"{}", 5.0) == HELLO

    late = [OK, *[b""] * 20, b"HTTP/1.1 408 Request Timeout\r\n\r\n"]
    assert asyncio.run(served([late, OK], ask)) == [1, 1]


def test_a_connection_that_was_idle_too_long_is_not_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(connected: Connections, url: str) -> None:
        await twice(connected, url)
        monkeypatch.setattr(connections, "_IDLE_SECONDS", -1.0)
        await connected.post(url, b"{}", 5.0)

    assert asyncio.run(served([OK, OK, OK], ask)) == [2, 1]


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "more than 65,536 bytes beside its body"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, "more than 65,536 bytes beside its body"),
        (CHUNKED[:-2] + b"X: " + b"y" * 500_000, "more than 65,536 bytes beside its body"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", r"compressed \(gzip\)"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "not HTTP/1.1"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP/1.1"),
    ],
)
def test_what_is_no_answer_is_told_in_words(answer: bytes, match: str) -> None:
    assert asyncio.run(served([answer], failing(match))) == [1]


@pytest.mark.parametrize("torn", [b"", OK[:10], OK[:-2], CHUNKED[:-2], CHUNKED[:60]])
def test_an_answer_that_breaks_off_is_no_answer(torn: bytes) -> None:
    asyncio.run(served([torn], failing("closed the connection before the answer was whole"), hang_up=True))


@settings(max_examples=60, deadline=None)
@given(
    answer=st.sampled_from([OK, CHUNKED, b"HTTP/1.1 102 Processing\r\n\r\n" + CHUNKED]),
    cuts=st.lists(st.integers(0, 120), max_size=12),
)
def test_an_answer_may_come_in_any_pieces(answer: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(answer), *[cut for cut in cuts if cut < len(answer)]})
    pieces = [answer[start:end] for start, end in itertools.pairwise(places)]
    assert asyncio.run(served([pieces, pieces], twice)) == [2]


def test_a_refusal_that_comes_before_the_request_is_out_costs_the_connection() -> None:
    opened: list[asyncio.StreamWriter] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")

    async def ask() -> None:
        connected = Connections({})
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate"
            for _ in range(2):
                assert await connected.post(url, b"x" * 30_000_000, 5.0) == Reply(413, b"big")
            await connected.close()
            for writer in opened:
                writer.close()

    asyncio.run(ask())
    assert len(opened) == 2


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_server_that_says_its_end_while_it_reads_nothing_is_not_waited_for(run: Callable[..., None]) -> None:
    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write_eof()
        await asyncio.sleep(5.0)
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(end, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate"
            with pytest.raises(NoReplyError, match="closed the connection") as caught:
                await asyncio.wait_for(Connections({}).post(url, b"x" * 30_000_000, 3600.0), 4.0)
            assert not caught.value.late

    run(ask())


@pytest.mark.parametrize("ends", [b"", b"Connection: close\r\n"])
def test_no_connection_keeps_a_body_that_was_given_away(ends: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\n" + ends + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1_000_000
    kept: list[int] = []

    async def ask(connected: Connections, url: str) -> None:
        async def work() -> None:
            assert len((await connected.post(url, b"{}", 5.0)).body) == 1_000_000

        for _ in range(2):
            await asyncio.gather(*(work() for _ in range(10)))
        kept.append(tracemalloc.get_traced_memory()[0])

    gc.disable()  # a run looks for cycles seldom
    tracemalloc.start()
    try:
        asyncio.run(served([answer] * 20, ask))
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept[0] < 4_000_000


def test_nothing_is_asked_any_more_once_all_is_closed() -> None:
    async def ask(connected: Connections, url: str) -> None:
        request = asyncio.create_task(connected.post(url, b"{}", 5.0))
        await asyncio.sleep(0)
        await connected.close()
        with pytest.raises(NoReplyError, match="the client hung up"):
            await request

    assert asyncio.run(served([OK], ask)) in ([], [0])


def test_the_close_of_all_hangs_up_on_what_is_still_asked() -> None:
    async def ask(connected: Connections, url: str) -> None:
        request = asyncio.create_task(connected.post(url, b"{}", 60.0))
        await asyncio.sleep(0.1)
        await connected.close()
        with pytest.raises(NoReplyError, match="the client hung up"):
            await request

    asyncio.run(served([[]], ask))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_encrypted_server_is_held_to_its_certificate(
    run: Callable[..., list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    encryption = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(encryption)
    run(served([OK], failing("no connection to localhost:.*certificate"), encryption=encryption))
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    assert run(served([OK, OK], twice, encryption=encryption)) == [2]


def test_what_is_no_name_of_a_host_is_no_connection() -> None:
    async def ask() -> None:
        host = "x" * 64 + ".invalid"  # a label has 63 characters at the most: nobody is asked for its address
        with pytest.raises(NoReplyError, match=f"no connection to {host}:80: "):
            await Connections({}).post(f"http://{host}/generate", b"{}", 5.0)

    asyncio.run(ask())
