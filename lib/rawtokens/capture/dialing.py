"""From a host's name to an open connection, for a thousand that are opened at once.

All share one look-up, and of several addresses the first that answers is taken. This module does not know what is
spoken on a connection, nor how long one may wait for it.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from aiohappyeyeballs import AddrInfoType, start_connection

_LOOKUP_SECONDS = 10.0
_NEXT_ADDRESS_SECONDS = 0.25  # RFC 8305's
_PROBES = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)


class _Lookup(NamedTuple):
    task: asyncio.Task[Sequence[AddrInfoType]]
    until: float


class Dialer:
    """Opens connections, for one event loop."""

    def __init__(self) -> None:
        self._lookups = dict[tuple[str, int], _Lookup]()
        self._encryption: ssl.SSLContext | None = None

    async def connect(self, protocol: Callable[[], _Protocol], host: str, port: int, encrypted: bool) -> _Protocol:
        """Open a connection for a new protocol; an encrypted one is held to what the system trusts. Raises OSError."""
        if encrypted and self._encryption is None:
            self._encryption = ssl.create_default_context()
        opened = await start_connection(await self._addresses(host, port), happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)
        _probe_while_idle(opened)
        context, name = (self._encryption, host) if encrypted else (None, None)
        _, made = await asyncio.get_running_loop().create_connection(
            protocol, sock=opened, ssl=context, server_hostname=name
        )
        return made

    async def _addresses(self, host: str, port: int) -> Sequence[AddrInfoType]:
        """Where a host is, by a look-up that all share who ask within some seconds: uvloop has two at a time."""
        loop = asyncio.get_running_loop()
        lookup = self._lookups.get((host, port))
        if lookup is None or (lookup.task.done() and loop.time() > lookup.until):
            lookup = _Lookup(loop.create_task(_looked_up(host, port)), loop.time() + _LOOKUP_SECONDS)
            lookup.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # who asked may be gone
            self._lookups[host, port] = lookup
        return await asyncio.shield(lookup.task)


async def _looked_up(host: str, port: int) -> Sequence[AddrInfoType]:
    try:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no name of a host") from error


def _probe_while_idle(opened: socket.socket) -> None:
    """A machine that vanished shows within minutes, not hours."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES:
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
