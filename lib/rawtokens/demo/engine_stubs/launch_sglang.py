"""Launch SGLang 0.5.23 on a CPU: `python launch_sglang.py --model-path DIR --device cpu ...`, SGLang's own options.

Runs in the engine's environment (`.venv-sglang`), never in the client's, and takes nothing from the kit. Three things
stand between PyPI's packages and a server on a CPU; all are settled here, for the server's own processes alone:

- torchvision from PyPI has no compiled operators beside a CPU build of torch, but decorates two of them when it is
  imported: their schemas are declared first.
- `sgl_kernel` is CUDA only and imported for its names: the package of that name beside this file stands in.
- `torch.multinomial` takes nine tenths of a decoding step under a vocabulary of 163,840 (see inverse_cdf.py): SGLang's
  hook for sampling backends puts a faster draw from the same distribution in its place.

Standard input is a lifeline: when it closes, the whole process group, which this process must lead, is ended, so that
no server outlives the process that started it, however that one died.

It does NOT know which options make sense, nor whether the server answers: `rawtokens.demo.server` does.
"""

import os
import runpy
import signal
import time


def watch_lifeline() -> None:
    """Fork a small process that ends this process group, its own included, once standard input is at its end.

    SIGKILL at once: SIGTERM makes SGLang drain for 5 s even when no request runs, and it keeps nothing that it could
    save. Its scheduler and detokenizer die with this process (PR_SET_PDEATHSIG); multiprocessing's resource tracker
    then unlinks their semaphores, for which it has half a second.
    """
    server = os.getpid()
    if os.fork():
        return
    while os.read(0, 4096):
        pass
    if os.getppid() == server:
        os.kill(server, signal.SIGKILL)
    time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def declare_torchvision_operators() -> None:
    """Declare the schemas that torchvision 0.28.0 decorates on import; a CUDA build of torch loads the real ones."""
    import torch

    if torch.version.cuda is not None:
        return
    for name in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", schema)


def prepare_imports() -> None:
    """Close the gaps in this process, so that it can import SGLang."""
    declare_torchvision_operators()
    import inverse_cdf_sampler

    inverse_cdf_sampler.register()


if __name__ == "__main__":
    watch_lifeline()  # before the imports: they take seconds, and a dead parent must not leave them running
    prepare_imports()
    runpy.run_module("sglang.launch_server", run_name="__main__")

if __name__ == "__mp_main__":  # SGLang spawns its scheduler and detokenizer, which run this file again
    prepare_imports()
