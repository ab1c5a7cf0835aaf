"""The target's tokenizer: loaded and checked, with its markers and its bound; conversations to text, text to ids.

This module does not know what the tokenizer is used for; it refuses one that it can't trust.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import jinja2
import msgspec
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..errors import InputError, RawTokensError, TokenizerError, one_line
from ..markers import GivenMarkers, Markers
from ..records import Json
from ..run_file import looks_like_path, require_pinned_code
from .encoding import TextEncoder
from .prompt_encoders import PromptEncoder, load_prompt_encoder
from .template_dates import date_for, hold_date
from .thinking_modes import check_arguments
from .tokenizer_checks import PROBES, check_class, check_rendered, control_ids_of, vocabulary_size
from .tokenizer_markers import given_from, markers_of, vocabulary_id

__all__ = ["PROBES", "Tokenizer", "TokenizerSource", "load_tokenizer", "template_arguments"]

_PROBE: list[dict[str, Json]] = [{"role": "user", "content": "What is 2+2?"}]


class TokenizerSource(msgspec.Struct, frozen=True, kw_only=True):
    """What `load_tokenizer` was given: enough to load the same tokenizer in another process."""

    name: str
    revision: str = ""
    trust_remote_code: bool = False
    template_date: str = ""
    prompt_encoder: str = ""
    markers: str = ""


class Tokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """The target's tokenizer with its markers and its bound; made by `load_tokenizer`.

    `vocabulary_size` is the model's (ids below it are legal on the server), from the model's config where there is
    one, else the number of the tokenizer's ids. `control_ids` are the ids of all special and added tokens, which text
    can spell; added tokens of white space alone are ordinary text. `template_date` is the ISO date that the chat
    template inserts through `strftime_now`, one for the whole stage; "" where it inserts none. `identity` is what a
    run's fingerprint covers. `notices` are doubts that loading left, in words.
    """

    source: TokenizerSource
    encoder: PreTrainedTokenizerBase
    text_encoder: TextEncoder
    prompt_encoder: PromptEncoder | None
    markers: Markers
    vocabulary_size: int
    control_ids: frozenset[int]
    template_date: str
    identity: dict[str, str]
    notices: tuple[str, ...] = ()

    def decode(self, ids: Sequence[int]) -> str:
        """Text to look at, special ids shown; it does not lead back to the ids. Raises IndexError above the bound."""
        return str(self.encoder.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_to_id(self, text: str) -> int | None:
        """The id whose whole text is `text`, or None."""
        return vocabulary_id(self.encoder, text)

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
        raises, InputError as `prompt_ids` does, and ValueError where a prompt encoder gives ids that are not the ids
        of their text.
        """
        if self.prompt_encoder is None:
            return cast("str", self._apply_template(messages, tools, template_kwargs, continue_final, tokenize=False))
        made = self.prompt_encoder.make(messages, tools, template_kwargs or {}, continue_final)
        if isinstance(made, str):
            return made
        text = self.decode(made)
        if self.encode([text]) != [made]:
            raise ValueError(f"{self.prompt_encoder.name} gives ids that their own text does not encode to")
        return text

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
        if self.prompt_encoder is None:
            ids = self._apply_template(messages, tools, template_kwargs, continue_final, tokenize=True)
            return [int(item) for item in cast("Sequence[int]", ids)]
        made = self.prompt_encoder.make(messages, tools, template_kwargs or {}, continue_final)
        return self.encode([made])[0] if isinstance(made, str) else made

    def _apply_template(
        self,
        messages: Sequence[Mapping[str, Json]],
        tools: Sequence[Mapping[str, Json]],
        template_kwargs: Mapping[str, Json] | None,
        continue_final: bool,
        *,
        tokenize: bool,
    ) -> str | Sequence[int]:
        check_arguments(template_kwargs or {})
        if self.template_date:
            hold_date(self.encoder, self.template_date)
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
    check_arguments(arguments)
    return cast("dict[str, Json]", arguments)


