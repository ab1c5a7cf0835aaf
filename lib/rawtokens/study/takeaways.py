"""What the tables say, in words computed from them.

A difference counts as measured where its interval, over seeds and prompts, leaves out 0; anything else is said to be
none, with the interval that says how large it could be. This module does not draw.
"""

import numpy as np
import pandas as pd

from .forms import ARMS, PARTS, VERBATIM
from .results import Study, acceptance_table, confirmed_table, data_table, difference_in_words, position_table


def is_measured(line: pd.Series) -> bool:
    """Whether a line of `acceptance_table` differs from verbatim."""
    return bool(line["difference low"] > 0 or line["difference high"] < 0)


def acceptance(study: Study) -> str:
    """The headline: verbatim, then every other arm's difference, those that can't be told apart from it said so."""
    table = acceptance_table(study)
    base, others = table.loc[VERBATIM], table.drop(VERBATIM).sort_values("difference")
    said = [f"Heads trained on ids {ARMS[VERBATIM]} reach an acceptance length of {base['length']:.2f}."]
    for name, line in others[others.apply(is_measured, axis=1)].iterrows() if len(others) else ():
        share = line["difference"] / base["length"]
        said.append(f"{_capital(ARMS[str(name)])}: {line['length']:.2f}, {share:+.0%} ({_interval(line)}).")
    for name, line in others[~others.apply(is_measured, axis=1)].iterrows() if len(others) else ():
        said.append(f"{_capital(ARMS[str(name)])}: {line['length']:.2f}, no difference measured ({_interval(line)}).")
    return " ".join(said)


def parts(study: Study) -> str:
    """Where the arm with the largest loss that was measured loses it."""
    table = acceptance_table(study)
    measured = table[table.apply(is_measured, axis=1) & (table["difference"] < 0)]
    if measured.empty:
        return f"No arm was measured to be below {ARMS[VERBATIM]}."
    worst = str(measured["difference"].idxmin())
    said = []
    for part in PARTS:
        lengths = acceptance_table(study, part)
        own, base = lengths.T[worst], lengths.T[VERBATIM]
        if not np.isnan(own["length"]):
            said.append(f"{part} {own['length']:.2f} against {base['length']:.2f}, {difference_in_words(own)}")
    return f"{_capital(ARMS[worst])}, the arm furthest below {ARMS[VERBATIM]}: {'; '.join(said)}."


def positions(study: Study) -> str:
    """How acceptance falls with the draft's position, verbatim and the lowest arm."""
    table = position_table(study)
    lowest = str(table[1].idxmin())
    first, last = table.columns[0], table.columns[-1]
    said = [
        f"{ARMS[name]} {table[first][name]:.0%} of the first drafts and {table[last][name]:.0%} of the last"
        for name in dict.fromkeys([VERBATIM, lowest])
    ]
    return f"Accepted are, {'; '.join(said)}."


def data(study: Study) -> str:
    """What the arms are alike in, and where they are not."""
    table = data_table(study)
    ids, rows, positions, steps = (_range(table[name]) for name in ("supervised ids", "rows", "positions", "steps"))
    reasoning = table["of them reasoning"] / table["supervised ids"]
    said = [
        f"Each head saw {ids} supervised ids {study.form.epochs} times in {steps} steps, in {rows} rows of {positions} "
        f"positions in all. {int(table['left out'].sum()):,} rows were left out.",
        f"Reasoning is {reasoning[ARMS[VERBATIM]]:.0%} of the ids {ARMS[VERBATIM]}, and least, {reasoning.min():.0%}, "
        f"where they are {reasoning.idxmin()}.",
    ]
    return " ".join(said[: 2 if ARMS[VERBATIM] in reasoning else 1])


def conversation(study: Study) -> str:
    """How many ids of the one conversation each arm trains on."""
    if VERBATIM not in study.conversation:
        return "No conversation is whole in every arm."
    trained = {name: sum(mask) for name, (_, mask) in study.conversation.items()}
    least = min(trained, key=lambda name: trained[name])
    changed = [ARMS[name] for name, (ids, _) in study.conversation.items() if ids != study.conversation[VERBATIM][0]]
    return (
        f"The target said {trained[VERBATIM]} ids; {ARMS[least]} trains on {trained[least]}. Other ids than the "
        f"captured: {', '.join(changed) or 'in no arm'}."
    )


def confirmed(study: Study) -> str:
    """Whether vLLM counts what the walk counts."""
    table = confirmed_table(study)
    if table.empty:
        return "No head was tried in vLLM: that is part of the full form."
    said = [
        f"{line['arm']}: {line['length here']:.3f} here, {line['length in vLLM']:.3f} in vLLM"
        for _, line in table.iterrows()
    ]
    return f"{'; '.join(said)}."


def _interval(line: pd.Series) -> str:
    if np.isnan(line["difference low"]):
        return "one seed, no interval"
    return f"95 % interval of the difference: {line['difference low']:+.2f} to {line['difference high']:+.2f}"


def _range(column: pd.Series) -> str:
    low, high = f"{column.min():,}", f"{column.max():,}"
    return low if low == high else f"{low} to {high}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
