"""The verification walk over a finished greedy output, and how rows are put into steps: plain Python, no torch.

The target's greedy output is the truth. A verification step stands at the last id that is known; the head drafts
`draft_length` ids behind it, and the target takes them up to the first that is not its own next id, and adds that one.
A step counts to the part (reasoning, answer, tool calls) of the first id that it drafts; the output's first id is the
target's own. Drafts behind the output's end can't be judged and count as not accepted. This module does not know where
drafts come from.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Greedy(NamedTuple):
    """A prompt with the target's greedy output: ids of both, the prompt's length, each output id's part."""

    key: str
    ids: list[int]
    prompt: int
    parts: list[int]


def walk(drafted: Sequence[Sequence[int]], sequence: Greedy, *, parts: int) -> list[list[int]]:
    """By part: steps, then steps in which at least 1, 2, .. drafts were accepted.

    `drafted[k][j]` is the id that a step standing at id j + 1 drafts as its k-th; it is to be id j + 2 + k.
    """
    ids = sequence.ids
    counts = [[0] * (len(drafted) + 1) for _ in range(parts)]
    known = sequence.prompt  # the output's first id
    while known < len(ids) - 1:
        count = counts[sequence.parts[known + 1 - sequence.prompt]]
        count[0] += 1
        accepted = 0
        for draft, wanted in zip(drafted, ids[known + 1 :], strict=False):
            if draft[known - 1] != wanted:
                break
            accepted += 1
            count[accepted] += 1
        known += accepted + 1
    return counts


def steps_of(supervised: Sequence[int], step_ids: int, *, seed: int) -> Iterator[list[int]]:
    """Rows in an order of the seed's, cut where `step_ids` more supervised ids are full.

    As many steps for equal ids, whatever the rows' lengths.
    """
    order = list(range(len(supervised)))
    random.Random(seed).shuffle(order)
    step: list[int] = []
    done = full = 0
    for row in order:
        step.append(row)
        done += supervised[row]
        if done >= step_ids * (full + 1):
            full += 1
            yield step
            step = []
    if step:
        yield step


def parts_of(step: Sequence[int], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """The rows of a step in parts of at most `most` positions, or of one longer row."""
    part: list[int] = []
    size = 0
    for row in step:
        if part and size + lengths[row] - 1 > most:
            yield part
            part, size = [], 0
        part.append(row)
        size += lengths[row] - 1
    if part:
        yield part
