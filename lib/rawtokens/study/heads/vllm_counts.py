"""`python vllm_counts.py JOB.json`: the counts of vLLM's own speculative decoding with one head, greedy, in float32.

Run with the Python of `.venv-vllm`; it takes nothing from the kit. Writes drafts, accepted drafts by position, and how
many outputs are equal to the sequences of the evaluation. This module does not know how the head was trained.
"""

import json
import sys
from pathlib import Path

from vllm import LLM, SamplingParams

DRAFTS, ACCEPTED, BY_POSITION = (
    f"vllm:spec_decode_num_{name}" for name in ("drafts", "accepted_tokens", "accepted_tokens_per_pos")
)


def main(path: str) -> None:
    """Do what the job asks for: model, head, draft_length, evaluation, max_new_tokens, result."""
    job = json.loads(Path(path).read_text("utf-8"))
    rows = [json.loads(line) for line in Path(job["evaluation"]).read_text("utf-8").splitlines()]
    engine = LLM(
        model=job["model"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=16,
        disable_log_stats=False,
        speculative_config={
            "model": job["head"],
            "method": "eagle3",
            "num_speculative_tokens": job["draft_length"],
        },
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=job["max_new_tokens"], detokenize=False)
    prompts = [{"prompt_token_ids": row["ids"][: row["prompt"]]} for row in rows]
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    equal = sum(
        list(output.outputs[0].token_ids) == row["ids"][row["prompt"] :]
        for output, row in zip(outputs, rows, strict=True)
    )
    found = {metric.name: metric for metric in engine.get_metrics() if metric.name in (DRAFTS, ACCEPTED, BY_POSITION)}
    result = {
        "arm": job["arm"],
        "seed": job["seed"],
        "drafts": int(found[DRAFTS].value),
        "accepted": int(found[ACCEPTED].value),
        "accepted_by_position": [int(each) for each in found[BY_POSITION].values],
        "sequences": len(rows),
        "equal_outputs": equal,
    }
    partial = Path(f"{job['result']}.partial")
    partial.write_text(json.dumps(result), "utf-8")
    partial.replace(job["result"])


if __name__ == "__main__":
    main(sys.argv[1])
