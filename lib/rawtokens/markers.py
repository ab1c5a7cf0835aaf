"""Where thinking starts and ends, tool sections, stop ids: as ids, found in the tokenizer.

A marker is a sequence of ids, most often of one. A family is chosen by the texts that stand in the tokenizer
as single ids, never by a model's name; what is expected of an output comes from the rendered prompt
(`thinking_mode`), so a marker that the vocabulary has and the template never writes does no harm. This module does
not know what an output should look like (verification does), and it does not guess: a tokenizer without a known
family is refused until its markers are given.
"""

from collections.abc import Callable, Collection, Sequence

import msgspec

from .errors import TokenizerError
from .records import Thinking
from .target.marker_families import FAMILIES, Family

IdSequence = tuple[int, ...]


class Channels(msgspec.Struct, frozen=True, kw_only=True):
    """Harmony's messages: `start` ROLE `channel` NAME `message` TEXT `end`; the first one's start is the prompt's."""

    start: int
    channel: int
    message: int
    end: int
    reasoning: IdSequence
    tool: IdSequence
    answer: IdSequence
    recipient: IdSequence  # in the header of a message to a tool


class Markers(msgspec.Struct, frozen=True, kw_only=True):
    """The markers of one tokenizer, as id sequences; an empty tuple where the family has none.

    `turn_ends` is every id that ends a turn, the template's own first. With `channels` there is no opener and no
    closer.
    """

    family: str
    opener: IdSequence
    closer: IdSequence
    turn_ends: tuple[int, ...]
    tool_section_begin: IdSequence = ()
    tool_section_end: IdSequence = ()
    tool_call_begin: IdSequence = ()
    tool_arguments_begin: IdSequence = ()
    tool_call_end: IdSequence = ()
    role_ids: tuple[int, ...] = ()
    may_reopen: bool = False
    channels: Channels | None = None
    names: dict[int, str] = {}

    def sequences(self) -> tuple[IdSequence, ...]:
        """The markers of thinking and tools, those that there are."""
        thinking = (self.opener, self.closer, self.tool_section_begin, self.tool_section_end)
        calls = (self.tool_call_begin, self.tool_arguments_begin, self.tool_call_end)
        return tuple(ids for ids in (*thinking, *calls) if ids)

    def ids(self) -> tuple[int, ...]:
        """Every id that a marker holds, in order (Kimi-K2.5: 163586 to 163607)."""
        marks = self.channels
        harmony = (marks.start, marks.channel, marks.message, marks.end) if marks else ()
        several = (item for ids in self.sequences() for item in ids)
        return tuple(sorted({*self.turn_ends, *self.role_ids, *several, *harmony}))


