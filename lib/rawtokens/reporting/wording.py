"""Counts, lengths and times in words, the same way in every sentence of a report.

A few values are called a few values and named. This module does not know what is counted.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

FEW = 10
"""Below this many values there is no distribution to speak of; a sentence then names the values."""


def lengths_in_words(lengths: "pd.Series", one: str, many: str, unit: str, *, where: str = "") -> str:
    """The distribution of whole lengths: a row is called `one`, rows `many`, and one of what is counted `unit`.

    `where` stands behind the unit: ` before the closer`.
    """
    if lengths.empty:
        return f"There are no {many}."
    if len(lengths) == 1:
        return f"There is one {one}, with {counted(int(lengths.iloc[0]), unit)}{where}."
    if len(lengths) < FEW:
        values = ", ".join(f"{int(value):,}" for value in sorted(lengths))
        return f"Only {len(lengths)} {many}, too few for a distribution: {values} {unit}s{where}."
    low, middle, high = (float(lengths.astype("float64").quantile(share)) for share in (0.1, 0.5, 0.9))
    return (
        f"Half of {len(lengths):,} {many} have at most {in_short(middle)} {unit}{either(middle, '', 's')}{where}; "
        f"eight in ten lie between {low:,.0f} and {high:,.0f}, the longest has {int(lengths.max()):,}."
    )


def in_short(value: float) -> str:
    """A median of whole numbers as it is, `29.5`; what has more digits to one decimal."""
    return f"{value:,.1f}".removesuffix(".0")


def counted(number: int, what: str) -> str:
    """`1 id`, `1,002 ids`."""
    return f"{number:,} {what}{either(number, '', 's')}"


def either(number: float, one: str, many: str) -> str:
    """The form of a word that goes with a number: `one` with 1, `many` with any other."""
    return one if number == 1 else many


def share_of_rows(part: int, whole: int) -> str:
    """`3 of 12 rows (25%)`; no percentage where the whole is small."""
    return f"{part:,} of {counted(whole, 'row')}" + (f" ({part / whole:.1%})" if whole >= FEW else "")


def of_only(count: int) -> str:
    """` (of only 3)` behind a number that stands on a few values; "" where there are enough."""
    return "" if count >= FEW else f" (of only {count})"


def duration(seconds: float) -> str:
    """Seconds in the largest unit of which there are at least two."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} seconds" if seconds >= 1 else f"{seconds * 1000:,.0f} milliseconds"
