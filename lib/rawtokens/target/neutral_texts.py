"""Texts made neutral: as they were, but with no character that can start or complete a control token.

What a template compares (roles, types, its own names of members) stays, and so do lengths and white space, so that it
renders the same conversation with other words in it. This module does not know what a template does with a text.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from ..errors import TokenizerError
from ..records import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .target_tokenizer import Tokenizer

_TYPES = frozenset(("function", "text", "object", "array", "string", "number", "integer", "boolean", "null"))
_NAMED_BY_THE_ROW = ("properties", "arguments", "$defs", "definitions")
_REPLACEMENTS = "~^;!*%@#$&+=?,.()"  # ASCII, so that JSON does not escape it


class _Alphabet(msgspec.Struct, frozen=True, kw_only=True):
    """What of a tokenizer's control tokens decides how a text is neutralised."""

    texts: tuple[str, ...]
    longest: int
    replacements: str
    edges: dict[int, str]
    edges_of_keys: dict[int, str]
    spelled: re.Pattern[bytes]


def holds_control_token(value: Json, tokenizer: "Tokenizer") -> bool:
    """Whether a text or a key of `value` spells a whole control token."""
    spelled = _alphabet(tokenizer.encoder, tokenizer.control_ids).spelled
    return spelled.search(msgspec.json.encode(value)) is not None


def neutral(value: Json, tokenizer: "Tokenizer") -> Json:
    """`value` with every text neutralised; a text that lies within a control token (`think`) loses its first letter.

    Raises TokenizerError where every character that could stand instead is one of a control token's.
    """
    return _neutral(value, _alphabet(tokenizer.encoder, tokenizer.control_ids), key="", named_by_the_row=False)


def _neutral(value: Json, alphabet: _Alphabet, *, key: str, named_by_the_row: bool) -> Json:
    if isinstance(value, str):
        if key == "role" or (key == "type" and value in _TYPES):
            return value
        return _broken(value.translate(alphabet.edges), alphabet)
    if isinstance(value, Mapping):
        changed: dict[str, Json] = {}
        for name, member in value.items():
            inner = _neutral(member, alphabet, key=name, named_by_the_row=name in _NAMED_BY_THE_ROW)
            changed[_neutral_key(name, alphabet, named_by_the_row, changed)] = inner
        return changed
    if isinstance(value, Sequence):
        return [_neutral(item, alphabet, key=key, named_by_the_row=False) for item in value]
    return value


def _neutral_key(name: str, alphabet: _Alphabet, named_by_the_row: bool, taken: Collection[str]) -> str:
    """A key that no other of the object has: `x` and `y` may both lie within a control token."""
    changed = name.translate(alphabet.edges_of_keys)
    if named_by_the_row:
        changed = _broken(changed, alphabet)
    for other in alphabet.replacements:
        if changed not in taken:
            break
        changed = changed.replace(alphabet.replacements[0], other, 1)
    while changed in taken:
        changed += alphabet.replacements[0]
    return changed


def _broken(text: str, alphabet: _Alphabet) -> str:
    """The text, without its first letter where a template could complete it to a control token (`<` + text + `>`)."""
    within = text.strip()
    if not within or len(within) > alphabet.longest or not any(within in token for token in alphabet.texts):
        return text
    return text.replace(within[0], alphabet.replacements[0], 1)


@lru_cache(maxsize=8)
def _alphabet(encoder: "PreTrainedTokenizerBase", control_ids: frozenset[int]) -> _Alphabet:
    texts = [str(text) for text in encoder.convert_ids_to_tokens(sorted(control_ids))]
    used = set("".join(texts))
    replacements = "".join(character for character in _REPLACEMENTS if character not in used)
    if not replacements:
        raise TokenizerError(f"control tokens use every character of {_REPLACEMENTS}; texts can't be told from them")
    starts = {text.strip()[0] for text in texts}
    ends = {text.strip()[-1] for text in texts}
    edges = starts | {character for character in ends if not character.isalnum()}
    of_keys = {character for character in edges if not character.isalnum()}
    return _Alphabet(
        texts=tuple(texts),
        longest=max(map(len, texts)),
        replacements=replacements,
        edges={ord(character): replacements[0] for character in edges},
        edges_of_keys={ord(character): replacements[0] for character in of_keys},
        spelled=_any_of([msgspec.json.encode(text)[1:-1] for text in texts]),
    )


def _any_of(words: Iterable[bytes]) -> re.Pattern[bytes]:
    """A pattern that finds each of the words; grouped by their beginnings, for Python tries alternatives in turn."""
    groups = groupby(sorted(words), key=lambda word: word[:3])
    return re.compile(
        b"|".join(
            re.escape(start) + b"(?:%s)" % b"|".join(re.escape(word[3:]) for word in group) for start, group in groups
        )
    )
