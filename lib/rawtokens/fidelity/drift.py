"""What re-tokenising would change: every output decoded to text, encoded again, and compared id by id.

Nothing here becomes a record. An output is decoded by itself, special ids shown, and encoded without anything added;
an id *changes* where the re-tokenised output does not have the same id over the same bytes (id_bytes). A row that ends
inside a character, or holds bytes that are no UTF-8, can't come back from its text: it is counted as such, beside its
changed ids. This module does not know what a chat template would make of an output (rerendering does).
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from ..markers import Markers, last_position
from ..reporting.samples import Sample, split_output
from ..target.id_bytes import LOST, IdBytes, first_difference

PLACES = ("reasoning", "closer", "answer", "tool calls", "tool arguments", "stop id")
"""Where an id can stand; `tool arguments` only in families that mark where a call's arguments begin."""

SHOWN = 8


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """What re-tokenising makes of one output. Positions count in output_ids from 0; null where nothing changes."""

    decoded: bool = True  # False: an id outside the vocabulary, nothing compared
    text_lost: bool = False  # bytes that are no UTF-8: the text has U+FFFD in their place
    retokenised_tokens: int
    changed_tokens: int = 0
    first_changed: int | None = None
    first_place: str | None = None  # one of PLACES
    changed_by_place: dict[str, int] = {}
    was: list[int] = []  # the ids of the first change, at most SHOWN
    becomes: list[int] = []


def retokenise(outputs: Sequence[Sequence[int]], table: IdBytes) -> list[list[int]]:
    """Each output decoded and encoded again. Raises IndexError for an id above the vocabulary."""
    return table.tokenizer.encode([table.text(ids) for ids in outputs])


def drift_of(samples: Sequence[Sample], table: IdBytes) -> list[Drift]:
    """The drift of every row, in order; rows with an id outside the vocabulary are not decoded."""
    size = table.tokenizer.vocabulary_size
    legal = [
        not sample.output_ids or 0 <= min(sample.output_ids) <= max(sample.output_ids) < size for sample in samples
    ]
    again = iter(retokenise([row.output_ids for row, fits in zip(samples, legal, strict=True) if fits], table))
    return [
        _drift(row, next(again), table) if fits else Drift(decoded=False, retokenised_tokens=0)
        for row, fits in zip(samples, legal, strict=True)
    ]


def places_of(sample: Sample, markers: Markers) -> list[str]:
    """For each output id where it stands, one of PLACES, as the verified row says."""
    places = [label for label, ids in split_output(sample, markers) for _ in ids]
    if not markers.tool_arguments_begin:
        return places
    begins, ends, ids = markers.tool_arguments_begin, markers.tool_call_end, sample.output_ids
    inside = False
    for place, label in enumerate(places):
        if label != "tool calls":
            inside = False
            continue
        window = ids[max(0, place - len(begins)) : place]
        inside = (inside or last_position(window, begins) >= 0) and last_position(
            ids[place : place + len(ends)], ends
        ) < 0
        if inside:
            places[place] = "tool arguments"
    return places


def _drift(sample: Sample, again: list[int], table: IdBytes) -> Drift:
    ids = sample.output_ids
    if again == ids:
        return Drift(retokenised_tokens=len(again))
    places = places_of(sample, table.tokenizer.markers)
    partners = table.partners(ids, again)
    lost = np.flatnonzero(partners == LOST).tolist()
    first = min(first_difference(ids, again), len(ids) - 1)
    behind = np.flatnonzero(partners[first:] != LOST)
    until, until_again = (first + int(behind[0]), int(partners[first + behind[0]])) if len(behind) else (None, None)
    counts = {name: sum(places[place] == name for place in lost) for name in PLACES}
    return Drift(
        text_lost=not table.is_whole_text(ids, table.text(ids)),
        retokenised_tokens=len(again),
        changed_tokens=len(lost),
        first_changed=first,
        first_place=places[first] if places else None,
        was=ids[first:until][:SHOWN],
        becomes=again[first:until_again][:SHOWN],
        changed_by_place={name: count for name, count in counts.items() if count},
    )
