"""Whole texts to ids: those that transformers gives, as fast as the tokenizer in use allows.

Three ways, the first that holds for the tokenizer in use:

- A *tiktoken core* over the same ranks, where the tokenizer is a tiktoken vocabulary (Kimi's, Llama 3's, gpt-oss's):
  byte-level BPE whose merges are all splits of each piece in the order of the ranks, `ignore_merges`, one split
  pattern, no normalizer, added tokens without conditions. Both algorithms then take the same steps: they could
  part only where two different splits of one piece stand in a text at once; but a piece is always built by the same
  steps, whatever stands around it, so that only one of its splits ever occurs. What is left to prove are the two
  engines' Unicode tables, and that is done when the core is built: on characters of every block and every class, and
  on the first texts themselves.
- A *batch* of the Rust tokenizer, without the offsets and masks that transformers asks for.
- *One by one* through transformers, for a class that encodes by code of its own. Where that class keeps a tiktoken
  encoding (Kimi's does), texts that it would not cut go through that.

This module does not know how a text was rendered, nor whether the tokenizer is the model's.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import tiktoken
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerBase, TokenizersBackend
from transformers.convert_slow_tokenizer import bytes_to_unicode

CORE_AFTER = 8_000_000
"""Characters after which a core is built: it takes 2 to 3 s, as encoding 8 million characters in batches does."""
UNCUT = 20_000
"""Characters. Kimi's class cuts a text at 400,000 characters and at runs of 25,000; a shorter text is never cut."""

Way = Literal["tiktoken core", "batch", "one by one"]


class TextEncoder:
    """Encodes texts as `encoder(text, add_special_tokens=False)` does; `way` says how at the moment."""

    def __init__(self, encoder: PreTrainedTokenizerBase, *, core_after: int = CORE_AFTER) -> None:
        """`core_after` is the number of characters that go by before a tiktoken core is built."""
        self._encoder = encoder
        self._batch = _batch_tokenizer(encoder)
        self._core: tiktoken.Encoding | None = None
        self._longest = 0
        self._characters_left: int | None = core_after

    @property
    def way(self) -> Way:
        """How texts are encoded at the moment."""
        if self._core is not None:
            return "tiktoken core"
        return "batch" if self._batch is not None else "one by one"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, in order. Raises TypeError or UnicodeError for a text with a lone surrogate."""
        if self._core is not None:
            return [self._by_core(self._core, text) for text in texts]
        made = self._without_core(texts)
        if self._characters_left is not None:
            self._characters_left -= sum(map(len, texts))
            if self._characters_left <= 0:
                self._characters_left = None
                self._take_core(texts, made)
        return made

    def _by_core(self, core: tiktoken.Encoding, text: str) -> list[int]:
        if self._longest and len(text) > self._longest:
            return self._without_core([text])[0]
        text.encode()  # tiktoken puts U+FFFD for a lone surrogate without a word; this raises
        try:
            return core.encode(text, allowed_special="all", disallowed_special=())
        except ValueError:  # the pattern's stack, at a million spaces in a row (tiktoken 0.12)
            return self._without_core([text])[0]

    def _without_core(self, texts: Sequence[str]) -> list[list[int]]:
        if self._batch is None:
            return [[int(i) for i in self._encoder(text, add_special_tokens=False)["input_ids"]] for text in texts]
        return [made.ids for made in self._batch.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _take_core(self, texts: Sequence[str], made: Sequence[list[int]]) -> None:
        core = _core_of_ranks(self._batch) if self._batch is not None else _core_of_class(self._encoder)
        if core is None:
            return
        self._longest = 0 if self._batch is not None else UNCUT
        probes = list(_characters())
        wanted = [*made, *self._without_core(probes)]
        if [self._by_core(core, text) for text in [*texts, *probes]] == wanted:
            self._core = core


def _batch_tokenizer(encoder: PreTrainedTokenizerBase) -> RawTokenizer | None:
    """The Rust tokenizer, set as transformers sets it at every call; None where a class encodes in its own way."""
    kind = type(encoder)
    if not isinstance(encoder, TokenizersBackend) or (
        kind.__call__ is not PreTrainedTokenizerBase.__call__ or kind._encode_plus is not TokenizersBackend._encode_plus
    ):
        return None
    raw: RawTokenizer = encoder.backend_tokenizer
    raw.no_truncation()
    raw.no_padding()
    raw.encode_special_tokens = encoder.split_special_tokens
    return raw


def _core_of_class(encoder: PreTrainedTokenizerBase) -> tiktoken.Encoding | None:
    """The tiktoken encoding that a Python class holds as `model`, where its special tokens are the tokenizer's."""
    core = getattr(encoder, "model", None)
    if not isinstance(core, tiktoken.Encoding):
        return None
    added = {token.content: i for i, token in encoder.added_tokens_decoder.items()}
    plain = not any(
        token.lstrip or token.rstrip or token.single_word for token in encoder.added_tokens_decoder.values()
    )
    return (
        core if plain and added == {text: core.encode_single_token(text) for text in core.special_tokens_set} else None
    )


