"""What vLLM thinks of a finished sequence: `prompt_logprobs` of /v1/completions, as pure functions (vLLM 0.32.0).

Each place of the prompt is answered by a table of ids with their log-likelihoods and ranks: the id that stands there,
and the likeliest ones that were asked for. One id is generated besides, for none can't be asked for. This module sends
nothing.
"""

import msgspec

from ..records import Json
from .answers import Failure, error_text
from .scores import Asked, Scores, Scoring, checked_scores
from .vllm import COMPLETIONS_ROUTE


class _Place(msgspec.Struct, frozen=True):
    logprob: float | None
    rank: int | None = None


class _Choice(msgspec.Struct, frozen=True):
    prompt_logprobs: list[dict[str, _Place] | None] | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int


class _Body(msgspec.Struct, frozen=True):
    choices: tuple[_Choice]
    usage: _Usage


def score_body(asked: Asked) -> bytes:
    """The JSON of one request; every place is scored, those before `first` too, and left out when read."""
    body: dict[str, Json] = {
        "prompt": list(asked.ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "stream": False,
        "prompt_logprobs": int(asked.best),
        "request_id": asked.rid,
    }
    if asked.served_name:
        body["model"] = asked.served_name
    return msgspec.json.encode(body)


def parse_scores(status: int, body: bytes, asked: Asked, secret: str = "") -> Scores | Failure:
    """One answer as scores, or why it is none: an error, a cut prompt, a score missing, NaN."""
    if status != 200:
        return Failure(reason=f"http_{status}", detail=error_text(body, secret=secret), next="reject")
    try:
        answer = msgspec.json.decode(body, type=_Body)
    except msgspec.MsgspecError as error:
        return Failure(reason="malformed_answer", detail=str(error), next="reject")
    places = answer.choices[0].prompt_logprobs or []
    if answer.usage.prompt_tokens != len(asked.ids) or len(places) != len(asked.ids):
        detail = f"{len(asked.ids)} ids sent; {answer.usage.prompt_tokens} counted, {len(places)} scored"
        return Failure(reason="counts_differ", detail=detail, next="reject")
    own: list[float | None] = []
    best: list[float | None] = []
    differs = []
    for place in range(asked.first, len(asked.ids)):
        table = places[place] or {}
        found = table.get(str(asked.ids[place]))
        if found is None:  # the table is of other ids: what was scored is not what was sent
            differs.append(place)
            found = next(iter(table.values()), None)
        own.append(found.logprob if found else None)
        if asked.best:
            best.append(max((item.logprob for item in table.values() if item.logprob is not None), default=None))
    return checked_scores(own, best, echo_differs=differs, masked=[])


SCORING = Scoring(route=COMPLETIONS_ROUTE, margin=0, body=score_body, parse=parse_scores)
