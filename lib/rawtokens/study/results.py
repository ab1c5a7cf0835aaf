"""What was measured, as tables: acceptance lengths with seeds and intervals, by part and by position.

Acceptance length is ids a verification step: the target's own id and the drafts that it accepts; 1 is no help. A step
belongs to the part of the first id that it drafts. A 95 % interval holds both what the seeds and what the prompts leave
open: the variance of a mean over seeds and the variance over 2,000 resamples of the evaluation's prompts are added, and
the root is taken times Student's t for the seeds at hand. This module reads no model and no ids.
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
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Of 95 % two-sided intervals for 1, 2, .. degrees of freedom; the last serves beyond."""
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


def acceptance_table(study: Study, part: str = "") -> pd.DataFrame:
    """A line an arm, over all steps or those of a part: mean over seeds, sd, interval, the difference to verbatim.

    `seeds` holds each seed's length. Intervals are NaN with one seed. Raises InputError without verbatim heads.
    """
    names = arms_of(study)
    if VERBATIM not in names:
        raise InputError("the study has no head of the verbatim arm to hold others to; run it with that arm")
    base, base_resampled = _lengths(study, VERBATIM, part)
    lines = []
    for name in names:
        seeds, resampled = _lengths(study, name, part)
        own = _half_width([seeds], resampled)
        apart = 0.0 if name == VERBATIM else _half_width([seeds, base], resampled - base_resampled)
        difference = seeds.mean() - base.mean()
        lines.append(
            {
                "arm": name,
                "seeds": seeds.tolist(),
                "length": seeds.mean(),
                "sd": seeds.std(ddof=1) if len(seeds) > 1 else float("nan"),
                "low": seeds.mean() - own,
                "high": seeds.mean() + own,
                "difference": difference,
                "difference low": difference - apart,
                "difference high": difference + apart,
            }
        )
    return pd.DataFrame(lines).set_index("arm")


def part_table(study: Study) -> pd.DataFrame:
    """A line an arm: by part the length, and the difference to verbatim with its interval, in words."""
    found = {}
    for part in PARTS:
        table = acceptance_table(study, part)
        found[part] = table["length"]
        found[f"{part}, difference"] = table.apply(difference_in_words, axis=1)
    return pd.DataFrame(found)


def difference_in_words(line: pd.Series) -> str:
    """Of a line of `acceptance_table`: `-0.84 (-1.11 to -0.58)`; without an interval "", as verbatim's own."""
    if line.name == VERBATIM or np.isnan(line["difference low"]):
        return ""
    return f"{line['difference']:+.2f} ({line['difference low']:+.2f} to {line['difference high']:+.2f})"


def position_table(study: Study) -> pd.DataFrame:
    """A line an arm: the share of steps in which the 1st, 2nd, .. draft was accepted, mean over seeds."""
    lines = {}
    for name in arms_of(study):
        totals = counts_of(study, name).sum(axis=(1, 2))
        lines[name] = (totals[:, 1:] / totals[:, :1]).mean(axis=0)
    return pd.DataFrame(lines, index=range(1, DRAFT_LENGTH + 1)).T.rename_axis("arm")


def data_table(study: Study) -> pd.DataFrame:
    """A line an arm: what its heads were trained on. Raises InputError where a head was trained on something else."""
    lines = []
    for arm in study.arms:
        heads = [head for head in study.heads if head.arm == arm.arm]
        given = (arm.rows, arm.supervised_ids * study.form.epochs)
        for head in heads:
            if (head.rows, head.supervised_ids) != given:
                raise InputError(
                    f"{arm.arm}, seed {head.seed}: trained on {head.rows} rows, {head.supervised_ids} supervised ids; "
                    f"expected {given[0]} and {given[1]}; remove that arm's results.jsonl and run the study again"
                )
        lines.append(
            {
                "arm": ARMS[arm.arm],
                "rows": arm.rows,
                "rows changed": arm.changed_rows,
                "left out": sum(arm.left_out.values()),
                "positions": arm.positions,
                "supervised ids": arm.supervised_ids,
                "of them reasoning": arm.reasoning_ids,
                "outside the draft vocabulary": arm.uncovered_ids,
                "steps": heads[0].steps if heads else 0,
                "seconds a head": np.mean([head.train_seconds for head in heads]) if heads else float("nan"),
            }
        )
    return pd.DataFrame(lines).set_index("arm")


def confirmed_table(study: Study) -> pd.DataFrame:
    """A line an arm: the walk's counts beside vLLM's, of one head; accepted drafts by position."""
    lines = []
    for found in study.confirmed:
        head = next(each for each in study.heads if (each.arm, each.seed) == (found.arm, found.seed))
        totals = np.array(head.counts).sum(axis=(0, 1))
        lines.append(
            {
                "arm": ARMS[found.arm],
                "steps here": int(totals[0]),
                "in vLLM": found.drafts,
                "accepted by position here": " ".join(map(str, totals[1:])),
                "accepted by position in vLLM": " ".join(map(str, found.accepted_by_position)),
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


def _lengths(study: Study, arm: str, part: str) -> tuple[Floats, Floats]:
    """By seed; and mean over seeds by resample of the sequences, equal draws for every arm."""
    counts = counts_of(study, arm)
    chosen = counts[:, :, PARTS.index(part)] if part else counts.sum(axis=2)
    sequences = chosen.shape[1]
    drawn = np.random.default_rng(1).multinomial(sequences, np.full(sequences, 1 / sequences), RESAMPLES)
    resampled: Floats = acceptance_length(np.einsum("rp,spk->rsk", drawn, chosen)).mean(axis=1)
    return acceptance_length(chosen.sum(axis=1)), resampled


def _half_width(groups: Sequence[Floats], resampled: Floats) -> float:
    """Of the interval of a mean, or of a difference of two."""
    freedom = sum(len(seeds) - 1 for seeds in groups)
    if min(len(seeds) for seeds in groups) < 2 or np.isnan(resampled).all():
        return float("nan")
    variance = sum(seeds.var(ddof=1) / len(seeds) for seeds in groups) + np.nanvar(resampled)
    return float(STUDENT[min(freedom, len(STUDENT)) - 1] * np.sqrt(variance))


def conversation_table(study: Study, *, most: int = 12) -> pd.DataFrame:
    """A line an arm of the one conversation: ids in all and trained on, and the first of these."""
    lines = {}
    for name, (ids, mask) in study.conversation.items():
        trained = [each for each, one in zip(ids, mask, strict=True) if one]
        first = " ".join(map(str, trained[:most])) + (" .." if len(trained) > most else "")
        lines[ARMS[name]] = {"ids": len(ids), "trained on": len(trained), "first": first}
    return pd.DataFrame.from_dict(lines, orient="index")
