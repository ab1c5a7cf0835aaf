"""What speculators makes of exported files: run by speculators' own Python, since its imports take half a minute once.

Reads a list of questions as JSON from standard input, each a list of a name and its arguments, and prints the answers:

rows FILE MAX_LENGTH        a digest a row, as its training dataset holds it
frequencies FILE OUT        its own token_freq.pt over the file, as a map
vocabulary FREQ D2T T2D N   its mapping from a token_freq.pt of ours, and ours as it loads them
load FILE                   a file of torch.save's kind, tensors as lists
"""

import hashlib
import json
import sys

import numpy as np
import torch
from datasets import Dataset  # type: ignore[import-untyped]


def dataset(path: str, max_length: int) -> Dataset:
    from speculators.data_generation.preprocessing import build_speculator_training_dataset, load_raw_dataset

    raw, _ = load_raw_dataset(path)
    return build_speculator_training_dataset(raw, None, max_length=max_length, num_proc=1)


def rows(path: str, max_length: int) -> list[str]:
    found = dataset(path, max_length)
    pairs = [(row["input_ids"].tolist(), row["loss_mask"].tolist()) for row in found]
    return [hashlib.sha256(json.dumps(pair).encode()).hexdigest() for pair in pairs]


def frequencies(path: str, out: str) -> dict[int, int]:
    from speculators.train.vocab_mapping import save_token_frequency_distribution

    save_token_frequency_distribution(dataset(path, 10**6), out)
    found: dict[int, int] = torch.load(out, weights_only=True)
    return found


def vocabulary(frequencies: str, d2t: str, t2d: str, target: int) -> dict[str, object]:
    from speculators.train.cli import _load_mappings
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    ours = _load_mappings(d2t, t2d, len(np.load(d2t)))
    counts = torch.load(frequencies, weights_only=True)
    theirs = build_vocab_mappings_from_distribution(counts, ours[2], target)
    equal = [bool(torch.equal(own, other)) for own, other in zip(ours[:2], theirs, strict=True)]
    return {"equal": equal, "dtypes": [str(own.dtype) for own in ours[:2]]}


def load(path: str) -> object:
    return plain(torch.load(path, weights_only=True))


def plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype), "values": value.tolist()}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    print(json.dumps([globals()[name](*arguments) for name, *arguments in json.load(sys.stdin)]))
