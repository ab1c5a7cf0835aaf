"""What vLLM takes and answers where it is asked for ids, as pure functions; measured on vLLM 0.32.0.

`POST /v1/completions` takes prompt ids and, asked to `return_token_ids`, answers both the prompt's ids and `token_ids`,
whose last is the stop id. `POST /inference/v1/generate`, there under --enable-scale-out or --tokens-only alone, gives
the same ids, makes no text of them, and names the weights. Parameters that vLLM does not know it ignores: an older one
answers no ids, and no error. This module sends nothing, and does not know which server it talks about nor how often a
request is tried.
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
    error_text,
    http_failure,
    ids_text,
    no_ids,
    number_of,
    text_of,
    told,
)

COMPLETIONS_ROUTE, TOKENS_ROUTE = "/v1/completions", "/inference/v1/generate"
_CONTEXT_WORDS = ("maximum context length", "maximum model length", "longer than the maximum")
_NULL = b"null"


class _Weights(msgspec.Struct, frozen=True):
    version: str


class _Choice(msgspec.Struct, frozen=True):
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: msgspec.Raw = msgspec.Raw(_NULL)
    prompt_token_ids: msgspec.Raw = msgspec.Raw(_NULL)
    weight_versions: list[_Weights] | None = None


class _CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _CachedTokens | None = None


class _Body(msgspec.Struct, frozen=True):
    choices: tuple[_Choice]
    usage: _Usage
    id: str = ""  # of completions
    request_id: str = ""  # of the tokens route, as the prompt's ids
    prompt_token_ids: msgspec.Raw = msgspec.Raw(_NULL)


_BODY = msgspec.json.Decoder(_Body)


def completions_body(sent: Sent) -> bytes:
    """The JSON of one request to COMPLETIONS_ROUTE, with every sampling value."""
    return _body(sent, {"prompt": sent.prompt.text, "stream": False, **sampling_parameters(sent)})


def tokens_body(sent: Sent) -> bytes:
    """The JSON of one request to TOKENS_ROUTE, with every sampling value."""
    parameters = {**sampling_parameters(sent), "detokenize": False}
    return _body(sent, {"token_ids": sent.prompt.text, "stream": False, "sampling_params": parameters})


def sampling_parameters(sent: Sent) -> dict[str, Json]:
    """vLLM's sampling parameters, complete: what is left out would be the server's default.

    Among those defaults are the values of the model's generation_config.json, 16 new ids, and a watermark.
    """
    sampling = sent.sampling
    parameters: dict[str, Json] = {
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
        "watermarking": False,
        "n": 1,
    }
    if sampling.seed is not None:
        parameters["seed"] = sampling.seed
    return parameters


def _body(sent: Sent, body: dict[str, Json | msgspec.Raw]) -> bytes:
    if sent.served_name:
        body["model"] = sent.served_name
    return msgspec.json.encode({**body, "return_token_ids": True, "request_id": sent.rid})


def parse_answer(status: int, body: bytes, sent: Sent, secret: str = "") -> Answer | Failure:
    """One HTTP answer of either route as a checked generation, or as a failure with what to do next.

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
    named = answer.id or answer.request_id
    if named and sent.rid not in named:
        detail = told(f"request {sent.rid} was sent, the answer is of {named}", secret)
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
    problem, last = _check(text, answer, sent)
    if problem:
        return problem
    weights = {told(part.version, secret) for part in choice.weight_versions or []}
    if len(weights) > 1:
        detail = f"one answer is by several weights: {', '.join(sorted(weights))}"
        return Failure(reason="weight_version_differs", detail=detail, next="stop")
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
        weight_version="".join(weights),  # completions tell none
    )


def _check(text: bytes, answer: _Body, sent: Sent) -> tuple[Failure | None, int | None]:
    """What is wrong with an answer, and its last output id."""
    choice, usage, count = answer.choices[0], answer.usage, sent.prompt.count
    echoes = (ids_text(choice.prompt_token_ids), ids_text(answer.prompt_token_ids))
    if usage.prompt_tokens != count or bytes(sent.prompt.text) not in echoes:
        took = f"counts {usage.prompt_tokens}" if usage.prompt_tokens != count else "tells none or other ones"
        detail = f"{count} prompt ids were sent, the server {took}"
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
    models: Mapping[str, Json] | None,
    version: Mapping[str, Json] | None,
    *,
    tokens_route: bool | None = False,
    secret: str = "",
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
        tokens_route=tokens_route,
        context_length=number_of(served.get("max_model_len")),
    )


def _served(models: Mapping[str, Json] | None) -> Mapping[str, Json]:
    """The first model of /v1/models; adapters come after it."""
    listed = (models or {}).get("data")
    return listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
