"""Control tokens that a row's own texts become: found from ids, reported, or encoded as ordinary text.

A tokenizer makes the same id of `<|im_end|>` whoever wrote it, and a template may join it out of pieces that stand in
several texts. So a row is rendered a second time with its texts neutralised (no character in them that can start or
complete a control token), and the two sequences of control ids are compared: what stands in the first alone came from
the texts. Rows of one structure share that proof, so that usual rows cost no second rendering; a row that spells a
control token never does, for a template may write its own token or leave it out by that very text. This module does
not know what a prompt file looks like, nor whether a control token in a text does harm: that is the user's choice.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

import msgspec
from msgspec.structs import replace

from ..records import Conversation, Json
from .beginnings import render_conversation
from .neutral_texts import holds_control_token, neutral
from .ordinary_text import encode_ordinary

if TYPE_CHECKING:
    from .target_tokenizer import Tokenizer

ControlTokens = Literal["skip", "keep", "as_text"]
"""What becomes of a row whose texts hold control tokens: rejected, kept with a notice, or encoded as ordinary text."""

IN_TEXT = "control_token_in_text"
AS_TEXT = "control_token_as_text"
NOT_PROVED = "as_text_not_proved"

_MOST_PARTS = 40  # of a row: with more, a token in pieces is not traced to its messages
_SHOWN_PLACES = 3
_ENTRY = re.compile(r"(\d+) x (\d+) (.+?) in ")


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation with all its template arguments, the text that the template makes of it, and the text's ids."""

    conversation: Conversation
    text: str
    ids: list[int]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Control ids that a row's texts made; `neutral` is the row with its texts neutralised."""

    neutral: Rendered | None
    detail: str


def find_control_tokens(rows: Sequence[Rendered], tokenizer: "Tokenizer") -> list[Finding | None]:
    """For each row the control ids that come from its texts, or None where every one is the template's own.

    Each row that spells a control token is rendered neutralised, and of the others one of each structure and sequence
    of control ids; only where its sequence changes is every row of that kind. So no row's finding depends on others.
    """
    sequences = [_control_ids(row.ids, tokenizer) for row in rows]
    kinds: dict[tuple[object, ...], list[int]] = {}
    for place, row in enumerate(rows):
        made = row.conversation
        alone = place if holds_control_token(_parts(made), tokenizer) else None
        kinds.setdefault((alone, *_structure(made), sequences[place]), []).append(place)
    found: list[Finding | None] = [None] * len(rows)

    def look_at(places: Sequence[int]) -> None:
        plain = _rendered([_neutral_conversation(rows[place].conversation, tokenizer) for place in places], tokenizer)
        for place, neutral_row in zip(places, plain, strict=True):
            found[place] = _finding(rows[place], sequences[place], neutral_row, tokenizer)

    look_at([places[0] for places in kinds.values()])
    look_at([place for first, *others in kinds.values() if found[first] for place in others])
    return found


def ids_as_text(row: Rendered, finding: Finding, tokenizer: "Tokenizer") -> list[int] | str:
    """The row's ids with its texts as ordinary text and the template's control ids in place; or why there are none.

    Proved for the row: the ids decode to the text as rendered, their control ids are those of the neutralised row, and
    encoding the neutralised row the same way, piece by piece, gives the ids that it has as a whole.
    """
    plain = finding.neutral
    if plain is None or len(plain.text) != len(row.text):
        return "the template renders other text where control tokens are neutralised"
    spans = _own_spans(plain, tokenizer)
    if any(row.text[start:end] != plain.text[start:end] for start, end, _ in spans):
        return "the template's own control tokens stand elsewhere where the texts are neutralised"
    ids, again = (_encode_between(text, spans, tokenizer) for text in (row.text, plain.text))
    if again != plain.ids:
        return "this tokenizer encodes pieces of a text otherwise than the whole"
    if _control_ids(ids, tokenizer) != _control_ids(plain.ids, tokenizer):
        return "a control id beyond the template's own is left"
    if tokenizer.decode(ids) != row.text:
        return "the ids do not decode to the rendered text"
    return ids


def found_tokens(detail: str) -> list[tuple[str, int, int]]:
    """(text, id, count) of each control token that a detail or a notice of this module names."""
    return [(text, int(token), int(count)) for count, token, text in _ENTRY.findall(detail)]


def _finding(
    row: Rendered, sequence: tuple[int, ...], plain: Rendered | None, tokenizer: "Tokenizer"
) -> Finding | None:
    if plain is None:
        return Finding(neutral=None, detail="the template fails where the texts are neutralised: nothing is proved")
    own = _control_ids(plain.ids, tokenizer)
    if own == sequence:
        return None
    extra = Counter(sequence) - Counter(own)
    if not extra:
        return Finding(neutral=plain, detail="the texts change which control tokens the template writes")
    entries = [_entry(row, token, count, tokenizer) for token, count in sorted(extra.items())]
    return Finding(neutral=plain, detail="; ".join(entries))


