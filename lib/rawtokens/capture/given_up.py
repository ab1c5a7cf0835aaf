"""Rows that are given up, and whether that is the row's fault or the server's.

A server that refuses or breaks everything (another API behind the address, a proxy that fails, settings that fit no
prompt) must not turn a whole data set into rejections. So a rejection is held until its server gives a good answer to
another row; until then it is one's word against the other's. This module does not know how often a row was tried.
"""

from collections.abc import Callable, Sequence

from ..engines.answers import Failure, Ids
from ..errors import RunStopped
from ..records import Rejection
from .asking import Asker
from .planned import Request
from .rejections import RejectedRows
from .servers import Server

ROWS_IN_A_ROW = 20  # given up by one server without a good answer between


class GivenUp:
    """Holds rejections by server (`Server.given_up`) and moves them into `rejected` once they are the rows' fault."""

    def __init__(self, asker: Asker, rejected: RejectedRows) -> None:
        self._asker, self._rejected = asker, rejected

    def release(self, server: Server) -> None:
        """The server gave a good answer: what it gave up before was the rows' fault."""
        if server.given_up:
            self._rejected.add(server.given_up)
            server.given_up.clear()

    async def add(self, server: Server, request: Request, failure: Failure) -> None:
        """Hold a row's rejection. Raises RunStopped at ROWS_IN_A_ROW of them, where the fault is the server's.

        Rows that are refused come back at once while good answers take their time, so there the server is asked
        whether it takes the shortest of prompts at the same sampling; rows that used up their tries need no question.
        """
        found = Rejection(stage="generate", key=request.key, line=None, reason=failure.reason, detail=failure.detail)
        server.given_up.append(found)
        if len(server.given_up) < ROWS_IN_A_ROW:
            return
        held, server.given_up = server.given_up, []
        if failure.next == "reject":
            refusal = await self._asker.refusal(server, request.prompt_ids[:1])
            if refusal is None:
                self._rejected.add(held)
                return
            failure = refusal
        raise RunStopped(
            f"{server.url} gave {len(held)} rows in a row no good answer ({failure.reason}: {failure.detail}); none of "
            "them is rejected: see that it is the engine's own address and that max_new_tokens fits its context "
            "(notebook 00 checks a server), then run the same command"
        )

    async def settle(self, servers: Sequence[Server], shortest: Callable[[], Ids]) -> None:
        """At the end: release what is held; a server that gave no good answer in this run is asked first.

        `shortest` gives the ids of the shortest prompt. Raises RunStopped where a server takes no request at all.
        """
        for server in servers:
            if server.given_up and not server.proven:
                refusal = await self._asker.refusal(server, shortest())
                if refusal is not None:
                    raise stopped_by(server, refusal)
            self.release(server)


def stopped_by(server: Server, failure: Failure) -> RunStopped:
    """The end of a run by what a server said."""
    return RunStopped(f"{server.url}: {failure.reason}: {failure.detail}; mend that, then run the same command")


def breaks_servers(last: Failure, breakdowns: int) -> Failure:
    """Why a row is given up that was in flight at one breakdown after another, while the server was well between."""
    detail = (
        f"in flight when its server broke down, {breakdowns} times, the last time alone: {last.reason}: {last.detail}"
    )
    return Failure(reason="server_died", detail=detail, next="wait")
