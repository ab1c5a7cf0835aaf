"""The marker texts of the model families: what find_markers looks for in a tokenizer.

Texts alone; no id stands here, since models of one family number them differently (Qwen3's `</think>` is 151668,
Qwen3.5's 248069, Nemotron-3's 13). This module does not know a model's name, nor what its template writes.
"""

from typing import TypedDict

import msgspec


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A family's marker texts. Those in `spelled` may be several ordinary ids; each other one must be a single id."""

    opener: str = ""
    closer: str = ""
    turn_ends: tuple[str, ...]  # the first is what the template writes
    tool_section_begin: str = ""
    tool_section_end: str = ""
    tool_call_begin: str = ""
    tool_arguments_begin: str = ""
    tool_call_end: str = ""
    roles: tuple[str, ...] = ()
    spelled: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()  # further texts that are single ids in this family
    lacks: tuple[str, ...] = ()  # texts that are single ids in a family that this one is not
    may_reopen: bool = False  # the model writes the opener again that the prompt ends with
    channel_marks: tuple[str, ...] = ()  # harmony: start, channel, message, end
    channel_names: tuple[str, ...] = ()  # of reasoning, tool calls, answer
    recipient: str = ""

    def texts(self) -> tuple[str, ...]:
        """Every marker text."""
        single = (self.opener, self.closer, self.tool_section_begin, self.tool_section_end)
        calls = (self.tool_call_begin, self.tool_arguments_begin, self.tool_call_end)
        named = (*self.channel_names, self.recipient)
        every = (*single, *calls, *self.turn_ends, *self.roles, *self.channel_marks, *named)
        return tuple(dict.fromkeys(text for text in every if text))

    def single_ids(self) -> tuple[str, ...]:
        """The texts that must be single ids of the tokenizer."""
        return tuple(text for text in self.texts() if text not in self.spelled)


class _ToolTexts(TypedDict, total=False):
    tool_section_begin: str
    tool_section_end: str
    tool_call_begin: str
    tool_arguments_begin: str
    tool_call_end: str


_KIMI_TOOLS: _ToolTexts = {
    "tool_section_begin": "<|tool_calls_section_begin|>",
    "tool_section_end": "<|tool_calls_section_end|>",
    "tool_call_begin": "<|tool_call_begin|>",
    "tool_arguments_begin": "<|tool_call_argument_begin|>",
    "tool_call_end": "<|tool_call_end|>",
}
_KIMI_ROLES = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
_TAGGED_CALLS: _ToolTexts = {  # each call is a section of its own
    "tool_section_begin": "<tool_call>",
    "tool_section_end": "</tool_call>",
    "tool_call_begin": "<tool_call>",
    "tool_call_end": "</tool_call>",
}
_DEEPSEEK_TOOLS: _ToolTexts = {
    "tool_section_begin": "<｜tool▁calls▁begin｜>",
    "tool_section_end": "<｜tool▁calls▁end｜>",
    "tool_call_begin": "<｜tool▁call▁begin｜>",
    "tool_arguments_begin": "<｜tool▁sep｜>",
    "tool_call_end": "<｜tool▁call▁end｜>",
}
_DEEPSEEK_ROLES = (
    "<｜User｜>",
    "<｜Assistant｜>",
    *(f"<｜tool▁{what}▁{edge}｜>" for what in ("outputs", "output") for edge in ("begin", "end")),
)

FAMILIES: dict[str, Family] = {
    # Kimi-K2.5 and Kimi-K2-Thinking: a section holds calls.
    "kimi": Family(opener="<think>", closer="</think>", turn_ends=("<|im_end|>",), roles=_KIMI_ROLES, **_KIMI_TOOLS),
    # Kimi-VL-Thinking: `◁think▷` is three ordinary ids.
    "kimi_vl": Family(
        opener="◁think▷",
        closer="◁/think▷",
        spelled=("◁think▷", "◁/think▷"),
        lacks=("<think>", "<|tool_calls_section_begin|>"),
        turn_ends=("<|im_end|>",),
        roles=_KIMI_ROLES,
    ),
    # Qwen3, Qwen3-2507, Qwen3.5, Qwen3.6, QwQ, Nemotron-3.
    "qwen3": Family(
        opener="<think>", closer="</think>", turn_ends=("<|im_end|>",), roles=("<|im_start|>",), **_TAGGED_CALLS
    ),
    # DeepSeek-R1, V3.1 and their distilled models.
    "deepseek": Family(
        opener="<think>",
        closer="</think>",
        turn_ends=("<｜end▁of▁sentence｜>",),
        roles=_DEEPSEEK_ROLES,
        **_DEEPSEEK_TOOLS,
    ),
    # DeepSeek-V4: calls are DSML, one id and ordinary ones. The older tool markers are still there, unused.
    "deepseek_v4": Family(
        opener="<think>",
        closer="</think>",
        turn_ends=("<｜end▁of▁sentence｜>",),
        tool_section_begin="<｜DSML｜tool_calls",
        tool_section_end="</｜DSML｜tool_calls>",
        tool_call_begin="<｜DSML｜invoke",
        tool_call_end="</｜DSML｜invoke",
        spelled=("<｜DSML｜tool_calls", "</｜DSML｜tool_calls>", "<｜DSML｜invoke", "</｜DSML｜invoke"),
        holds=("｜DSML｜",),
        roles=(*_DEEPSEEK_ROLES, *map(str, _DEEPSEEK_TOOLS.values())),
    ),
    # GLM-4.5, 4.6, 4.7, 5: the next role's marker ends a turn.
    "glm": Family(
        opener="<think>",
        closer="</think>",
        turn_ends=("<|endoftext|>", "<|user|>", "<|observation|>"),
        roles=("<|system|>", "<|assistant|>"),
        **_TAGGED_CALLS,
    ),
    # gpt-oss: harmony's channels instead of a closer.
    "gpt_oss": Family(
        turn_ends=("<|return|>", "<|call|>"),
        channel_marks=("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
        channel_names=("analysis", "commentary", "final"),
        recipient=" to=",
        spelled=("analysis", "commentary", "final", " to="),
    ),
    # MiniMax-M2: the closer alone, or opener and closer, behind a prompt that ends with the opener.
    "minimax": Family(
        opener="<think>",
        closer="</think>",
        turn_ends=("[e~[",),
        tool_section_begin="<minimax:tool_call>",
        tool_section_end="</minimax:tool_call>",
        tool_call_begin="<invoke",
        tool_call_end="</invoke",
        spelled=("<invoke", "</invoke"),
        roles=("]~b]",),
        may_reopen=True,
    ),
    "seed_oss": Family(
        opener="<seed:think>",
        closer="</seed:think>",
        turn_ends=("<seed:eos>",),
        tool_section_begin="<seed:tool_call>",
        tool_section_end="</seed:tool_call>",
        tool_call_begin="<seed:tool_call>",
        tool_call_end="</seed:tool_call>",
        roles=("<seed:bos>",),
    ),
    # Magistral: nothing ends a call but the next one or the turn's end.
    "magistral": Family(
        opener="[THINK]",
        closer="[/THINK]",
        turn_ends=("</s>",),
        tool_section_begin="[TOOL_CALLS]",
        tool_call_begin="[TOOL_CALLS]",
        tool_arguments_begin="[ARGS]",
        roles=("[INST]", "[/INST]"),
    ),
}
