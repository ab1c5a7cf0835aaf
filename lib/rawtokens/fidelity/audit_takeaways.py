"""What the audits say, in one or two sentences each, and the table of a few changes.

This module does not know whether a rate is good or bad, only what it means for the data.
"""

import pandas as pd

from ..reporting.decoded import Decoder
from ..reporting.wording import counted, either
from .audit_records import Audits, Rate
from .replay import TIE
from .replay_losses import Change

_FAR = 16
"""Ids behind a change from which on it is no longer near."""
_SHOWN_IDS = 8
"""Of one spelling of a change in a table: broken text can change a hundred ids at once."""


def drift(audits: Audits) -> str:
    """What re-tokenising the captured text would change."""
    rows, ids = audits.drift["rows_changed"], audits.drift["ids_changed"]
    if not rows.of:
        return "No row was compared."
    if not rows.count:
        text = f"Re-tokenising would change none of {counted(rows.of, 'row')} ({counted(ids.of, 'id')})."
    else:
        kinds = {
            "reasoning": "reasoning_ids_lost",
            "the answer": "answer_ids_lost",
            "tool calls": "tool_call_ids_lost",
        }
        where = [f"{audits.drift[name].count:,} in {kind}" for kind, name in kinds.items() if audits.drift[name].count]
        places = ", ".join(where) or "all in markers"
        text = f"Re-tokenising would change {_of(rows, 'row')} and {_of(ids, 'id')}: {places}."
    lost, left = audits.drift["rows_with_lost_text"].count, audits.drift["rows_not_decoded"].count
    text += f" {counted(lost, 'row')} can't come back from text at all: bytes that are no UTF-8." if lost else ""
    return text + (f" {counted(left, 'row')} with ids outside the vocabulary: not compared." if left else "")


def rerendering(audits: Audits) -> str:
    """What a chat parsed and rendered again would lose."""
    found = audits.rerendering
    rows, reasoning, empty = (
        found[name] for name in ("rows_changed", "reasoning_ids_lost", "rows_with_empty_thinking")
    )
    unread = f" {_of(found['rows_unread'], 'row')} could not be rendered." if found["rows_unread"].count else ""
    if not rows.of:
        return f"No row was rendered again.{unread}"
    drawn = "" if audits.rerendered_rows == audits.rows else f" of a sample of {counted(audits.rerendered_rows, 'row')}"
    text = f"Rendered again by the chat template, {_of(rows, 'row')}{drawn} would not be what the model saw and said"
    text += f": {_of(reasoning, 'reasoning id')} lost" if reasoning.of else ""
    text += f"; {counted(empty.count, 'row')} would train a thinking that is empty" if empty.count else ""
    calls = found["rows_with_changed_calls"]
    text += f"; {calls.count:,} of {counted(calls.of, 'row')} with calls would have one changed" if calls.of else ""
    return f"{text}.{unread}"


def replay(audits: Audits) -> str:
    """Whether the server recognises what was captured."""
    found = audits.replay
    if found is None:
        return f"Replay: {audits.replay_note or 'not asked for'}."
    if found.log_likelihood is None:
        return f"Replay: no row was scored ({_reasons(found.not_scored)})."
    echo, near = found.rates["ids_echoed_differently"], found.rates["ids_within_the_likeliest"]
    echoed = "named every id as it was sent" if not echo.count else f"named {_of(echo, 'id')} differently"
    masked = found.rates["ids_masked_by_the_server"].count
    echoed += f" (but for {counted(masked, 'time')} the vocabulary's last id, which it shows as 0)" if masked else ""
    have = either(found.ids, "has", "have")
    text = f"The server {echoed}. The {counted(found.ids, 'id')} of {counted(found.rows, 'row')} drawn {have} a "
    text += "log-likelihood of "
    text += (
        f"{found.log_likelihood:.3f} nats an id on average; {near.share:.1%} are the likeliest or within {TIE} of it"
    )
    if found.temperature == 0:
        text += ": of a greedy capture all should be"
    elif found.temperature is not None:
        text += f", as drawn at temperature {found.temperature:g}"
    return f"{text}." + (f" Not scored: {_reasons(found.not_scored)}." if found.not_scored else "")