def _entry(row: Rendered, token: int, count: int, tokenizer: "Tokenizer") -> str:
    text = tokenizer.decode([token])
    places = [path for path, leaf in _leaves(_parts(row.conversation), "") if text in leaf]
    where = places or [f"{part} (in pieces)" for part in _parts_of_pieces(row, token, tokenizer)]
    shown = ", ".join(where[:_SHOWN_PLACES]) or "pieces that the template joins"
    more = f" and {len(where) - _SHOWN_PLACES} more" if len(where) > _SHOWN_PLACES else ""
    return f"{count} x {token} {text} in {shown}{more}"


def _parts_of_pieces(row: Rendered, token: int, tokenizer: "Tokenizer") -> Iterator[str]:
    """The messages without whose texts a control token does not come about."""
    made = row.conversation
    if len(made.messages) > _MOST_PARTS:
        return
    count = row.ids.count(token)
    changes: list[tuple[str, Conversation]] = [
        (f"messages[{place}]", replace(made, messages=_with(made.messages, place, tokenizer)))
        for place in range(len(made.messages))
    ]
    changes.append(("tools", replace(made, tools=cast("tuple[dict[str, Json], ...]", neutral(made.tools, tokenizer)))))
    without = _rendered([changed for _, changed in changes], tokenizer)
    for (name, _), left in zip(changes, without, strict=True):
        if left is not None and left.ids.count(token) < count:
            yield name


def _with(messages: tuple[dict[str, Json], ...], place: int, tokenizer: "Tokenizer") -> tuple[dict[str, Json], ...]:
    changed = cast("dict[str, Json]", neutral(messages[place], tokenizer))
    return (*messages[:place], changed, *messages[place + 1 :])


def _neutral_conversation(made: Conversation, tokenizer: "Tokenizer") -> Conversation:
    return replace(
        made,
        messages=cast("tuple[dict[str, Json], ...]", neutral(made.messages, tokenizer)),
        tools=cast("tuple[dict[str, Json], ...]", neutral(made.tools, tokenizer)),
        template_kwargs=cast("dict[str, Json]", neutral(made.template_kwargs, tokenizer)),
    )


def _rendered(conversations: Sequence[Conversation], tokenizer: "Tokenizer") -> list[Rendered | None]:
    """The conversations rendered and encoded; None where one can't be, for whatever reason: nothing is proved then."""
    opened = [(made, _text(made, tokenizer)) for made in conversations]
    try:
        encoded = iter(tokenizer.encode([text for _, text in opened if text is not None]))
    except Exception:  # one text that can't be encoded fails a batch
        if len(conversations) == 1:
            return [None]
        return [row for made in conversations for row in _rendered([made], tokenizer)]
    return [
        None if text is None else Rendered(conversation=made, text=text, ids=next(encoded)) for made, text in opened
    ]


def _text(made: Conversation, tokenizer: "Tokenizer") -> str | None:
    try:
        return render_conversation(made, tokenizer)
    except Exception:  # a template's filters, a model's own Python
        return None


def _parts(made: Conversation) -> Json:
    return {"messages": made.messages, "tools": made.tools, "template_kwargs": made.template_kwargs}


def _control_ids(ids: Sequence[int], tokenizer: "Tokenizer") -> tuple[int, ...]:
    control = tokenizer.control_ids
    return tuple([item for item in ids if item in control])  # a list is twice as fast as a generator


def _structure(made: Conversation) -> tuple[object, ...]:
    """What decides which control tokens a template writes, whatever the texts say."""
    calls = (len(cast("Sequence[Json]", message.get("tool_calls") or ())) for message in made.messages)
    shapes = tuple((message.get("role"), *sorted(message)) for message in made.messages)
    arguments = msgspec.json.encode(made.template_kwargs, order="sorted")
    return (shapes, tuple(calls), len(made.tools), arguments, made.continue_final)


def _own_spans(plain: Rendered, tokenizer: "Tokenizer") -> list[tuple[int, int, int]]:
    """(start, end, id) of each control token in a neutralised text: they are all the template's own."""
    spans: list[tuple[int, int, int]] = []
    end = 0
    for token in _control_ids(plain.ids, tokenizer):
        text = tokenizer.decode([token])
        start = plain.text.index(text, end)
        end = start + len(text)
        spans.append((start, end, token))
    return spans


def _encode_between(text: str, spans: Sequence[tuple[int, int, int]], tokenizer: "Tokenizer") -> list[int]:
    starts = [0, *(end for _, end, _ in spans)]
    ends = [*(start for start, _, _ in spans), len(text)]
    pieces = encode_ordinary([text[start:end] for start, end in zip(starts, ends, strict=True)], tokenizer)
    ids = list(pieces[0])
    for (_, _, token), piece in zip(spans, pieces[1:], strict=True):
        ids += [token, *piece]
    return ids


def _leaves(value: Json, path: str) -> Iterator[tuple[str, str]]:
    """Every text of a value with its path, the keys of its objects among them."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            inner = f"{path}.{key}" if path else key
            yield inner, key
            yield from _leaves(member, inner)
    elif isinstance(value, Sequence):
        for place, member in enumerate(value):
            yield from _leaves(member, f"{path}[{place}]")
