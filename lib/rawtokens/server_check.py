"""Is this server faithful? One check after another, each with what was seen and what to do.

Asks a running server a few short questions; nothing here is stored as data. A `fail` is a contradiction that
would spoil a capture; what can't be proved is a `warn`. This module does not know how to mend a server, and a
passing table is no proof for the rows that come later: those are checked one by one.
"""

import uuid
from collections.abc import Sequence
from typing import Literal

import httpx
import msgspec
import pandas as pd

from .engines.answers import Answer, Failure, ServerFacts, error_text
from .engines.sglang import parse_answer, request_body
from .errors import ServerError
from .markers import last_position
from .records import Json, Sampling
from .servers import UNANSWERED, facts_of, generate_client
from .target_tokenizer import PROBES, Tokenizer

GOLDEN_QUESTION = "What is 2+2?"
"""The question of the first validation of Kimi-K2.5: 15 prompt ids, 150 new ids at temperature 0."""

Status = Literal["pass", "warn", "fail"]


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: list[int]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table."""

    check: str
    status: Status
    seen: str
    to_do: str = ""


async def check_server(
    url: str,
    tokenizer: Tokenizer,
    *,
    template_kwargs: dict[str, Json] | None = None,
    api_key: str = "",
    transport: httpx.AsyncBaseTransport | None = None,
) -> list[Check]:
    """All checks in order; one `fail` alone where nothing answers at `url`, or refuses the key."""
    try:
        facts = await facts_of([url], api_key=api_key, transport=transport)
    except ServerError as error:
        return [Check(check="reachable", status="fail", seen=str(error))]
    async with generate_client(4, api_key=api_key, transport=transport) as client:
        checks = [*_fact_checks(facts, tokenizer), await _tokenizer_check(client, url, tokenizer, api_key)]
        prompt_ids = tokenizer.prompt_ids(
            [{"role": "user", "content": GOLDEN_QUESTION}], template_kwargs=template_kwargs
        )
        answer = await ask(client, url, prompt_ids, tokenizer, api_key=api_key)
    return [*checks, *_answer_checks(prompt_ids, answer, tokenizer)]


def checks_table(checks: Sequence[Check]) -> pd.DataFrame:
    """One row a check, columns check, status, seen, what to do."""
    columns = {"check": "check", "status": "status", "seen": "seen", "to_do": "what to do"}
    return pd.DataFrame([msgspec.to_builtins(check) for check in checks], columns=list(columns)).rename(columns=columns)


def require_no_failure(url: str, checks: Sequence[Check]) -> None:
    """Raise ServerError with the first failed check, so that a run stops before it captures anything."""
    failed = [check for check in checks if check.status == "fail"]
    if failed:
        told = [text for text in (failed[0].seen, failed[0].to_do) if text]
        raise ServerError(f"{url} fails the check {failed[0].check!r}: {'; '.join(told)}")


_VOCABULARY_TO_DO = {
    False: "use the tokenizer folder of the model that is served",
    None: "SGLang 0.5.23 does not tell it; see to it that the tokenizer folder's config.json is the served model's",
}


def _fact_checks(facts: ServerFacts, tokenizer: Tokenizer) -> list[Check]:
    parser = facts.reasoning_parser or facts.tool_call_parser
    size, bound = facts.vocabulary_size, tokenizer.vocabulary_size
    return [
        Check(check="reachable", status="pass", seen=f"{facts.engine} {facts.version or '(version not told)'}"),
        Check(
            check="model",
            status="pass" if facts.model else "warn",
            seen=f"{facts.model or 'not told'}, weights {facts.weight_version or 'not told'}",
            to_do="" if facts.model else "a router hides it; make sure that every worker runs the same model",
        ),
        Check(
            check="context",
            status="pass" if facts.context_length else "warn",
            seen=f"{facts.context_length or 'not told'}",
            to_do="" if facts.context_length else "prompts that are too long are rejected one by one",
        ),
        Check(
            check="vocabulary",
            status="pass" if size == bound else ("fail" if size else "warn"),
            seen=f"{size or 'not told'} on the server, {bound} from the tokenizer's folder",
            to_do=_VOCABULARY_TO_DO.get(size == bound if size else None, ""),
        ),
        Check(
            check="parsers",
            status="pass",
            seen=f"{parser} is set; ids are the same with it (SGLang 0.5.23)" if parser else "none set",
        ),
        Check(
            check="auto-truncate",
            status="pass" if facts.auto_truncate is False else "warn",
            seen=_TRUNCATES[facts.auto_truncate][0],
            to_do=_TRUNCATES[facts.auto_truncate][1],
        ),
        Check(
            check="tokenizer on the server",
            status="pass" if facts.skip_tokenizer_init is False else "warn",
            seen=_NO_TOKENIZER[facts.skip_tokenizer_init][0],
            to_do=_NO_TOKENIZER[facts.skip_tokenizer_init][1],
        ),
    ]


_TRUNCATES = {
    True: ("on: long prompts are cut without a word", "start the server without --allow-auto-truncate"),
    False: ("off", ""),
    None: ("not told", "the prompt's count is checked in every answer, so a cut prompt is never stored"),
}
_NO_TOKENIZER = {
    True: ("none: its stop ids don't stop", "stop ids are sent with every request, so ids stay right"),
    False: ("loaded", ""),
    None: ("not told", "stop ids are sent with every request, so ids stay right"),
}


async def _tokenizer_check(client: httpx.AsyncClient, url: str, tokenizer: Tokenizer, api_key: str) -> Check:
    """Encode the probes on both sides, where the server offers /tokenize."""
    name = "same ids on both sides"
    for text in PROBES:
        body: Json = {"model": "default", "prompt": text, "add_special_tokens": False}
        try:
            reply = await client.post(f"{url}/tokenize", json=body, timeout=60.0)
            theirs = msgspec.json.decode(reply.content, type=_Tokenized).tokens if reply.status_code == 200 else None
        except (*UNANSWERED, msgspec.MsgspecError) as error:
            return Check(check=name, status="warn", seen=f"/tokenize gave no ids ({type(error).__name__})")
        if theirs is None:
            return Check(check=name, status="warn", seen=f"/tokenize: {error_text(reply.content, secret=api_key)}")
        ours = list(tokenizer.encoder.encode(text, add_special_tokens=False))
        if theirs != ours:
            return Check(
                check=name,
                status="fail",
                seen=f"{text!r} is {ours[:8]} here and {theirs[:8]} there",
                to_do="set model.tokenizer to the tokenizer of the model that is served",
            )
    return Check(check=name, status="pass", seen=f"{len(PROBES)} probe texts encoded alike")


async def ask(
    client: httpx.AsyncClient,
    url: str,
    prompt_ids: list[int],
    tokenizer: Tokenizer,
    *,
    max_new_tokens: int = 150,
    api_key: str = "",
) -> Answer | Failure:
    """One generation at temperature 0 through /generate, checked."""
    size = tokenizer.vocabulary_size
    body = request_body(
        prompt_ids,
        Sampling(temperature=0.0, max_new_tokens=max_new_tokens),
        stop_ids=list(tokenizer.markers.turn_ends),
        rid=uuid.uuid4().hex,
        vocabulary_size=size,
    )
    try:
        reply = await client.post(f"{url}/generate", content=body, timeout=300.0)
    except UNANSWERED as error:
        return Failure(reason="connection", detail=type(error).__name__, next="wait")
    return parse_answer(
        reply.status_code, reply.content, prompt_tokens=len(prompt_ids), vocabulary_size=size, secret=api_key
    )


def _answer_checks(prompt_ids: list[int], answer: Answer | Failure, tokenizer: Tokenizer) -> list[Check]:
    if isinstance(answer, Failure):
        seen = f"{answer.reason}: {answer.detail}"
        return [Check(check="generates from ids", status="fail", seen=seen, to_do="is it SGLang's own address?")]
    markers, ids = tokenizer.markers, answer.ids()
    stop = ids[-1] in markers.turn_ends if ids else False
    closer = last_position(ids, markers.closer)
    return [
        Check(
            check="generates from ids",
            status="pass",
            seen=f"{len(prompt_ids)} prompt ids ending in {prompt_ids[-1]}, {len(ids)} output ids, counts agree",
        ),
        Check(
            check="thinking is closed",
            status="pass" if closer >= 0 or markers.channels else "warn",
            seen=f"closer {markers.closer[0]} at position {closer}" if closer >= 0 else "no closer in this answer",
            to_do="" if closer >= 0 or markers.channels else "is thinking on in template_kwargs, and 150 ids enough?",
        ),
        Check(
            check="stop id is kept",
            status="pass" if stop else ("warn" if answer.finish_reason == "length" else "fail"),
            seen=f"last id {ids[-1] if ids else None}, finish reason {answer.finish_reason}",
            to_do="" if stop else f"answers must end with {markers.turn_ends[0]}; a wrapper before SGLang may strip it",
        ),
    ]
