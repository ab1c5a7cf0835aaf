"""A tokenizer's markers: those of its family, or those that a run file gives, as ids.

This module does not know which texts mark what (markers and marker_families do).
"""

from collections.abc import Sequence
from typing import cast

import msgspec
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from ..markers import GivenMarkers, Markers, find_markers, given_markers


def given_from(text: str) -> GivenMarkers:
    """A run file's `markers`: a JSON object. Raises InputError for anything else."""
    try:
        return msgspec.json.decode(text, type=GivenMarkers)
    except msgspec.MsgspecError as error:
        raise InputError(f'markers is {text!r}: {error}; expected JSON like {{"turn_end": "<|im_end|>"}}') from error


def markers_of(encoder: PreTrainedTokenizerBase, given: GivenMarkers | None) -> Markers:
    """The markers given, or else found in the tokenizer. Raises as `find_markers` and `given_markers` do."""

    def single(text: str) -> int | None:
        return vocabulary_id(encoder, text)

    def several(text: str) -> Sequence[int]:
        return cast("Sequence[int]", encoder.encode(text, add_special_tokens=False))

    return given_markers(single, several, given) if given else find_markers(single, encode=several)


def vocabulary_id(encoder: PreTrainedTokenizerBase, text: str) -> int | None:
    """The id whose whole text is `text`, or None."""
    found = encoder.convert_tokens_to_ids(text)
    return found if isinstance(found, int) and found != encoder.unk_token_id else None
