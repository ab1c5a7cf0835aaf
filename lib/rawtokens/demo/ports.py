"""A free port of this machine that two servers starting at once never share.

This module does not know who listens on an occupied port.
"""

import fcntl
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from ..errors import InputError

HOST = "127.0.0.1"


def reserve_port(first: int, *, tries: int) -> tuple[int, IO[bytes]]:
    """A free port, and the lock that keeps it ours until the server listens, which takes it half a minute.

    The server's processes inherit the lock: it is held for as long as one of them lives.
    """
    for port in range(first, min(first + tries, 65536)):
        lock = (Path(tempfile.gettempdir()) / f"rawtokens-{os.getuid()}-port-{port}.lock").open("wb")
        with suppress(OSError), socket.socket() as probe:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port, lock
        lock.close()
    asked = f"port {first} is" if tries == 1 else f"ports {first} to {first + tries - 1} are"
    raise InputError(f"{asked} occupied on {HOST}; stop what listens there or choose another with --port")
