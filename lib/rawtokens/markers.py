"""Where thinking starts and ends, tool sections, stop ids: as ids, found in the tokenizer.

A marker is a sequence of ids, most often of one. A family is chosen by the strings that stand in the tokenizer
as single ids, never by a model's name; what is expected of an output comes from the rendered prompt
(`thinking_mode`). This module does not know what an output should look like (verification does), and it does
not guess: a tokenizer without a known family is refused.
"""

from collections.abc import Callable, Sequence

import msgspec

from .errors import TokenizerError
from .records import Thinking

IdSequence = tuple[int, ...]


class Markers(msgspec.Struct, frozen=True, kw_only=True):
    """The markers of one tokenizer, as id sequences; an empty tuple where the family has none."""

    family: str
    opener: IdSequence
    closer: IdSequence
    turn_end: int
    tool_section_begin: IdSequence = ()
    tool_section_end: IdSequence = ()
    tool_call_begin: IdSequence = ()
    tool_arguments_begin: IdSequence = ()
    tool_call_end: IdSequence = ()
    role_ids: tuple[int, ...] = ()
    names: dict[int, str] = {}

    def ids(self) -> tuple[int, ...]:
        """Every id that a marker holds, in order: what a scan has to look for (Kimi-K2.5: 163586 to 163607)."""
        sequences = (
            self.opener,
            self.closer,
            self.tool_section_begin,
            self.tool_section_end,
            self.tool_call_begin,
            self.tool_arguments_begin,
            self.tool_call_end,
        )
        return tuple(sorted({self.turn_end, *self.role_ids, *(item for ids in sequences for item in ids)}))


class _Family(msgspec.Struct, frozen=True, kw_only=True):
    """A family's marker strings; each must be a single id of the tokenizer."""

    opener: str
    closer: str
    turn_end: str
    tool_section_begin: str = ""
    tool_section_end: str = ""
    tool_call_begin: str = ""
    tool_arguments_begin: str = ""
    tool_call_end: str = ""
    roles: tuple[str, ...] = ()


# In Kimi's format a section holds calls; in Qwen3's each call is a section of its own.
FAMILIES: dict[str, _Family] = {
    "kimi": _Family(
        opener="<think>",
        closer="</think>",
        turn_end="<|im_end|>",
        tool_section_begin="<|tool_calls_section_begin|>",
        tool_section_end="<|tool_calls_section_end|>",
        tool_call_begin="<|tool_call_begin|>",
        tool_arguments_begin="<|tool_call_argument_begin|>",
        tool_call_end="<|tool_call_end|>",
        roles=("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    ),
    "qwen3": _Family(
        opener="<think>",
        closer="</think>",
        turn_end="<|im_end|>",
        tool_section_begin="<tool_call>",
        tool_section_end="</tool_call>",
        tool_call_begin="<tool_call>",
        tool_call_end="</tool_call>",
        roles=("<|im_start|>",),
    ),
}


def find_markers(token_to_id: Callable[[str], int | None], family: str = "auto") -> Markers:
    """The markers of the first family whose every string is an id of the tokenizer, or of the named family.

    `token_to_id` gives None, never an unknown-token id, for a text that is no single id. Raises TokenizerError
    where no family fits.
    """
    if family != "auto" and family not in FAMILIES:
        raise TokenizerError(f"marker family {family!r} is not known; known: {', '.join(FAMILIES)}")
    for name, strings in FAMILIES.items():
        if family not in ("auto", name):
            continue
        wanted = {text for text in [*_texts(strings), *strings.roles] if text}
        ids = {text: token_to_id(text) for text in wanted}
        if any(found is None for found in ids.values()):
            continue
        return _markers(name, strings, {text: found for text, found in ids.items() if found is not None})
    raise TokenizerError(
        f"the tokenizer holds the thinking and tool markers of no known family ({', '.join(FAMILIES)}); "
        "is it the tokenizer of the model that the server runs?"
    )


def thinking_mode(prompt_ids: Sequence[int], markers: Markers) -> Thinking:
    """What the rendered prompt asks of the model: compare the last opener with the last closer after it.

    Only the generation prompt counts: ids after the last turn end. In a template that writes
    `<think></think>` there, thinking is `off`; with `<think>` alone, `opened`; with neither, `by_model`.
    """
    tail_start = last_position(prompt_ids, (markers.turn_end,)) + 1
    tail = prompt_ids[tail_start:]
    opened = last_position(tail, markers.opener)
    closed = last_position(tail, markers.closer)
    if closed >= 0 and closed > opened:
        return "off"
    return "opened" if opened >= 0 else "by_model"


def last_position(ids: Sequence[int], sequence: IdSequence) -> int:
    """Where `sequence` begins for the last time in `ids`, or -1."""
    if not sequence:
        return -1
    wanted = list(sequence)
    for start in range(len(ids) - len(wanted), -1, -1):
        if ids[start] == wanted[0] and list(ids[start : start + len(wanted)]) == wanted:
            return start
    return -1


def _texts(strings: _Family) -> list[str]:
    return [value for value in msgspec.structs.asdict(strings).values() if isinstance(value, str)]


def _markers(name: str, strings: _Family, ids: dict[str, int]) -> Markers:
    def sequence(text: str) -> IdSequence:
        return (ids[text],) if text else ()

    return Markers(
        family=name,
        opener=sequence(strings.opener),
        closer=sequence(strings.closer),
        turn_end=ids[strings.turn_end],
        tool_section_begin=sequence(strings.tool_section_begin),
        tool_section_end=sequence(strings.tool_section_end),
        tool_call_begin=sequence(strings.tool_call_begin),
        tool_arguments_begin=sequence(strings.tool_arguments_begin),
        tool_call_end=sequence(strings.tool_call_end),
        role_ids=tuple(ids[text] for text in strings.roles),
        names={found: text for text, found in sorted(ids.items(), key=lambda item: item[1])},
    )
