"""What notebook 01 shows, in one sentence each, computed from the same tables.

This module does not know whether a number is good or bad, only what it means for the prompts.
"""

import pandas as pd

from ..prompts import FileCounts
from .wording import counted, either, share_of_rows


def rows_in(counts: FileCounts) -> str:
    """Where the rows of a prompt file went, and the lines that are no rows."""
    rows = counted(counts.prompts + counts.rejected, "row")
    text = f"{rows} in = {counted(counts.prompts, 'prompt')} + {counts.rejected:,} rejected"
    return f"{text}; {counted(counts.empty_lines, 'empty line')} beside them" if counts.empty_lines else text


def rejected_rows(rejections: pd.DataFrame, total: int) -> str:
    """How many of `total` rows went no further, and the most frequent reasons, from `rejected_table`."""
    if rejections.empty:
        return f"{counted(total, 'row')} in, and each became a prompt."
    text = f"{share_of_rows(int(rejections['rows'].sum()), total)} became no prompt"
    most = int(rejections["rows"].max())
    reasons = rejections.loc[rejections["rows"] == most, "reason"].tolist()
    if len(rejections) == 1:
        return f"{text}; the reason is {reasons[0]}."
    if len(reasons) == 1:
        return f"{text}; the most frequent reason is {reasons[0]} ({most:,})."
    return f"{text}; the most frequent reasons are {', '.join(reasons)} ({most:,} each)."


def control_tokens(found: pd.DataFrame, choice: str) -> str:
    """What stands in rows' own texts, and what became of it, from `control_token_table` and the choice made."""
    if found.empty:
        return "No control id comes from a row's own text: every one is the chat template's."
    done = {
        "skip": "such rows are rejected",
        "keep": "such rows are kept, and the model sees control tokens where people wrote text",
        "as_text": "such rows are encoded as ordinary text, or rejected where that is not proved",
    }[choice]
    most = found.iloc[0]
    return (
        f"{counted(len(found), 'control token')} came from rows' own texts, most often {most['token']} "
        f"({most['occurrences']:,}); with control_tokens={choice} {done}."
    )


def prompt_modes(modes: pd.DataFrame) -> str:
    """What the rendered prompts ask for, and how near a mix came to what was wanted, from `mode_table`."""
    if not modes["rows"].sum():
        return "There are no prompts."
    words = {
        "opened": ("ends inside thinking", "end inside thinking"),
        "off": ("begins without thinking", "begin without thinking"),
        "by_model": ("leaves it to the model", "leave it to the model"),
    }
    counts = modes[modes["thinking"] != ""].groupby("thinking")["rows"].sum()
    total = int(modes["rows"].sum())
    found = {name: int(counts[name]) for name in words if name in counts}
    parts = [f"{share_of_rows(count, total)} {either(count, *words[name])}" for name, count in found.items()]
    text = f"{'; '.join(parts)}."
    mixed = modes.drop_duplicates("template arguments").dropna(subset="wanted share")
    if len(mixed) < 2:
        return text
    furthest = float((mixed["share"] - mixed["wanted share"]).abs().max())
    text = f"{text} The shares of the mix are at most {furthest * 100:.1f} percentage points from those wanted"
    own = int(modes.loc[modes["wanted share"].isna(), "rows"].sum())
    return f"{text}; {share_of_rows(own, total)} brought arguments of their own." if own else f"{text}."
