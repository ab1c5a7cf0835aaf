"""What a head drafts along the target's own greedy outputs, all positions at once.

Up to the first miss the ids that a head is fed are the same whether it drafts or is taught, so one run of the head with
the true ids gives what drafting would give. This module does not know how a head was trained, nor how drafts are
counted (walking).
"""

from collections.abc import Iterator, Sequence

import torch
from speculators.models.eagle3 import Eagle3DraftModel

from .target import Target
from .walking import Greedy, walk


@torch.inference_mode()  # type: ignore[untyped-decorator]
def accepted_by_sequence(
    head: Eagle3DraftModel, target: Target, sequences: Sequence[Greedy], *, draft_length: int, parts: int
) -> Iterator[list[list[int]]]:
    """The counts of `walk` for each sequence."""
    head.eval()
    assert head.d2t is not None
    for sequence in sequences:
        ids = torch.tensor(sequence.ids)
        states = target.states(ids)
        drafts = head(
            hidden_states=states[:-1, :-1].flatten(1)[None],
            input_ids=ids[None, 1:],
            document_ids=torch.zeros(1, len(ids) - 1, dtype=torch.long),
            position_ids=torch.arange(1, len(ids))[None],
            ttt_steps=draft_length,
        )
        drafted = [(draft[0] + head.d2t[draft[0]]).tolist() for draft in drafts]
        yield walk(drafted, sequence, parts=parts)
