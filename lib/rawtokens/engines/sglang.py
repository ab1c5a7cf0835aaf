"""What SGLang's native routes take and answer, as pure functions; measured on SGLang 0.5.23.

`POST /generate` takes `input_ids` and answers `output_ids` that include the final stop id. A reasoning parser or a
tool parser on the server changes none of these ids, only what the chat endpoint makes of them. This module sends
nothing, and does not know which server it talks about nor how often a request is tried.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from ..errors import InputError
from ..records import Json, Sampling

Next = Literal["reject", "retry", "wait", "stop"]
"""What a failure asks for: give the row up, try at once, try after a pause, or end the run."""

_CONTEXT_WORDS = ("longer than the model's context length", "Requested token count exceeds")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A finished generation that passed every check; `matched` as in records.Response.

    `output_ids` is the JSON list as the server wrote it, without white space: it goes into the journal as it is.
    """

    output_ids: msgspec.Raw
    finish_reason: Literal["stop", "length"]
    matched: int | str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: str

    def ids(self) -> list[int]:
        """The output ids as ints."""
        return msgspec.json.decode(self.output_ids, type=list[int])


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that can't become a record: a reason code, what the server said, and what to do next."""

    reason: str
    detail: str
    next: Next


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server tells of itself, without secrets; None where it (or a router before it) does not tell."""

    engine: str = "sglang"
    version: str | None = None
    model: str | None = None
    weight_version: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    context_length: int | None = None
    vocabulary_size: int | None = None
    running_limit: int | None = None  # requests that run at once, over all data-parallel ranks
    token_limit: int | None = None  # ids that its key-value cache holds, over all data-parallel ranks
    auto_truncate: bool | None = None
    skip_tokenizer_init: bool | None = None


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
_WHITE = b" \t\r\n"  # what JSON allows between two ids


def request_body(
    prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], rid: str, vocabulary_size: int
) -> bytes:
    """The JSON of one request. Every sampling value is sent; ids are range-checked: one bad id kills the server.

    Raises InputError for an empty prompt or an id outside 0..vocabulary_size-1.
    """
    if not prompt_ids or min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary_size:
        raise InputError(f"prompt ids must lie in 0..{vocabulary_size - 1} and not be empty; run stage 01 again")
    return msgspec.json.encode(
        {"input_ids": prompt_ids, "sampling_params": sampling_parameters(sampling, stop_ids=stop_ids), "rid": rid}
    )


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
        return _http_failure(status, error_text(body, secret=secret))
    try:
        answer = _BODY.decode(body)
    except msgspec.MsgspecError as error:
        return Failure(reason="malformed_answer", detail=str(error), next="retry")
    if answer.meta_info.id and rid not in answer.meta_info.id:
        detail = _told(f"request {rid} was sent, the answer is of {answer.meta_info.id}", secret)
        return Failure(reason="answer_of_another_request", detail=detail, next="retry")
    finish = answer.meta_info.finish_reason
    if finish is not None and finish.matched == "NaN happened":
        return Failure(reason="nan_weights", detail="the server matched 'NaN happened'", next="stop")
    if finish is None or finish.type not in ("stop", "length"):
        detail = "no finish reason" if finish is None else f"{finish.type}: {finish.message}"
        return Failure(reason="aborted", detail=_told(detail, secret), next="retry")
    text = _ids_text(answer.output_ids)
    if text is None:
        shown = bytes(answer.output_ids)[:60].decode(errors="replace")
        return Failure(reason="malformed_answer", detail=f"output_ids is no list of ids: {shown}", next="retry")
    problem = _check(text, answer.meta_info, finish, prompt_tokens, vocabulary_size)
    if problem:
        return problem
    return Answer(
        output_ids=msgspec.Raw(text),
        finish_reason="stop" if finish.type == "stop" else "length",
        matched=_told(finish.matched, secret) if isinstance(finish.matched, str) else finish.matched,
        prompt_tokens=answer.meta_info.prompt_tokens,
        completion_tokens=answer.meta_info.completion_tokens,
        cached_tokens=answer.meta_info.cached_tokens,
        weight_version=_told(answer.meta_info.weight_version or "default", secret),
    )


def _ids_text(value: msgspec.Raw) -> bytes | None:
    """A JSON list of integers without white space, or None for any other JSON value.

    `value` is valid JSON already, so characters alone decide: digits, signs and commas within one pair of brackets.
    """
    text = bytes(value)
    brackets = text.translate(None, b"0123456789,-")
    if brackets != b"[]":
        text = text.translate(None, _WHITE)
        brackets = brackets.translate(None, _WHITE)
    return text if brackets == b"[]" else None


def _check(text: bytes, meta: _Meta, finish: _FinishReason, prompt_tokens: int, vocabulary_size: int) -> Failure | None:
    if meta.prompt_tokens != prompt_tokens:
        detail = f"{prompt_tokens} prompt ids were sent, the server counts {meta.prompt_tokens} (auto-truncate?)"
        return Failure(reason="prompt_tokens_differ", detail=detail, next="retry")
    # Text to integers at once: 56 us for 4,096 ids. What 64 bits can't hold is clamped to their ends, out of range too.
    ids = np.fromstring(text[1:-1], dtype=np.int64, sep=",") if text != b"[]" else np.empty(0, np.int64)
    if len(ids) != meta.completion_tokens:
        detail = f"{len(ids)} output ids, the server counts {meta.completion_tokens}"
        return Failure(reason="completion_tokens_differ", detail=detail, next="retry")
    last = int(ids[-1]) if len(ids) else None
    if b"-" in text or ids.max(initial=0) >= vocabulary_size:
        detail = f"output ids must lie in 0..{vocabulary_size - 1}, the largest is {ids.max()}, the least {ids.min()}"
        return Failure(reason="id_out_of_vocabulary", detail=detail, next="retry")
    if len(ids) >= 8 and not ids.any():
        return Failure(reason="nan_weights", detail=f"all {len(ids)} output ids are 0", next="stop")
    if isinstance(finish.matched, int) and finish.matched != last:
        detail = f"stop id {finish.matched} matched, but the last output id is {last}"
        return Failure(reason="stop_id_missing", detail=detail, next="retry")
    return None


def _http_failure(status: int, detail: str) -> Failure:
    if status in (401, 403):
        return Failure(reason="key_refused", detail=detail, next="stop")
    if status == 400 and any(words in detail for words in _CONTEXT_WORDS):
        return Failure(reason="context_exceeded", detail=detail, next="reject")
    if status == 400 and "Duplicate request ID" in detail:  # a router tried ours twice; another try has its own
        return Failure(reason="duplicate_rid", detail=detail, next="retry")
    if status in (404, 405) or 300 <= status < 400:
        return Failure(reason="no_generate_route", detail=detail, next="stop")
    if status in (400, 413, 422):
        return Failure(reason="bad_request", detail=detail, next="reject")
    if status in (408, 429, 502, 503, 504):
        return Failure(reason=f"http_{status}", detail=detail, next="wait")
    return Failure(reason=f"http_{status}", detail=detail, next="retry")


def error_text(body: bytes, *, secret: str = "") -> str:
    """What an error body says, in any of SGLang's four shapes: error string, error object, message, detail.

    At most 300 characters, without `secret`.
    """
    try:
        content = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return _told(body.decode(errors="replace").strip(), secret)
    if isinstance(content, dict):
        content = content.get("error") or content.get("message") or content.get("detail") or content
    if isinstance(content, dict):
        content = content.get("message", content)
    return _told(str(content), secret)


def _told(text: str, secret: str) -> str:
    """A server's words, the key taken out before they are cut: half a key is a key too."""
    return (text.replace(secret, "[secret]") if secret else text)[:300]


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

    def text(value: Json) -> str | None:
        return _told(value, secret) if isinstance(value, str) and value else None

    info = {**(model_info or {}), **(server_info or {})}
    listed = (models or {}).get("data")
    served = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    limit = _number(state.get("effective_max_running_requests_per_dp"))
    held, ranks = _number(info.get("max_total_num_tokens")), _number(info.get("dp_size")) or 1
    return ServerFacts(
        version=text(info.get("version")),
        model=_base_name(text(info.get("model_path")) or text(served.get("id"))),
        weight_version=text(info.get("weight_version")),
        dtype=text(info.get("dtype")),
        quantization=text(info.get("quantization")),
        reasoning_parser=text(info.get("reasoning_parser")),
        tool_call_parser=text(info.get("tool_call_parser")),
        context_length=_number(served.get("max_model_len")) or _number(info.get("context_length")),
        vocabulary_size=_number(info.get("vocab_size")),
        running_limit=limit * ranks if limit else None,
        token_limit=held * ranks if held else None,
        auto_truncate=_flag(info.get("allow_auto_truncate")),
        skip_tokenizer_init=_flag(info.get("skip_tokenizer_init")),
    )


def _base_name(path: str | None) -> str | None:
    """A hub id as it is, a local path's last folder: a manifest holds no machine's paths."""
    return path.rstrip("/").rsplit("/", 1)[-1] if path and path.startswith(("/", ".", "~")) else path


def _number(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None
