"""Train one EAGLE-3 head with speculators' own head, data code, collation and loss, and a plain AdamW loop.

speculators' Trainer needs a GPU, as do its default attention and its default loss; "sdpa" and the eager loss compute
the same on a CPU. A step is a number of supervised ids, whatever the rows' lengths, so that every arm takes as many
steps; its rows go through the head in parts that bound the attention's memory. Rows come in an order that the seed
decides. This module does not know where the rows come from.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset, CollateFn
from transformers import LlamaConfig

from .target import Target, TargetStates
from .walking import parts_of, steps_of

CLIP = 1.0


def new_head(
    folder: Path, target: Target, vocabulary: dict[str, torch.Tensor], *, draft_length: int, seed: int
) -> Eagle3DraftModel:
    """A head of one layer in the target's shape, its weights drawn with `seed`; `vocabulary` holds d2t and t2d."""
    torch.manual_seed(seed)
    config = LlamaConfig.from_pretrained(folder, num_hidden_layers=1)
    head = Eagle3DraftModel.from_training_args(
        verifier_config=config,
        verifier_name_or_path=str(folder),
        draft_vocab_size=len(vocabulary["d2t"]),
        t2d=vocabulary["t2d"],
        d2t=vocabulary["d2t"],
        norm_before_residual=True,
        ttt_steps=draft_length,
        target_layer_ids=list(target.layers),
        draft_attn_impl="sdpa",
    )
    return head.float()


def read_rows(prepared: Path, target: Target) -> ArrowDataset:
    """The rows that `speculators prepare-data` wrote, each with the target's hidden states."""
    rows = ArrowDataset(1 << 20, prepared, on_missing="raise", hidden_states_dtype=torch.float32)
    rows.transfer = TargetStates(target, rows.data["input_ids"])
    return rows


def train(
    head: Eagle3DraftModel,
    rows: ArrowDataset,
    *,
    seed: int,
    epochs: int,
    step_ids: int,
    part_positions: int,
    draft_length: int,
    learning_rate: float,
) -> dict[str, float]:
    """Train `head` in place; returns steps, positions, supervised ids, the mean loss of the last tenth, and seconds."""
    started = time.monotonic()
    supervised = [int(mask.sum()) for mask in rows.data["loss_mask"]]
    steps = [step for epoch in range(epochs) for step in steps_of(supervised, step_ids, seed=1000 * seed + epoch)]
    optimizer = torch.optim.AdamW([each for each in head.parameters() if each.requires_grad], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=len(steps))
    loss_config = resolve_loss_config("kl_div", "eager")
    losses, positions = [], 0
    head.train()
    for step in steps:
        optimizer.zero_grad()
        whole, loss_of_step = sum(supervised[row] for row in step), 0.0
        for part in parts_of(step, rows.approx_lengths, part_positions):
            batch = collated(rows, part, head.hidden_size)
            _, loss, _ = head(**batch, ttt_steps=draft_length, loss_config=loss_config)
            weighted = loss * (sum(supervised[row] for row in part) / whole)  # the library's loss is a part's mean
            weighted.backward()
            loss_of_step += float(weighted.detach())
            positions += batch["input_ids"].shape[1]
        torch.nn.utils.clip_grad_norm_(head.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        losses.append(loss_of_step)
    tail = losses[-max(1, len(losses) // 10) :]
    return {
        "rows": len(supervised),
        "steps": len(steps),
        "positions": positions,
        "supervised_ids": sum(supervised) * epochs,
        "loss": sum(tail) / len(tail),
        "train_seconds": time.monotonic() - started,
    }


def collated(rows: ArrowDataset, part: Sequence[int], hidden_size: int) -> dict[str, torch.Tensor]:
    """Rows side by side as a head takes them; a row of n ids has n - 1 positions."""
    positions = sum(rows.approx_lengths[row] - 1 for row in part)
    layers = rows[part[0]]["hidden_states"].shape[1] // hidden_size
    collate = CollateFn(positions, hidden_size, layers, dtype=torch.float32, preprocess=shift_batch)
    batch: dict[str, torch.Tensor] = collate([rows[row] for row in part])
    batch.pop("error_records")
    return batch
