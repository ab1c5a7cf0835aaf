"""The engines that a server can speak, and how each is asked and read.

Which one it is comes from the server's own answers (`servers`), never from the run file. This module sends nothing.
"""

from collections.abc import Callable

import msgspec

from . import sglang, vllm
from .answers import Answer, Failure, Sent, ServerFacts


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's wire format; `parse` takes HTTP status, body, what was sent, and the key to take out of texts.

    `abort_route` is None where there is none: a closed connection aborts its request.
    """

    generate_route: str
    abort_route: str | None
    body: Callable[[Sent], bytes]
    parse: Callable[[int, bytes, Sent, str], Answer | Failure]


def _sglang_answer(status: int, body: bytes, sent: Sent, secret: str) -> Answer | Failure:
    return sglang.parse_answer(
        status,
        body,
        prompt_tokens=sent.prompt.count,
        vocabulary_size=sent.vocabulary_size,
        rid=sent.rid,
        secret=secret,
    )


_SGLANG = Engine(
    generate_route=sglang.GENERATE_ROUTE, abort_route=sglang.ABORT_ROUTE, body=sglang.request_body, parse=_sglang_answer
)
_VLLM = Engine(
    generate_route=vllm.COMPLETIONS_ROUTE, abort_route=None, body=vllm.completions_body, parse=vllm.parse_answer
)
_VLLM_TOKENS = Engine(
    generate_route=vllm.TOKENS_ROUTE, abort_route=None, body=vllm.tokens_body, parse=vllm.parse_answer
)


def engine_of(facts: ServerFacts) -> Engine:
    """How a server with these facts is asked."""
    if facts.engine != "vllm":
        return _SGLANG
    return _VLLM_TOKENS if facts.tokens_route else _VLLM
