"""One decoded row a shape and a reason, to look at: prompt, reasoning, closer, answer, tool calls and stop id.

This module does not judge a row, nor does it look for the end of reasoning: verified.parquet says where it is. How
ids become text is decoded's business.
"""

from collections.abc import Collection, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from ..markers import Channels, Markers, last_position, thinking_mode
from ..records import Thinking
from ..response_checks.repetition import WINDOW, repeated_share
from ..response_checks.response_columns import IdLists
from .decoded import Decoder, Segment, segments_html, show_segments, stands_at
from .token_statistics import NO_REASON, SHAPES, VERDICTS, read_verified, reason_table
from .wording import counted


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One row of verified.parquet with its ids; `rows` is how many rows have its shape."""

    key: str
    shape: str
    rows: int
    verdict: str
    reasons: list[str]
    finish_reason: str
    prompt_ids: list[int]
    output_ids: list[int]
    reasoning_tokens: int
    ends_with_stop: bool


def read_samples(folder: Path) -> list[Sample]:
    """One row a shape, in the order of SHAPES: of the least severe verdict, the one of median output length.

    Behind them the row of median length of every reason that none of those has, the most frequent reason first.
    Reads the ids of those row groups alone that hold a chosen row. Raises InputError where verified.parquet is
    missing.
    """
    rows = read_verified(folder)
    levels: dict[str, int] = {verdict: level for level, verdict in enumerate(VERDICTS)}
    rows["severity"] = rows["verdict"].map(levels)
    chosen: dict[int, int] = {}  # place in the file -> rows of that shape
    for shape in [*SHAPES, *sorted(set(rows["shape"]) - set(SHAPES))]:
        group = rows[rows["shape"] == shape]
        if not group.empty:
            mildest = group[group["severity"] == group["severity"].min()].sort_values("output_tokens", kind="stable")
            chosen[int(mildest.index[(len(mildest) - 1) // 2])] = len(group)
    shapes = rows["shape"].value_counts()
    for reason in reason_table(rows).index.drop(NO_REASON, errors="ignore"):
        if not any(reason in rows["reasons"].iloc[place] for place in chosen):
            group = rows[[reason in found for found in rows["reasons"]]].sort_values("output_tokens", kind="stable")
            place = int(group.index[(len(group) - 1) // 2])
            chosen[place] = int(shapes[rows["shape"].iloc[place]])
    ids = _read_ids(folder / "verified.parquet", chosen)
    return [_sample(rows.iloc[place], ids[place], count) for place, count in chosen.items()]


def split_output(sample: Sample, markers: Markers) -> list[Segment]:
    """The output's segments in order; together they hold every id once."""
    ids = sample.output_ids
    body = ids[: len(ids) - sample.ends_with_stop]
    if markers.channels is None:
        labels = _labels(body, sample.reasoning_tokens, markers)
    else:
        labels = _channel_labels(body, markers.channels, thinking_mode(sample.prompt_ids, markers))
    labels += ["stop id"] * sample.ends_with_stop
    pairs = groupby(zip(labels, ids, strict=True), key=lambda pair: pair[0])
    return [Segment(label, tuple(item for _, item in group)) for label, group in pairs]


def _labels(ids: Sequence[int], reasoning_tokens: int, markers: Markers) -> list[str]:
    labels = ["reasoning"] * reasoning_tokens
    in_section = False
    while len(labels) < len(ids):
        here = len(labels)
        if stands_at(ids, here, markers.closer):
            labels += ["closer"] * len(markers.closer)
        elif stands_at(ids, here, markers.tool_section_end) and in_section:
            labels += ["tool calls"] * len(markers.tool_section_end)
            in_section = False
        else:
            in_section = in_section or stands_at(ids, here, markers.tool_section_begin)
            labels.append("tool calls" if in_section else "answer")
    return labels