def load_tokenizer(
    name: str,
    *,
    revision: str = "",
    trust_remote_code: bool = False,
    template_date: str = "",
    prompt_encoder: str = "",
    markers: str = "",
) -> Tokenizer:
    """The tokenizer in a folder or of a hub model, checked against what lies beside it and on a probe conversation.

    `template_date` is the ISO date for templates that insert one, "" for today's. `prompt_encoder` names a Python
    function that renders prompts in place of a chat template (prompt_encoders). `markers` is markers.GivenMarkers as
    JSON, for a model of no known family; "" looks them up. Raises TokenizerError where it can't be loaded, has no
    chat template, has no known markers, or gives other ids than the model's (tokenizer_checks), and InputError for
    `markers` that are none.
    """
    where = str(Path(name).expanduser()) if looks_like_path(name) else name
    if looks_like_path(name) and not Path(where).is_dir():
        raise TokenizerError(
            f"tokenizer {name!r}: no such folder; give a folder with tokenizer files or a hub id "
            "(the demo's is made by `rawtokens demo-model DIR`)"
        )
    require_pinned_code(where, revision, trust_remote_code=trust_remote_code)
    given = given_from(markers) if markers else None
    source = TokenizerSource(
        name=name,
        revision=revision,
        trust_remote_code=trust_remote_code,
        template_date=template_date,
        prompt_encoder=prompt_encoder,
        markers=markers,
    )
    try:
        return _load(source, where, given)
    except RawTokensError:
        raise
    except Exception as error:  # transformers, tokenizers and the hub client raise many kinds
        raise TokenizerError(f"tokenizer {name!r} can't be loaded: {one_line(error)}") from error


def _load(source: TokenizerSource, where: str, given: GivenMarkers | None) -> Tokenizer:
    revision = source.revision
    encoder: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        where, revision=revision or None, trust_remote_code=source.trust_remote_code
    )
    function = load_prompt_encoder(source.prompt_encoder) if source.prompt_encoder else None
    if not encoder.chat_template and function is None:
        raise TokenizerError(
            f"tokenizer {source.name!r} has no chat template, so prompts can't be rendered with it; put the model's "
            "chat_template.jinja beside it, or name the model's own Python function as `prompt_encoder`"
        )
    notices = check_class(encoder, where, revision)
    markers = markers_of(encoder, given)
    template_date = "" if function else date_for(encoder, source.template_date)
    tokenizer = Tokenizer(
        source=msgspec.structs.replace(source, template_date=template_date),
        encoder=encoder,
        text_encoder=TextEncoder(encoder),
        prompt_encoder=function,
        markers=markers,
        vocabulary_size=vocabulary_size(encoder, where, revision),
        control_ids=control_ids_of(encoder),
        template_date=template_date,
        identity={
            "tokenizer": Path(where).name if looks_like_path(source.name) else source.name,
            "tokenizer_revision": revision,
            "tokenizer_class": type(encoder).__name__,
            "tokenizer_sha256": _tokenizer_hash(encoder),
            "chat_template_sha256": "" if function else _hash(str(encoder.chat_template)),
            "template_date": template_date,
            "prompt_encoder": function.name if function else "",
            "prompt_encoder_sha256": function.sha256 if function else "",
        },
    )
    return msgspec.structs.replace(tokenizer, notices=(*notices, *_check_probe(tokenizer)))


def _check_probe(tokenizer: Tokenizer) -> tuple[str, ...]:
    try:
        text, ids = tokenizer.render(_PROBE), tokenizer.prompt_ids(_PROBE)
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        return (f"a probe conversation can't be rendered, so the prompts' beginning is unchecked: {one_line(error)}",)
    return check_rendered(tokenizer.encoder, tokenizer.control_ids, text, ids, tokenizer.encode([text])[0])


def _tokenizer_hash(encoder: PreTrainedTokenizerBase) -> str:
    """What the tokenizer does, not how its file is written: its vocabulary and the probes' ids."""
    probes = [list(encoder.encode(text, add_special_tokens=False)) for text in PROBES]
    return _hash(json.dumps([sorted(encoder.get_vocab().items(), key=lambda item: item[1]), probes]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
