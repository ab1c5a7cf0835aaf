"""Launch vLLM on a CPU: `python launch_vllm.py --model DIR ...`, vLLM's own options.

Runs in vLLM's environment (`.venv-vllm`), never in the client's, and takes nothing from the kit. `vllm serve` looks for
a distribution named vllm, which the CPU build is not; its module needs none. Standard input is a lifeline. It does NOT
know which options make sense, nor whether the server answers: `rawtokens.demo.vllm_server` does.
"""

import runpy

from lifeline import watch_lifeline

if __name__ == "__main__":
    watch_lifeline()  # before the imports: they take seconds, and a dead parent must not leave them running
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
