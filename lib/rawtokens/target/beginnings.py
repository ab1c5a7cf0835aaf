"""Conversations as text, those too whose answer has begun, inside its thinking or behind it.

The beginning of an answer's text is the template's to write. The beginning of its thinking is written by no template
as the model has it before it: Kimi's drops it, Qwen3's closes it. It stands behind the generation prompt instead, the
opener once, whoever wrote it. This module does not know whether a template changed what it was given.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..records import Conversation

if TYPE_CHECKING:
    from .target_tokenizer import Tokenizer

INSIDE = "begins_inside_thinking"


class NoBeginning(ValueError):
    """A beginning that the rendered prompt has no place for; the message says why."""


def with_begun_thinking(conversation: Conversation, tokenizer: "Tokenizer") -> Conversation:
    """The conversation with a beginning that opens the thinking (`<think>Let me`) as `reasoning_content`, and a notice.

    Its opener is meant as one, so that it is no control token in a text. All other conversations stay as they are.
    """
    if not conversation.continue_final:
        return conversation
    *before, last = conversation.messages
    said, markers = last.get("content"), tokenizer.markers
    if isinstance(said, str) and markers.opener and not last.get("reasoning_content"):
        opener, closer = tokenizer.decode(markers.opener), tokenizer.decode(markers.closer)
        if said.startswith(opener) and closer not in said and said != opener:
            last = {**last, "content": "", "reasoning_content": said.removeprefix(opener)}
    if not _begun_thinking(replace(conversation, messages=(*before, last))):
        return conversation
    return replace(conversation, messages=(*before, last), notices=(*conversation.notices, INSIDE))


def render_conversation(conversation: Conversation, tokenizer: "Tokenizer") -> str:
    """The text whose ids are the prompt. Raises what `Tokenizer.render` raises, and NoBeginning."""
    begun = _begun_thinking(conversation)
    text = tokenizer.render(
        conversation.messages[:-1] if begun else conversation.messages,
        tools=conversation.tools,
        template_kwargs=conversation.template_kwargs,
        continue_final=conversation.continue_final and not begun,
    )
    if not begun:
        return text
    opener, closer = (tokenizer.decode(marker) for marker in (tokenizer.markers.opener, tokenizer.markers.closer))
    if not opener:
        raise NoBeginning("this model's thinking has no opener to begin behind")
    if text.rstrip().endswith(closer):
        raise NoBeginning("the answer begins inside its thinking, which the template has closed (its arguments say so)")
    if text.endswith(opener):
        return text + begun
    if text.endswith(opener + "\n"):
        return text + begun.removeprefix("\n")
    return text + opener + begun


def _begun_thinking(conversation: Conversation) -> str:
    """The thinking that the answer begins with; "" where it begins with its text, or not at all."""
    last = conversation.messages[-1]
    thought = last.get("reasoning_content")
    begins = conversation.continue_final and not last.get("content") and isinstance(thought, str)
    return str(thought) if begins else ""
