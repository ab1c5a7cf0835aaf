"""How much of a draft the target accepts: a head run over the target's own greedy sequences, and a walk over them.

The target's greedy output is the truth. A verification step stands at the last id that is known; the head drafts
`draft_length` ids behind it, and the target takes them up to the first that is not its own next id, and adds that one.
Up to the first miss the ids that a head is fed are the same whether it drafts or is taught, so one run of the head with
the true ids gives what drafting would give. A step counts to the part (reasoning, answer, tool calls) of the first id
that it drafts; the output's first id is the target's own. Drafts behind the output's end can't be judged and count as
not accepted. This module does not know how a head was trained.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from speculators.models.eagle3 import Eagle3DraftModel

from .target import Target


class Greedy(NamedTuple):
    """A prompt with the target's greedy output: ids of both, the prompt's length, each output id's part."""

    key: str
    ids: list[int]
    prompt: int
    parts: list[int]


@torch.inference_mode()  # type: ignore[untyped-decorator]
def accepted_by_prompt(
    head: Eagle3DraftModel, target: Target, sequences: Sequence[Greedy], *, draft_length: int, parts: int
) -> Iterator[list[list[int]]]:
    """For each sequence and part: steps, then steps in which at least 1, 2, .. `draft_length` drafts were accepted."""
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


def walk(drafted: Sequence[Sequence[int]], sequence: Greedy, *, parts: int) -> list[list[int]]:
    """`drafted[k][j]` is the id that a step standing at id j + 1 drafts as its k-th, which is to be id j + 2 + k."""
    ids, end = sequence.ids, len(sequence.ids)
    counts = [[0] * (len(drafted) + 1) for _ in range(parts)]
    known = sequence.prompt  # the output's first id
    while known < end - 1:
        count = counts[sequence.parts[known + 1 - sequence.prompt]]
        count[0] += 1
        accepted = 0
        while (
            accepted < len(drafted)
            and known + 1 + accepted < end
            and drafted[accepted][known - 1] == ids[known + 1 + accepted]
        ):
            accepted += 1
            count[accepted] += 1
        known += accepted + 1
    return counts
