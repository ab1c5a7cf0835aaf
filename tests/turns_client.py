"""A client that follows conversations in a process of its own, for tests that kill it.

Arguments: the data set's folder, the server's URL, the tokenizer's folder. Greedy, 256 new ids at the most.
"""

import asyncio
import json
import sys
from pathlib import Path

from rawtokens import runs
from rawtokens.capture import server_facts
from rawtokens.generation import Target, generate
from rawtokens.records import Sampling
from rawtokens.turns.setup import following_for


def follow(folder: Path, url: str, tokenizer: str, *, window: int = 8) -> None:
    """Generate what is missing of the data set's conversations."""
    sampling, tokenized = Sampling(temperature=0.0, max_new_tokens=256), runs.read_tokenized(folder)
    facts = asyncio.run(server_facts.facts_of([url]))
    target = Target(
        urls=(url,),
        sampling=sampling,
        stop_ids=tokenized.stop_ids,
        vocabulary_size=tokenized.vocabulary_size,
        fingerprint=runs.record_generating(folder, facts, sampling),
        facts=facts,
    )
    following = following_for(folder, json.dumps({"tokenizer": tokenizer}))
    asyncio.run(generate(folder, target, window=window, following=following))


if __name__ == "__main__":
    follow(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