def loss_behind_changes(table: pd.DataFrame, found: list[Change]) -> str:
    """What changed ids cost, and what they do to the ids behind them; `table` is replay_losses' of that name."""
    sentences = []
    if found:
        worst = max(found, key=lambda change: change.loss)
        mean = sum(change.loss for change in found) / len(found)
        sentences.append(
            f"Where re-tokenising changes ids ({counted(len(found), 'place')}), the new ones are {mean:.2f} nats less "
            f"likely than those that the model said, {worst.loss:.2f} at the most."
        )
    for version, name in {"retokenised": "re-tokenised", "rerendered": "re-rendered"}.items():
        lines = table[table["version"] == version]
        if lines.empty:
            continue
        near, far = lines[lines["distance"] < _FAR], lines[lines["distance"] >= _FAR]
        text = f"Behind a change in a {name} row the same ids lose {_mean(near)} nats each within {_FAR} ids"
        sentences.append(text + (f" and {_mean(far)} further on." if len(far) else "."))
    return " ".join(sentences) or "No scored row changes, so nothing is lost."


def lost_table(audits: Audits) -> pd.DataFrame:
    """What `audit_figures.lost_ids` draws: a line a way and kind of text, with the ids lost, of how many, and the share
    (null of none)."""
    ways = {"re-tokenised": audits.drift, "re-rendered": audits.rerendering}
    kinds = {"reasoning": "reasoning", "answer": "answer", "tool_call": "tool calls"}
    rows = [
        [way, words, rates[f"{kind}_ids_lost"].count, rates[f"{kind}_ids_lost"].of, rates[f"{kind}_ids_lost"].share]
        for way, rates in ways.items()
        for kind, words in kinds.items()
    ]
    return pd.DataFrame(rows, columns=["way", "text", "ids lost", "of ids", "share lost"])


def examples(audits: Audits, decoder: Decoder) -> pd.DataFrame:
    """The first changes on record: where, and both spellings as ids and text."""
    columns = ["key", "position", "where", "captured", "re-tokenised"]
    rows = [
        [each.key, each.position, each.place, _shown(each.was, decoder), _shown(each.becomes, decoder)]
        for each in audits.examples
    ]
    return pd.DataFrame(rows, columns=columns)


def change_table(found: list[Change], decoder: Decoder, *, most: int = 10) -> pd.DataFrame:
    """The costliest changes of a replay: where, both spellings, and the nats by which the new one is less likely."""
    columns = ["key", "position", "captured", "re-tokenised", "loss (nats)"]
    costliest = sorted(found, key=lambda change: -change.loss)[:most]
    rows = [
        [each.key, each.position, _shown(each.was, decoder), _shown(each.becomes, decoder), each.loss]
        for each in costliest
    ]
    return pd.DataFrame(rows, columns=columns)


def _shown(ids: list[int], decoder: Decoder) -> str:
    shown = " ".join(f"{item} {decoder.decode([item])!r}" for item in ids[:_SHOWN_IDS])
    left = len(ids) - _SHOWN_IDS
    return f"{shown} … and {counted(left, 'id')} more" if left > 0 else shown


def _mean(lines: pd.DataFrame) -> str:
    return f"{round(float((lines['loss'] * lines['ids']).sum() / lines['ids'].sum()), 2) + 0.0:.2f}"  # never -0.00


def _of(found: Rate, what: str) -> str:
    share = f" ({found.share:.2%})" if found.share is not None and found.of >= 10 else ""
    return f"{found.count:,} of {counted(found.of, what)}{share}"


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) or "no row to score"
