"""The same question asked as ids and as chat: what the chat endpoint's text leaves of what the model said.

Shown live in notebook 00, on whatever server is checked. This module judges nothing: it counts which markers that
stand in the ids can still be found in the text.
"""

from collections.abc import Mapping

import httpx
import msgspec
import pandas as pd

from .engines.answers import Failure, error_text
from .errors import ServerError
from .records import Json
from .server_check import GOLDEN_QUESTION, ask
from .servers import UNANSWERED, generate_client
from .target_tokenizer import Tokenizer


class TwoVoices(msgspec.Struct, frozen=True, kw_only=True):
    """The same question asked as ids and as chat: what /generate gives, and what the chat endpoint leaves of it.

    `chat_problem` says why the chat endpoint gave nothing, and is empty where it answered.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    chat_content: str = ""
    chat_reasoning: str | None = None
    chat_problem: str = ""


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Completion(msgspec.Struct, frozen=True):
    choices: tuple[_Choice]


async def ask_both_ways(
    url: str,
    tokenizer: Tokenizer,
    *,
    question: str = GOLDEN_QUESTION,
    max_new_tokens: int = 150,
    template_kwargs: Mapping[str, Json] | None = None,
    api_key: str = "",
    transport: httpx.AsyncBaseTransport | None = None,
) -> TwoVoices:
    """Ask one question at temperature 0 through /generate and through /v1/chat/completions.

    Raises ServerError where /generate does not answer. A chat endpoint that fails is no fault of a server that is
    to capture ids: the answer says so.
    """
    messages: list[dict[str, Json]] = [{"role": "user", "content": question}]
    prompt_ids = tokenizer.prompt_ids(messages, template_kwargs=template_kwargs)
    async with generate_client(4, api_key=api_key, transport=transport) as client:
        answer = await ask(client, url, prompt_ids, tokenizer, max_new_tokens=max_new_tokens, api_key=api_key)
        if isinstance(answer, Failure):
            raise ServerError(f"{url}/generate: {answer.reason}: {answer.detail}; see the table of checks")
        body: Json = {
            "model": "default",
            "messages": messages,
            "temperature": 0.0,
            "max_tokens": max_new_tokens,
            "chat_template_kwargs": dict(template_kwargs or {}),
        }
        message, problem = await _chat(client, url, body, api_key)
    return TwoVoices(
        prompt_ids=prompt_ids,
        output_ids=answer.ids(),
        chat_content=message.content or "",
        chat_reasoning=message.reasoning_content,
        chat_problem=problem,
    )


async def _chat(client: httpx.AsyncClient, url: str, body: Json, api_key: str) -> tuple[_Message, str]:
    """The chat endpoint's message, and what is wrong with it."""
    try:
        reply = await client.post(f"{url}/v1/chat/completions", json=body, timeout=300.0)
        if reply.status_code != 200:
            return _Message(), error_text(reply.content, secret=api_key)
        (choice,) = msgspec.json.decode(reply.content, type=_Completion).choices
    except (*UNANSWERED, msgspec.MsgspecError) as error:
        return _Message(), f"no chat answer ({type(error).__name__})"
    return choice.message, ""


def voices_table(voices: TwoVoices, tokenizer: Tokenizer) -> pd.DataFrame:
    """What each way gives, as text to look at; an empty field is said to be empty."""
    said = f"(none: {voices.chat_problem})" if voices.chat_problem else "(empty)"
    return pd.DataFrame(
        [
            {"field": "/generate: last prompt id", "content": _named(voices.prompt_ids[-1], tokenizer)},
            {"field": "/generate: output ids, decoded", "content": tokenizer.decode(voices.output_ids)},
            {"field": "/v1/chat/completions: reasoning_content", "content": voices.chat_reasoning or "(null)"},
            {"field": "/v1/chat/completions: content", "content": voices.chat_content or said},
        ]
    )


def lost_markers(voices: TwoVoices, tokenizer: Tokenizer) -> list[str]:
    """The markers that stand in the prompt's last id or the output ids, but nowhere in the chat endpoint's text."""
    text = f"{voices.chat_reasoning or ''}{voices.chat_content}"
    found = dict.fromkeys(
        item for item in [voices.prompt_ids[-1], *voices.output_ids] if item in tokenizer.markers.names
    )
    return [_named(item, tokenizer) for item in found if tokenizer.markers.names[item] not in text]


def voices_takeaway(voices: TwoVoices, tokenizer: Tokenizer) -> str:
    """One sentence on what the chat text lost here."""
    lost = lost_markers(voices, tokenizer)
    opener = (
        f"The prompt's last id is {_named(voices.prompt_ids[-1], tokenizer)}: the template wrote it, not the model."
    )
    if voices.chat_problem:
        return f"{opener} The chat endpoint gave no text to compare with: {voices.chat_problem}."
    if not lost:
        return f"{opener} In this answer the chat text kept the spelling of every marker, yet as text and not as ids."
    return f"{opener} What stands in the ids and not in the chat text: {', '.join(lost)}."


def _named(item: int, tokenizer: Tokenizer) -> str:
    return f"{tokenizer.markers.names.get(item) or tokenizer.decode([item])} ({item})"
