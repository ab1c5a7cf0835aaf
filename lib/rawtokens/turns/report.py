"""Conversations as tables and sentences: how far they came, why they ended early, how their prompts were made.

This module does not know how a conversation is followed, nor what an answer says.
"""

from collections import Counter
from pathlib import Path
from typing import cast

import msgspec
import pandas as pd
import pyarrow.parquet as pq

from ..capture.rejections import each_rejection
from ..errors import InputError
from ..journal import journal_paths, read_keys
from ..prompts import prompt_batches
from ..records import open_parquet
from ..reporting.decoded import Decoder, Segment, show_segments
from ..reporting.wording import counted, either
from .derived import TURNS, TURNS_SCHEMA
from .endings import COMPLETE, has_turns, read_endings
from .keys import TurnKey, split_key
from .script import Message, expected_turns, read_script
from .suffix import SHOWN

GOING_ON = "not over yet"
_DIFFERENCES = 5


def foreseen_table(folder: Path) -> pd.DataFrame:
    """Conversations of prompts.parquet by the answers that the file foresees: columns answers, conversations,
    recorded calls. Empty where one turn a prompt is generated."""
    counts: Counter[int] = Counter()
    calls: Counter[int] = Counter()
    for later in _scripts(folder).values():
        answers = expected_turns(later)
        counts[answers] += 1
        calls[answers] += sum(len(part.calls) for part in read_script(later))
    rows = [{"answers": n, "conversations": counts[n], "recorded calls": calls[n]} for n in sorted(counts)]
    return pd.DataFrame(rows, columns=["answers", "conversations", "recorded calls"])


def foreseen_said(table: pd.DataFrame) -> str:
    """One sentence on `foreseen_table`."""
    if table.empty:
        return "One turn a prompt is generated."
    conversations = int(table["conversations"].sum())
    answers = int((table["answers"] * table["conversations"]).sum())
    calls = int(table["recorded calls"].sum())
    told = f"{counted(conversations, 'conversation')} foresee{'s' * (conversations == 1)} {counted(answers, 'answer')}"
    return (
        f"{told}, with {counted(calls, 'recorded tool call')}; the first prompt of each is in prompts.parquet, stage "
        "02 makes the others from what the model says."
    )


def conversations(folder: Path) -> pd.DataFrame:
    """A row a conversation that has begun: source_id, sample, turns, foreseen, end (a reason, or GOING_ON), detail."""
    turns: Counter[TurnKey] = Counter()
    for path in journal_paths(folder):
        turns.update(split_key(key).conversation for key in read_keys(path))
    endings = read_endings(folder)
    rejected = {}
    for item in each_rejection(folder):
        if item.stage == "generate":
            rejected[split_key(item.key).conversation] = item
    foreseen = {source_id: expected_turns(later) for source_id, later in _scripts(folder).items()}
    rows = []
    for key in {**dict.fromkeys(rejected), **turns}:
        ending, lost = endings.get(key), rejected.get(key)
        end, detail = GOING_ON, ""
        if lost is not None:
            end, detail = f"rejected: {lost.reason}", lost.detail
        elif ending is not None and ending.turns == turns[key]:
            end, detail = ending.reason, ending.detail
        rows.append((key.source_id, key.sample, turns[key], foreseen.get(key.source_id, 0), end, detail))
    return pd.DataFrame(rows, columns=["source_id", "sample", "turns", "foreseen", "end", "detail"])


def ending_table(found: pd.DataFrame) -> pd.DataFrame:
    """`conversations` by how they ended, the most frequent first, with one detail of each."""
    groups = found.groupby("end", sort=False)
    table = pd.DataFrame(
        {
            "conversations": groups.size(),
            "turns": groups["turns"].sum(),
            "turns foreseen": groups["foreseen"].sum(),
            "the first of them": groups["detail"].first(),
        }
    )
    return table.sort_values("conversations", ascending=False, kind="stable").rename_axis("end").reset_index()


def turn_table(found: pd.DataFrame) -> pd.DataFrame:
    """`conversations` by the turns that they came to: columns turns, conversations, and one a way of ending."""
    table = pd.crosstab(found["turns"], found["end"])
    table.insert(0, "conversations", table.sum(axis=1))
    return table.rename_axis(index="turns", columns=None).reset_index()


def endings_said(found: pd.DataFrame) -> str:
    """How many conversations came to their end, and why others did not."""
    if found.empty:
        return "No conversation has begun."
    counts = found["end"].value_counts()
    complete, going_on = int(counts.get(COMPLETE, 0)), int(counts.get(GOING_ON, 0))
    early = counts.drop([COMPLETE, GOING_ON], errors="ignore")
    text = f"{complete:,} of {counted(len(found), 'conversation')} came to {'its' if len(found) == 1 else 'their'} end"
    if going_on:
        text += f", {going_on:,} {either(going_on, 'goes', 'go')} on"
    if early.empty:
        return f"{text}; none ended early."
    return f"{text}; {int(early.sum()):,} ended early, most often by {early.index[0]} ({int(early.iloc[0]):,})."


def cache_table(timings: pd.DataFrame) -> pd.DataFrame:
    """`throughput.read_timings` by turn: requests, prompt ids, those that the server had cached, and their share."""
    turns = timings["key"].map(lambda key: split_key(key).turn)
    table = timings.groupby(turns)[["prompt_tokens", "cached_tokens"]].sum()
    table.insert(0, "requests", timings.groupby(turns).size())
    table["share cached"] = table["cached_tokens"] / table["prompt_tokens"].clip(lower=1)
    names = {"prompt_tokens": "prompt ids", "cached_tokens": "cached ids"}
    return table.rename_axis("turn").reset_index().rename(columns=names)


