"""What the tables say, in words computed from them.

A difference counts as measured where its interval leaves out 0 and every seed's head differs in the same direction;
anything else is said to be none that could be measured. This module does not draw.
"""

import numpy as np
import pandas as pd

from .forms import ARMS, PARTS, VERBATIM
from .results import Study, acceptance_table, confirmed_table, data_table, position_table


def is_measured(line: pd.Series) -> bool:
    """Whether a line of `acceptance_table` differs from verbatim."""
    return bool(line["agree"] and (line["difference low"] > 0 or line["difference high"] < 0))


def acceptance(study: Study) -> str:
    """The headline: verbatim, then every other arm's difference, those that can't be told apart from it said so."""
    table = acceptance_table(study)
    base = table.loc[VERBATIM]
    said = [f"Heads trained on ids {ARMS[VERBATIM]} reach an acceptance length of {base['length']:.2f}."]
    others = table.drop(VERBATIM)
    measured = others[others.apply(is_measured, axis=1)] if len(others) else others
    for name, line in measured.sort_values("difference").iterrows():
        share = line["difference"] / base["length"]
        said.append(
            f"{_capital(ARMS[str(name)])}: {line['length']:.2f}, {share:+.0%} "
            f"(95 % interval of the difference: {line['difference low']:+.2f} to {line['difference high']:+.2f})."
        )
    for name, line in others.drop(measured.index).iterrows():
        said.append(f"{_capital(ARMS[str(name)])}: {line['length']:.2f}, no difference that could be measured.")
    return " ".join(said)


def parts(study: Study) -> str:
    """Where the arm with the largest loss loses it."""
    table = acceptance_table(study)
    others = table.drop(VERBATIM)
    if others.empty:
        return "There is one arm alone."
    worst = str(others["difference"].idxmin())
    pairs = [
        f"{part} {table[part][VERBATIM]:.2f} against {table[part][worst]:.2f}"
        for part in PARTS
        if not np.isnan(table[part][worst])
    ]
    return f"{_capital(ARMS[VERBATIM])} against {ARMS[worst]}, the arm that is furthest below it: {', '.join(pairs)}."


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
    """That the arms are alike in what they must be alike in, and where they are not."""
    table = data_table(study)
    steps = f"{table['steps'].min():,} to {table['steps'].max():,}"
    rows = f"{table['rows'].min():,} to {table['rows'].max():,}"
    return (
        f"Every arm has {table['supervised ids'].iloc[0]:,} supervised ids, seen {study.form.epochs} times, in {steps} "
        f"steps; the rows that hold them are {rows}. {int(table['left out'].sum()):,} rows were left out."
    )


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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
