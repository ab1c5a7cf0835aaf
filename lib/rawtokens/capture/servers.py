"""The servers of a run: which is asked next, how many requests each takes, and for how long one may be silent.

This module does not know what a run is, what a server tells of itself (`server_facts`), nor how it is asked
(`transport`).
"""

import random
import time
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from ..engines.answers import Failure, ServerFacts
from ..errors import RunStopped
from ..records import Rejection
from .connections import CONNECT_SECONDS

DEFAULT_WINDOW = 64
LONGEST_REST = 15.0
_FULL = ("http_429", "http_503")  # it is well, but takes no more
_SILENT_SECONDS = 300.0
_LONGEST_WAIT = 24 * 3600.0
_SLOWEST_IDS_A_SECOND = 1.0  # of one request; what is slower is waited for once it has been seen
_SLOWEST_SERVER = 100.0  # ids/s of a whole server: the demo's makes 200 on two CPU cores
_RATED_IDS = 64  # an answer of fewer ids tells of the queue, not of the rate


class Asked(NamedTuple):
    """A request that is out: the key of its generation, and when it was sent on the monotonic clock."""

    key: str
    at: float


def broke_down(failure: Failure) -> bool:
    """Whether it tells of a server, or of the backend of a proxy, that broke down with the request in flight."""
    return failure.next == "wait" and failure.reason not in _FULL


