"""What two runs, or the data sets of one, look like side by side, in a sentence each, from the figures' own tables.

This module does not know which run is the better one.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from .greedy_answers import Agreement
from .run_comparison import FEWEST, Sample, lengths_of, share_table
from .token_statistics import SHAPES, VERDICTS
from .wording import FEW, counted, either, in_short

NOTHING_IN_COMMON = "There are no two runs with a data set in common"


def counts(samples: Mapping[str, Sample]) -> str:
    """How many rows there are on each side."""
    parts = [f"{name} has {counted(len(sample.rows), 'row')}" for name, sample in samples.items()]
    return f"{'; '.join(parts)}."


def shapes(samples: Mapping[str, Sample]) -> str:
    """Which shape differs most between two samples."""
    return _largest_gap(share_table(samples, "shape", SHAPES), "shape", samples)


def verdicts(samples: Mapping[str, Sample]) -> str:
    """Which verdict differs most between two samples."""
    return _largest_gap(share_table(samples, "verdict", VERDICTS), "verdict", samples)


def reasoning(samples: Mapping[str, Sample]) -> str:
    """Who thinks longest and who shortest, by the median."""
    lengths = {name: lengths_of(sample.rows, "reasoning") for name, sample in samples.items()}
    medians = {name: float(np.median(each)) for name, each in lengths.items() if len(each) >= FEW}
    if len(medians) < 2:
        return f"Fewer than two have {FEW} rows that think, so their thinking is not compared."
    longest, shortest = max(medians, key=medians.__getitem__), min(medians, key=medians.__getitem__)
    return (
        f"The median of reasoning is longest in {longest} ({in_short(medians[longest])} "
        f"{either(medians[longest], 'id', 'ids')}) and shortest in "
        f"{shortest} ({in_short(medians[shortest])})."
    )


def differences(table: pd.DataFrame, pairs: int) -> str:
    """Which medians differ by more than chance, from `run_comparison.median_differences` of so many pairs."""
    if not pairs:
        return f"{NOTHING_IN_COMMON}, so no medians are compared."
    if table.empty:
        return f"No data set has {FEWEST} rows or more of a kind in both runs, so no medians are compared."
    clear = table[(table["low"] > 0) | (table["high"] < 0)]
    have = either(len(clear), "has", "have")
    text = f"Of {counted(len(table), 'difference')} of medians {len(clear):,} {have} a 95 % interval without 0"
    if clear.empty:
        return f"{text}: none of them is more than chance would bring."
    most = clear.iloc[int((clear["difference"] / clear["first"].clip(lower=1)).abs().to_numpy().argmax())]
    return (
        f"{text}; largest, by its share: {most['data set']} {most['length']}, {most['first']:,.0f} to "
        f"{most['second']:,.0f} ids ({most['difference']:+,.0f}; {most['low']:+,.0f} to {most['high']:+,.0f})."
    )


def settings(table: pd.DataFrame, pairs: int) -> str:
    """How many settings differ, from `run_comparison.settings_table` of so many pairs."""
    if not pairs:
        return f"{NOTHING_IN_COMMON}, so there are no settings to compare."
    if table.empty:
        return "The manifests of the two runs do not differ in any setting."
    names = list(table["setting"].unique())
    more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
    differ = either(len(names), "differs", "differ")
    return f"{counted(len(names), 'setting')} {differ}: {', '.join(names[:8])}{more}."


def agreement(found: Mapping[str, Agreement], pairs: int) -> str:
    """How many greedy answers are the same, and where the others part."""
    if not pairs:
        return f"{NOTHING_IN_COMMON}, so there are no answers to compare."
    if not found:
        return "Answers are not compared id by id: no data set was generated at temperature 0 by both runs."
    keys, other = sum(each.keys for each in found.values()), sum(each.other_prompts for each in found.values())
    text = f"{counted(keys, 'key')} {either(keys, 'is', 'are')} in both"
    text += f", {other:,} of them with other prompt ids" if other else ""
    compared = keys - other
    if not compared:
        return f"{text}; no answer can be compared."
    same = sum(each.identical for each in found.values())
    share = f" ({same / compared:.1%})" if compared >= FEW else ""
    text += f"; {same:,} of {counted(compared, 'answer')}{share} {either(same, 'is', 'are')} identical id by id"
    cut = sum(each.cut_short for each in found.values())
    text += f", {cut:,} more {either(cut, 'is', 'are')} the same up to the limit that cut one of them" if cut else ""
    parted = np.concatenate([each.parted for each in found.values()])
    if not len(parted):
        return f"{text}."
    differ = either(len(parted), "differs", "differ")
    return (
        f"{text}; {len(parted):,} {differ}, first at id {np.median(parted) + 1:,.0f} in the median and at "
        f"{parted.min() + 1:,} at the earliest."
    )


def _largest_gap(table: pd.DataFrame, what: str, samples: Mapping[str, Sample]) -> str:
    enough = [name for name in table.index if len(samples[name].rows) >= FEW]
    if len(enough) < 2:
        return f"Fewer than two have {FEW} rows, so shares are not compared."
    spread = table.loc[enough].max() - table.loc[enough].min()
    if not spread.max():
        return f"Every {what} has the same share everywhere."
    name = str(spread.idxmax())
    column = table.loc[enough, name]
    return (
        f"The {what} that differs most is {name}: {column.max():.1%} in {column.idxmax()}, {column.min():.1%} in "
        f"{column.idxmin()}."
    )
