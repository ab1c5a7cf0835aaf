"""One question to one server, whatever engine it speaks: a generation from ids, the ids of a text.

Nothing here is stored as data. This module does not judge what comes back (answer_checks does).
"""

import uuid
from collections.abc import Sequence

import httpx
import msgspec

from ..capture.server_facts import UNANSWERED
from ..engines.answers import Answer, Failure, Sent, ServerFacts, checked_prompt, error_text
from ..engines.choice import engine_of
from ..records import Json, Sampling
from ..target.target_tokenizer import Tokenizer

GOLDEN_QUESTION = "What is 2+2?"
"""The question of the first validation of Kimi-K2.5: 15 prompt ids, 150 new ids at temperature 0."""
GOLDEN_NEW_IDS = 150
_SECONDS = 300.0


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A server that answers, what it told of itself, and the tokenizer that it is held against."""

    url: str
    client: httpx.AsyncClient
    tokenizer: Tokenizer
    facts: ServerFacts
    api_key: str = ""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """A checked answer or why it is none, and the prompt ids that the server says it read (None: it did not say)."""

    answer: Answer | Failure
    prompt_ids: list[int] | None = None


class _Choice(msgspec.Struct, frozen=True):
    prompt_token_ids: list[int] | None = None


class _Echo(msgspec.Struct, frozen=True):
    prompt_token_ids: list[int] | None = None  # SGLang 0.5.23
    choices: list[_Choice] = []  # vLLM 0.32.0


class _Meta(msgspec.Struct, frozen=True):
    prompt_tokens: int


class _Counted(msgspec.Struct, frozen=True):
    meta_info: _Meta


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: list[int]


async def ask(
    server: Connection,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int = GOLDEN_NEW_IDS,
    stop_ids: Sequence[int] = (),
) -> Heard:
    """One generation from ids at temperature 0; `stop_ids` are the template's turn ends where none are given.

    SGLang is asked to return the prompt's ids too; vLLM always is. Raises InputError for ids out of range.
    """
    engine = engine_of(server.facts)
    sent = Sent(
        prompt=checked_prompt(prompt_ids, server.tokenizer.vocabulary_size),
        sampling=Sampling(temperature=0.0, max_new_tokens=max_new_tokens),
        stop_ids=list(stop_ids or server.tokenizer.markers.turn_ends),
        vocabulary_size=server.tokenizer.vocabulary_size,
        rid=uuid.uuid4().hex,
        served_name=server.facts.served_name or "",
    )
    body = engine.body(sent)
    if server.facts.engine == "sglang":
        body = msgspec.json.encode({**msgspec.json.decode(body, type=dict), "return_prompt_token_ids": True})
    try:
        reply = await server.client.post(f"{server.url}{engine.generate_route}", content=body, timeout=_SECONDS)
    except UNANSWERED as error:
        return Heard(answer=Failure(reason="connection", detail=type(error).__name__, next="wait"))
    answer = engine.parse(reply.status_code, reply.content, sent, server.api_key)
    return Heard(answer=answer, prompt_ids=_echoed(reply))


async def tokenize(server: Connection, text: str) -> list[int] | str:
    """The ids that the server's own tokenizer gives a text, or what it said instead."""
    body: Json = {"model": server.facts.served_name or "default", "prompt": text, "add_special_tokens": False}
    try:
        reply = await server.client.post(f"{server.url}/tokenize", json=body, timeout=60.0)
        if reply.status_code != 200:
            return f"/tokenize: {error_text(reply.content, secret=server.api_key)}"
        return msgspec.json.decode(reply.content, type=_Tokenized).tokens
    except (*UNANSWERED, msgspec.MsgspecError) as error:
        return f"/tokenize gave no ids ({type(error).__name__})"


async def count_of_text(server: Connection, text: str) -> int | None:
    """How many ids SGLang makes of a text that it is given as a prompt; None where that can't be learnt."""
    if server.facts.engine != "sglang":
        return None
    body: Json = {"text": text, "sampling_params": {"temperature": 0.0, "max_new_tokens": 1}}
    try:
        reply = await server.client.post(f"{server.url}/generate", json=body, timeout=_SECONDS)
        return msgspec.json.decode(reply.content, type=_Counted).meta_info.prompt_tokens
    except (*UNANSWERED, msgspec.MsgspecError):
        return None


def _echoed(reply: httpx.Response) -> list[int] | None:
    try:
        echo = msgspec.json.decode(reply.content, type=_Echo)
    except msgspec.MsgspecError:
        return None
    return echo.prompt_token_ids or next((choice.prompt_token_ids for choice in echo.choices), None)
