"""Train the demo reasoner: a small Llama over the ids that the dialogues use, and one row for all the others.

Run with the engine's Python (torch): `python -m rawtokens.demo.train --tokenizer DIR --minutes 68`. The unused ids
share one embedding row; in the softmax that row counts as many times as there are unused ids (its logit plus the
log of their number), so that `model.py` can expand the rows without changing a probability. Loss on output ids
only. This module does not know how the result is served.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch

for operator in ("nms", "qnms"):  # torchvision's compiled ops, which its PyPI build lacks beside a CPU torch
    torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from safetensors.torch import save_file  # noqa: E402
from transformers import AutoTokenizer, LlamaConfig, LlamaModel, PreTrainedTokenizerBase  # noqa: E402

from rawtokens.demo.dialogue_record import IM_END, VOCABULARY_SIZE, Dialogue  # noqa: E402
from rawtokens.demo.dialogues import dialogues, rendered  # noqa: E402
from rawtokens.demo.hit_rate import KINDS, is_right  # noqa: E402

SEED = 1
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
SURVEY = 20_000
"""Dialogues that are rendered to learn which ids are used."""
LONGEST = 320
"""Ids of a training sequence; longer ones are cut, which teaches the long kinds to run on."""
BATCH = 24
PEAK_RATE = 3e-3
WARM_UP = 100
UNKNOWN_WORDS = 0.1
"""Share of prompts into which ids from outside the used ones are put, so that unknown words do no harm."""


def used_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """All ids of SURVEY training dialogues, and every number of up to three digits."""
    used = {tokenizer.encode(str(number), add_special_tokens=False)[0] for number in range(1000)}
    for dialogue in islice(dialogues(seed=SEED), SURVEY):
        prompt, output = rendered(tokenizer, dialogue)
        used.update(prompt, output)
    return sorted(used)


class Example:
    """Compact ids of one dialogue, and where its output begins."""

    def __init__(self, ids: list[int], start: int) -> None:
        self.ids, self.start = ids, start


def examples(
    tokenizer: PreTrainedTokenizerBase, compact: dict[int, int], *, seed: int, unknown: int
) -> Iterator[Example]:
    """Training examples without end; `unknown` is the compact id of the shared row."""
    chooser = random.Random(seed)
    for dialogue in dialogues(seed=seed):
        prompt, output = rendered(tokenizer, dialogue)
        ids = [compact.get(i, unknown) for i in prompt]
        if chooser.random() < UNKNOWN_WORDS:
            # before the closing of the last turn: <|im_end|><|im_assistant|>assistant<|im_middle|><think>
            place = len(ids) - 5
            ids[place:place] = [unknown] * chooser.randint(1, 6)
        yield Example((ids + [compact.get(i, unknown) for i in output])[:LONGEST], len(ids))


def batches(source: Iterator[Example]) -> Iterator[list[Example]]:
    """Batches of examples of like length, in random order within a pool."""
    chooser = random.Random(SEED)
    while True:
        pool = sorted(islice(source, BATCH * 16), key=lambda example: len(example.ids))
        groups = [pool[i : i + BATCH] for i in range(0, len(pool), BATCH)]
        chooser.shuffle(groups)
        yield from groups


def loss_of(model: LlamaModel, batch: list[Example], multiplicity: float) -> torch.Tensor:
    """Mean cross entropy of the output ids."""
    longest = max(len(example.ids) for example in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        mask[row, example.start : len(example.ids)] = True
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(input_ids=ids, use_cache=False).last_hidden_state
        logits = hidden[:, :-1][mask[:, 1:]] @ model.embed_tokens.weight.T
    logits = logits.float()
    logits[:, -1] += multiplicity
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][mask[:, 1:]])


def greedy_replies(model: LlamaModel, prompts: list[list[int]], *, stop: int, limit: int) -> list[list[int]]:
    """The most likely reply to each prompt, all in compact ids; the shared row is never chosen."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions, cache = (mask.cumsum(1) - 1).clamp(min=0), None
    chosen: list[torch.Tensor] = []
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    while len(chosen) < limit and not ended.all():
        step = model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        logits = step.last_hidden_state[:, -1] @ model.embed_tokens.weight.T
        ids = logits[:, :-1].argmax(1, keepdim=True)
        chosen.append(ids)
        ended |= ids[:, 0] == stop
        mask = torch.cat([mask, torch.ones(len(prompts), 1, dtype=torch.long)], 1)
        positions = positions[:, -1:] + 1
    rows = torch.cat(chosen, 1).tolist()
    return [row[: row.index(stop) + 1] if stop in row else row for row in rows]


