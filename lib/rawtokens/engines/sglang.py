"""What SGLang's native routes take and answer, as pure functions; measured on SGLang 0.5.23.

`POST /generate` takes `input_ids` and answers `output_ids` that include the final stop id. A reasoning parser or a
tool parser on the server changes none of these ids, only what the chat endpoint makes of them. This module sends
nothing, and does not know which server it talks about nor how often a request is tried.
"""

from collections.abc import Mapping, Sequence

import msgspec

from ..records import Json, Sampling
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

GENERATE_ROUTE, ABORT_ROUTE = "/generate", "/abort_request"
_CONTEXT_WORDS = ("longer than the model's context length", "Requested token count exceeds")


class _FinishReason(msgspec.Struct, frozen=True):
    type: str
    matched: int | str | None = None
    message: str = ""


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: _FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    weight_version: str | None = "default"
    id: str = ""


class _Body(msgspec.Struct, frozen=True):
    output_ids: msgspec.Raw  # decoding 4,096 ids to ints and back takes three times as long as all else
    meta_info: _Meta


_BODY = msgspec.json.Decoder(_Body)


def request_body(sent: Sent) -> bytes:
    """The JSON of one request, with every sampling value."""
    parameters = sampling_parameters(sent.sampling, stop_ids=sent.stop_ids)
    return msgspec.json.encode({"input_ids": sent.prompt.text, "sampling_params": parameters, "rid": sent.rid})


def sampling_parameters(sampling: Sampling, *, stop_ids: Sequence[int]) -> dict[str, Json]:
    """SGLang's sampling_params, complete: what is left out would be the server's default."""
    parameters: dict[str, Json] = {
        "temperature": float(sampling.temperature),  # 1 and 1.0 are one setting to the fingerprint too
        "top_p": float(sampling.top_p),
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "max_new_tokens": sampling.max_new_tokens,
        "min_new_tokens": 0,
        "ignore_eos": False,
        "stop_token_ids": list(stop_ids),
        "n": 1,
    }
    if sampling.seed is not None:
        parameters["sampling_seed"] = sampling.seed
    return parameters


def parse_answer(
    status: int, body: bytes, *, prompt_tokens: int, vocabulary_size: int, rid: str = "", secret: str = ""
) -> Answer | Failure:
    """One HTTP answer of /generate as a checked generation, or as a failure with what to do next.

    `rid` is the request's: an answer that names another is another request's, which nothing else may tell where their
    prompts are equally long; a wrapper may put something before or behind it.
    `secret` is the key, which a server may repeat in what it says; it is taken out of every text, never of ids.
    """
    if status != 200:
        detail = error_text(body, secret=secret)
        if status == 400 and "Duplicate request ID" in detail:  # a router tried ours twice; another try has its own
            return Failure(reason="duplicate_rid", detail=detail, next="retry")
        return http_failure(status, detail, context_words=_CONTEXT_WORDS)
    try:
        answer = _BODY.decode(body)
    except msgspec.MsgspecError as error:
        return Failure(reason="malformed_answer", detail=str(error), next="retry")
    if answer.meta_info.id and rid not in answer.meta_info.id:
        detail = told(f"request {rid} was sent, the answer is of {answer.meta_info.id}", secret)
        return Failure(reason="answer_of_another_request", detail=detail, next="retry")
    finish = answer.meta_info.finish_reason
    if finish is not None and finish.matched == "NaN happened":
        return Failure(reason="nan_weights", detail="the server matched 'NaN happened'", next="stop")
    if finish is None or finish.type not in ("stop", "length"):
        detail = "no finish reason" if finish is None else f"{finish.type}: {finish.message}"
        return Failure(reason="aborted", detail=told(detail, secret), next="retry")
    text = ids_text(answer.output_ids)
    if text is None:
        return no_ids("output_ids", answer.output_ids)
    problem = _check(text, answer.meta_info, finish, prompt_tokens, vocabulary_size)
    if problem:
        return problem
    return Answer(
        output_ids=msgspec.Raw(text),
        finish_reason="stop" if finish.type == "stop" else "length",
        matched=told(finish.matched, secret) if isinstance(finish.matched, str) else finish.matched,
        prompt_tokens=answer.meta_info.prompt_tokens,
        completion_tokens=answer.meta_info.completion_tokens,
        cached_tokens=answer.meta_info.cached_tokens,
        weight_version=told(answer.meta_info.weight_version or "default", secret),
    )


def _check(text: bytes, meta: _Meta, finish: _FinishReason, prompt_tokens: int, vocabulary_size: int) -> Failure | None:
    if meta.prompt_tokens != prompt_tokens:
        detail = f"{prompt_tokens} prompt ids were sent, the server counts {meta.prompt_tokens} (auto-truncate?)"
        return Failure(reason="prompt_tokens_differ", detail=detail, next="retry")
    problem, last = check_ids(text, completion_tokens=meta.completion_tokens, vocabulary_size=vocabulary_size)
    if problem:
        return problem
    if isinstance(finish.matched, int) and finish.matched != last:
        detail = f"stop id {finish.matched} matched, but the last output id is {last}"
        return Failure(reason="stop_id_missing", detail=detail, next="retry")
    return None


def server_facts(
    model_info: Mapping[str, Json] | None,
    server_info: Mapping[str, Json] | None,
    models: Mapping[str, Json] | None,
    *,
    secret: str = "",
) -> ServerFacts:
    """The facts of a run's manifest from /model_info, /server_info and /v1/models, each None where absent.

    Only named fields are taken, and `secret` out of them: /server_info shows the api key in clear, also inside
    launch_command.
    """
    info = {**(model_info or {}), **(server_info or {})}
    listed = (models or {}).get("data")
    served = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    limit = number_of(state.get("effective_max_running_requests_per_dp"))
    held, ranks = number_of(info.get("max_total_num_tokens")), number_of(info.get("dp_size")) or 1
    return ServerFacts(
        version=text_of(info.get("version"), secret),
        model=base_name(text_of(info.get("model_path"), secret) or text_of(served.get("id"), secret)),
        weight_version=text_of(info.get("weight_version"), secret),
        dtype=text_of(info.get("dtype"), secret),
        quantization=text_of(info.get("quantization"), secret),
        reasoning_parser=text_of(info.get("reasoning_parser"), secret),
        tool_call_parser=text_of(info.get("tool_call_parser"), secret),
        context_length=number_of(served.get("max_model_len")) or number_of(info.get("context_length")),
        vocabulary_size=number_of(info.get("vocab_size")),
        running_limit=limit * ranks if limit else None,
        token_limit=held * ranks if held else None,
        auto_truncate=_flag(info.get("allow_auto_truncate")),
        skip_tokenizer_init=_flag(info.get("skip_tokenizer_init")),
    )


def _flag(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None
