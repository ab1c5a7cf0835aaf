"""How likely a finished sequence is to a server: what scores are, and how each engine is asked for them.

This module sends nothing, and does not know which sequences are worth a score.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .answers import Failure, ServerFacts

Logprobs = NDArray[np.float32]


class Scores(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The log-likelihood of each scored id in nats, given all ids before it, and of the likeliest id in its place.

    `echo_differs` are the positions in the sequence at which the server names another id than was sent, `masked` those
    at which it shows the last id of the vocabulary as 0.
    """

    logprobs: Logprobs  # (scored,)
    best: Logprobs  # (scored,), empty where they were not asked for
    echo_differs: list[int]
    masked: list[int]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence to score from `first` on, which is 1 or more: nothing stands before the first id.

    `best` asks for the likeliest ids too. Ids outside 0..vocabulary_size-1, which would kill an SGLang server, and a
    sequence with nothing to score raise InputError.
    """

    ids: Sequence[int]
    first: int
    rid: str
    vocabulary_size: int
    best: bool = True
    served_name: str = ""

    def __post_init__(self) -> None:
        if not self.ids or min(self.ids) < 0 or max(self.ids) >= self.vocabulary_size:
            raise InputError(f"ids to score must lie in 0..{self.vocabulary_size - 1} and not be empty")
        if not 1 <= self.first < len(self.ids):
            raise InputError(
                f"the first id to score is number {self.first} of {len(self.ids)}; expected 1 to {len(self.ids) - 1}"
            )


class Scoring(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's way to score; a sequence of context - `margin` ids or more is refused by the server.

    `parse` takes HTTP status, body, what was asked, and the key to take out of texts.
    """

    route: str
    margin: int
    body: Callable[[Asked], bytes]
    parse: Callable[[int, bytes, Asked, str], Scores | Failure]


def scoring_of(facts: ServerFacts) -> Scoring:
    """How a server with these facts is asked."""
    from . import sglang_scores, vllm_scores  # they take their records from here

    return vllm_scores.SCORING if facts.engine == "vllm" else sglang_scores.SCORING


def checked_scores(
    own: Sequence[float | None],
    best: Sequence[float | None],
    *,
    echo_differs: list[int],
    masked: list[int],
) -> Scores | Failure:
    """Scores, or a failure where one is null or no number."""
    logprobs, likeliest = np.array(own, dtype=np.float32), np.array(best, dtype=np.float32)
    if not (np.isfinite(logprobs).all() and np.isfinite(likeliest).all()):
        return Failure(reason="scores_missing", detail="a score is null or no number", next="reject")
    return Scores(logprobs=logprobs, best=likeliest, echo_differs=echo_differs, masked=masked)