class Server:
    """What a run knows of one server; all times are seconds on the monotonic clock."""

    def __init__(self, url: str, window: int) -> None:
        self.url, self.window = url, window
        self.asked: dict[str, Asked] = {}  # by request id
        self.answered_at = self.failed_at = self.resting_until = time.monotonic()
        self.failures = 0  # in a row, a burst of them counted once
        self.failure: Failure | None = None  # the last one
        self.proven = False  # whether it gave a good answer in this run
        self.given_up: list[Rejection] = []  # rows without a good answer of any row since
        self.room = window  # at the most; less after it said that its queue is full, or broke down again and again
        self.alone = False  # whether no other request was out when it broke down the last time
        self.away = False  # whether it broke down and has answered nothing since: it may come back as another one
        self._finished = 0  # good answers since it broke down
        self._slowest = min(_SLOWEST_IDS_A_SECOND, _SLOWEST_SERVER / window)
        self._rated = False  # whether an answer has told of its rate
        self._longest = self._waited = 0.0

    def answered(self) -> None:
        """It answers: it rests no longer."""
        self.answered_at = self.resting_until = time.monotonic()
        self.failures, self.away = 0, False
        self.room = min(self.window, self.room + 1)

    def finished(self, ids: int, seconds: float) -> None:
        """It gave a good answer of so many ids."""
        self.proven = True
        self._finished += 1
        self._longest = max(self._longest, seconds)
        if ids >= _RATED_IDS:
            self._rated = True
            self._slowest = min(self._slowest, 0.25 * ids / max(seconds, 1e-3))

    def kept_waiting(self, seconds: float) -> None:
        """It is well, but a request got no answer in so many seconds: while no rate is known it may just be slow."""
        if not self._rated:
            self._waited = max(self._waited, seconds)

    def failed(self, failure: Failure) -> None:
        """Let it rest, longer with each failure in a row."""
        self.failed_at = time.monotonic()
        self.failure = failure
        self.away = self.away or broke_down(failure)
        if failure.reason in _FULL:
            self.room = max(1, len(self.asked))
        if self.resting_until <= self.failed_at:
            if not self.failures and broke_down(failure):
                self._broke_down()
            self.failures += 1
            self.resting_until = self.failed_at + min(LONGEST_REST, 0.5 * 2**self.failures)

    def _broke_down(self) -> None:
        """With few good answers between, a row may be what breaks it: of fewer at once, fewer go down with that one."""
        self.alone = not self.asked
        if self._finished < self.window:
            self.room = max(1, self.room // 4)
        self._finished = 0

    def patience(self, max_new_tokens: int) -> float:
        """For how many seconds a request may be silent: a long generation says nothing until it ends.

        At 1 id/s, or its share of a server of 100 ids/s, or a quarter of the slowest rate seen, but four times what
        any answer took and twice what was waited in vain, whatever is longest: a request that is given up while it
        decodes is asked again from its start. The last two end at a day, for a request may hang.
        """
        seen = min(max(4.0 * self._longest, 2.0 * self._waited), _LONGEST_WAIT)
        return max(60.0 + max_new_tokens / self._slowest, seen)

    def silent_seconds(self) -> float:
        """For how long it has answered nothing although it is away or requests are out, where that is too long."""
        if not self.asked and not self.away:
            return 0.0
        now = time.monotonic()
        silent = now - max(self.answered_at, min((asked.at for asked in self.asked.values()), default=0.0))
        return silent if silent > max(_SILENT_SECONDS, 2.0 * self._longest) else 0.0


class ServerPool:
    """Which of several servers is asked next: the least loaded of those with room that don't rest after a failure."""

    def __init__(self, windows: Mapping[str, int], *, away: Container[str] = ()) -> None:
        """`away` are URLs at which nothing answers yet: each is probed before it is used."""
        self.servers = [Server(url, window) for url, window in windows.items()]
        for server in self.servers:
            server.away = server.url in away
            server.failures = int(server.away)

    def choose(self) -> Server | None:
        """The server with the smallest share of its window in use; None where none has room.

        One that failed (`failures` is above 0) is offered again after its rest, to be probed.
        """
        now = time.monotonic()
        found, least = None, 1.0
        for server in self.servers:
            share = len(server.asked) / server.room
            if share < least and server.resting_until <= now:
                found, least = server, share
        return found

    def pause(self) -> float:
        """For how many seconds to wait where none can be chosen; jitter spreads out those that wait."""
        now = time.monotonic()
        rests = [server.resting_until - now for server in self.servers if server.resting_until > now]
        return min([1.0, *rests]) * random.uniform(0.5, 1.5) if rests else random.uniform(0.05, 0.15)

    def lost_seconds(self) -> float:
        """For how long no server has answered anything; 0 while one is well or works on a request.

        A full queue is no silence while a request is being worked on: a long one takes longer than any patience.
        """
        now = time.monotonic()
        line = now - CONNECT_SECONDS - 5.0  # what is out for longer than a connection takes is being computed
        if not all(server.failures for server in self.servers) or any(
            asked.at < line for server in self.servers for asked in server.asked.values()
        ):
            return 0.0
        return now - max(server.answered_at for server in self.servers)

    def check_patience(self, seconds: float) -> None:
        """Raise RunStopped where no server has answered anything for longer."""
        lost = self.lost_seconds()
        if lost > seconds:
            told = "; ".join(
                f"{server.url} ({server.failure.reason}: {server.failure.detail})"
                for server in self.servers
                if server.failure
            )
            raise RunStopped(
                f"{told} gave no answer for {lost:.0f} s; start it, then run the same command: it goes on "
                "where it stopped"
            )


def windows(facts: Mapping[str, ServerFacts], max_new_tokens: int) -> dict[str, int]:
    """How many requests each server (by URL) is given at once.

    As many as it runs at once, but no more than its cache holds at a quarter of `max_new_tokens` each: what is sent
    beyond that waits in its queue, or is thrown out and computed again. 64 where it does not tell (a router).
    """
    shares = max(1, max_new_tokens // 4)
    return {
        url: max(1, min(known.running_limit or DEFAULT_WINDOW, (known.token_limit or 2**40) // shares))
        for url, known in facts.items()
    }


def spread(urls: Sequence[str], window: int | Mapping[str, int]) -> dict[str, int]:
    """Requests in flight by URL, 64 where `window` has none; a total is shared out evenly, one each at the least."""
    if not isinstance(window, int):
        return {url: window.get(url, DEFAULT_WINDOW) for url in urls}
    share, rest = divmod(window, len(urls))
    return {url: max(1, share + (place < rest)) for place, url in enumerate(urls)}
