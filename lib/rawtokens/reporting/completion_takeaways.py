"""What an early stop, or rejections, have taken, in a few sentences computed from `completion_bias`.

This module does not know whether that matters, only how large it is.
"""

import numpy as np
import pandas as pd

from .completion_bias import EARLIER, NEGLIGIBLE, PLACE, STATES, Lengths, bias_table, largest_shift, long_share
from .wording import counted, duration, either


def completion(rows: pd.DataFrame, lengths: Lengths, *, unit: str = "generation") -> str:
    """What is missing, and how what is generated differs from what was planned, from `completion_bias`.

    `unit` is what a row is: a generation, or a conversation.
    """
    planned = counted(len(rows), f"planned {unit}")
    counts = {state: int((rows["state"] == state).sum()) for state in STATES}
    if counts[STATES[0]] == len(rows):
        there = f"the {planned} is there" if len(rows) == 1 else f"all {planned} are there"
        return f"Nothing is missing: {there}."
    lost = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    if not counts[STATES[0]]:
        return f"Nothing is generated yet; of {planned}: {lost}.{_to_retry(counts[EARLIER])}"
    return f"Of {planned}: {lost}.{_to_retry(counts[EARLIER])} {_shift(rows)}{_cut_off(lengths)}"


def _to_retry(earlier: int) -> str:
    """What becomes of responses whose prompt was made anew since; they stand in the journal, so no run asks again."""
    if not earlier:
        return ""
    subject, them = either(earlier, "The one", "Those"), either(earlier, "it", "them")
    return (
        f" {subject} to an earlier prompt {either(earlier, 'is', 'are')} rejected by stage 03 (prompt_changed); "
        f"`rawtokens retry` with that reason has {them} generated again."
    )


def _shift(rows: pd.DataFrame) -> str:
    table = bias_table(rows)
    name, difference = largest_shift(table)
    if not name:
        text = "All prompts are alike in what is known of them."
    elif abs(difference) < NEGLIGIBLE:
        text = f"The prompts of what is generated are those planned: the largest shift, in {name}, is negligible "
        text += f"({difference:+.2f} standard deviations)."
    else:
        planned, generated = (table[column].astype("float64").loc[name] for column in ("planned", "generated"))
        text = f"What is generated differs most in {name}: {generated:,.3g} against {planned:,.3g} planned "
        text += f"({difference:+.2f} standard deviations)."
    place = float(table["standardised difference"].astype("float64").loc[PLACE])
    if abs(place) >= NEGLIGIBLE:
        text += f" It is more the {'beginning' if place < 0 else 'end'} of the file than the whole of it."
    return text


def _cut_off(lengths: Lengths) -> str:
    long = long_share(lengths)
    if not long:
        return ""
    return (
        f" What was in flight at the stop ({len(lengths.reached):,}) had been for "
        f"{duration(float(np.median(lengths.seconds)))} in the median, at least {counted(round(long.ids), 'id')} at "
        f"the pace of the others: {long.generated:.1%} of the generated outputs are longer, and an estimated "
        f"{long.estimated:.1%} of all."
    )
