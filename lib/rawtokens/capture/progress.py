"""Where a run of stage 02 is: one record that the run makes every few seconds, and the counting behind it.

`Tally` is what the run counts into, `Progress` what it shows; both hold numbers alone, in flat memory whatever the
length of the run. This module does not know how a request is made, how long the rest will take (`time_left`), nor
where a record is shown or kept (`progress_reports`).
"""

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from ..records import Response, ResponseLine

_STEP = 0.05  # of the natural logarithm: latencies are kept to 5 %, so that a day of them takes a few hundred counts


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is. Counts are of generations (prompts times samples) unless said otherwise.

    `present` stood in the journal when the run started, `done` came since; `rejected` are all that stand rejected at
    stage generate. `ids` are output ids since the start, `truncated` the answers that ended at the length limit,
    `failures` counts answers and connections that failed, by reason, also those whose row came at another try.
    `asked` maps the key of each request in flight to the seconds since it was sent; `servers` the URL to its number
    in flight, `silent` the URL of each that should have answered by now to the seconds since it did. `latencies`
    counts finished requests by `latency_bin`; `request_seconds` is the sum of their seconds.
    `seconds` is the time since the start; `max_new_tokens` is 0 where it is not known. `journal_bytes` is the size of
    the journal that holds `present + done` and no more.
    """

    planned: int
    present: int
    done: int
    rejected: int
    in_flight: int
    seconds: float
    ids: int = 0
    truncated: int = 0
    failures: Mapping[str, int] = {}
    servers: Mapping[str, int] = {}
    asked: Mapping[str, float] = {}
    silent: Mapping[str, float] = {}
    latencies: Mapping[int, int] = {}
    request_seconds: float = 0.0
    max_new_tokens: int = 0
    journal_bytes: int = 0

    @property
    def remaining(self) -> int:
        """Generations that are neither there nor rejected, those in flight among them."""
        return max(0, self.planned - self.present - self.done - self.rejected)

    @property
    def ids_per_second(self) -> float:
        """Output ids a second, the mean since this start."""
        return self.ids / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.present + self.done:,} of {self.planned:,} generated, {self.rejected:,} rejected, "
            f"{self.in_flight:,} in flight, {self.ids_per_second:,.0f} ids/s, {self.seconds:,.0f} s"
        )


class Tally:
    """What a run counts: call `answered` for each record that went into the journal, `failed` for each failure."""

    def __init__(self) -> None:
        self.done = self.ids = self.truncated = 0
        self.request_seconds = 0.0
        self.failures: Counter[str] = Counter()
        self.latencies: Counter[int] = Counter()

    def answered(self, response: Response | ResponseLine) -> None:
        """Count one finished generation."""
        self.done += 1
        self.ids += response.completion_tokens
        self.truncated += response.finish_reason == "length"
        self.request_seconds += response.latency_s
        self.latencies[latency_bin(response.latency_s)] += 1

    def failed(self, reason: str) -> None:
        """Count one failure of a request, whether its row is tried again or rejected."""
        self.failures[reason] += 1

    def progress(
        self,
        *,
        planned: int,
        present: int,
        rejected: int,
        asked: Mapping[str, float],
        servers: Mapping[str, int],
        seconds: float,
        max_new_tokens: int,
        journal_bytes: int = 0,
    ) -> Progress:
        """The record of this moment; `asked` maps the key of each request in flight to its seconds so far."""
        return Progress(
            planned=planned,
            present=present,
            done=self.done,
            rejected=rejected,
            in_flight=len(asked),
            seconds=seconds,
            ids=self.ids,
            truncated=self.truncated,
            failures=dict(self.failures),
            servers=servers,
            asked=asked,
            latencies=dict(self.latencies),
            request_seconds=self.request_seconds,
            max_new_tokens=max_new_tokens,
            journal_bytes=journal_bytes,
        )


def latency_bin(seconds: float) -> int:
    """The bin of a latency: equal steps of 5 % from 1 ms on."""
    return max(0, round(math.log(max(seconds, 1e-3) * 1e3) / _STEP))


def bin_seconds(number: int) -> float:
    """The latency in the middle of a bin, in seconds."""
    return math.exp(number * _STEP) / 1e3
