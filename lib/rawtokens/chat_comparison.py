"""The same question asked as ids and as chat: what the chat endpoint's text leaves of what the model said.

Shown live in notebook 00, on whatever server is checked. This module judges nothing: it counts which markers that
stand in the ids can still be found in the text.
"""

import msgspec
import pandas as pd

from .engines import sglang
from .engines.sglang import Failure
from .errors import ServerError
from .server_check import GOLDEN_QUESTION, ask
from .servers import generate_client
from .target_tokenizer import Tokenizer


class TwoVoices(msgspec.Struct, frozen=True, kw_only=True):
    """The same question asked as ids and as chat: what /generate gives, and what the chat endpoint leaves of it."""

    prompt_ids: list[int]
    output_ids: list[int]
    chat_content: str
    chat_reasoning: str | None


async def ask_both_ways(
    url: str, tokenizer: Tokenizer, *, question: str = GOLDEN_QUESTION, max_new_tokens: int = 150, api_key: str = ""
) -> TwoVoices:
    """Ask one question at temperature 0 through /generate and through /v1/chat/completions.

    Raises ServerError where either does not answer.
    """
    prompt_ids = tokenizer.prompt_ids([{"role": "user", "content": question}])
    async with generate_client(4, api_key=api_key) as client:
        answer = await ask(client, url, prompt_ids, tokenizer, max_new_tokens=max_new_tokens)
        if isinstance(answer, Failure):
            raise ServerError(f"{url}/generate: {answer.reason}: {answer.detail}")
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0.0,
            "max_tokens": max_new_tokens,
        }
        reply = await client.post(f"{url}/v1/chat/completions", json=body, timeout=300.0)
    if reply.status_code != 200:
        raise ServerError(f"{url}/v1/chat/completions: {sglang.error_text(reply.content)}")
    message = msgspec.json.decode(reply.content)["choices"][0]["message"]
    return TwoVoices(
        prompt_ids=prompt_ids,
        output_ids=answer.output_ids,
        chat_content=message.get("content") or "",
        chat_reasoning=message.get("reasoning_content"),
    )


def voices_table(voices: TwoVoices, tokenizer: Tokenizer) -> pd.DataFrame:
    """What each way gives, as text to look at; an empty field is said to be empty."""
    return pd.DataFrame(
        [
            {"field": "/generate: last prompt id", "content": _named(voices.prompt_ids[-1], tokenizer)},
            {"field": "/generate: output ids, decoded", "content": tokenizer.decode(voices.output_ids)},
            {"field": "/v1/chat/completions: reasoning_content", "content": voices.chat_reasoning or "(null)"},
            {"field": "/v1/chat/completions: content", "content": voices.chat_content or "(empty)"},
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
    if not lost:
        return f"{opener} In this answer the chat text kept the spelling of every marker, yet as text and not as ids."
    return f"{opener} The chat text lost {len(lost)} markers that stand in the ids: {', '.join(lost)}."


def _named(item: int, tokenizer: Tokenizer) -> str:
    return f"{tokenizer.markers.names.get(item) or tokenizer.decode([item])} ({item})"
