"""`python -m rawtokens.study.heads JOB.json`: train an arm's heads, one a seed, and measure each; a JSON line a head.

Run with the Python of `.venv-speculators`. The job names folders and numbers. This module does not know what an arm is.
"""

import json
import logging
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from .acceptance import accepted_by_sequence
from .target import Target
from .training import new_head, read_rows, train
from .walking import Greedy

PARTS = 3


def main(path: str) -> None:
    """Do what the job asks for."""
    job = json.loads(Path(path).read_text("utf-8"))
    model, results = Path(job["model"]), Path(job["results"])
    target = Target(model, job["layers"])
    vocabulary = {name: torch.from_numpy(np.load(path)) for name, path in job["vocabulary"].items()}
    rows = read_rows(Path(job["prepared"]), target)
    sequences = [Greedy(**json.loads(line)) for line in Path(job["evaluation"]).read_text("utf-8").splitlines()]
    for seed in job["seeds"]:
        head = new_head(model, target, vocabulary, draft_length=job["draft_length"], seed=seed)
        facts = train(head, rows, seed=seed, draft_length=job["draft_length"], **job["training"])
        started = time.monotonic()
        counts = list(accepted_by_sequence(head, target, sequences, draft_length=job["draft_length"], parts=PARTS))
        facts["evaluate_seconds"] = time.monotonic() - started
        if seed in job["saved_seeds"]:
            head.save_pretrained(f"{job['head']}-{seed}")
        line = {"arm": job["arm"], "digest": job["digest"], "seed": seed, **facts, "counts": counts}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{job['arm']} seed {seed}: {facts['steps']} steps in {facts['train_seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # one head a core: two heads at once take less time than one on two cores
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    main(sys.argv[1])