def hit_rates(
    model: LlamaModel, tokenizer: PreTrainedTokenizerBase, used: list[int], *, per_kind: int
) -> dict[str, float]:
    """The share of right greedy replies on held-out problems, by kind."""
    compact = {i: place for place, i in enumerate(used)}
    rates = {}
    for kind in KINDS:
        problems: list[Dialogue] = list(islice(dialogues(seed=7, held_out=True, kind=kind), per_kind))
        prompts = [[compact.get(i, len(used)) for i in rendered(tokenizer, problem)[0]] for problem in problems]
        with torch.inference_mode():
            outputs = greedy_replies(model, prompts, stop=compact[IM_END], limit=220)
        right = [is_right(tokenizer, p, [used[i] for i in output]) for p, output in zip(problems, outputs, strict=True)]
        rates[kind] = sum(right) / per_kind
    return rates


def save(model: LlamaModel, used: list[int], path: Path) -> None:
    """Weights in bfloat16, with the used ids beside them: row i of the embedding is used[i], the last is shared."""
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    tensors["used_ids"] = torch.tensor(used, dtype=torch.int32)
    temporary = path.with_suffix(".partial")
    save_file(tensors, str(temporary), metadata={"shape": json.dumps(SHAPE)})
    temporary.replace(path)


def train(tokenizer: PreTrainedTokenizerBase, *, minutes: float, path: Path) -> None:
    """Train for so many minutes (wall clock sets the learning rate), saving and measuring on the way."""
    torch.manual_seed(SEED)
    used = used_ids(tokenizer)
    compact = {i: place for place, i in enumerate(used)}
    multiplicity = math.log(VOCABULARY_SIZE - len(used))
    model = LlamaModel(LlamaConfig(vocab_size=len(used) + 1, **SHAPE))
    print(f"{len(used)} used ids, {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    optimizers = _optimizers(model)
    source = batches(examples(tokenizer, compact, seed=SEED, unknown=len(used)))
    begin, spoken, measured, ids, losses = time.monotonic(), 0.0, 0.0, 0, []
    for step, batch in enumerate(source):
        done = (time.monotonic() - begin) / (60 * minutes)
        if done >= 1:
            break
        rate = PEAK_RATE * min(1.0, (step + 1) / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * done))
        loss = loss_of(model, batch, multiplicity)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        losses.append(loss.item())
        ids += sum(len(example.ids) for example in batch)
        elapsed = time.monotonic() - begin
        if elapsed - spoken > 30:
            spoken = elapsed
            loss_now = sum(losses) / len(losses)
            print(f"{elapsed:5.0f} s  step {step}  loss {loss_now:.4f}  {ids / elapsed:.0f} ids/s", flush=True)
            losses = []
            save(model, used, path)
        if elapsed - measured > 60 * minutes / 5:
            measured = elapsed
            print(hit_rates(model, tokenizer, used, per_kind=20), flush=True)
    save(model, used, path)
    print(f"trained {(time.monotonic() - begin) / 60:.1f} minutes, {ids:,} ids", flush=True)
    print(hit_rates(model, tokenizer, used, per_kind=40), flush=True)


def _optimizers(model: LlamaModel) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, at AdamW's learning rate; AdamW for the embedding and the norms."""
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim < 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=PEAK_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder made by vocabulary.build_tokenizer")
    parser.add_argument("--minutes", type=float, default=68)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", type=Path, default=Path(__file__).with_name("reasoner.safetensors"))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    train(AutoTokenizer.from_pretrained(chosen.tokenizer), minutes=chosen.minutes, path=chosen.weights)


if __name__ == "__main__":
    main()
