"""What SGLang thinks of a finished sequence: teacher forcing through /generate, as pure functions (SGLang 0.5.23).

`max_new_tokens` 0 with `return_logprob` and `logprob_start_len` scores what is sent from that position on. The server
shows the last id of the vocabulary as 0 in `input_token_logprobs`, so ids are compared with that exception and never
taken from there. This module sends nothing.
"""

import msgspec

from ..records import Sampling
from .answers import Failure, error_text
from .scores import Asked, Scores, Scoring, checked_scores
from .sglang import GENERATE_ROUTE, sampling_parameters


class _Meta(msgspec.Struct, frozen=True):
    input_token_logprobs: list[tuple[float | None, int, str | None]]
    prompt_tokens: int
    input_top_logprobs: list[list[tuple[float | None, int, str | None]] | None] | None = None


class _Body(msgspec.Struct, frozen=True):
    meta_info: _Meta


def score_body(asked: Asked) -> bytes:
    """The JSON of one request. The likeliest of 163,840 ids take three times as long on a CPU as the scores alone."""
    return msgspec.json.encode(
        {
            "input_ids": asked.ids,
            "sampling_params": sampling_parameters(Sampling(temperature=1.0, max_new_tokens=0), stop_ids=()),
            "rid": asked.rid,
            "return_logprob": True,
            "logprob_start_len": asked.first - 1,
            "top_logprobs_num": int(asked.best),
        }
    )


def parse_scores(status: int, body: bytes, asked: Asked, secret: str = "") -> Scores | Failure:
    """One answer as scores, or why it is none: an error, a cut prompt, a score missing, NaN."""
    if status != 200:
        return Failure(reason=f"http_{status}", detail=error_text(body, secret=secret), next="reject")
    try:
        meta = msgspec.json.decode(body, type=_Body).meta_info
    except msgspec.MsgspecError as error:
        return Failure(reason="malformed_answer", detail=str(error), next="reject")
    ids, first = asked.ids, asked.first
    scored, likeliest = meta.input_token_logprobs[1:], (meta.input_top_logprobs or [])[1:] if asked.best else []
    if meta.prompt_tokens != len(ids) or len(scored) != len(ids) - first or len(likeliest) != asked.best * len(scored):
        detail = f"{len(ids)} ids sent, {len(ids) - first} to score; {meta.prompt_tokens} counted, {len(scored)} scored"
        return Failure(reason="counts_differ", detail=detail, next="reject")
    pairs = enumerate(zip(scored, ids[first:], strict=True), start=first)
    differing = [(place, entry[1], sent) for place, (entry, sent) in pairs if entry[1] != sent]
    masked = [place for place, shown, sent in differing if shown == 0 and sent == asked.vocabulary_size - 1]
    return checked_scores(
        [entry[0] for entry in scored],
        [entries[0][0] if entries else None for entries in likeliest],
        echo_differs=[place for place, _, _ in differing if place not in masked],
        masked=masked,
    )


SCORING = Scoring(route=GENERATE_ROUTE, margin=6, body=score_body, parse=parse_scores)
