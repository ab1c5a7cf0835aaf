"""Stands in for sgl_kernel (CUDA only), whose names SGLang imports everywhere: each is a function that raises.

On a CPU without AMX, SGLang 0.5.23 takes its native torch path and calls none of them. It does NOT do any work.
"""

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing_kernel(*_arguments: object, **_options: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs CUDA; the CPU engine has no such kernel")

    return missing_kernel
