"""How often the demo reasoner is right on held-out problems, asked of a real server as ids.

A sum or difference must end in the right number, a conversion must name it with its unit, calls must have the
right names and arguments in order, and code must run and return the right results. This module does not know how
the model was trained.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import httpx
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rawtokens.demo.dialogue_record import (
    ARGUMENT_BEGIN,
    CALL_BEGIN,
    CALL_END,
    CALLS_BEGIN,
    IM_END,
    THINK_END,
    Dialogue,
)
from rawtokens.demo.dialogues import dialogues, rendered

KINDS = ["sum", "difference", "conversion", "code", "call", "parallel_calls", "tool_result"]
SEED = 2_000
IN_FLIGHT = 32
RUN_SECONDS = 10
_RUNNER = """
import json, sys
job = json.load(sys.stdin)
names = {}
exec(job["code"], names)
print(json.dumps([names[job["function"]](case) for case, _ in job["cases"]]))
"""


def is_right(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue, output_ids: Sequence[int]) -> bool:
    """Whether a reply (output ids, with the stop id) does all that the dialogue asks for."""
    ids = list(output_ids)
    if not ids or ids[-1] != IM_END:
        return False
    if dialogue.calls:
        return _calls(tokenizer, ids) == [(call.name, call.arguments) for call in dialogue.calls]
    if THINK_END not in ids or CALLS_BEGIN in ids:
        return False
    answer = tokenizer.decode(ids[ids.index(THINK_END) + 1 : -1], skip_special_tokens=False)
    if dialogue.last_number and dialogue.last_number != (re.findall(r"-?\d+", answer) or [""])[-1]:
        return False
    if not all(re.search(rf"\b{re.escape(text)}", answer) for text in dialogue.contains):
        return False
    return not dialogue.function or _runs_right(dialogue, answer)


def _calls(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[tuple[str, object]]:
    """Name and arguments of each call; arguments that are no JSON stay text."""
    found: list[tuple[str, object]] = []
    while CALL_BEGIN in ids and ARGUMENT_BEGIN in ids and CALL_END in ids:
        begin, middle, end = ids.index(CALL_BEGIN), ids.index(ARGUMENT_BEGIN), ids.index(CALL_END)
        name = re.fullmatch(r"functions\.(\w+):\d+", tokenizer.decode(ids[begin + 1 : middle]))
        arguments = tokenizer.decode(ids[middle + 1 : end])
        try:
            found.append((name[1] if name else "", json.loads(arguments)))
        except ValueError:
            found.append((name[1] if name else "", arguments))
        ids = ids[end + 1 :]
    return found


def _runs_right(dialogue: Dialogue, answer: str) -> bool:
    """Whether the first code block defines the function and it returns what it should; runs in a process apart."""
    block = re.search(r"```python\n(.*?)```", answer, re.DOTALL)
    if not block:
        return False
    job = json.dumps({"code": block[1], "function": dialogue.function, "cases": dialogue.cases})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _RUNNER], input=job, capture_output=True, text=True, timeout=RUN_SECONDS
        )
        return done.returncode == 0 and json.loads(done.stdout) == [result for _, result in dialogue.cases]
    except (subprocess.TimeoutExpired, ValueError):
        return False


def ask(url: str, prompt_ids: list[int], *, temperature: float, max_new_tokens: int) -> list[int]:
    """Output ids of a plain SGLang server."""
    sampling = {"temperature": temperature, "top_p": 1.0, "top_k": -1, "max_new_tokens": max_new_tokens}
    body = {"input_ids": prompt_ids, "sampling_params": sampling}
    answer = httpx.post(f"{url}/generate", json=body, timeout=600)
    answer.raise_for_status()
    output: list[int] = answer.json()["output_ids"]
    return output


def measure(url: str, tokenizer: PreTrainedTokenizerBase, *, temperature: float, per_kind: int) -> dict[str, float]:
    """The share of right replies by kind."""
    rates = {}
    for kind in KINDS:
        problems = list(islice(dialogues(seed=SEED, held_out=True, kind=kind), per_kind))
        prompts = [rendered(tokenizer, problem)[0] for problem in problems]
        question = partial(ask, url, temperature=temperature, max_new_tokens=256)
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            replies = list(pool.map(question, prompts))
        rates[kind] = sum(map(is_right, [tokenizer] * per_kind, problems, replies)) / per_kind
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url", help="a running demo server, http://127.0.0.1:30000 say")
    parser.add_argument("tokenizer", type=Path, help="the demo model's folder")
    parser.add_argument("--per-kind", type=int, default=40)
    chosen = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(chosen.tokenizer)
    for temperature in (0.0, 1.0):
        rates = measure(chosen.url, tokenizer, temperature=temperature, per_kind=chosen.per_kind)
        print(f"temperature {temperature}: " + ", ".join(f"{kind} {rate:.0%}" for kind, rate in rates.items()))


if __name__ == "__main__":
    main()
