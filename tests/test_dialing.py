"""Opening connections to names: many at once, several addresses, none."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from rawtokens.capture.dialing import Dialer

Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int]]


def at(port: int) -> Address:
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], list[str]]:
    """Lets every name stand for ports of this machine; gives the names that are looked up."""

    def name(ports: list[int]) -> list[str]:
        looked_up: list[str] = []

        async def lookup(loop: object, host: str, port: int, **_: object) -> list[Address]:
            looked_up.append(host)
            await asyncio.sleep(0.05)
            if not ports:
                raise socket.gaierror(-2, "Name or service not known")
            return [at(port) for port in ports]

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", lookup)
        return looked_up

    return name


async def opened(count: int) -> list[int]:
    """The ports that `count` connections, opened at once, lead to."""
    dialer = Dialer()
    made = await asyncio.gather(*(dialer.connect(Kept, "somewhere", 80, False) for _ in range(count)))
    found = [one.transport.get_extra_info("peername")[1] for one in made]
    for one in made:
        one.transport.abort()
    return found


class Kept(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport


def test_connections_that_are_opened_at_once_share_one_look_up(named: Callable[[list[int]], list[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        port = server.getsockname()[1]
        looked_up = named([port])
        assert asyncio.run(opened(50)) == [port] * 50
    assert looked_up == ["somewhere"]


def test_an_address_at_which_nothing_answers_hides_no_other(named: Callable[[list[int]], list[str]]) -> None:
    """A listener whose queue is full answers nobody; one that was closed refuses."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as silent,
        socket.create_server(("127.0.0.1", 0)) as refusing,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        crowd = [socket.socket() for _ in range(4)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        ports = [one.getsockname()[1] for one in (silent, refusing, server)]
        refusing.close()
        named(ports)
        assert asyncio.run(asyncio.wait_for(opened(1), 5.0)) == [ports[2]]
        for one in crowd:
            one.close()


def test_a_name_without_an_address_is_an_error_to_each_that_asks(named: Callable[[list[int]], list[str]]) -> None:
    async def ask() -> list[object]:
        dialer = Dialer()
        asked = [asyncio.create_task(dialer.connect(Kept, "nowhere", 80, False)) for _ in range(5)]
        await asyncio.sleep(0.01)
        asked[0].cancel()
        return [type(one) for one in await asyncio.gather(*asked, return_exceptions=True)]

    looked_up = named([])
    assert asyncio.run(ask()) == [asyncio.CancelledError] + [socket.gaierror] * 4
    assert looked_up == ["nowhere"]


def test_an_open_connection_is_probed_while_it_is_idle() -> None:
    async def ask() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            made = await Dialer().connect(Kept, "127.0.0.1", server.getsockname()[1], False)
            opened = made.transport.get_extra_info("socket")
            assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_KEEPIDLE"):
                assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
            made.transport.abort()

    asyncio.run(ask())
