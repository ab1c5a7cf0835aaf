"""Earlier turns as the template renders them, without a generation prompt.

This module does not know where messages come from.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from ..records import Json
from ..target.target_tokenizer import Tokenizer
from ..target.template_dates import hold_date


class Ended(msgspec.Struct, frozen=True):
    """Why a conversation goes no further."""

    reason: str
    detail: str = ""


def render_history(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Json]],
    *,
    tools: Sequence[Mapping[str, Json]] = (),
    template_kwargs: Mapping[str, Json] | None = None,
) -> str:
    """The conversation as text, by the chat template. Raises what the template raises."""
    if tokenizer.template_date:
        hold_date(tokenizer.encoder, tokenizer.template_date)
    text = tokenizer.encoder.apply_chat_template(
        [dict(message) for message in messages],
        tools=[dict(tool) for tool in tools] or None,
        add_generation_prompt=False,
        tokenize=False,
        **(template_kwargs or {}),
    )
    return cast("str", text)


def owns_newlines(tokenizer: Tokenizer) -> bool:
    """Whether the template itself writes the newlines between closer and content, whatever the content begins with.

    Qwen3's and GLM's do, so that a model's own must not be in the content; Kimi's writes what it is given.
    """

    def rendered(content: str) -> str:
        said: dict[str, Json] = {"role": "assistant", "content": content, "reasoning_content": "probe"}
        return render_history(tokenizer, [{"role": "user", "content": "probe"}, said])

    try:
        return rendered("\n\nprobe") == rendered("probe")
    except Exception:  # a template's filters; a template that refuses this conversation says so of each row
        return False
