"""The audits of a data set: what re-tokenising and re-rendering would change of what was captured.

Writes audits.parquet, a line a row of verified.parquet in its order, and audits.json, rates with their counts and
definitions. Verdicts stay as they are. Re-tokenising is asked of every row; re-rendering, which runs the chat template,
of a seeded sample. This module does not know how ids are compared (id_bytes), nor what a server thinks (replay).
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import RunStopped
from ..records import Conversation, Json
from ..reporting.samples import Sample
from ..runs import read_manifest
from ..target.id_bytes import IdBytes
from ..target.target_tokenizer import Tokenizer
from ..target.tool_arguments import Form, wanted_form
from .audit_records import Audits, Example, rate, write_audits
from .audit_rows import conversation_of, read_conversations, read_keys, read_rows
from .drift import Drift, drift_of
from .replies import Unread
from .rerendering import Rerendered, rerender

AUDITS_TABLE = "audits.parquet"
RERENDERED_ROWS = 2_000
_EXAMPLES = 5
_KINDS = {"reasoning": "reasoning", "answer": "answer", "tool calls": "tool_call"}
AUDITS_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("output_tokens", pa.int32(), nullable=False),
        pa.field("decoded", pa.bool_(), nullable=False),  # False: an id outside the vocabulary
        pa.field("text_lost", pa.bool_(), nullable=False),  # bytes that are no UTF-8
        pa.field("retokenised_tokens", pa.int32(), nullable=False),
        pa.field("changed_tokens", pa.int32(), nullable=False),
        pa.field("first_changed", pa.int32()),  # counted in output_ids from 0
        pa.field("first_place", pa.string()),  # drift.PLACES
        *[pa.field(f"changed_{name}_tokens", pa.int32(), nullable=False) for name in _KINDS.values()],
        pa.field("rerendered", pa.string()),  # same, differs, unread; null: not in the sample
        pa.field("unread_reason", pa.string()),
        pa.field("first_difference", pa.int32()),  # from the output's first id; below 0 in the prompt
        *[pa.field(f"{what}{name}_tokens", pa.int32()) for name in _KINDS.values() for what in ("read_", "lost_")],
        pa.field("empty_thinking", pa.bool_()),
    ]
)


def audit_drift(folder: Path, tokenizer: Tokenizer, *, rerendered_rows: int = RERENDERED_ROWS, seed: int = 1) -> Audits:
    """Audit the rows of verified.parquet, in batches, and write both files; a replay on record is forgotten.

    At most `rerendered_rows` rows, drawn with `seed`, are rendered again. Raises InputError where verified.parquet or
    prompts.parquet can't be read, RunStopped where nothing can be written.
    """
    path, table = folder / "verified.parquet", IdBytes.of(tokenizer)
    keys = read_keys(path)
    chosen = frozenset(random.Random(seed).sample(list(keys), min(rerendered_rows, len(keys))))
    conversations = read_conversations(folder, [keys[place] for place in chosen])
    temporary = folder / f"{AUDITS_TABLE}.tmp"
    date = str(read_manifest(folder).get("template_date") or "")
    form = wanted_form(tokenizer)
    examples: list[Example] = []
    try:
        with pq.ParquetWriter(temporary, AUDITS_SCHEMA, compression="zstd") as writer:
            for start, samples in read_rows(path):
                drifts = drift_of(samples, table)
                lines = []
                for place, (sample, drift) in enumerate(zip(samples, drifts, strict=True), start):
                    conversation = conversation_of(conversations, sample.key) if place in chosen else None
                    again = _rerendered(sample, drift, conversation, table, form, date) if place in chosen else None
                    lines.append(_line(sample, drift, again))
                writer.write_table(pa.Table.from_pylist(lines, schema=AUDITS_SCHEMA))
                examples += _examples(samples, drifts)[: _EXAMPLES - len(examples)]
        temporary.replace(folder / AUDITS_TABLE)
    except OSError as error:
        raise RunStopped(f"can't write {folder / AUDITS_TABLE}: {error}; mend the folder, then run it again") from error
    lengths = pq.read_table(path, columns=["reasoning_tokens", "answer_tokens", "tool_tokens"]).to_pandas().sum()
    kinds = dict(zip(_KINDS, lengths.astype("int64").tolist(), strict=True))
    audits = summarise(pq.read_table(folder / AUDITS_TABLE), kinds=kinds, seed=seed, examples=examples)
    write_audits(folder, audits)
    return audits


def summarise(table: pa.Table, *, kinds: Mapping[str, int], seed: int = 1, examples: Sequence[Example] = ()) -> Audits:
    """Rates over a table of AUDITS_SCHEMA; `kinds` are the ids of all rows by kind: reasoning, answer, tool calls."""
    rows = table.to_pandas()
    changed, ids = rows["changed_tokens"] > 0, int(rows["output_tokens"].sum())
    asked = rows[rows["rerendered"].notna()]
    read = asked[asked["rerendered"] != "unread"]
    thinking, calling = read[read["read_reasoning_tokens"] > 0], read[read["read_tool_call_tokens"] > 0]
    again = "its text, decoded with special ids shown and encoded without additions"
    lost = "without the same id over the same bytes of the same piece of text in the re-rendered conversation"
    pieces = {
        f"{name}_ids_lost": rate(
            int(read[f"lost_{name}_tokens"].sum()),
            int(read[f"read_{name}_tokens"].sum()),
            f"ids of {kind} {lost}",
        )
        for kind, name in _KINDS.items()
    }
    return Audits(
        rows=len(rows),
        ids=ids,
        rerendered_rows=len(asked),
        seed=seed,
        drift={
            "rows_changed": rate(int(changed.sum()), len(rows), f"rows whose output ids are not those of {again}"),
            "ids_changed": rate(
                int(rows["changed_tokens"].sum()), ids, f"output ids without the same id over the same bytes of {again}"
            ),
            "rows_with_lost_text": rate(
                int(rows["text_lost"].sum()), len(rows), "rows that hold bytes that are no UTF-8, a split character say"
            ),
            "rows_not_decoded": rate(
                int((~rows["decoded"]).sum()), len(rows), "rows with an id outside the vocabulary: not compared"
            ),
            **{
                f"{name}_ids_lost": rate(
                    int(rows[f"changed_{name}_tokens"].sum()),
                    kinds[kind],
                    f"ids of {kind}, markers of calls included, without the same id over the same bytes of {again}",
                )
                for kind, name in _KINDS.items()
            },
        },
        rerendering={
            "rows_changed": rate(
                int((read["rerendered"] == "differs").sum()),
                len(read),
                "rows whose re-rendered conversation does not begin with the prompt ids and the output ids",
            ),
            "rows_changed_in_the_prompt": rate(
                int((read["first_difference"] < 0).sum()), len(read), "rows whose first difference lies in the prompt"
            ),
            **pieces,
            "rows_with_empty_thinking": rate(
                int(thinking["empty_thinking"].astype("bool").sum()),
                len(thinking),
                "rows with reasoning that a trainer would see with an opener and a closer and nothing in between",
            ),
            "rows_with_changed_calls": rate(
                int((calling["lost_tool_call_tokens"] > 0).sum()),
                len(calling),
                "rows with tool calls that lose an id of one",
            ),
            "rows_unread": rate(
                len(asked) - len(read),
                len(asked),
                "rows of which no message could be made, or which the template refuses",
            ),
        },
        unread={str(reason): int(count) for reason, count in asked["unread_reason"].value_counts().items()},
        examples=list(examples),
    )


def _rerendered(
    sample: Sample, drift: Drift, conversation: Conversation | None, table: IdBytes, form: Form, date: str
) -> Rerendered | Unread:
    if conversation is None or not drift.decoded:
        return Unread("no prompt of its key, or an id outside the vocabulary")
    try:
        return rerender(sample, conversation, table, form=form, template_date=date)
    except Unread as reason:
        return reason


def _line(sample: Sample, drift: Drift, again: Rerendered | Unread | None) -> dict[str, Json]:
    by_place = drift.changed_by_place
    tools = by_place.get("tool calls", 0) + by_place.get("tool arguments", 0)
    line: dict[str, Json] = {
        "key": sample.key,
        "output_tokens": len(sample.output_ids),
        **{name: getattr(drift, name) for name in ("decoded", "text_lost", "retokenised_tokens", "changed_tokens")},
        "first_changed": drift.first_changed,
        "first_place": drift.first_place,
        "changed_reasoning_tokens": by_place.get("reasoning", 0),
        "changed_answer_tokens": by_place.get("answer", 0),
        "changed_tool_call_tokens": tools,
    }
    if isinstance(again, Unread):
        return {**line, "rerendered": "unread", "unread_reason": str(again)}
    if again is None:
        return line
    counts = {f"read_{name}_tokens": again.tokens[kind] for kind, name in _KINDS.items()}
    counts |= {f"lost_{name}_tokens": again.lost[kind] for kind, name in _KINDS.items()}
    return {
        **line,
        **counts,
        "rerendered": "same" if again.same else "differs",
        "first_difference": again.first_difference,
        "empty_thinking": again.empty_thinking,
    }


def _examples(samples: Sequence[Sample], drifts: Sequence[Drift]) -> list[Example]:
    return [
        Example(
            key=sample.key,
            position=drift.first_changed,
            place=drift.first_place or "",
            was=drift.was,
            becomes=drift.becomes,
        )
        for sample, drift in zip(samples, drifts, strict=True)
        if drift.first_changed is not None
    ]
