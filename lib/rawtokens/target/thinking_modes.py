"""Template arguments: the data set's, mixed in stated shares where asked for, under a row's own.

Arguments such as `thinking`, `enable_thinking` or `reasoning_effort` switch a model's modes. Which part of a mix a row
gets comes from its id alone, so it is the same on every run and machine and in every order. This module does not know
what an argument does: what is expected of an output comes from the rendered prompt (`markers.thinking_mode`).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jinja2.meta
import jinja2.nodes
import msgspec

from ..errors import InputError
from ..records import Json

if TYPE_CHECKING:
    from .target_tokenizer import Tokenizer


# Arguments of transformers' apply_chat_template (5.24) that are not passed on to the template, and names of its own;
# with `chat_template` a row would bring a template that is not the model's.
_NOT_THE_TEMPLATES = frozenset(
    {"conversation", "tools", "add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation"}
    | {"max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"}
    | {"sanitize_control_tokens", "processor_kwargs", "chat_template", "self", "messages", "raise_exception"}
)


class Portion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a mix: `share` of the rows, 0 to 1, gets `template_kwargs` on top of the data set's."""

    share: float
    template_kwargs: dict[str, object] = {}  # JSON values


def check_arguments(arguments: Mapping[str, object]) -> None:
    """Raise InputError for what is no argument of a chat template, or is the text "false", which counts as true."""
    for name, value in arguments.items():
        if name in _NOT_THE_TEMPLATES:
            raise InputError(f"template_kwargs holds {name!r}, which is no argument of a chat template; take it out")
        if isinstance(value, str) and value.lower() in ("true", "false"):
            raise InputError(
                f"template_kwargs holds {name}={value!r}, a text, which a template takes for true; expected "
                f"{value.lower()} without quotes"
            )


def check_mix(mix: Sequence[Portion]) -> None:
    """Raise InputError where the shares of a mix are not positive or do not add up to 1."""
    if not mix:
        return
    shares = [portion.share for portion in mix]
    if not all(math.isfinite(share) and share > 0 for share in shares) or not math.isclose(sum(shares), 1.0):
        raise InputError(f"the shares of mix are {shares}; expected positive numbers that add up to 1")
    for portion in mix:
        check_arguments(portion.template_kwargs)
    made = [encoded(portion.template_kwargs) for portion in mix]
    if len(set(made)) < len(made):
        raise InputError("two parts of mix have the same template_kwargs; put their shares together")


def mix_from(text: str) -> tuple[Portion, ...]:
    """A notebook's `mix`: a JSON list of {"share", "template_kwargs"}. Raises InputError for anything else."""
    try:
        mix = msgspec.json.decode(text, type=tuple[Portion, ...])
    except msgspec.MsgspecError as error:
        expected = '[{"share": 0.8, "template_kwargs": {"thinking": true}}, ...], or []'
        raise InputError(f"mix is {text!r}: {error}; expected JSON like {expected}") from error
    check_mix(mix)
    return mix


def arguments_of(
    source_id: str, template_kwargs: Mapping[str, Json], mix: Sequence[Portion], own: Mapping[str, Json]
) -> dict[str, Json]:
    """The template arguments of one row: the data set's, then its part of the mix, then its own, which win."""
    return {**template_kwargs, **_portion_of(source_id, mix), **own}


def wanted_shares(template_kwargs: Mapping[str, Json], mix: Sequence[Portion]) -> dict[str, float]:
    """The share of rows that each set of arguments, as JSON, is to have; a row's own arguments are not foreseen."""
    if not mix:
        return {encoded(template_kwargs): 1.0}
    return {encoded({**template_kwargs, **portion.template_kwargs}): portion.share for portion in mix}


def encoded(arguments: Mapping[str, object]) -> str:
    """Template arguments as JSON, in the order of their names, as the column `template_kwargs` holds them."""
    return msgspec.json.encode(arguments, order="deterministic").decode()


def unread_arguments(
    tokenizer: "Tokenizer", template_kwargs: Mapping[str, Json], mix: Sequence[Portion] = ()
) -> list[str]:
    """The arguments that the chat template never reads: giving them changes nothing, which may be a slip."""
    from transformers.utils.chat_template_utils import _compile_jinja_template  # seconds to import

    from .template_dates import templates_of

    if tokenizer.prompt_encoder is not None:
        return []  # a Python function's reading can't be seen
    read: set[str] = set()
    for template in templates_of(tokenizer.encoder):
        # transformers' own environment: it knows the template's extensions ({% generation %}, loop controls).
        parsed = _compile_jinja_template(template).environment.parse(template)
        read |= {name.name for name in parsed.find_all(jinja2.nodes.Name) if name.ctx == "load"}
    given = {*template_kwargs, *(name for portion in mix for name in portion.template_kwargs)}
    return sorted(given - read)


def _portion_of(source_id: str, mix: Sequence[Portion]) -> Mapping[str, Json]:
    if not mix:
        return {}
    digest = hashlib.sha256(b"mix:" + source_id.encode("utf-8", "surrogatepass")).digest()
    place = int.from_bytes(digest[:8]) / 2**64
    for portion in mix:
        place -= portion.share
        if place < 0:
            return _json(portion.template_kwargs)
    return _json(mix[-1].template_kwargs)  # the shares add up to a hair less than 1


def _json(arguments: Mapping[str, object]) -> Mapping[str, Json]:
    return arguments  # type: ignore[return-value] # decoded from JSON or YAML
