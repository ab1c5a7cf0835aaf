"""Loss masks from runs: 1 on the ids that a drafter is trained on.

A mask is unshifted: it says of each id whether the target sampled it (and whether it is of the wanted part), at that
id's own position; what a trainer predicts from where is the trainer's business. The prompt, with the opener that a
chat template puts there, is 0; the stop id is 1. This module does not know text.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rows import ANSWER, CLOSER, REASONING, STOP, TOOL, Integers, Runs

MASKS: dict[str, tuple[int, ...]] = {
    "sampled": (REASONING, CLOSER, ANSWER, TOOL, STOP),
    "reasoning": (REASONING, CLOSER),
    "answer": (ANSWER, STOP),
    "tool_calls": (TOOL,),
}
"""What each named mask has a 1 on. A closer goes with the reasoning that it ends, the stop id with the answer, so that
each sampled id is in exactly one of the three parts."""
CONVENTION = (
    "unshifted: loss_mask[i] is 1 where the target sampled input_ids[i]; the prompt and its opener are 0, the stop id "
    "is 1"
)
SHIFTED = "; each span of ones begins one id earlier (boundary shift), at the last id before it"
CYCLES = "; a row holds turns that go on from one another, such as a tool cycle, all that was sampled in them 1"


class MaskRuns(NamedTuple):
    """A mask as runs of 0 and 1, none empty; neighbours in a row differ."""

    rows: Integers
    lengths: Integers
    values: NDArray[np.int8]

    def per_id(self) -> NDArray[np.int8]:
        """0 or 1 for each id of the batch."""
        return np.repeat(self.values, self.lengths)


def mask_runs(runs: Runs, mask: str, *, boundary_shift: bool = False) -> MaskRuns:
    """The mask of a name over a batch's runs.

    `boundary_shift` lets every span of ones begin one id earlier, for a trainer whose first step looks one position
    further than its mask does (EAGLE-3 in SpecForge 0.2.0: at the prompt's last id it predicts the second output id,
    which the unshifted mask leaves without gradient; SpecForge issue 885). speculators 0.9.0 shifts the mask itself.
    """
    values = np.isin(runs.labels, MASKS[mask]).astype(np.int8)
    lengths, first = runs.lengths.copy(), np.ones(len(values), dtype=np.bool_)
    first[1:] = runs.rows[1:] != runs.rows[:-1]
    if boundary_shift:
        rises = np.flatnonzero((values[1:] > values[:-1]) & ~first[1:]) + 1
        lengths[rises] += 1
        lengths[rises - 1] -= 1
    filled = lengths > 0
    rows, lengths, values = runs.rows[filled], lengths[filled], values[filled]
    begins = np.ones(len(values), dtype=np.bool_)
    begins[1:] = (rows[1:] != rows[:-1]) | (values[1:] != values[:-1])
    places = np.flatnonzero(begins)
    merged = np.add.reduceat(lengths, places) if len(places) else lengths
    return MaskRuns(rows[begins], merged, values[begins])


def convention(*, boundary_shift: bool, cycles: bool = False) -> str:
    """What a mask means, in words, for a manifest."""
    return CONVENTION + (SHIFTED if boundary_shift else "") + (CYCLES if cycles else "")
