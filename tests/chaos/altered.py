"""What a faulty server, router or wrapper makes of a good answer of /generate: every way that a client can see.

Pure functions. An answer whose ids were changed with nothing else to tell is not among them: no client could know.
This module does not know how an answer travels.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import cast

from rawtokens.records import Json

Answer = dict[str, Json]


def _with(answer: Answer, output_ids: Sequence[int], **meta: Json) -> bytes:
    changed = {**cast(Answer, answer["meta_info"]), **meta}
    return json.dumps({**answer, "output_ids": list(output_ids), "meta_info": changed}).encode()


def _ids(answer: Answer) -> list[int]:
    return list(cast(Sequence[int], answer["output_ids"]))


def _half(answer: Answer) -> list[int]:
    return _ids(answer)[: len(_ids(answer)) // 2]


def _aborted(answer: Answer, _: Sequence[int]) -> bytes:
    reason: Json = {"type": "abort", "message": "Abort in waiting queue", "status_code": 503}
    return _with(answer, _half(answer), finish_reason=reason, completion_tokens=len(_half(answer)))


def _unfinished(answer: Answer, _: Sequence[int]) -> bytes:
    return _with(answer, _half(answer), finish_reason=None, completion_tokens=len(_half(answer)))


def _stop_id_stripped(answer: Answer, _: Sequence[int]) -> bytes:
    """With the count put right where a stop id was matched: then `matched` alone tells."""
    ids, finish = _ids(answer), cast(Answer, cast(Answer, answer["meta_info"])["finish_reason"])
    counted = len(ids) - 1 if finish["type"] == "stop" else len(ids)
    return _with(answer, ids[:-1], completion_tokens=counted)


def _prompt_cut(answer: Answer, prompt_ids: Sequence[int]) -> bytes:
    return _with(answer, _ids(answer), prompt_tokens=max(0, len(prompt_ids) - 6))


def _text(answer: Answer) -> bytes:
    return json.dumps(answer).encode()


UNDER_200: dict[str, Callable[[Answer, Sequence[int]], bytes]] = {
    "body cut, still 200": lambda answer, _: _text(answer)[: len(_text(answer)) // 2],
    "body empty": lambda answer, _: b"",
    "body is HTML": lambda answer, _: b"<html><body>upstream is restarting</body></html>",
    "body is a list": lambda answer, _: json.dumps([answer]).encode(),
    "error under 200": lambda answer, _: b'{"error":{"message":"internal error","code":500}}',
    "abort with partial ids": _aborted,
    "finish reason null": _unfinished,
    "prompt's tail in output_ids": lambda answer, prompt: _with(answer, [*prompt[-3:], *_ids(answer)]),
    "stop id stripped": _stop_id_stripped,
    "prompt cut on the server": _prompt_cut,
    "completion_tokens wrong": lambda answer, _: _with(answer, _ids(answer), completion_tokens=len(_ids(answer)) + 1),
    "id beyond the vocabulary": lambda answer, _: _with(answer, [163840, *_ids(answer)[1:]]),
    "id negative": lambda answer, _: _with(answer, [-1, *_ids(answer)[1:]]),
}
NAN: dict[str, Callable[[Answer, Sequence[int]], bytes]] = {
    "NaN matched": lambda answer, _: _with(
        answer, _ids(answer), finish_reason={"type": "stop", "matched": "NaN happened"}
    ),
    "ids all 0": lambda answer, _: _with(
        answer, [0] * 8, completion_tokens=8, finish_reason={"type": "length", "length": 8}
    ),
}
STATUSES = (408, 429, 500, 502, 503, 504)
REFUSED = "HTTP 401"


def error_body(status: int, chooser: random.Random) -> bytes:
    """An error in one of SGLang's four shapes, or as a proxy words it."""
    message = {429: "Too many requests", 503: "no_available_workers"}.get(status, f"error {status}")
    shapes: list[Json] = [
        {"error": message},
        {"error": {"message": message, "type": "server_error", "code": status}},
        {"object": "error", "message": message, "code": status},
        {"detail": message},
    ]
    bodies = [json.dumps(shape).encode() for shape in shapes]
    return chooser.choice([*bodies, f"<html>{message}</html>".encode()])