def _channel_labels(ids: Sequence[int], channels: Channels, mode: Thinking) -> list[str]:
    """Each message's label, as channel_segments counts it."""
    names = {"reasoning": channels.reasoning, "tool calls": channels.tool, "answer": channels.answer}
    starts = [0, *(place for place in range(1, len(ids)) if ids[place] == channels.start), len(ids)]
    labels: list[str] = []
    for start, stop in pairwise(starts):
        message = list(ids[start:stop])
        text = message.index(channels.message) if channels.message in message else len(message)
        found = [
            name for name, ids_of in names.items() if last_position(message[:text], (channels.channel, *ids_of)) >= 0
        ]
        if start == 0 and mode != "by_model":
            found = ["reasoning" if mode == "opened" else "answer"]
        cut = stop == len(ids) and text == len(message)
        label = found[-1] if found else ("reasoning" if cut else "answer")
        labels += [label] * len(message)
    return labels


def show(sample: Sample, decoder: Decoder, *, special_ids: Collection[int] = ()) -> None:
    """Show a sample in a notebook; `special_ids` are ids beside the markers that are shown as chips."""
    show_segments(_segments(sample, decoder.markers), decoder, caption=_caption(sample), special_ids=special_ids)


def show_prompt(prompt_ids: Sequence[int], decoder: Decoder, *, key: str, special_ids: Collection[int] = ()) -> None:
    """Show a prompt in a notebook, before there is an output."""
    prompt = Segment("prompt", tuple(prompt_ids))
    show_segments([prompt], decoder, caption=f"key {key}", special_ids=special_ids)


def sample_html(sample: Sample, decoder: Decoder, *, special_ids: Collection[int] = ()) -> str:
    """A `<figure>` without script, link or style sheet; all text of prompt and model is escaped."""
    segments = _segments(sample, decoder.markers)
    return segments_html(segments, decoder, caption=_caption(sample), special_ids=special_ids)


def _sample(row: pd.Series, ids: dict[str, list[int]], rows: int) -> Sample:
    return Sample(
        key=row["key"],
        shape=row["shape"],
        rows=rows,
        verdict=row["verdict"],
        reasons=list(row["reasons"]),
        finish_reason=row["finish_reason"],
        prompt_ids=ids["prompt_ids"],
        output_ids=ids["output_ids"],
        reasoning_tokens=int(row["reasoning_tokens"]),
        ends_with_stop=bool(row["ends_with_stop"]),
    )


def _caption(sample: Sample) -> str:
    told = [f"{reason}: {_repeated(sample)}" if reason == "loop" else reason for reason in sample.reasons]
    reasons = f" ({', '.join(told)})" if told else ""
    return (
        f"{sample.shape}, one of {counted(sample.rows, 'row')}: key {sample.key}, verdict {sample.verdict}{reasons}, "
        f"{counted(len(sample.prompt_ids), 'prompt id')}, {counted(len(sample.output_ids), 'output id')}, "
        f"finish reason {sample.finish_reason}"
    )


def _repeated(sample: Sample) -> str:
    """The measure that makes a row a loop."""
    body_tokens = np.array([len(sample.output_ids) - sample.ends_with_stop])
    share = repeated_share(IdLists.from_lists([sample.output_ids]), body_tokens)[0]
    return f"{share:.0%} of its last {WINDOW} ids repeat an n-gram"


def _segments(sample: Sample, markers: Markers) -> list[Segment]:
    return [Segment("prompt", tuple(sample.prompt_ids)), *split_output(sample, markers)]


def _read_ids(path: Path, places: Collection[int]) -> dict[int, dict[str, list[int]]]:
    found: dict[int, dict[str, list[int]]] = {}
    with pq.ParquetFile(path) as file:
        start = 0
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            here = [place for place in places if start <= place < stop]
            if here:
                table = file.read_row_group(group, columns=["prompt_ids", "output_ids"])
                for place in here:
                    found[place] = table.slice(place - start, 1).to_pylist()[0]
            start = stop
    return found
