"""Launch SGLang 0.5.23 on a CPU: `python launch_sglang.py --model-path DIR --device cpu ...`, SGLang's own options.

Runs in the engine's environment (`.venv-sglang`), never in the client's, and takes nothing from the kit. What stands
between PyPI's packages and a server on a small CPU is settled here, for the server's own processes alone:

- torchvision from PyPI has no compiled operators beside a CPU build of torch, but decorates two of them when it is
  imported: their schemas are declared first.
- `sgl_kernel` is CUDA only and imported for its names: the package of that name beside this file stands in.
- `torch.multinomial` takes nine tenths of a decoding step under a vocabulary of 163,840 (see inverse_cdf.py): SGLang's
  hook for sampling backends puts a faster draw from the same distribution in its place.
- A start takes 64 s of CPU time, mostly importing and loading the same in three processes: 22 s where the first
  process is forked and the tokenizer is loaded once.

Standard input is a lifeline: when it closes, the whole process group, which this process must lead, is ended, so that
no server outlives the process that started it, however that one died.

It does NOT know which options make sense, nor whether the server answers: `rawtokens.demo.server` does.
"""

import multiprocessing
import runpy
import sys
from pathlib import Path

from lifeline import watch_lifeline


def declare_torchvision_operators() -> None:
    """Declare the schemas that torchvision 0.28.0 decorates on import; a CUDA build of torch loads the real ones."""
    import torch

    if torch.version.cuda is not None:
        return
    for name in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", schema)


def fork_instead_of_spawn() -> None:
    """Let SGLang's scheduler and detokenizer inherit what is imported: it spawns them, which only CUDA needs.

    Spawned, each imports 6,000 modules again, which takes it 8 to 10 s.
    """
    multiprocessing.set_start_method("fork")
    multiprocessing.set_start_method = lambda *_arguments, **_options: None


def load_tokenizer_once(folder: str) -> None:
    """Load a folder's tokenizer for all processes: SGLang has each of three load it three times, 2.4 s a time."""
    from transformers import AutoTokenizer, TokenizersBackend

    if not (Path(folder) / "tokenizer.json").exists():
        return
    tokenizer = AutoTokenizer.from_pretrained(folder)
    TokenizersBackend.from_pretrained = classmethod(lambda _class, *_arguments, **_options: tokenizer)


def register_sampler() -> None:
    """Give SGLang the faster draw."""
    import inverse_cdf_sampler

    inverse_cdf_sampler.register()


if __name__ == "__main__":
    watch_lifeline()  # before the imports: they take seconds, and a dead parent must not leave them running
    declare_torchvision_operators()
    register_sampler()
    load_tokenizer_once(sys.argv[sys.argv.index("--model-path") + 1])
    fork_instead_of_spawn()
    runpy.run_module("sglang.launch_server", run_name="__main__")
