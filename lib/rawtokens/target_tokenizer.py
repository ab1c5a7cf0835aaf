"""The target's tokenizer: loaded, checked against its own tokenizer.json, with its markers and its bound.

This module does not know what the tokenizer is used for; it refuses one that it can't trust.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import cast

import msgspec
import transformers
from tokenizers import Tokenizer as RawTokenizer
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file

from .encoding import TextEncoder
from .errors import InputError, RawTokensError, TokenizerError, one_line
from .markers import Markers, find_markers
from .records import Json
from .run_file import looks_like_path, require_pinned_code

# Texts on which tokenizers that are loaded as another class were seen to differ (transformers issue 45488).
PROBES = (
    "What is 2+2?",
    "  two  spaces\n\n\nand\tnewlines \r\n end ",
    "def f(x):\n    return {'a': [1, 22, 333, 4444]}\n",
    "你好，世界！今天天气怎么样？",
    "naïve Ünïcode ÇEDILLA don't WE'LL 🙂👍🏽",
    "12345678901 3.14159 0x1F https://example.org/?q=1&r=2",
)


# Arguments of transformers' apply_chat_template that are not passed on to the template.
_NOT_THE_TEMPLATES = frozenset(
    {"conversation", "tools", "add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation"}
    | {"max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"}
    | {"sanitize_control_tokens"}
)


class Tokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """The target's tokenizer with its markers and its bound; made by `load_tokenizer`.

    `vocabulary_size` is the model's (ids below it are legal on the server), from the model's config where there is
    one, else the number of the tokenizer's ids. `control_texts` matches every special token; `control_ids` are the
    ids of all special and added tokens, which text can spell; added tokens of white space alone are ordinary text.
    `template_date` is the ISO date that the chat template inserts through `strftime_now`, one for the whole stage;
    "" where it inserts none. `identity` is what a run's fingerprint covers.
    """

    encoder: PreTrainedTokenizerBase
    text_encoder: TextEncoder
    markers: Markers
    vocabulary_size: int
    control_texts: re.Pattern[str]
    control_ids: frozenset[int]
    template_date: str
    identity: dict[str, str]

    def decode(self, ids: Sequence[int]) -> str:
        """Text to look at, special ids shown; it does not lead back to the ids. Raises IndexError above the bound."""
        return str(self.encoder.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_to_id(self, text: str) -> int | None:
        """The id whose whole text is `text`, or None."""
        return _vocabulary_id(self.encoder, text)

    def render(
        self,
        messages: Sequence[Mapping[str, Json]],
        *,
        tools: Sequence[Mapping[str, Json]] = (),
        template_kwargs: Mapping[str, Json] | None = None,
        continue_final: bool = False,
    ) -> str:
        """The conversation as the text whose ids are the prompt, generation prompt included.

        With `continue_final` the last message is left open, for the model to go on with. Raises what the template
        raises, and InputError as `prompt_ids` does.
        """
        return cast("str", self._apply_template(messages, tools, template_kwargs, continue_final, tokenize=False))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of rendered texts, in order: those that `prompt_ids` gives for the same conversations.

        Nothing is added: a beginning-of-sequence id stands where the text spells it. Raises TypeError or UnicodeError
        for a text that UTF-8 can't hold (a lone surrogate).
        """
        return self.text_encoder.encode(texts)

    def prompt_ids(
        self,
        messages: Sequence[Mapping[str, Json]],
        *,
        tools: Sequence[Mapping[str, Json]] = (),
        template_kwargs: Mapping[str, Json] | None = None,
        continue_final: bool = False,
    ) -> list[int]:
        """The ids of the rendered conversation, by transformers alone: what `render` and `encode` are held to.

        Raises what the template raises, and InputError for an argument that is no template's but would change how
        ids are made (`truncation`, `tokenize` and the like).
        """
        ids = self._apply_template(messages, tools, template_kwargs, continue_final, tokenize=True)
        return [int(item) for item in cast("Sequence[int]", ids)]

    def _apply_template(
        self,
        messages: Sequence[Mapping[str, Json]],
        tools: Sequence[Mapping[str, Json]],
        template_kwargs: Mapping[str, Json] | None,
        continue_final: bool,
        *,
        tokenize: bool,
    ) -> str | Sequence[int]:
        _refuse_others_arguments(template_kwargs or {})
        made: str | Sequence[int] = self.encoder.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=not continue_final,
            continue_final_message=continue_final,
            tokenize=tokenize,
            return_dict=False,
            **(template_kwargs or {}),
        )
        return made


def template_arguments(text: str) -> dict[str, Json]:
    """A notebook's `template_kwargs`: a JSON object. Raises InputError for anything else."""
    try:
        arguments = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise InputError(f'template_kwargs is {text!r}: {error}; expected JSON like {{"thinking": true}}') from error
    _refuse_others_arguments(arguments)
    return cast("dict[str, Json]", arguments)