class _Bpe(msgspec.Struct):
    type: str
    vocab: dict[str, int]
    merges: list[tuple[str, str]]
    ignore_merges: bool = False
    byte_fallback: bool = False
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class _Added(msgspec.Struct):
    id: int
    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


class _File(msgspec.Struct):
    """What of a tokenizer.json decides ids."""

    model: _Bpe
    added_tokens: list[_Added]
    normalizer: object
    pre_tokenizer: object


def _core_of_ranks(raw: RawTokenizer) -> tiktoken.Encoding | None:
    """A tiktoken encoding over the tokenizer's own ranks and pattern; None where it is no tiktoken vocabulary."""
    try:
        content = msgspec.json.decode(raw.to_str(), type=_File)
    except msgspec.ValidationError:  # no BPE, or merges in another form
        return None
    pattern, ranks = _split_pattern(content.pre_tokenizer), _ranks(content.model.vocab)
    if pattern is None or ranks is None or content.normalizer is not None or raw.encode_special_tokens:
        return None
    if not _joins_as_tiktoken(content.model) or not _added_plainly(content.added_tokens, content.model):
        return None
    special = {added.content: added.id for added in content.added_tokens}
    try:
        return tiktoken.Encoding("target", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    except ValueError:  # a pattern that only the other engine takes
        return None


def _split_pattern(pre_tokenizer: object) -> str | None:
    match pre_tokenizer:
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
    return None


def _ranks(vocabulary: dict[str, int]) -> dict[bytes, int] | None:
    """The vocabulary as bytes, all 256 single ones among them."""
    table = {letter: byte for byte, letter in bytes_to_unicode().items()}
    try:
        ranks = {bytes([table[letter] for letter in piece]): i for piece, i in vocabulary.items()}
    except KeyError:
        return None
    return ranks if all(bytes([byte]) in ranks for byte in range(256)) else None


def _joins_as_tiktoken(model: _Bpe) -> bool:
    """Whether the merges are all splits of each piece into two others, in the order of the pieces' ranks."""
    if model.type != "BPE" or not model.ignore_merges or model.byte_fallback or model.dropout:
        return False
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    vocabulary = model.vocab
    splits = sum(
        piece[:cut] in vocabulary and piece[cut:] in vocabulary for piece in vocabulary for cut in range(1, len(piece))
    )
    if len(model.merges) != splits or len(set(model.merges)) != splits:
        return False
    ranks = [vocabulary[left + right] for left, right in model.merges]
    return ranks == sorted(ranks)


def _added_plainly(added: Sequence[_Added], model: _Bpe) -> bool:
    """Whether added tokens are found wherever they are spelt, and none begins with another one."""
    if any(token.single_word or token.lstrip or token.rstrip or token.normalized for token in added):
        return False
    if any(token.content in model.vocab or not token.content for token in added):
        return False
    texts = sorted(token.content for token in added)
    return not any(longer.startswith(text) for text, longer in pairwise(texts))


def _characters() -> Iterator[str]:
    """Short texts with the characters at the edges of every Unicode class, and one of every sixteen."""
    before = ""
    for number in range(0x110000):
        letter = chr(number)
        kind = unicodedata.category(letter)
        if (kind != before or number % 16 == 0) and kind not in ("Cs", "Co") and number not in range(0x40000, 0xE0000):
            yield f"a{letter}b {letter}1{letter}{letter}"
        before = kind
