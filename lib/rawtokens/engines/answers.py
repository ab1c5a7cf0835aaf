"""What is asked of an engine, what a checked answer is, and the checks that every engine's answer must pass.

This module knows no engine's wire format (`sglang` and `vllm` do), nor which one a server speaks (`choice` does).
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..records import Json, Sampling

Next = Literal["reject", "retry", "wait", "stop"]
"""What a failure asks for: give the row up, try at once, try after a pause, or end the run."""

Ids = Sequence[int] | NDArray[np.int32]

_WHITE = b" \t\r\n"  # what JSON allows between two ids


class PromptIds(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt ids that may be sent (`checked_prompt`), as the JSON list that goes into the request and the journal."""

    text: msgspec.Raw
    count: int


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One request, in no engine's words. Its answer is held against it.

    `rid` is the request's own id; `served_name` is what the server calls its model, "" where that need not be said.
    """

    prompt: PromptIds
    sampling: Sampling
    stop_ids: Sequence[int]
    vocabulary_size: int
    rid: str
    served_name: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A finished generation that passed every check; `matched` as in records.Response.

    `output_ids` is the JSON list as the server wrote it, without white space: it goes into the journal as it is.
    `weight_version` is "" where the engine tells none.
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
    """What a server tells of itself, without secrets; None where it (or a router before it) does not tell.

    `model` is a name, never a path. `served_name` is the model's name in requests, where they need one; it may be a
    path. `tokens_route` is whether vLLM offers its route from ids to ids.
    """

    engine: str = "sglang"
    version: str | None = None
    model: str | None = None
    served_name: str | None = None
    tokens_route: bool | None = None
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


def checked_prompt(ids: Ids, vocabulary_size: int) -> PromptIds:
    """Ids as they are sent. Raises InputError for none, or one outside 0..vocabulary_size-1: it would kill a server."""
    array = np.asarray(ids)
    if not array.size or array.min() < 0 or array.max() >= vocabulary_size:
        raise InputError(f"prompt ids must lie in 0..{vocabulary_size - 1} and not be empty; run stage 01 again")
    return PromptIds(text=msgspec.Raw(msgspec.json.encode(array.tolist())), count=array.size)


def ids_text(value: msgspec.Raw) -> bytes | None:
    """A JSON list of integers without white space, or None for any other JSON value.

    `value` is valid JSON already, so characters alone decide: digits, signs and commas within one pair of brackets.
    """
    text = bytes(value)
    brackets = text.translate(None, b"0123456789,-")
    if brackets != b"[]":
        text = text.translate(None, _WHITE)
        brackets = brackets.translate(None, _WHITE)
    return text if brackets == b"[]" else None


def no_ids(field: str, value: msgspec.Raw) -> Failure:
    """The failure where a field that should hold ids holds something else."""
    shown = bytes(value)[:60].decode(errors="replace")
    return Failure(reason="malformed_answer", detail=f"{field} is no list of ids: {shown}", next="retry")


def check_ids(text: bytes, *, completion_tokens: int, vocabulary_size: int) -> tuple[Failure | None, int | None]:
    """What is wrong with output ids in `ids_text`'s form, and the last of them (None where there is none)."""
    # Text to integers at once: 56 us for 4,096 ids. What 64 bits can't hold is clamped to their ends, out of range too.
    ids = np.fromstring(text[1:-1], dtype=np.int64, sep=",") if text != b"[]" else np.empty(0, np.int64)
    last = int(ids[-1]) if len(ids) else None
    if len(ids) != completion_tokens:
        detail = f"{len(ids)} output ids, the server counts {completion_tokens}"
        return Failure(reason="completion_tokens_differ", detail=detail, next="retry"), last
    if last is None:
        return None, None
    if b"-" in text or ids.max() >= vocabulary_size:
        detail = f"output ids must lie in 0..{vocabulary_size - 1}, the largest is {ids.max()}, the least {ids.min()}"
        return Failure(reason="id_out_of_vocabulary", detail=detail, next="retry"), last
    if len(ids) >= 8 and last == 0 and not ids.any():
        return Failure(reason="nan_weights", detail=f"all {len(ids)} output ids are 0", next="stop"), last
    return None, last


def http_failure(status: int, detail: str, *, context_words: Sequence[str]) -> Failure:
    """The failure of an HTTP status other than 200; a 400 with one of `context_words` is a prompt that is too long."""
    detail = detail or f"HTTP {status} without a word"
    if status in (401, 403):
        return Failure(reason="key_refused", detail=detail, next="stop")
    if status == 400 and any(words in detail for words in context_words):
        return Failure(reason="context_exceeded", detail=detail, next="reject")
    if status in (404, 405) or 300 <= status < 400:
        return Failure(reason="no_generate_route", detail=detail, next="stop")
    if status in (400, 413, 422):
        return Failure(reason="bad_request", detail=detail, next="reject")
    if status in (408, 429, 502, 503, 504):
        return Failure(reason=f"http_{status}", detail=detail, next="wait")
    return Failure(reason=f"http_{status}", detail=detail, next="retry")


def error_text(body: bytes, *, secret: str = "") -> str:
    """What an error body says, in any of four shapes: error string, error object, message, detail.

    At most 300 characters, without `secret`.
    """
    try:
        content = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return told(body.decode(errors="replace").strip(), secret)
    if isinstance(content, dict):
        content = content.get("error") or content.get("message") or content.get("detail") or content
    if isinstance(content, dict):
        content = content.get("message", content)
    return told(str(content), secret)


def told(text: str, secret: str) -> str:
    """A server's words, the key taken out before they are cut: half a key is a key too."""
    return (text.replace(secret, "[secret]") if secret else text)[:300]


def text_of(value: Json, secret: str) -> str | None:
    """A text that a server told, without `secret`; None for anything else."""
    return told(value, secret) if isinstance(value, str) and value else None


def number_of(value: Json) -> int | None:
    """An integer that a server told; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def base_name(path: str | None) -> str | None:
    """A hub id as it is, a local path's last folder: a manifest holds no machine's paths."""
    return path.rstrip("/").rsplit("/", 1)[-1] if path and path.startswith(("/", ".", "~")) else path
