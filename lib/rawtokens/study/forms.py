"""How large a study is: prompts, arms, seeds, and what a head is trained on. It does not know what is done with it."""

import msgspec

from ..errors import InputError

ARMS = {
    "verbatim": "as captured",
    "late_mask": "as captured, mask one id late",
    "retokenised": "decoded and re-tokenised",
    "reasoning_kept": "parsed, re-rendered, reasoning kept",
    "template": "parsed, re-rendered by the template",
    "corpus": "the target's training corpus",
    "other_author": "another author's answers",
}
"""Every arm with its name in words, in the order in which they are shown; `verbatim` is what the others are held to."""
VERBATIM = "verbatim"
PARTS = ("reasoning", "answer", "tool calls")
DRAFT_LENGTH = 4
MAX_NEW_TOKENS = 256
"""Of the captures, and of the replies that other arms put in their place."""
LAYERS = (1, 2, 3)
"""Whose states a head sees, of the demo model's four layers; speculators' default (2, half, last but 3) needs more."""


class Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One size of the study. `unique_ids` are an arm's supervised ids in one epoch, `step_ids` those of one step.

    Small steps cost no more time, for that goes by positions: one verbatim head came to an acceptance length of 2.79 in
    3 epochs of 64 ids a step at 2e-3, to 2.63 with 128 ids a step, to 2.73 in 6 epochs of 128 at 1e-3. The three
    were measured on the evaluation's own prompts, which favours the verbatim arm.
    """

    name: str
    prompts: int
    evaluation_prompts: int
    arms: tuple[str, ...] = tuple(ARMS)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    unique_ids: int = 32_000
    epochs: int = 3
    step_ids: int = 64
    draft_vocabulary: int = 1_024
    learning_rate: float = 2e-3
    confirmed: tuple[str, ...] = (VERBATIM, "template")


FORMS = {
    "full": Form(name="full", prompts=1_800, evaluation_prompts=240),
    "short": Form(
        name="short",
        prompts=160,
        evaluation_prompts=60,
        arms=(VERBATIM, "template"),
        seeds=(1,),
        unique_ids=3_000,
        epochs=6,
        confirmed=(),
    ),
}


def form_of(name: str) -> Form:
    """A form by its name. Raises InputError."""
    if name not in FORMS:
        raise InputError(f"there is no form {name!r} of the study; expected one of {', '.join(FORMS)}")
    return FORMS[name]
