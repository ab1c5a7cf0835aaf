"""How the generations that are there differ from those that were planned: what an early stop, or rejections, take.

A run that is stopped has lost what was in flight, and long generations are in flight longest. So the sets are compared
twice: by what is known of every prompt (its length, thinking, template arguments, tools, place in the file), and by
length of output, where what was in flight at the stop counts as longer than it had become (the estimator of Kaplan
and Meier, see `time_left`). This module does not know how good a response is, nor what a prompt is about.
"""

from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc

from ..capture.known_keys import KnownKeys
from ..capture.progress_reports import read_progress
from ..capture.rejections import each_rejection
from ..capture.time_left import kaplan_meier
from ..journal import journal_paths, write_atomically
from ..prompts import prompt_batches
from ..records import Json
from ..turns.endings import Standing, has_turns, standings
from .earlier_prompts import answers_to_earlier_prompts

Floats = npt.NDArray[np.float64]

EARLIER = "to an earlier prompt"
STATES = ("generated", EARLIER, "in flight at the stop", "not asked", "rejected")
NEGLIGIBLE = 0.1
"""A standardised difference below this is commonly taken for none (Austin 2009, doi:10.1002/sim.3697)."""

COMPLETION = "completion.json"
PLACE = "mean place in the file (0 to 1)"
_IN_FLIGHT = "in flight at the stop"
_PARTS = 5
_MOST_VALUES = 6


class Lengths(NamedTuple):
    """Output lengths in ids: of what is generated, ascending; and what was in flight at the stop has reached at least.

    `seconds` is how long the latter had been in flight.
    """

    generated: Floats
    reached: Floats
    seconds: Floats


def read_planned(folder: Path, samples_per_prompt: int) -> pd.DataFrame:
    """Every planned generation, in the order of prompts.parquet, and whether it is there.

    Columns: key, prompt_tokens, thinking, template_kwargs (as JSON), tools (bool: has any), turn, place (in the file,
    0 to 1), state (of STATES; EARLIER where the prompt was made anew since its response). Reads no output ids. Raises
    InputError for a damaged file.

    Where every turn of conversations is generated, a row is a conversation by its first turn's key; it counts as
    generated where it is over.
    """
    columns = ["key", "prompt_tokens", "thinking", "template_kwargs", "turn", "tools"]
    parts = []
    for batch in prompt_batches(folder, columns):
        tools = pc.not_equal(batch["tools"], "[]").to_numpy(zero_copy_only=False)  # declarations may be megabytes
        parts.append(batch.select(columns[:-1]).to_pandas().assign(tools=tools))
    prompts = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    for name in ("thinking", "template_kwargs"):
        prompts[name] = prompts[name].astype("category")
    prompts["place"] = (np.arange(len(prompts)) + 0.5) / max(1, len(prompts))
    rows = prompts.loc[prompts.index.repeat(samples_per_prompt)].reset_index(drop=True)
    samples = np.tile(np.arange(samples_per_prompt), len(prompts)).astype(str)
    rows["key"] = rows["key"].astype("str") + "/" + pd.Series(samples, dtype="str")
    known = KnownKeys.of(journal_paths(folder))
    rejected = {item.key for item in each_rejection(folder) if item.stage == "generate"}
    earlier = answers_to_earlier_prompts(folder)
    if has_turns(folder):
        going = _in_flight(folder)
        found = standings(folder, samples_per_prompt, known, rejected)
        rows["state"] = pd.Categorical([_state(item, going, earlier) for item in found], categories=STATES)
        return rows
    there = known.contains_each(rows["key"].tolist())
    states = np.where(rows["key"].isin(_in_flight(folder)), _IN_FLIGHT, "not asked")
    states = np.where(rows["key"].isin(rejected), "rejected", states)
    states = np.where(there, np.where(rows["key"].isin(earlier), EARLIER, "generated"), states)
    rows["state"] = pd.Categorical(states, categories=STATES)
    return rows


def _state(conversation: Standing, in_flight: Container[str], earlier: Container[str]) -> str:
    if str(conversation.key) in earlier:
        return EARLIER
    if conversation.rejected:
        return "rejected"
    if conversation.over:
        return "generated"
    return _IN_FLIGHT if str(conversation.key._replace(turn=conversation.turns)) in in_flight else "not asked"


def output_lengths(rows: pd.DataFrame, timings: pd.DataFrame, folder: Path) -> Lengths:
    """Lengths for `length_curves`, of `read_planned` and `throughput.read_timings`.

    What was in flight has reached its seconds times the median ids a second of those that ended.
    """
    cut_off = set(rows["key"][rows["state"] == _IN_FLIGHT])
    seconds = np.array([age for key, age in _in_flight(folder).items() if key in cut_off], dtype="float64")
    generated = np.sort(timings["completion_tokens"].to_numpy("float64"))
    pace = float((timings["completion_tokens"] / timings["latency_s"].clip(1e-3)).median()) if len(timings) else 0.0
    longest = max((record.progress.max_new_tokens for record in read_progress(folder)), default=0) or np.inf
    return Lengths(generated, np.minimum(seconds * pace, longest), seconds)


