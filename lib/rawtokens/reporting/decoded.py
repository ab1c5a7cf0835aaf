"""Ids as text to look at: inert HTML whose segments are told apart by colour and by label.

Ids are decoded piece by piece and never encoded again. A marker is a chip with its text and its ids, so that
`</think>` the id and "</think>" the text are not mistaken for each other; an id without a text is a chip too. Where a
piece ends inside a character, its bytes show as U+FFFD. This module does not know why ids belong to a segment.
"""

from collections.abc import Collection, Iterator, Sequence
from html import escape
from typing import NamedTuple, Protocol

from IPython.display import display

from ..markers import IdSequence, Markers
from .display import printable
from .wording import counted

HEAD_IDS, TAIL_IDS = 160, 80
"""What is shown of a longer segment: its first and its last ids."""
_COLOURS = {  # border, background; text is near black on all of them
    "prompt": ("#656364", "#f4f4f5"),
    "reasoning": ("#1845fb", "#eef2ff"),
    "closer": ("#c91f16", "#fef2f2"),
    "answer": ("#86c8dd", "#f0f9fc"),
    "tool calls": ("#ff5e02", "#fff4ed"),
    "stop id": ("#c849a9", "#fdf2fa"),
    "sampled": ("#1845fb", "#eef2ff"),
    "tool result": ("#adad7d", "#f8f8f1"),
}
_CHIP = (
    "margin:0 2px;border:1px solid #52525b;border-radius:4px;padding:0 4px 3px;"  # room for the underscores
    "background-color:#ffffff;white-space:nowrap"
)
_TEXT = (
    "margin:0;line-height:1.7;white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;font-size:0.85em;"
    "color:#18181b"
)
_LABEL = "color:#3f3f46;font-size:0.75em;font-weight:bold"


class Decoder(Protocol):
    """What is needed of a tokenizer; `target_tokenizer.Tokenizer` is one."""

    @property
    def markers(self) -> Markers: ...
    @property
    def vocabulary_size(self) -> int: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class Segment(NamedTuple):
    """Consecutive ids of one kind: prompt, reasoning, closer, answer, tool calls or stop id; sampled, tool result."""

    label: str
    ids: tuple[int, ...]


class _Piece(NamedTuple):
    kind: str  # "text", "chip" or "gap"
    text: str
    ids: IdSequence = ()


def show_segments(
    segments: Sequence[Segment], decoder: Decoder, *, caption: str, special_ids: Collection[int] = ()
) -> None:
    """Show segments in a notebook, as HTML and as text; `special_ids` are chips beside the markers."""
    plain = "\n".join(
        f"[{label}: {counted(len(ids), 'id')}] " + "".join(map(_plain, _pieces(ids, decoder, special_ids)))
        for label, ids in segments
    )
    html = segments_html(segments, decoder, caption=caption, special_ids=special_ids)
    display({"text/html": html, "text/plain": f"{printable(caption)}\n{plain}"}, raw=True)  # type: ignore[no-untyped-call]


def segments_html(
    segments: Sequence[Segment], decoder: Decoder, *, caption: str, special_ids: Collection[int] = ()
) -> str:
    """A `<figure>` without script, link or style sheet; all text is escaped."""
    blocks = []
    for label, ids in segments:
        text = ids_html(ids, decoder, special_ids=special_ids)
        blocks.append(block_html(f"{label} · {counted(len(ids), 'id')}", text, colours=_COLOURS[label]))
    return f"<figure><figcaption>{escape(printable(caption))}</figcaption>{''.join(blocks)}</figure>"


def block_html(head: str, text: str, *, colours: tuple[str, str]) -> str:
    """A block under its head; `colours` are border and background, `text` is of `ids_html`."""
    border, background = colours
    return (
        f'<div style="border-left:4px solid {border};background-color:{background};padding:4px 8px;margin:2px 0">'
        f'<div style="{_LABEL}">{escape(head)}</div>'
        f'<pre dir="auto" style="{_TEXT};background-color:{background}">{text}</pre></div>'
    )


