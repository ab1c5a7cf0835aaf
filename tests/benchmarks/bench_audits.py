"""How fast outputs are audited for drift: ids a second, beside decoding and encoding alone.

Everything in one run, best of `--repeats`: the audit is held to 1M ids/s on 2 cores. Outputs are runs of
the kit's own sources and pages under the real Kimi-K2.5 vocabulary; one in twenty has a word spelt in single bytes, so
that it changes. Both ways of encoding are shown: batches of the Rust tokenizer, and the tiktoken core that takes over
after some 2M ids. `--rows` of `--length` ids size it.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from rawtokens.demo.vocabulary import build_tokenizer
from rawtokens.fidelity.drift import drift_of
from rawtokens.reporting.samples import Sample
from rawtokens.target.encoding import TextEncoder
from rawtokens.target.id_bytes import IdBytes
from rawtokens.target.target_tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--length", type=int, default=4_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        build_tokenizer(Path(name))
        tokenizer = load_tokenizer(name)
        table = IdBytes.of(tokenizer)
        samples = make_samples(table, options.rows, options.length)
        outputs = [sample.output_ids for sample in samples]
        ids = sum(map(len, outputs))
        print(f"{ids:,} ids in {len(samples):,} outputs; M ids/s by the clock, and by a core's time")
        for core_after in (2**62, 1):
            bench_way(table, TextEncoder(tokenizer.encoder, core_after=core_after), samples, options.repeats)
        rate("decode by transformers", lambda: [tokenizer.decode(each) for each in outputs], ids, options.repeats)


def bench_way(table: IdBytes, encoder: TextEncoder, samples: list[Sample], repeats: int) -> None:
    """The audit by one way of encoding, beside decoding and encoding alone."""
    encoder.encode(["warm up"])
    held = replace(table, tokenizer=replace(table.tokenizer, text_encoder=encoder))
    outputs = [sample.output_ids for sample in samples]
    ids = sum(map(len, outputs))
    print(f" {encoder.way}")
    bare = rate("decode, then encode", lambda: encoder.encode([held.text(each) for each in outputs]), ids, repeats)
    rate("the drift audit", lambda: drift_of(samples, held), ids, repeats, bare)


def rate(name: str, work: Callable[[], object], ids: int, repeats: int, limit: float = 0.0) -> float:
    """Print M ids a second by the clock and by CPU time, best of `repeats`; return the latter, told beside `limit`."""
    taken, used = [], []
    for _ in range(repeats):
        started, before = time.perf_counter(), time.process_time()
        work()
        taken.append(time.perf_counter() - started)
        used.append(time.process_time() - before)
    found = ids / min(used) / 1e6
    share = f"   {found / limit:6.1%} of that alone" if limit else ""
    print(f"  {name:26}{ids / min(taken) / 1e6:8.2f}{found:8.2f}{share}")
    return found


def make_samples(table: IdBytes, rows: int, length: int) -> list[Sample]:
    """Outputs of `length` ids, the reasoning in the first three quarters."""
    texts = sorted([*ROOT.glob("lib/rawtokens/*.py"), *ROOT.glob("*.md")])
    (ids,) = table.tokenizer.encode(["\n".join(path.read_text("utf-8") for path in texts)])
    chance = random.Random(7)
    spelt = [table.pieces.index(bytes([byte])) for byte in b" certainly"]
    samples = []
    for row in range(rows):
        start = chance.randrange(len(ids) - length)
        output = table.tokenizer.encode([table.text(ids[start : start + length])])[0]
        if row % 20 == 0:
            output = [*output[: length // 2], *spelt, *output[length // 2 :]]
        samples.append(
            Sample(
                key=f"{row}#0/0",
                shape="closed",
                rows=1,
                verdict="accept",
                reasons=[],
                finish_reason="length",
                prompt_ids=[],
                output_ids=output,
                reasoning_tokens=len(output) * 3 // 4,
                ends_with_stop=False,
            )
        )
    return samples


if __name__ == "__main__":
    main()
