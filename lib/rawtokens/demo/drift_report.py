"""The page and the figure of the drift study: shares with their intervals, by temperature, and what changes.

This module does not know how the answers were made (drift_study does), nor how drift is counted
(rawtokens.fidelity.drift does).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from ..fidelity.audit_rows import read_rows
from ..fidelity.drift import drift_of
from ..reporting.drawing import styled
from ..target.id_bytes import IdBytes
from ..target.target_tokenizer import Tokenizer

NAME = "drift_smollm2"
DRAWS = 10_000
PAGE = """\
# How often re-tokenising changes what a real model said

SmolLM2-135M-Instruct answered the shortest user turns of BFCL's live questions and the shortest functions of HumanEval
to complete, three to one, without top_p and top_k, in at most {max_new_tokens} new ids. Each answer was captured as
ids, decoded with special ids shown, and encoded again. An answer is changed where its ids are not those of its own
text; an id is changed where the same id does not stand over the same bytes.

{table}

Intervals are of 95 %: Wilson's score for answers; for ids a bootstrap over answers, since changed ids come in clusters.
An answer that ends inside a character, most often one that was cut there, loses its text: it counts as changed too.

![Share of answers and of ids that re-tokenising changes, by temperature]({name}.svg)

## What changes

{changes}

Behind each text stands its id. The model does not think and calls no tools: all of it is answer.

## What made this

`{command}` on {ran_on}.

This is the rate of one small model under one tokenizer on short answers: longer answers have more places to change, and
other models and tokenizers have other rates.
"""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: shares with their 95 % intervals. `lost_text` are rows with bytes that are no UTF-8."""

    temperature: float
    rows: int
    rows_changed: int
    rows_low: float
    rows_high: float
    ids: int
    ids_changed: int
    ids_low: float
    ids_high: float
    lost_text: int
    cut: int  # rows that ended at the length limit