def cache_said(table: pd.DataFrame) -> str:
    """How much of later turns' prompts the server did not have to compute again."""
    later = table[table["turn"] > 0]
    prompt_ids = int(later["prompt ids"].sum())
    if not prompt_ids:
        return "There are no later turns yet."
    share = int(later["cached ids"].sum()) / prompt_ids
    ids = counted(prompt_ids, "prompt id")
    return f"Of the {ids} of later turns the servers had {share:.0%} in their prefix cache."


def read_turns(folder: Path) -> pd.DataFrame:
    """turns.parquet, a row a turn, without messages. Raises InputError where stage 03 has not made it."""
    path = folder / TURNS
    if not path.exists():
        raise InputError(f"{path} is missing; run notebook 03_verify_responses for this data set first")
    turns: pd.DataFrame = pq.read_table(
        path, columns=[name for name in TURNS_SCHEMA.names if name != "messages"]
    ).to_pandas()
    return turns


def made_table(turns: pd.DataFrame) -> pd.DataFrame:
    """How prompts were made: turns, and of cycles how many the template's own render agrees with, id by id."""
    words = {
        "first": "the file's first question",
        "question": "a new question, the history rendered by the template",
        "cycle": "in a tool cycle: the ids as sampled, and the template's behind them",
        "unknown": "does not follow from the turns before it",
    }
    rows = []
    for made, text in words.items():
        group = turns[turns["made"] == made]
        differs = int(group["differs_at"].notna().sum())
        if len(group):
            rows.append((text, len(group), differs if made == "cycle" else None))
    return pd.DataFrame(rows, columns=["prompt", "turns", "template's render differs"], dtype="object")


def cycles_said(turns: pd.DataFrame) -> str:
    """Whether the template would have given back what was sampled inside tool cycles."""
    cycles = turns[turns["made"] == "cycle"]
    if cycles.empty:
        return "There is no tool cycle."
    differs = int(cycles["differs_at"].notna().sum())
    if not differs:
        return f"In each of {counted(len(cycles), 'cycle')} the template's own render is the prompt that was sent."
    return (
        f"In {differs:,} of {counted(len(cycles), 'cycle')} the template would have written the sampled ids otherwise; "
        "the prompt that was sent has them as sampled."
    )


def difference_table(folder: Path, turns: pd.DataFrame, decoder: Decoder) -> pd.DataFrame:
    """The first cycles whose sampled ids the template would write otherwise: key, id of the prompt, both as text."""
    found = turns[turns["differs_at"].notna()].head(_DIFFERENCES)
    ids = _read_ids(folder, found["key"].tolist())
    rows = []
    for key, place, rendered in zip(found["key"], found["differs_at"].astype(int), found["template_ids"], strict=True):
        sampled = ids[key][0][place : place + SHOWN]
        rows.append((key, place, decoder.decode(sampled), decoder.decode([] if rendered is None else list(rendered))))
    return pd.DataFrame(rows, columns=["key", "at id", "as sampled, and sent", "as the template writes it"])


def show_cycle(folder: Path, turns: pd.DataFrame, decoder: Decoder) -> str:
    """Show the ids of one cycle, the one of most rounds, in segments; returns a sentence on it."""
    chain = _longest_cycle(turns)
    if not chain:
        return "There is no tool cycle to show."
    ids = _read_ids(folder, chain)
    segments: list[Segment] = []
    before: tuple[int, ...] = ()
    for key in chain:
        prompt, output = ids[key]
        segments.append(Segment("tool result" if segments else "prompt", prompt[len(before) :]))
        segments.append(Segment("sampled", output))
        before = prompt + output
    show_segments(segments, decoder, caption=f"One tool cycle, turns {chain[0]} to {chain[-1]}")
    sampled = sum(len(segment.ids) for segment in segments if segment.label == "sampled")
    return f"Of the {len(before):,} ids of this cycle the model sampled {sampled:,}, in {len(chain)} turns."


def _longest_cycle(turns: pd.DataFrame) -> list[str]:
    """The keys of one cycle's turns, in order."""
    best: list[str] = []
    for _, group in turns.sort_values("turn").groupby(["source_id", "sample"], sort=True):
        chain: list[str] = []
        for key, made in zip(group["key"], group["made"], strict=True):
            chain = [*chain, key] if made == "cycle" else [key]
            best = chain if len(chain) > max(1, len(best)) else best
    return best


def _read_ids(folder: Path, keys: list[str]) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    found = {}
    with open_parquet(folder / "verified.parquet") as file:
        for batch in file.iter_batches(batch_size=1024, columns=["key", "prompt_ids", "output_ids"]):
            for place, key in enumerate(batch["key"].to_pylist()):
                if key in keys:
                    prompt, output = (batch[name][place].as_py() for name in ("prompt_ids", "output_ids"))
                    found[key] = tuple(prompt), tuple(output)
    return found


def _scripts(folder: Path) -> dict[str, list[Message]]:
    """What is recorded behind each first prompt, by source id."""
    if not has_turns(folder):
        return {}
    return {
        str(source_id): cast("list[Message]", msgspec.json.decode(later))
        for batch in prompt_batches(folder, ["source_id", "later"])
        for source_id, later in zip(batch["source_id"].to_pylist(), batch["later"].to_pylist(), strict=True)
    }