def load_tokenizer(name: str, *, revision: str = "", trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer in a folder or of a hub model, checked against its own tokenizer.json on a probe set.

    Raises TokenizerError where it can't be loaded, has no chat template, has no known markers, or encodes the
    probes otherwise than the raw tokenizer.json beside it does.
    """
    where = str(Path(name).expanduser()) if looks_like_path(name) else name
    if looks_like_path(name) and not Path(where).is_dir():
        raise TokenizerError(
            f"tokenizer {name!r}: no such folder; give a folder with tokenizer files or a hub id "
            "(the demo's is made by `rawtokens demo-model DIR`)"
        )
    require_pinned_code(where, revision, trust_remote_code=trust_remote_code)
    try:
        return _load(name, where, revision, trust_remote_code)
    except RawTokensError:
        raise
    except Exception as error:  # transformers, tokenizers and the hub client raise many kinds
        raise TokenizerError(f"tokenizer {name!r} can't be loaded: {one_line(error)}") from error


def _load(name: str, where: str, revision: str, trust_remote_code: bool) -> Tokenizer:
    encoder: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        where, revision=revision or None, trust_remote_code=trust_remote_code
    )
    if not encoder.chat_template:
        raise TokenizerError(f"tokenizer {name!r} has no chat template; prompts can't be rendered with it")
    _compare_with_raw(encoder, where, revision)
    markers = find_markers(lambda text: _vocabulary_id(encoder, text))
    template_date = date.today().isoformat() if "strftime_now" in str(encoder.chat_template) else ""
    special = sorted({*encoder.all_special_tokens, *markers.names.values()}, key=len, reverse=True)
    return Tokenizer(
        encoder=encoder,
        text_encoder=TextEncoder(encoder),
        markers=markers,
        vocabulary_size=_vocabulary_size(encoder, where, revision),
        control_texts=re.compile("|".join(re.escape(text) for text in special)),
        control_ids=_control_ids(encoder),
        template_date=template_date,
        identity={
            "tokenizer": Path(where).name if looks_like_path(name) else name,
            "tokenizer_revision": revision,
            "tokenizer_class": type(encoder).__name__,
            "tokenizer_sha256": _tokenizer_hash(encoder),
            "chat_template_sha256": hashlib.sha256(str(encoder.chat_template).encode()).hexdigest(),
            "template_date": template_date,
        },
    )


def _refuse_others_arguments(arguments: Mapping[str, object]) -> None:
    for name in arguments:
        if name in _NOT_THE_TEMPLATES:
            raise InputError(f"template_kwargs holds {name!r}, which is no argument of a chat template; take it out")


def _compare_with_raw(encoder: PreTrainedTokenizerBase, where: str, revision: str) -> None:
    path = _file_of(where, "tokenizer.json", revision)
    if path is None:
        return
    raw = RawTokenizer.from_file(path)
    for text in PROBES:
        ours = encoder.encode(text, add_special_tokens=False)
        if list(ours) != raw.encode(text, add_special_tokens=False).ids:
            raise TokenizerError(
                f"tokenizer {where!r} was loaded as {type(encoder).__name__} by transformers "
                f"{transformers.__version__}, which gives {text!r} other ids than its tokenizer.json does; "
                "set trust_remote_code or another transformers version, and pin the revision"
            )


def _control_ids(encoder: PreTrainedTokenizerBase) -> frozenset[int]:
    added = {i: token.content for i, token in encoder.added_tokens_decoder.items()}
    spaces = {i for i, content in added.items() if not content.replace("▁", "").strip()}
    return frozenset({*added, *encoder.all_special_ids} - spaces)


def _vocabulary_size(encoder: PreTrainedTokenizerBase, where: str, revision: str) -> int:
    """The model's bound: padded vocabularies have ids that the tokenizer does not name."""
    path = _file_of(where, "config.json", revision)
    if path is None:
        return len(encoder)
    config, _ = PretrainedConfig.get_config_dict(str(Path(path).parent))
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return int(size) if size else len(encoder)


def _file_of(where: str, name: str, revision: str) -> str | None:
    found = cached_file(where, name, revision=revision or None, _raise_exceptions_for_missing_entries=False)
    return str(found) if found else None


def _vocabulary_id(encoder: PreTrainedTokenizerBase, text: str) -> int | None:
    found = encoder.convert_tokens_to_ids(text)
    return found if isinstance(found, int) and found != encoder.unk_token_id else None


def _tokenizer_hash(encoder: PreTrainedTokenizerBase) -> str:
    """What the tokenizer does, not how its file is written: its vocabulary and the probes' ids."""
    probes = [list(encoder.encode(text, add_special_tokens=False)) for text in PROBES]
    content = json.dumps([sorted(encoder.get_vocab().items(), key=lambda item: item[1]), probes])
    return hashlib.sha256(content.encode()).hexdigest()
