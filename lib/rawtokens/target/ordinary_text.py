"""Text as ids without any control id: what `<|im_end|>` is when it is only eleven characters.

The loaded tokenizer without its control tokens; transformers' own switches for it leave some in place
(`split_special_tokens` and `sanitize_control_tokens` miss tokens that are not marked as special). This module proves
nothing: whoever uses the ids checks that no control id is among them and that they decode to the text.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RawTokenizer
    from transformers import PreTrainedTokenizerBase

    from .target_tokenizer import Tokenizer


def encode_ordinary(texts: Sequence[str], tokenizer: "Tokenizer") -> list[list[int]]:
    """The ids of each text, control tokens spelled in it as ordinary text."""
    encoder = tokenizer.encoder
    if not encoder.is_fast:
        pieces = [encoder.tokenize(text, split_special_tokens=True) for text in texts]
        return [cast("list[int]", encoder.convert_tokens_to_ids(tokens)) for tokens in pieces]
    raw = _without_control_tokens(encoder, tokenizer.control_ids)
    return [list(raw.encode(text, add_special_tokens=False).ids) for text in texts]


@lru_cache(maxsize=4)
def _without_control_tokens(encoder: "PreTrainedTokenizerBase", control_ids: frozenset[int]) -> "RawTokenizer":
    from tokenizers import Tokenizer as RawTokenizer

    content = json.loads(encoder.backend_tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] not in control_ids]
    content.update(post_processor=None, truncation=None, padding=None)
    return RawTokenizer.from_str(json.dumps(content))
