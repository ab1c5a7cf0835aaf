"""Launch vLLM 0.32.0 on a CPU: `python launch_vllm.py --model DIR ...`, vLLM's own options.

Runs in vLLM's environment (`.venv-vllm`), never in the client's, and takes nothing from the kit. `vllm serve` looks for
a distribution named vllm, which the CPU build is not; its module needs none. A start takes 65 s of CPU time, mostly for
importing the same in three processes: 22 s where the first is forked. Standard input is a lifeline. It does NOT know
which options make sense, nor whether the server answers: `rawtokens.demo.vllm_server` does.
"""

import multiprocessing
import runpy

from lifeline import watch_lifeline


def fork_instead_of_spawn() -> None:
    """Let vLLM's engine and worker inherit what is imported: on a CPU it spawns them, which only CUDA needs.

    Safe with one compute thread alone: a forked process has no others of its parent's.
    """
    get_context = multiprocessing.get_context

    def forking(method: str | None = None) -> object:
        return get_context("fork" if method == "spawn" else method)

    multiprocessing.get_context = forking  # type: ignore[assignment]


if __name__ == "__main__":
    watch_lifeline()  # before the imports: they take seconds, and a dead parent must not leave them running
    fork_instead_of_spawn()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
