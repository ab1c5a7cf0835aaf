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


def following_for(
    folder: Path,
    *,
    tokenizer: str,
    revision: str = "",
    trust_remote_code: bool = False,
    prompt_encoder: str = "",
    markers: str = "",
    tool_function: str = "",
    shard: Shard = WHOLE,
) -> "Following | None":
    """What `generate` needs to follow conversations; None, and no tokenizer loaded, where one turn a prompt is made.

    The tokenizer's parameters are those of `load_tokenizer`; the template's date is stage 01's. Raises as that,
    `reader_for` and `Following` do, and InputError for a `tool_function` where there are no conversations.
    """
    if not has_turns(folder):
        if tool_function:
            raise InputError(
                "tool_function answers calls where every turn is generated; set `turns: each`, or take it out"
            )
        return None
    from ..target.target_tokenizer import load_tokenizer  # seconds to import
    from .following import Following

    loaded = load_tokenizer(
        tokenizer,
        revision=revision,
        trust_remote_code=trust_remote_code,
        prompt_encoder=prompt_encoder,
        markers=markers,
    )
    return Following(folder, reader_for(folder, loaded), tool_function=tool_function, shard=shard)


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