def ids_html(ids: Sequence[int], decoder: Decoder, *, special_ids: Collection[int] = ()) -> str:
    """The inside of a block: text and chips, all of it escaped, a long one's middle left out and counted."""
    return "".join(map(_html, _pieces(tuple(ids), decoder, special_ids)))


def _pieces(ids: IdSequence, decoder: Decoder, special_ids: Collection[int]) -> Iterator[_Piece]:
    """A segment's text and chips, a long one's middle left out and counted."""
    if len(ids) <= HEAD_IDS + TAIL_IDS:
        yield from _decoded(ids, decoder, special_ids)
        return
    yield from _decoded(ids[:HEAD_IDS], decoder, special_ids)
    left_out = ids[HEAD_IDS:-TAIL_IDS]
    chips = sum(piece.kind == "chip" for piece in _decoded(left_out, decoder, special_ids))
    markers = f", {counted(chips, 'marker')} among them" if chips else ""
    yield _Piece("gap", f"{counted(len(left_out), 'id')} left out{markers}")
    yield from _decoded(ids[-TAIL_IDS:], decoder, special_ids)


def _decoded(ids: IdSequence, decoder: Decoder, special_ids: Collection[int]) -> Iterator[_Piece]:
    sequences = _marker_sequences(decoder.markers)
    has_text = {item: bool(_text_of((item,), decoder)) for item in set(ids)}
    run: list[int] = []
    place = 0
    while place < len(ids):
        item = ids[place]
        found = next((sequence for sequence in sequences.get(item, ()) if stands_at(ids, place, sequence)), ())
        if not found and (item in special_ids or not has_text[item]):
            found = (item,)
        if not found:
            run.append(item)
            place += 1
            continue
        if run:
            yield _Piece("text", decoder.decode(run))
            run = []
        yield _Piece("chip", _text_of(found, decoder) or "no text", found)
        place += len(found)
    if run:
        yield _Piece("text", decoder.decode(run))


def _marker_sequences(markers: Markers) -> dict[int, list[IdSequence]]:
    """The markers by their first id, longest first."""
    several = (markers.opener, markers.closer, markers.tool_section_begin, markers.tool_section_end)
    calls = (markers.tool_call_begin, markers.tool_arguments_begin, markers.tool_call_end)
    single = ((item,) for item in (*markers.turn_ends, *markers.role_ids, *markers.names))
    by_first: dict[int, list[IdSequence]] = {}
    for sequence in sorted({*several, *calls, *single} - {()}, key=len, reverse=True):
        by_first.setdefault(sequence[0], []).append(sequence)
    return by_first


def _text_of(ids: IdSequence, decoder: Decoder) -> str:
    """The text of a marker or of one id; empty for an id that the tokenizer has no text for."""
    if not all(0 <= item < decoder.vocabulary_size for item in ids):
        return ""
    try:
        return (decoder.markers.names.get(ids[0]) if len(ids) == 1 else None) or decoder.decode(ids)
    except (LookupError, TypeError, ValueError, OverflowError):
        return ""


def _html(piece: _Piece) -> str:
    text = escape(printable(piece.text))
    if piece.kind == "text":
        return text
    if piece.kind == "gap":
        return f"<em>\n[… {text} …]\n</em>"
    numbers = " ".join(map(str, piece.ids))
    return f'<span style="{_CHIP}"><span dir="auto">{text}</span> <small>{numbers}</small></span>'


def _plain(piece: _Piece) -> str:
    if piece.kind == "text":
        return printable(piece.text)
    if piece.kind == "gap":
        return f"\n[… {piece.text} …]\n"
    return f"⟦{printable(piece.text)} {' '.join(map(str, piece.ids))}⟧"


def stands_at(ids: Sequence[int], place: int, sequence: IdSequence) -> bool:
    """Whether `sequence` begins at `place`; an empty one stands nowhere."""
    return bool(sequence) and tuple(ids[place : place + len(sequence)]) == sequence
