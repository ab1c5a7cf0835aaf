"""What SGLang thinks of a finished sequence: teacher forcing through /generate, as pure functions (SGLang 0.5.23).

`max_new_tokens` 0 with `return_logprob` and `logprob_start_len` scores what is sent from that position on. A sequence
must be shorter than the context by CONTEXT_MARGIN ids. The server shows the last id of the vocabulary as 0 in
`input_token_logprobs`, so ids are compared with that exception and never taken from there. This module sends nothing.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..records import Sampling
from .answers import Failure, error_text
from .sglang import sampling_parameters

CONTEXT_MARGIN = 6
"""An input of context - 6 ids or more is refused."""
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


class _Meta(msgspec.Struct, frozen=True):
    input_token_logprobs: list[tuple[float | None, int, str | None]]
    prompt_tokens: int
    input_top_logprobs: list[list[tuple[float | None, int, str | None]] | None] | None = None


class _Body(msgspec.Struct, frozen=True):
    meta_info: _Meta


def score_body(ids: Sequence[int], *, first: int, rid: str, vocabulary_size: int, best: bool = True) -> bytes:
    """The JSON that asks for the scores of `ids[first:]`; `first` is 1 or more, for nothing stands before the first id.

    `best` asks for the likeliest ids too: of 163,840 ids on a CPU that takes three times as long.
    Raises InputError for an id outside 0..vocabulary_size-1, which would kill the server, or nothing to score.
    """
    if not ids or min(ids) < 0 or max(ids) >= vocabulary_size:
        raise InputError(f"ids to score must lie in 0..{vocabulary_size - 1} and not be empty")
    if not 1 <= first < len(ids):
        raise InputError(f"the first id to score is number {first} of {len(ids)}; expected 1 to {len(ids) - 1}")
    parameters = sampling_parameters(Sampling(temperature=1.0, max_new_tokens=0), stop_ids=())
    return msgspec.json.encode(
        {
            "input_ids": ids,
            "sampling_params": parameters,
            "rid": rid,
            "return_logprob": True,
            "logprob_start_len": first - 1,
            "top_logprobs_num": int(best),
        }
    )


def parse_scores(
    status: int,
    body: bytes,
    *,
    ids: Sequence[int],
    first: int,
    vocabulary_size: int,
    best: bool = True,
    secret: str = "",
) -> Scores | Failure:
    """One answer as scores, or why it is none: an error, a cut prompt, a score missing, NaN."""
    if status != 200:
        return Failure(reason=f"http_{status}", detail=error_text(body, secret=secret), next="reject")
    try:
        meta = msgspec.json.decode(body, type=_Body).meta_info
    except msgspec.MsgspecError as error:
        return Failure(reason="malformed_answer", detail=str(error), next="reject")
    scored, likeliest = meta.input_token_logprobs[1:], (meta.input_top_logprobs or [])[1:] if best else []
    if meta.prompt_tokens != len(ids) or len(scored) != len(ids) - first or len(likeliest) != best * len(scored):
        detail = f"{len(ids)} ids sent, {len(ids) - first} to score; {meta.prompt_tokens} counted, {len(scored)} scored"
        return Failure(reason="counts_differ", detail=detail, next="reject")
    own = np.array([entry[0] for entry in scored], dtype=np.float32)
    top = np.array([entries[0][0] if entries else None for entries in likeliest], dtype=np.float32)
    if not (np.isfinite(own).all() and np.isfinite(top).all()):
        return Failure(reason="scores_missing", detail="a score is null or no number", next="reject")
    pairs = enumerate(zip(scored, ids[first:], strict=True), start=first)
    differing = [(place, entry[1], sent) for place, (entry, sent) in pairs if entry[1] != sent]
    masked = [place for place, shown, sent in differing if shown == 0 and sent == vocabulary_size - 1]
    return Scores(
        logprobs=own,
        best=top,
        echo_differs=[place for place, _, _ in differing if place not in masked],
        masked=masked,
    )
