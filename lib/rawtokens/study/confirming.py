"""Try some heads in vLLM's own speculative decoding and keep its counts; what is counted already is not counted again.

It checks the walk, not the arms: the same head over the same prompts has to give the same counts. This module does not
know how vLLM counts (heads/vllm_counts does).
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ..demo.vllm_server import ENVIRONMENT, find_vllm_python
from ..journal import write_atomically
from .environment import called
from .forms import DRAFT_LENGTH, MAX_NEW_TOKENS, Form
from .measuring import Ground, Head, head_folder
from .results import Confirmed

PROGRAM = Path(__file__).with_name("heads") / "vllm_counts.py"
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PYTHONPATH": ""}


def confirm(ground: Ground, heads: Sequence[Head], form: Form, on_line: Callable[[str], None]) -> list[Confirmed]:
    """vLLM's counts for the first seed of every confirmed arm. Raises InputError without vLLM, RunStopped."""
    return [
        _confirm(ground, head, on_line) for head in heads if (head.arm in form.confirmed and head.seed == form.seeds[0])
    ]


def _confirm(ground: Ground, head: Head, on_line: Callable[[str], None]) -> Confirmed:
    place = ground.place / head.arm
    result = place / f"vllm-{head.digest}-{head.seed}.json"
    if not result.exists():
        job = {
            "arm": head.arm,
            "seed": head.seed,
            "model": str(ground.model),
            "head": str(head_folder(ground.place, head.arm, head.digest, head.seed)),
            "draft_length": DRAFT_LENGTH,
            "evaluation": str(ground.place / "evaluation.jsonl"),
            "max_new_tokens": MAX_NEW_TOKENS,
            "result": str(result),
        }
        path = place / "vllm-job.json"
        write_atomically(path, msgspec.json.encode(job))
        on_line(f"{head.arm}: counting in vLLM")
        called([find_vllm_python(), PROGRAM, path], log=place / "vllm.log", environment={**ENVIRONMENT, **IN_PROCESS})
    return msgspec.json.decode(result.read_bytes(), type=Confirmed)
