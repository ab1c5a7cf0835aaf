"""Prompt ids held against PyPI `renderers`, an independent writing of the families' formats.

The tokenizers are the same, so that what is compared is the templates. A conversation with tools is compared from its
first user turn on: the wording of declarations is the test templates' own.
"""

import base64
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import splintr
from renderers.base import Renderer  # type: ignore[import-untyped]
from renderers.configs import (  # type: ignore[import-untyped]
    DeepSeekV4RendererConfig,
    GLM45RendererConfig,
    GptOssRendererConfig,
    KimiK25RendererConfig,
    Qwen3RendererConfig,
)
from renderers.deepseek_r1 import DeepSeekR1Renderer  # type: ignore[import-untyped]
from renderers.deepseek_v4 import DeepSeekV4Renderer  # type: ignore[import-untyped]
from renderers.glm45 import GLM45Renderer  # type: ignore[import-untyped]
from renderers.gpt_oss import GptOssRenderer  # type: ignore[import-untyped]
from renderers.kimi_k25 import KimiK25Renderer  # type: ignore[import-untyped]
from renderers.qwen3 import Qwen3Renderer  # type: ignore[import-untyped]

from rawtokens.target.target_tokenizer import Tokenizer

Message = dict[str, Any]


def function(name: str, **properties: dict[str, str]) -> Message:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"It is {name}", "parameters": parameters}}


def call(place: int, name: str, **arguments: object) -> Message:
    return {"id": f"functions.{name}:{place}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(place: int, name: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": f"functions.{name}:{place}", "name": name, "content": content}


def said(content: str, reasoning: str = "", *calls: Message) -> Message:
    extra = {"reasoning_content": reasoning} if reasoning else {}
    return {"role": "assistant", "content": content, **extra, **({"tool_calls": list(calls)} if calls else {})}


def asked(content: str) -> Message:
    return {"role": "user", "content": content}


TOOLS = [function("weather", city={"type": "string"}), function("now")]
BRIEF = {"role": "system", "content": "Be brief."}
OSLO, NOW = call(0, "weather", city="Oslo", days=2), call(1, "now")
CONVERSATIONS: dict[str, tuple[list[Message], list[Message]]] = {
    "one question": ([asked("What is 2+2?")], []),
    "a system message": ([BRIEF, asked("naïve  你好 🙂\n\ncode:\n\tx = 1")], []),
    "two turns": ([asked("Hi"), said("Hello!"), asked("Why?")], []),
    "reasoning in an earlier turn": ([asked("Hi"), said("Hello!", "A greeting."), asked("Why?")], []),
    "tools": ([BRIEF, asked("Weather in Oslo?")], TOOLS),
    "a call": ([asked("Weather?"), said("", "Call it.", OSLO), result(0, "weather", "rain")], TOOLS),
    "parallel calls": (
        [asked("Both?"), said("Looking.", "Two.", OSLO, NOW), result(0, "weather", "rain"), result(1, "now", "12:00")],
        TOOLS,
    ),
    "after a call": (
        [asked("Weather?"), said("", "Call.", OSLO), result(0, "weather", "rain"), said("Rain.", "So."), asked("Ta")],
        TOOLS,
    ),
}
Make = Callable[[Any], Renderer]
CASES: dict[str, tuple[str, Make, dict[str, Any], str]] = {
    "Qwen3": ("qwen3", lambda t: Qwen3Renderer(t, Qwen3RendererConfig()), {}, "<|im_start|>user"),
    "Qwen3, off": (
        "qwen3",
        lambda t: Qwen3Renderer(t, Qwen3RendererConfig(enable_thinking=False)),
        {"enable_thinking": False},
        "<|im_start|>user",
    ),
    "GLM-4.5": ("glm45", lambda t: GLM45Renderer(t, GLM45RendererConfig()), {}, "<|user|>"),
    "GLM-4.5, off": (
        "glm45",
        lambda t: GLM45Renderer(t, GLM45RendererConfig(enable_thinking=False)),
        {"enable_thinking": False},
        "<|user|>",
    ),
    "DeepSeek-R1": ("deepseek_r1", DeepSeekR1Renderer, {}, "<｜User｜>"),
    "DeepSeek-V4": (
        "deepseek_v4",
        lambda t: DeepSeekV4Renderer(t, DeepSeekV4RendererConfig(enable_thinking=True, reasoning_effort="low")),
        {"thinking": True},
        "<｜User｜>",
    ),
    "DeepSeek-V4, off": (
        "deepseek_v4",
        lambda t: DeepSeekV4Renderer(t, DeepSeekV4RendererConfig(enable_thinking=False)),
        {"thinking": False},
        "<｜User｜>",
    ),
    "gpt-oss": (
        "gpt_oss",
        lambda t: GptOssRenderer(t, GptOssRendererConfig(conversation_start_date=date.today().isoformat())),
        {},
        "<|start|>user",
    ),
    "Kimi-K2.5": ("kimi", lambda t: KimiK25Renderer(t, KimiK25RendererConfig()), {}, "<|im_user|>"),
    "Kimi-K2.5, off": (
        "kimi",
        lambda t: KimiK25Renderer(t, KimiK25RendererConfig(thinking=False)),
        {"thinking": False},
        "<|im_user|>",
    ),
}
KNOWN_DIFFERENCES = {
    # A finished turn without reasoning keeps the closed block that its own prompt had, which Qwen3's template drops.
    ("Qwen3, off", "two turns"): lambda text: text.replace(
        "assistant\nHello", "assistant\n<think>\n\n</think>\n\nHello"
    ),
    # Its prompt begins the analysis channel, which the template leaves to the model; a past call has no " json".
    ("gpt-oss", ""): lambda text: text.replace("commentary json", "commentary") + "<|channel|>analysis<|message|>",
}
"""What makes our text theirs, by case and conversation ("": every one)."""


@pytest.fixture(scope="session")
def harmony_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that openai-harmony reads instead of a download: o200k's ranks."""
    folder = tmp_path_factory.mktemp("harmony")
    known = splintr.Tokenizer.from_pretrained("gpt-oss")
    ranks = (base64.b64encode(bytes(known.decode_token_bytes(i))) + b" %d\n" % i for i in range(199_998))
    (folder / "o200k_base.tiktoken").write_bytes(b"".join(ranks))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_prompts_are_those_of_an_independent_renderer(
    case: str,
    family_target: Callable[[str], Tokenizer],
    target: Tokenizer,
    harmony_vocabulary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(harmony_vocabulary))
    name, make, arguments, first_user = CASES[case]
    tokenizer = target if name == "kimi" else family_target(name)
    renderer = make(tokenizer.encoder)
    for conversation, (messages, tools) in CONVERSATIONS.items():
        theirs = list(renderer.render_ids(messages, tools=tools or None, add_generation_prompt=True))
        ours = tokenizer.prompt_ids(messages, tools=tools, template_kwargs=arguments)
        if tools:
            ours, theirs = (from_first(ids, first_user, tokenizer) for ids in (ours, theirs))
        change = KNOWN_DIFFERENCES.get((case, conversation)) or KNOWN_DIFFERENCES.get((case, ""))
        if change:
            changed = change(tokenizer.decode(ours))
            assert changed != tokenizer.decode(ours)
            ours = tokenizer.encode([changed])[0]
        assert ours == theirs, conversation
    assert set(tokenizer.markers.turn_ends) <= set(renderer.get_stop_token_ids())


def from_first(ids: list[int], text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids from where `text` stands first."""
    wanted = tokenizer.encode([text])[0]
    return next(ids[place:] for place in range(len(ids)) if ids[place : place + len(wanted)] == wanted)