class GivenMarkers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The marker texts of a model of no known family: a run file's `model.markers`.

    `turn_end` is the text of the stop id. A model that does not think has neither opener nor closer.
    """

    turn_end: str
    opener: str = ""
    closer: str = ""

    def __post_init__(self) -> None:
        if bool(self.opener) != bool(self.closer):
            one, other = ("opener", "closer") if self.opener else ("closer", "opener")
            raise ValueError(
                f"markers give {one} but no {other}; give both, or neither for a model that does not think"
            )


def find_markers(
    token_to_id: Callable[[str], int | None],
    family: str = "auto",
    *,
    encode: Callable[[str], Sequence[int]] | None = None,
) -> Markers:
    """The markers of the family that the tokenizer's single ids fit best, or of the named family.

    `token_to_id` gives None, never an unknown-token id, for a text that is no single id; `encode` gives the ids of a
    marker that is several, without anything added (a family with such markers needs it). Where several families fit,
    the one with most texts is taken. Raises TokenizerError where none fits, or several fit equally well.
    """
    if family != "auto" and family not in FAMILIES:
        raise TokenizerError(f"marker family {family!r} is not known; known: {', '.join(FAMILIES)}")
    fitting = {
        name: texts
        for name, texts in FAMILIES.items()
        if family in ("auto", name)
        and all(token_to_id(text) is not None for text in (*texts.single_ids(), *texts.holds))
        and all(token_to_id(text) is None for text in texts.lacks)
        and (encode is not None or not texts.spelled)
    }
    sizes = {name: len(texts.single_ids()) + len(texts.holds) for name, texts in fitting.items()}
    best = [name for name, size in sizes.items() if size == max(sizes.values())]
    if len(best) > 1:
        raise TokenizerError(
            f"the tokenizer holds the markers of several families ({', '.join(best)}); name the right one: "
            "find_markers(..., family=NAME)"
        )
    if not best and family != "auto":
        missing = [text for text in FAMILIES[family].single_ids() if token_to_id(text) is None]
        raise TokenizerError(
            f"the tokenizer has no single id for {', '.join(missing)}, which family {family!r} needs; known families: "
            f"{', '.join(FAMILIES)}"
        )
    if not best:
        raise TokenizerError(
            f"the tokenizer holds the thinking and tool markers of no known family ({', '.join(FAMILIES)}); is it the "
            "tokenizer of the model that the server runs? Give the markers of another family in the run file, for a "
            'model that does not think: `model: {markers: {turn_end: "<|im_end|>"}}`; `opener` and `closer` go with it '
            "for one that does"
        )
    return _markers(best[0], FAMILIES[best[0]], token_to_id, encode)


def given_markers(
    token_to_id: Callable[[str], int | None],
    encode: Callable[[str], Sequence[int]],
    given: GivenMarkers,
) -> Markers:
    """The markers of a family that is not known, from its texts; without tool sections.

    Raises TokenizerError where the turn's end is no single id, or a text has no ids.
    """
    spelled = (given.opener, given.closer)
    texts = Family(opener=given.opener, closer=given.closer, turn_ends=(given.turn_end,), spelled=spelled)
    if token_to_id(given.turn_end) is None:
        raise TokenizerError(
            f"markers.turn_end {given.turn_end!r} is no single id of the tokenizer; give the text of its stop id"
        )
    return _markers("given", texts, token_to_id, encode)


def thinking_mode(prompt_ids: Sequence[int], markers: Markers) -> Thinking:
    """What the rendered prompt asks of the model: compare the last opener with the last closer after it.

    Only the generation prompt counts: ids after the last turn end or role marker. In a template that writes
    `<think></think>` there, or a bare `</think>`, thinking is `off`; with `<think>` alone, `opened`; with neither,
    `by_model`. A prompt that has begun a harmony message opens thinking on the reasoning channel alone. A model
    without a closer never thinks: `off`.
    """
    if markers.channels is not None:
        return _channel_mode(prompt_ids, markers.channels)
    if not markers.closer:
        return "off"
    tail = _tail(prompt_ids, frozenset((*markers.turn_ends, *markers.role_ids)))
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


def _channel_mode(prompt_ids: Sequence[int], marks: Channels) -> Thinking:
    header = _tail(prompt_ids, frozenset((marks.start,)))
    if last_position(header, (marks.message,)) < 0:
        return "by_model"
    return "opened" if last_position(header, (marks.channel, *marks.reasoning)) >= 0 else "off"


def _tail(ids: Sequence[int], boundaries: Collection[int]) -> Sequence[int]:
    """The ids after the last one of `boundaries`."""
    for place in range(len(ids) - 1, -1, -1):
        if ids[place] in boundaries:
            return ids[place + 1 :]
    return ids


def _markers(
    name: str,
    texts: Family,
    token_to_id: Callable[[str], int | None],
    encode: Callable[[str], Sequence[int]] | None,
) -> Markers:
    ids = {text: _ids_of(text, token_to_id, encode) for text in texts.texts()}

    def sequence(text: str) -> IdSequence:
        return ids[text] if text else ()

    channels = None
    if texts.channel_marks:
        start, channel, message, end = (ids[text][0] for text in texts.channel_marks)
        reasoning, tool, answer = (ids[text] for text in texts.channel_names)
        channels = Channels(
            start=start,
            channel=channel,
            message=message,
            end=end,
            reasoning=reasoning,
            tool=tool,
            answer=answer,
            recipient=ids[texts.recipient],
        )
    single = {ids[text][0]: text for text in texts.single_ids()}
    return Markers(
        family=name,
        opener=sequence(texts.opener),
        closer=sequence(texts.closer),
        turn_ends=tuple(ids[text][0] for text in texts.turn_ends),
        tool_section_begin=sequence(texts.tool_section_begin),
        tool_section_end=sequence(texts.tool_section_end),
        tool_call_begin=sequence(texts.tool_call_begin),
        tool_arguments_begin=sequence(texts.tool_arguments_begin),
        tool_call_end=sequence(texts.tool_call_end),
        role_ids=tuple(ids[text][0] for text in texts.roles),
        may_reopen=texts.may_reopen,
        channels=channels,
        names=dict(sorted(single.items())),
    )


def _ids_of(
    text: str, token_to_id: Callable[[str], int | None], encode: Callable[[str], Sequence[int]] | None
) -> IdSequence:
    single = token_to_id(text)
    if single is not None:
        return (single,)
    several = tuple(int(item) for item in encode(text)) if encode else ()
    if not several:
        raise TokenizerError(f"the tokenizer gives the marker {text!r} no ids")
    return several
