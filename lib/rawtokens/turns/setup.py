"""What stages 02 and 03 need of a data set of conversations: its tokenizer, held to the one that stage 01 used.

This module does not know how a turn's prompt is made.
"""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from ..errors import InputError
from ..runs import MANIFEST, read_manifest
from ..shards import WHOLE, Shard
from ..target.control_tokens import ControlTokens
from .endings import has_turns

if TYPE_CHECKING:
    from ..target.target_tokenizer import Tokenizer
    from .following import Following
    from .talk import Reader

_SAME = ("tokenizer_sha256", "chat_template_sha256", "prompt_encoder_sha256")


class ConversationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What notebook 02 is given for conversations: the parameters of `load_tokenizer`, and `tool_function`.

    The template's date is stage 01's.
    """

    tokenizer: str = ""
    revision: str = ""
    trust_remote_code: bool = False
    prompt_encoder: str = ""
    markers: str = ""
    tool_function: str = ""


def unit_of(folder: Path) -> str:
    """What can be missing of a data set: a generation, or a conversation where every turn is generated."""
    return "conversation" if has_turns(folder) else "generation"


def following_for(folder: Path, settings: str, *, shard: Shard = WHOLE) -> "Following | None":
    """What `generate` needs to follow conversations; None, and no tokenizer loaded, where one turn a prompt is made.

    `settings` is ConversationSettings as JSON. Raises InputError for other settings, or none where they are needed, and
    what `load_tokenizer`, `reader_for` and `Following` raise.
    """
    if not has_turns(folder):
        return None
    try:
        given = msgspec.json.decode(settings, type=ConversationSettings)
    except msgspec.MsgspecError as error:
        expected = '{"tokenizer": "..", "tool_function": "tools.py:answer"}'
        raise InputError(f"conversations is {settings!r}: {error}; expected JSON like {expected}") from error
    if not given.tokenizer:
        raise InputError('conversations names no tokenizer; every turn is generated here: {"tokenizer": ".."}')
    from ..target.target_tokenizer import load_tokenizer  # seconds to import
    from .following import Following

    loaded = load_tokenizer(
        given.tokenizer,
        revision=given.revision,
        trust_remote_code=given.trust_remote_code,
        prompt_encoder=given.prompt_encoder,
        markers=given.markers,
    )
    return Following(folder, reader_for(folder, loaded), tool_function=given.tool_function, shard=shard)


def reader_for(folder: Path, tokenizer: "Tokenizer") -> "Reader":
    """The reader of a data set's conversations, with stage 01's options and template date.

    Raises InputError where the tokenizer is not stage 01's, or has ids that are no bytes of text.
    """
    from ..target.id_bytes import IdBytes
    from ..target.rendering import PromptOptions
    from .talk import Reader

    manifest = read_manifest(folder)
    for name in _SAME:
        if manifest.get(name) != tokenizer.identity[name]:
            raise InputError(
                f"{folder / MANIFEST}: {name} is {str(manifest.get(name))[:16]}, this tokenizer's is "
                f"{tokenizer.identity[name][:16]}; give the tokenizer that stage 01 used, or run stage 01 again"
            )
    tokenizer = msgspec.structs.replace(tokenizer, template_date=str(manifest.get("template_date") or ""))
    table = IdBytes.of(tokenizer)
    if not table.exact:
        raise InputError(
            f"{tokenizer.source.name}: its ids have no bytes of their own, so an answer can't be read from them "
            "exactly; `turns: each` needs a byte-level tokenizer: use turns: last"
        )
    control_tokens = cast(ControlTokens, manifest.get("control_tokens") or "skip")
    return Reader.of(table, PromptOptions(control_tokens=control_tokens))
