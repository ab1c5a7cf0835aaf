"""What was measured, as tables: acceptance lengths with seeds and intervals, by part and by position.

Acceptance length is ids a verification step: the target's own id and the drafts that it accepts; 1 is no help. A step
belongs to the part of the first id that it drafts. Intervals are percentiles of 2,000 resamples of the evaluation's
prompts, the heads as they are; the spread over seeds is told apart. This module reads no model and no ids.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import InputError
from .datasets import ArmFacts
from .forms import ARMS, DRAFT_LENGTH, PARTS, VERBATIM, Form
from .measuring import Head

RESAMPLES = 2_000
STUDY = "study.json"
Floats = NDArray[np.float64]


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's head under vLLM's own speculative decoding; `equal_outputs` are greedy outputs equal to SGLang's."""

    arm: str
    seed: int
    drafts: int
    accepted: int
    accepted_by_position: list[int]
    sequences: int
    equal_outputs: int


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured. `conversation` is one prompt's row in each arm, as ids and mask."""

    form: Form
    arms: list[ArmFacts]
    heads: list[Head]
    sequences: int
    confirmed: list[Confirmed] = []
    conversation: dict[str, tuple[list[int], list[int]]] = {}


def read_study(folder: Path) -> Study:
    """What a study left in its folder. Raises InputError."""
    path = folder / STUDY
    if not path.exists():
        raise InputError(f"{path} is missing; `make study` makes it")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Study)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path} can't be read ({error}); run `make study` again") from error


def counts_of(study: Study, arm: str) -> Floats:
    """An arm's counts (seeds, sequences, parts, 1 + draft length): steps, then those with at least k accepted."""
    found: Floats = np.array([head.counts for head in study.heads if head.arm == arm], dtype=np.float64)
    return found


def arms_of(study: Study) -> list[str]:
    """The arms that have a head, in the order in which they are shown."""
    measured = {head.arm for head in study.heads}
    return [name for name in ARMS if name in measured]


def acceptance_length(counts: Floats) -> Floats:
    """Of counts (.., 1 + draft length): ids a step; NaN without a step."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = 1 + counts[..., 1:].sum(axis=-1) / counts[..., 0]
    return found


def resampled_lengths(study: Study, arm: str) -> Floats:
    """Acceptance length over resamples of the sequences, mean over seeds: (RESAMPLES,). Equal draws for every arm."""
    counts = counts_of(study, arm).sum(axis=2)
    chosen = np.random.default_rng(1).multinomial(
        counts.shape[1], np.full(counts.shape[1], 1 / counts.shape[1]), RESAMPLES
    )
    found: Floats = acceptance_length(np.einsum("rp,spk->rsk", chosen, counts)).mean(axis=1)
    return found


def acceptance_table(study: Study) -> pd.DataFrame:
    """A line an arm: mean over seeds, sd over seeds, interval, parts, and the difference to verbatim with its interval.

    `seeds` holds each seed's length; `agree` whether each seed's difference to verbatim has the sign of the mean.
    """
    names = arms_of(study)
    if VERBATIM not in names:
        raise InputError("the study has no head of the verbatim arm to hold others to; run it with that arm")
    base, base_resampled = _by_seed(study, VERBATIM), resampled_lengths(study, VERBATIM)
    lines = []
    for name in names:
        counts, seeds, resampled = counts_of(study, name), _by_seed(study, name), resampled_lengths(study, name)
        low, high = np.quantile(resampled, (0.025, 0.975))
        paired = min(len(seeds), len(base))
        differences = seeds[:paired] - base[:paired]
        below, above = np.quantile(resampled - base_resampled, (0.025, 0.975))
        parts = acceptance_length(counts.sum(axis=1)).mean(axis=0)
        lines.append(
            {
                "arm": name,
                "seeds": seeds.tolist(),
                "length": seeds.mean(),
                "sd": seeds.std(ddof=1) if len(seeds) > 1 else float("nan"),
                "low": low,
                "high": high,
                **dict(zip(PARTS, parts, strict=True)),
                "difference": differences.mean(),
                "difference low": below,
                "difference high": above,
                "agree": bool((np.sign(differences) == np.sign(differences.mean())).all()),
            }
        )
    return pd.DataFrame(lines).set_index("arm")


def position_table(study: Study) -> pd.DataFrame:
    """A line an arm: the share of steps in which the 1st, 2nd, .. draft was accepted, mean over seeds."""
    lines = {}
    for name in arms_of(study):
        totals = counts_of(study, name).sum(axis=(1, 2))
        lines[name] = (totals[:, 1:] / totals[:, :1]).mean(axis=0)
    return pd.DataFrame(lines, index=range(1, DRAFT_LENGTH + 1)).T.rename_axis("arm")


def data_table(study: Study) -> pd.DataFrame:
    """A line an arm: what its heads were trained on."""
    heads = {head.arm: head for head in study.heads}
    lines = [
        {
            "arm": ARMS[arm.arm],
            "rows": arm.rows,
            "rows changed": arm.changed_rows,
            "left out": sum(arm.left_out.values()),
            "positions": arm.positions,
            "supervised ids": arm.supervised_ids,
            "outside the draft vocabulary": arm.uncovered_ids,
            "steps": heads[arm.arm].steps if arm.arm in heads else 0,
            "seconds a head": heads[arm.arm].train_seconds if arm.arm in heads else float("nan"),
        }
        for arm in study.arms
    ]
    return pd.DataFrame(lines).set_index("arm")


def confirmed_table(study: Study) -> pd.DataFrame:
    """A line an arm: the walk's counts beside vLLM's, of one head."""
    lines = []
    for found in study.confirmed:
        head = next(each for each in study.heads if (each.arm, each.seed) == (found.arm, found.seed))
        totals = np.array(head.counts).sum(axis=(0, 1))
        lines.append(
            {
                "arm": ARMS[found.arm],
                "steps here": int(totals[0]),
                "steps in vLLM": found.drafts,
                "accepted here": int(totals[1:].sum()),
                "accepted in vLLM": found.accepted,
                "length here": float(acceptance_length(totals)),
                "length in vLLM": 1 + found.accepted / found.drafts,
                "equal outputs": found.equal_outputs,
                "of": found.sequences,
            }
        )
    return pd.DataFrame(lines)


def shown(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Columns of `acceptance_table` or `position_table` with the arms' names in words."""
    return table[list(names)].rename(index=ARMS)


def _by_seed(study: Study, arm: str) -> Floats:
    return acceptance_length(counts_of(study, arm).sum(axis=(1, 2)))


def conversation_table(study: Study, *, most: int = 12) -> pd.DataFrame:
    """A line an arm of the one conversation: ids in all and trained on, and the first of these."""
    lines = {}
    for name, (ids, mask) in study.conversation.items():
        trained = [each for each, one in zip(ids, mask, strict=True) if one]
        first = " ".join(map(str, trained[:most])) + (" .." if len(trained) > most else "")
        lines[ARMS[name]] = {"ids": len(ids), "trained on": len(trained), "first": first}
    return pd.DataFrame.from_dict(lines, orient="index")
