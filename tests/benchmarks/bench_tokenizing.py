"""Prompts a second on one core: one-by-one apply_chat_template, the kit's path, and the bare encoder, in one run.

Then stage 01 as a whole over one process and over two. Ids are compared before anything is timed. Each figure is the
median of five rounds in which all ways take turns; CPU seconds of the process decide, so that neighbours on the
machine change little.

    python tests/benchmarks/bench_tokenizing.py [--rounds N] [--rows N]
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

from real_tokenizers import write_tokenizer

from rawtokens.demo.vocabulary import build_tokenizer
from rawtokens.prompts import tokenize_file
from rawtokens.records import Json
from rawtokens.target.encoding import TextEncoder
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer, load_tokenizer

PROMPTS = 200
IDS = 966  # a prompt, about
TARGETS = {"kimi": 3.0, "qwen3": 1.3}  # times one by one
OF_THE_LIMIT = 0.75

SENTENCES = (
    "A train leaves the station at 9:40 and travels 312 km at 96 km/h; when does it arrive? ",
    "Please rewrite the following function so that it handles empty lists without raising an IndexError.\n",
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total\n",
    "The committee's report, published on 14 March 2023, didn't mention the costs of maintaining the older bridge. ",
    "请用简短的语言解释什么是光合作用，并举两个例子。",
    "| name | price | stock |\n|------|-------|-------|\n| bolt | 0.25 | 1200 |\n",
    'Return the result as JSON: {"status": "ok", "items": [1, 2, 3], "next": null}. ',
    "Schreibe eine höfliche E-Mail, in der du um eine Verlängerung der Frist bittest. ",
)
SHAPES = {"one turn": ("user",), "two turns and a system message": ("system", "user", "assistant", "user")}
"""Roles of a conversation: what a template costs grows with its messages, not with its ids."""


def conversation(choice: random.Random, characters: int, roles: Sequence[str]) -> list[dict[str, Json]]:
    """Messages of about `characters` in all."""

    def text(length: int) -> str:
        made = ""
        while len(made) < length:
            made += choice.choice(SENTENCES)
        return made

    return [{"role": role, "content": text(characters // len(roles))} for role in roles]


def measure(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """CPU seconds of each way, the median over rounds in which they take turns."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.process_time()
            way()
            taken[name].append(time.process_time() - started)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def bench_encoding(name: str, target: Tokenizer, shape: str, rounds: int) -> None:
    """One table: prompts/s and ids/s of each way, and the ratios that are aimed at."""
    choice = random.Random(1)
    length, roles = 3_300, SHAPES[shape]
    size = len(target.prompt_ids(conversation(choice, length, roles)))
    chats = [conversation(choice, length * IDS // size, roles) for _ in range(PROMPTS)]
    encoder = TextEncoder(target.encoder, core_after=0)
    encoder.encode(["Hi"])
    texts = [target.render(chat) for chat in chats]
    wanted = [target.prompt_ids(chat) for chat in chats]
    ids = sum(map(len, wanted))
    if encoder.encode(texts) != wanted:
        sys.exit(f"{name}: the kit's ids are not those of apply_chat_template; nothing was timed")

    def batched(items: Sequence[list[dict[str, Json]]]) -> None:
        for start in range(0, len(items), 256):
            encoder.encode([target.render(chat) for chat in items[start : start + 256]])

    core = encoder._core
    raw = target.encoder.backend_tokenizer
    bare: Callable[[], object] = (
        (lambda: [core.encode(text, allowed_special="all") for text in texts])
        if core is not None
        else (lambda: [made.ids for made in raw.encode_batch_fast(texts, add_special_tokens=False)])
    )
    ways: dict[str, Callable[[], object]] = {
        "apply_chat_template": lambda: [target.prompt_ids(chat) for chat in chats],
        "the kit's path": lambda: batched(chats),
        "rendering alone": lambda: [target.render(chat) for chat in chats],
        f"bare encoder ({encoder.way})": bare,
    }
    seconds = measure(ways, rounds)
    print(
        f"\n{name}, {shape}: {PROMPTS} prompts of {ids / PROMPTS:.0f} ids, one core, ids identical; "
        f"median of {rounds} rounds"
    )
    for way, taken in seconds.items():
        print(f"  {way:32} {PROMPTS / taken:9,.0f} prompts/s {ids / taken / 1e6:7.2f} M ids/s")
    one, kit, _, limit = seconds.values()
    told("times apply_chat_template", one / kit, TARGETS[name])
    told("of the bare encoder", limit / kit, OF_THE_LIMIT)


def told(what: str, ratio: float, target: float) -> None:
    """A ratio beside what is aimed at."""
    print(f"  {ratio:5.2f} {what} (aim {target}): {'reached' if ratio >= target else 'MISSED'}")


def bench_stage(target: Tokenizer, rows: int, folder: Path) -> None:
    """Stage 01 as a whole, JSON Lines to Parquet, by one process and by two workers."""
    choice = random.Random(2)
    file = folder / "prompts.jsonl"
    with file.open("w") as lines:
        for number in range(rows):
            messages = conversation(choice, 3_200, ("user",))
            lines.write(json.dumps({"id": f"row-{number}", "messages": messages}) + "\n")
    print(f"\nstage 01, {rows:,} rows of one turn, {file.stat().st_size / 1e6:.0f} MB of JSON Lines, wall clock")
    options, made = PromptOptions(template_kwargs={"thinking": True}), {}
    for processes in (1, 2):
        fresh = load_tokenizer(target.source.name)
        started = time.perf_counter()
        counts = tokenize_file(file, folder / str(processes), fresh, options, processes=processes)
        made[processes] = time.perf_counter() - started
        print(f"  {processes} process(es): {counts.prompts / made[processes]:7,.0f} prompts/s, {made[processes]:.1f} s")
    same = (folder / "1" / "prompts.parquet").read_bytes() == (folder / "2" / "prompts.parquet").read_bytes()
    print(f"  {made[1] / made[2]:5.2f} times one process; prompts.parquet {'identical' if same else 'DIFFERS'}")


def main() -> None:
    """Build the tokenizers in a scratch folder and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=40_000, help="rows of the stage's file; 0 leaves the stage out")
    given = parser.parse_args()
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build_tokenizer(folder / "kimi")
        write_tokenizer("qwen3", folder / "qwen3")
        os.sched_setaffinity(0, {min(cores)})
        for name in TARGETS:
            target = load_tokenizer(str(folder / name))
            for shape in SHAPES:
                bench_encoding(name, target, shape, given.rounds)
        os.sched_setaffinity(0, cores)
        if given.rows:
            bench_stage(load_tokenizer(str(folder / "kimi")), given.rows, folder)


if __name__ == "__main__":
    main()