def bias_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Properties of what was planned and of what is generated, side by side; a line a property.

    Columns: planned, generated, missing (means, shares or counts), and `standardised difference`: generated minus
    planned, in standard deviations of the planned; null where the planned do not differ among themselves.
    """
    there = rows["state"] == STATES[0]
    lines: dict[str, Sequence[float | None]] = {"generations": [len(rows), int(there.sum()), int((~there).sum()), None]}
    lengths = rows["prompt_tokens"].astype("float64")
    lines["mean prompt ids"] = _compared(lengths, there)
    for name, share in (("median prompt ids", 0.5), ("90 % quantile of prompt ids", 0.9)):
        lines[name] = [*(_quantile(part, share) for part in (lengths, lengths[there], lengths[~there])), None]
    lines[PLACE] = _compared(rows["place"], there)
    lines["share with tools"] = _compared(rows["tools"].astype("float64"), there)
    for column in ("thinking", "template_kwargs", "turn"):
        values = rows[column].value_counts().head(_MOST_VALUES).index
        for value in values if len(values) > 1 else ():
            lines[f"share of {column} {value}"] = _compared((rows[column] == value).astype("float64"), there)
    columns = ["planned", "generated", "missing", "standardised difference"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns, dtype="object")


def largest_shift(table: pd.DataFrame) -> tuple[str, float]:
    """The property of `bias_table` that differs most, with its standardised difference; "" and 0 where none does.

    The place in the file is left out: a run that goes through a file from its start ends somewhere in it.
    """
    differences = table["standardised difference"].drop(index=PLACE).dropna()
    shifts = sorted(differences.items(), key=lambda item: -abs(item[1]))
    return (str(shifts[0][0]), float(shifts[0][1])) if shifts else ("", 0.0)


def state_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Generations by state (columns), a line a fifth of the prompts by length, with their sum as `rows`."""
    lengths = rows["prompt_tokens"]
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, _PARTS + 1))) if len(rows) else np.array([])
    fifths = np.clip(np.searchsorted(edges, lengths, side="left"), 1, None)
    table = pd.crosstab(fifths, rows["state"]).reindex(columns=list(STATES), fill_value=0)
    spans = lengths.groupby(fifths).agg(["min", "max"])
    table.index = pd.Index([f"{low:,} to {high:,}" for low, high in spans.itertuples(index=False)])
    table["rows"] = table.sum(axis=1)
    return table.rename_axis(columns=None)


def length_curves(lengths: Lengths) -> pd.DataFrame:
    """Which share of outputs is longer than `ids`: columns ids, generated, estimated (with what was in flight).

    Steps from the shortest to the longest that is known of; what is in flight still may become longer than that.
    """
    values, counts = np.unique(lengths.generated, return_counts=True)
    _, shares, _ = kaplan_meier(values, counts.astype("float64"), lengths.reached)
    ids = np.concatenate(
        [[max(1.0, values[:1].sum() // 2)], values, [max(values.max(initial=1.0), lengths.reached.max(initial=1.0))]]
    )
    generated = 1.0 - np.cumsum(counts) / max(1, counts.sum())
    curves = {"generated": generated, "estimated": 1.0 - np.cumsum(shares)}
    ends = {name: np.concatenate([[1.0], curve, curve[-1:]]) for name, curve in curves.items()}
    return pd.DataFrame({"ids": ids[: len(ends["generated"])], **ends})


class LongShare(NamedTuple):
    """How many outputs are longer than `ids`: a share of what is generated, and an estimate of all."""

    ids: float
    generated: float
    estimated: float


def long_share(lengths: Lengths) -> LongShare | None:
    """The share of outputs longer than what was in flight had become in the median; None where nothing was."""
    if not len(lengths.generated) or not len(lengths.reached):
        return None
    ids = float(np.median(lengths.reached))
    curve = length_curves(lengths)
    shorter = curve[curve["ids"] <= ids]
    return LongShare(ids, float(shorter["generated"].iloc[-1]), float(shorter["estimated"].iloc[-1]))


def numbers(rows: pd.DataFrame, lengths: Lengths) -> dict[str, Json]:
    """What summary.json keeps: counts by state, the largest shift, and the share of long outputs (`long_share`)."""
    name, difference = largest_shift(bias_table(rows))
    long = long_share(lengths)
    return {
        "planned": len(rows),
        "states": {state: int((rows["state"] == state).sum()) for state in STATES},
        "largest_shift": name,
        "standardised_difference": round(difference, 4),
        "long_outputs": {key: round(value, 4) for key, value in long._asdict().items()} if long else None,
    }


def write_completion(folder: Path, rows: pd.DataFrame, lengths: Lengths) -> Path:
    """Write `numbers` to completion.json in the data set's folder, for later stages' reports. Raises RunStopped."""
    path = folder / COMPLETION
    write_atomically(path, msgspec.json.format(msgspec.json.encode(numbers(rows, lengths)), indent=2) + b"\n")
    return path


def read_completion(folder: Path) -> dict[str, Json]:
    """What `write_completion` wrote; empty where it is not there."""
    try:
        found: dict[str, Json] = msgspec.json.decode((folder / COMPLETION).read_bytes(), type=dict)
    except (OSError, msgspec.MsgspecError):
        return {}
    return found


def _compared(values: pd.Series, there: pd.Series) -> Sequence[float | None]:
    means = [float(part.mean()) if len(part) else None for part in (values, values[there], values[~there])]
    spread = float(values.std(ddof=0)) if len(values) else 0.0
    shift = None if not spread or means[1] is None or means[0] is None else (means[1] - means[0]) / spread
    return [*means, shift]


def _quantile(values: pd.Series, share: float) -> float | None:
    return float(values.quantile(share)) if len(values) else None


def _in_flight(folder: Path) -> dict[str, float]:
    """What each run of the data set had in flight when it was last heard of: key and seconds."""
    return {key: age for record in read_progress(folder) for key, age in record.progress.asked.items()}
