"""A model whose every next token is known, to prove a capture from prompt to record on a real engine.

The next id is a fixed function of the current one: `CHAINS` spells it for some ids, every other id is followed by the
stop id. The model is a Llama whose attention and feed-forward layers add nothing, so that the embedding of an id is
the code of its successor and reaches the output as it is. The successor's logit is 128 and every other one 0: at
temperature 1 all others together have a probability of 1e-50. Its vocabulary is larger than the tokenizer, as padded
ones are. This module does not know how an engine serves the folder.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from rawtokens.demo import vocabulary
from rawtokens.demo.dialogue_record import (
    ARGUMENT_BEGIN,
    CALL_BEGIN,
    CALL_END,
    CALLS_BEGIN,
    CALLS_END,
    IM_END,
    THINK_END,
    Piece,
)
from rawtokens.demo.dialogue_record import VOCABULARY_SIZE as TOKENIZER_SIZE

VOCABULARY_SIZE = TOKENIZER_SIZE + 64
PADDED_ID = TOKENIZER_SIZE + 60
"""An id that the model can say and the tokenizer has no text for."""
THINK = 163606

CHAINS: tuple[tuple[Piece, ...], ...] = (
    # What follows the template's <think>, and from </think> on what follows a prompt with the thinking off.
    (
        *(THINK, " The user asks about rain; a call tells.", THINK_END, "Let me look 🫠 now", PADDED_ID, ", 你好"),
        *(CALLS_BEGIN, CALL_BEGIN, "functions.get_weather:0", ARGUMENT_BEGIN, '{"city": "Zürich"}'),
        *(CALL_END, CALLS_END, IM_END),
    ),
    # What follows the begun answers "Noon", "Done" and "Round".
    ("Noon", " exactly", IM_END),
    ("Done", IM_END),
    ("Round", " and", " again", " and"),
)
"""Texts and ids in order. An id stands before one other id alone: what follows it depends on nothing else."""

_HIDDEN, _HEADS, _FEED_FORWARD = 64, 1, 64
_LOGIT = 128.0


def successors(tokenizer: Tokenizer) -> dict[int, int]:
    """The id after each id of CHAINS. Raises ValueError where an id would have two."""
    found: dict[int, int] = {}
    for chain in CHAINS:
        for current, following in pairwise(_ids(chain, tokenizer)):
            if found.setdefault(current, following) != following:
                raise ValueError(f"id {current} is followed by {found[current]} and by {following}")
    return found


def known_output(last_prompt_id: int, following: dict[int, int], *, limit: int) -> list[int]:
    """The output ids after a prompt that ends with `last_prompt_id`: to the stop id, at most `limit`."""
    output: list[int] = []
    current = last_prompt_id
    while len(output) < limit and (not output or current != IM_END):
        current = following.get(current, IM_END)
        output.append(current)
    return output


def write_known_model(directory: Path) -> None:
    """Write model (float32, 84 MB) and Kimi tokenizer into `directory`, made if missing.

    Raises TokenizerError where splintr-rs holds another vocabulary than Moonshot's.
    """
    vocabulary.build_tokenizer(directory)
    following = successors(Tokenizer.from_file(str(directory / "tokenizer.json")))
    save_file(_tensors(following), directory / "model.safetensors", metadata={"format": "pt"})
    ids = {"bos_token_id": 163584, "eos_token_id": IM_END, "pad_token_id": 163839}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": _HIDDEN,
        "intermediate_size": _FEED_FORWARD,
        "num_hidden_layers": 1,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "head_dim": _HIDDEN // _HEADS,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "transformers_version": "5.19.0",  # a config without one has transformers warn of a wrong split pattern
        **ids,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    (directory / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n", "utf-8")


def _ids(chain: Sequence[Piece], tokenizer: Tokenizer) -> Iterator[int]:
    for piece in chain:
        yield from (piece,) if isinstance(piece, int) else tokenizer.encode(piece, add_special_tokens=False).ids


def _tensors(following: dict[int, int]) -> dict[str, np.ndarray]:
    """Embedding and output rows: the code of a successor is one place of the hidden state, 1 in the one, large in the
    other. RMSNorm makes a single 1 the square root of the hidden size."""
    said = sorted({*following.values(), IM_END})
    if len(said) > _HIDDEN:
        raise ValueError(f"{len(said)} ids are said, the hidden state has {_HIDDEN} places")
    code = {item: place for place, item in enumerate(said)}
    codes = np.full(VOCABULARY_SIZE, code[IM_END])
    codes[list(following)] = [code[item] for item in following.values()]
    embedding = np.zeros((VOCABULARY_SIZE, _HIDDEN), np.float32)
    embedding[np.arange(VOCABULARY_SIZE), codes] = 1.0
    output = np.zeros((VOCABULARY_SIZE, _HIDDEN), np.float32)
    output[said, range(len(said))] = _LOGIT / _HIDDEN**0.5
    layer = "model.layers.0."
    square = [f"{layer}self_attn.{name}_proj.weight" for name in "qkvo"]
    wide = [f"{layer}mlp.{name}_proj.weight" for name in ("gate", "up")]
    norms = [f"{layer}input_layernorm.weight", f"{layer}post_attention_layernorm.weight", "model.norm.weight"]
    return {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": output,
        **{name: np.zeros((_HIDDEN, _HIDDEN), np.float32) for name in square},
        **{name: np.zeros((_FEED_FORWARD, _HIDDEN), np.float32) for name in wide},
        f"{layer}mlp.down_proj.weight": np.zeros((_HIDDEN, _FEED_FORWARD), np.float32),
        **{name: np.ones(_HIDDEN, np.float32) for name in norms},
    }
