"""Is the tokenizer that was loaded the model's? Its ids, its beginning of a sequence, its bound.

transformers can load a tokenizer as another class than the model's own, with other ids (its issue 45488; Kimi-K2.5
without its repository's code gets another split pattern). What is compared is a set of probes: a difference is
proved, equality is not. This module does not know the server's tokenizer (server_check asks for it).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tiktoken
import transformers
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Tokenizer as RawTokenizer
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file

from ..errors import TokenizerError

# Texts on which tokenizers that are loaded as another class were seen to differ (transformers issue 45488).
PROBES = (
    "What is 2+2?",
    "  two  spaces\n\n\nand\tnewlines \r\n end ",
    "def f(x):\n    return {'a': [1, 22, 333, 4444]}\n",
    "你好，世界！今天天气怎么样？",
    "naïve Ünïcode ÇEDILLA don't WE'LL 🙂👍🏽",
    "12345678901 3.14159 0x1F https://example.org/?q=1&r=2",
)
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")

Encode = Callable[[str], Sequence[int]]


def check_class(encoder: PreTrainedTokenizerBase, where: str, revision: str) -> tuple[str, ...]:
    """Compare with the tokenizer.json beside it, or with what else tells the model's ids; notices where nothing does.

    Raises TokenizerError on a difference, and where the model has a class of its own that was not loaded and nothing
    lies beside it that proves the loaded one.
    """
    own_class = _own_class(where, revision)
    is_own = type(encoder).__module__.startswith("transformers_modules")
    loaded = f"{type(encoder).__name__} by transformers {transformers.__version__}"
    found = _reference(where, revision, is_own=is_own)
    if found is not None:
        name, reference = found
        for text in PROBES:
            if list(encoder.encode(text, add_special_tokens=False)) != list(reference(text)):
                raise TokenizerError(
                    f"tokenizer {where!r} was loaded as {loaded}, which gives {text!r} other ids than {name} does; "
                    "set trust_remote_code or another transformers version, and pin the revision"
                )
        return ()
    if own_class and not is_own:
        raise TokenizerError(
            f"tokenizer {where!r} was loaded as {loaded}, but the model has a class of its own ({own_class}), and no "
            "tokenizer.json lies beside it that could prove equal ids; set trust_remote_code and pin the revision"
        )
    return () if is_own else (f"no tokenizer.json lies beside it to compare {loaded} with",)


def check_rendered(
    encoder: PreTrainedTokenizerBase, control_ids: frozenset[int], text: str, ids: Sequence[int], again: Sequence[int]
) -> tuple[str, ...]:
    """Check a probe conversation: its rendered `text`, the `ids` that transformers gives it, and the kit's `again`.

    Raises TokenizerError where the two differ, where a control id stands at either end that the text does not spell,
    and where the beginning of the sequence is doubled. Returns a notice where the template leaves it out.
    """
    if list(ids) != list(again):
        raise TokenizerError(
            f"{type(encoder).__name__} gives a rendered conversation other ids than its apply_chat_template does "
            f"(transformers {transformers.__version__}); its prompts can't be made in batches"
        )
    spelled = {i: token.content for i, token in encoder.added_tokens_decoder.items()}
    for end, place in (("beginning", 0), ("end", -1)):
        content = spelled.get(ids[place], "") if ids[place] in control_ids else ""
        stripped = text.strip()
        if not (stripped.startswith(content) if place == 0 else stripped.endswith(content)):
            raise TokenizerError(
                f"{type(encoder).__name__} adds {content!r} at the {end} of a prompt; the template did not write it"
            )
    first = spelled.get(ids[0], "") if ids[0] in control_ids else ""
    if first and ids[1:2] == [ids[0]]:
        writer = "the chat template writes it twice" if text.startswith(first * 2) else "the encoder adds a second one"
        raise TokenizerError(f"prompts would begin with {first!r} twice: {writer}; mend the tokenizer's folder")
    begin = encoder.bos_token_id
    if begin is not None and begin != ids[0] and encoder("a")["input_ids"][:1] == [begin]:
        return (f"the tokenizer begins plain text with {encoder.bos_token!r}, which the chat template does not write",)
    return ()


def control_ids_of(encoder: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids of special and added tokens, but for those of white space alone, which are ordinary text."""
    added = {i: token.content for i, token in encoder.added_tokens_decoder.items()}
    spaces = {i for i, content in added.items() if not content.replace("▁", "").strip()}
    return frozenset({*added, *encoder.all_special_ids} - spaces)


def vocabulary_size(encoder: PreTrainedTokenizerBase, where: str, revision: str) -> int:
    """The model's bound: padded vocabularies have ids that the tokenizer does not name.

    From the model's config, or from that of its language model inside it; else the number of the tokenizer's ids.
    """
    size = _size_in(_config(where, revision))
    return size or len(encoder)


def _size_in(config: Mapping[str, object]) -> int:
    size = config.get("vocab_size")
    if isinstance(size, int):
        return size
    nested = (config.get(name) for name in _NESTED)
    return next((found for inner in nested if isinstance(inner, dict) and (found := _size_in(inner))), 0)


def _reference(where: str, revision: str, *, is_own: bool) -> tuple[str, Encode] | None:
    """What tells the model's ids for a text without control tokens, and its name."""
    path = _file_of(where, "tokenizer.json", revision)
    if path is not None:
        raw = RawTokenizer.from_file(path)
        return "its tokenizer.json", lambda text: list(raw.encode(text, add_special_tokens=False).ids)
    ranks = _file_of(where, "tiktoken.model", revision)
    if ranks is None or is_own or not str(_config(where, revision).get("model_type", "")).startswith("kimi"):
        return None
    from splintr import KIMI_PATTERN  # a vocabulary of its own comes with it

    kimi = tiktoken.Encoding("kimi", pat_str=KIMI_PATTERN, mergeable_ranks=load_tiktoken_bpe(ranks), special_tokens={})
    return "its tiktoken.model with Kimi's split pattern", kimi.encode_ordinary


def _own_class(where: str, revision: str) -> str:
    """The Python class that the model's repository brings, or ""."""
    path = _file_of(where, "tokenizer_config.json", revision)
    content = json.loads(Path(path).read_text("utf-8")) if path else {}
    classes = (content.get("auto_map") or {}).get("AutoTokenizer") or []
    return next((str(name) for name in ([classes] if isinstance(classes, str) else classes) if name), "")


def _config(where: str, revision: str) -> Mapping[str, object]:
    path = _file_of(where, "config.json", revision)
    if path is None:
        return {}
    config: Mapping[str, object] = PretrainedConfig.get_config_dict(str(Path(path).parent))[0]
    return config


def _file_of(where: str, name: str, revision: str) -> str | None:
    found = cached_file(where, name, revision=revision or None, _raise_exceptions_for_missing_entries=False)
    return str(found) if found else None