def wilson(count: int, of: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share; (0, 1) where there is nothing to have a share of."""
    if not of:
        return 0.0, 1.0
    share, square = count / of, 1.959964**2
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = 1.959964 / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrapped(counts: NDArray[np.int64], sizes: NDArray[np.int64], *, seed: int = 1) -> tuple[float, float]:
    """The 95 % percentile interval of sum(counts) / sum(sizes), rows drawn again: ids of a row are not independent.

    Both are (rows,). (0, 1) without rows.
    """
    if not len(sizes):
        return 0.0, 1.0
    drawn = np.random.default_rng(seed).integers(len(sizes), size=(DRAWS, len(sizes)))
    low, high = np.percentile(counts[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


def measure(rows: pd.DataFrame, temperature: float) -> Measured:
    """The line of one capture; `rows` has output_tokens, changed_tokens, text_lost and finish_reason, a line a row."""
    changed, sizes = rows["changed_tokens"].to_numpy(np.int64), rows["output_tokens"].to_numpy(np.int64)
    rows_changed = int((changed > 0).sum())
    rows_low, rows_high = wilson(rows_changed, len(rows))
    ids_low, ids_high = bootstrapped(changed, sizes)
    return Measured(
        temperature=temperature,
        rows=len(rows),
        rows_changed=rows_changed,
        rows_low=rows_low,
        rows_high=rows_high,
        ids=int(sizes.sum()),
        ids_changed=int(changed.sum()),
        ids_low=ids_low,
        ids_high=ids_high,
        lost_text=int(rows["text_lost"].sum()),
        cut=int((rows["finish_reason"] == "length").sum()),
    )


def drift_table(lines: Sequence[Measured]) -> str:
    """The Markdown table, a line a temperature in falling order."""
    titles = ("temperature", "answers", "changed", "share of answers [95 %]", "ids", "changed", "share of ids [95 %]")
    head = f"| {' | '.join((*titles, 'cut at the limit', 'text lost'))} |"
    table = [head, "|" + "---:|" * 9]
    for line in sorted(lines, key=lambda line: -line.temperature):
        of_rows = _share(line.rows_changed, line.rows, line.rows_low, line.rows_high, digits=1)
        of_ids = _share(line.ids_changed, line.ids, line.ids_low, line.ids_high, digits=3)
        table.append(
            f"| {line.temperature:g} | {line.rows:,} | {line.rows_changed:,} | {of_rows} | {line.ids:,} | "
            f"{line.ids_changed:,} | {of_ids} | {line.cut:,} | {line.lost_text:,} |"
        )
    return "\n".join(table)


def _share(count: int, of: int, low: float, high: float, *, digits: int) -> str:
    if not of:
        return "none"
    return f"{count / of:.{digits}%} [{low:.{digits}%}, {high:.{digits}%}]"


@styled
def drift_figure(lines: Sequence[Measured]) -> Figure:
    """Shares of answers and of ids that change, a point a temperature with its 95 % interval."""
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    ordered = sorted(lines, key=lambda line: line.temperature)
    names = [f"{line.temperature:g}" for line in ordered]
    panels: dict[str, Callable[[Measured], tuple[int, int, float, float]]] = {
        "answers with a changed id": lambda line: (line.rows_changed, line.rows, line.rows_low, line.rows_high),
        "changed ids": lambda line: (line.ids_changed, line.ids, line.ids_low, line.ids_high),
    }
    for axes, (label, read) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for place, (count, of, low, high) in enumerate(map(read, ordered)):
            share = count / of if of else 0.0
            axes.errorbar(place, share, yerr=[[share - low], [high - share]], fmt="o", color="C0", capsize=4)
            axes.annotate(f"{count:,} of {of:,}", (place, high), (0, 5), textcoords="offset points", ha="center")
        axes.set_xticks(range(len(names)), names)
        axes.set(xlabel="temperature", ylabel=f"share of {label}", xlim=(-0.6, len(names) - 0.4))
        axes.set_ylim(0, max(read(line)[3] for line in ordered) * 1.25 or 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def kind_of_change(text: str) -> str:
    """What a changed place spells: white space, letters, digits and signs, or no UTF-8."""
    if "\ufffd" in text:
        return "bytes that are no UTF-8"
    if not text.strip():
        return "white space"
    return "letters" if any(letter.isalpha() for letter in text) else "digits and signs"


def audited(folder: Path, tokenizer: Tokenizer) -> pd.DataFrame:
    """A line for each row of verified.parquet: its lengths, and what re-tokenising changes first."""
    table, lines = IdBytes.of(tokenizer), []
    for _, samples in read_rows(folder / "verified.parquet"):
        for sample, drift in zip(samples, drift_of(samples, table), strict=True):
            lines.append(
                {
                    "key": sample.key,
                    "finish_reason": sample.finish_reason,
                    "output_tokens": len(sample.output_ids),
                    "changed_tokens": drift.changed_tokens,
                    "text_lost": drift.text_lost,
                    "first_changed": drift.first_changed,
                    "was": drift.was,
                    "becomes": drift.becomes,
                }
            )
    return pd.DataFrame(lines)


def changes_table(captures: Mapping[float, pd.DataFrame], tokenizer: Tokenizer) -> str:
    """The Markdown table of what first changes spell, most frequent first, an example each."""
    every = pd.concat(captures.values(), ignore_index=True)
    changed = every[every["changed_tokens"] > 0]
    if changed.empty:
        return "No answer changes."
    kinds = changed["was"].map(lambda ids: kind_of_change(tokenizer.decode(ids)))
    table = ["| first change of an answer | answers | example: as captured | re-tokenised |", "|---|---:|---|---|"]
    for kind, count in kinds.value_counts().items():
        example = changed[kinds == kind].iloc[0]
        was, becomes = (_pieces(example[name], tokenizer) for name in ("was", "becomes"))
        table.append(f"| {kind} | {count:,} | {was} | {becomes} |")
    return "\n".join(table)


def _pieces(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Ids with their texts, as code that Markdown leaves alone."""
    texts = (json.dumps(tokenizer.decode([item]), ensure_ascii=False)[1:-1] for item in ids)
    return " ".join(
        f"`{text.replace('|', '¦').replace('`', 'ˋ')}`&nbsp;{item}" for text, item in zip(texts, ids, strict=True)
    )


def write_report(
    folder: Path, captures: Mapping[float, pd.DataFrame], tokenizer: Tokenizer, **facts: str | int
) -> None:
    """Write the page and its figure into `folder`; `facts` are max_new_tokens, command and ran_on."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [measure(rows, temperature) for temperature, rows in captures.items()]
    page = PAGE.format(name=NAME, table=drift_table(lines), changes=changes_table(captures, tokenizer), **facts)
    (folder / f"{NAME}.md").write_text(page, "utf-8")
    with rc_context({"svg.hashsalt": NAME}):  # the same file from the same numbers
        drift_figure(lines).savefig(folder / f"{NAME}.svg", facecolor="white", metadata={"Date": None})
