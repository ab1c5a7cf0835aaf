"""What vLLM's completions route takes and answers, as pure functions; measured on vLLM 0.32.0.

`POST /v1/completions` takes prompt ids and, asked to `return_token_ids`, answers both the prompt's ids and `token_ids`,
whose last is the stop id. Parameters that vLLM does not know it ignores: an older one answers no ids, and no error.
This module sends nothing, and does not know which server it talks about nor how often a request is tried.
"""

from collections.abc import Mapping

import msgspec

from ..records import Json
from .answers import (
    Answer,
    Failure,
    Sent,
    ServerFacts,
    base_name,
    check_ids,
    check_prompt,
    error_text,
    http_failure,
    ids_text,
    no_ids,
    number_of,
    text_of,
    told,
)

GENERATE_ROUTE = "/v1/completions"
_CONTEXT_WORDS = ("maximum context length", "maximum model length", "longer than the maximum")
_NULL = b"null"


class _Choice(msgspec.Struct, frozen=True):
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: msgspec.Raw = msgspec.Raw(_NULL)
    prompt_token_ids: list[int] | None = None


class _CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _CachedTokens | None = None


class _Body(msgspec.Struct, frozen=True):
    choices: tuple[_Choice]
    usage: _Usage
    id: str = ""


_BODY = msgspec.json.Decoder(_Body)


def request_body(sent: Sent) -> bytes:
    """The JSON of one request. Every sampling value is sent: what is left out would be the server's default.

    Raises InputError for an empty prompt or an id outside 0..vocabulary_size-1.
    """
    check_prompt(sent.prompt_ids, sent.vocabulary_size)
    sampling = sent.sampling
    body: dict[str, Json] = {
        "prompt": list(sent.prompt_ids),
        "return_token_ids": True,
        "request_id": sent.rid,
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "max_tokens": sampling.max_new_tokens,
        "min_tokens": 0,
        "ignore_eos": False,
        "stop": [],
        "stop_token_ids": list(sent.stop_ids),
        "skip_special_tokens": False,
        "n": 1,
        "stream": False,
    }
    if sent.served_name:
        body["model"] = sent.served_name
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return msgspec.json.encode(body)


def parse_answer(status: int, body: bytes, sent: Sent, secret: str = "") -> Answer | Failure:
    """One HTTP answer of /v1/completions as a checked generation, or as a failure with what to do next.

    vLLM names the id that stopped a generation only where it is not the tokenizer's own end: for that one
    `stop_reason` is null. `matched` is the last output id then, where that is among the ids that may end a turn, and
    None where it is not. `secret` is the key, which a server may repeat in what it says; it is taken out of every text.
    """
    if status != 200:
        return http_failure(status, error_text(body, secret=secret), context_words=_CONTEXT_WORDS)
    try:
        answer = _BODY.decode(body)
    except msgspec.MsgspecError as error:
        return Failure(reason="malformed_answer", detail=str(error), next="retry")
    if answer.id and sent.rid not in answer.id:
        detail = told(f"request {sent.rid} was sent, the answer is of {answer.id}", secret)
        return Failure(reason="answer_of_another_request", detail=detail, next="retry")
    choice, usage = answer.choices[0], answer.usage
    if choice.finish_reason not in ("stop", "length"):
        detail = told(f"finish reason {choice.finish_reason!r}", secret)
        return Failure(reason="aborted", detail=detail, next="retry")
    if bytes(choice.token_ids) == _NULL:
        detail = "no token_ids in the answer: this is no vLLM that knows return_token_ids, or a proxy drops it"
        return Failure(reason="no_token_ids", detail=detail, next="stop")
    text = ids_text(choice.token_ids)
    if text is None:
        return no_ids("token_ids", choice.token_ids)
    problem, last = _check(text, choice, usage, sent)
    if problem:
        return problem
    matched = choice.stop_reason
    if matched is None and choice.finish_reason == "stop" and last in sent.stop_ids:
        matched = last
    details = usage.prompt_tokens_details
    return Answer(
        output_ids=msgspec.Raw(text),
        finish_reason="stop" if choice.finish_reason == "stop" else "length",
        matched=told(matched, secret) if isinstance(matched, str) else matched,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,  # told under --enable-prompt-tokens-details alone
        weight_version="",
    )


def _check(text: bytes, choice: _Choice, usage: _Usage, sent: Sent) -> tuple[Failure | None, int | None]:
    """What is wrong with an answer, and its last output id."""
    count, echo = len(sent.prompt_ids), choice.prompt_token_ids
    if usage.prompt_tokens != count or echo != list(sent.prompt_ids):
        seen = "other ones" if usage.prompt_tokens == count else f"{usage.prompt_tokens} of them"
        detail = f"{count} prompt ids were sent, the server took {'none that it tells' if echo is None else seen}"
        return Failure(reason="prompt_tokens_differ", detail=detail, next="retry"), None
    problem, last = check_ids(text, completion_tokens=usage.completion_tokens, vocabulary_size=sent.vocabulary_size)
    if problem:
        return problem, last
    if isinstance(choice.stop_reason, int) and choice.stop_reason != last:
        detail = f"stop id {choice.stop_reason} matched, but the last output id is {last}"
        return Failure(reason="stop_id_missing", detail=detail, next="retry"), last
    asked = sent.sampling.max_new_tokens
    if choice.finish_reason == "length" and usage.completion_tokens < asked:
        detail = f"cut after {usage.completion_tokens} ids where {asked} were asked for: the server's context is full"
        return Failure(reason="context_exceeded", detail=detail, next="reject"), last
    return None, last


def owns(models: Mapping[str, Json] | None) -> bool:
    """Whether /v1/models is vLLM's: it names itself as the owner of what it serves."""
    return _served(models).get("owned_by") == "vllm"


def server_facts(
    models: Mapping[str, Json] | None, version: Mapping[str, Json] | None, *, secret: str = ""
) -> ServerFacts:
    """The facts of a run's manifest from /v1/models and /version, each None where absent; `secret` is taken out.

    vLLM tells neither its weights' version nor its vocabulary, its parsers or how many requests it runs at once.
    """
    served = _served(models)
    name = text_of(served.get("id"), secret)
    return ServerFacts(
        engine="vllm",
        version=text_of((version or {}).get("version"), secret),
        model=base_name(text_of(served.get("root"), secret) or name),
        served_name=name,
        context_length=number_of(served.get("max_model_len")),
    )


def _served(models: Mapping[str, Json] | None) -> Mapping[str, Json]:
    """The first model of /v1/models; adapters come after it."""
    listed = (models or {}).get("data")
    return listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
