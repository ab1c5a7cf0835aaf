"""Responses in, verdicts out: every journal row with its shape, its counts and the reasons for its verdict.

A row's verdict is the worst that the policy gives its reasons, `accept` where it has none. Nothing is repaired and
no row is left out. This module does not know what is checked (checks does), nor where an output's segments lie
(segments does).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import journal
from .capture.known_keys import KnownKeys
from .errors import InputError, RunStopped
from .markers import Markers, thinking_mode
from .records import VERIFIED_SCHEMA, Thinking, Verdict, open_parquet
from .response_checks.channel_segments import segment_outputs
from .response_checks.checks import (
    DEFAULT_POLICY,
    POLICY,
    SEVERITY,
    complete_policy,
    prompt_digests,
    reasons_of_ids,
    reasons_of_keys,
    shapes_of,
)
from .response_checks.response_columns import IdLists, ResponseColumns, ResponseTexts
from .response_checks.segments import Bools

__all__ = ["DEFAULT_POLICY", "ResponseColumns", "VerificationSummary", "verify", "verify_journal"]

VERIFIED = "verified.parquet"
PROMPTS = "prompts.parquet"
_BATCH_BYTES = 1 << 24  # of JSON text, about 3M ids: 40 MB as text, int64 and int32


class VerificationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify_journal` wrote: rows by verdict, shape, reason (a row may have several) and fingerprint."""

    rows: int
    prompt_ids: int
    output_ids: int
    verdicts: dict[str, int]
    shapes: dict[str, int]
    reasons: dict[str, int]
    fingerprints: dict[str, int]


def verify_journal(
    folder: Path,
    *,
    markers: Markers,
    vocabulary_size: int,
    policy: Mapping[str, Verdict] = DEFAULT_POLICY,
    later_prompts: Mapping[str, bytes] | None = None,
) -> VerificationSummary:
    """Verify all journals of a data set's folder into its verified.parquet (zstd, no dictionaries), in batches.

    `vocabulary_size` is the model's. `later_prompts` has the digests of later turns' prompts, by key (turns.derived).
    The file's metadata has the policy (`checks.policy_of`), its rows stand in the order of the journals. Memory: two
    batches of about 3M ids, plus a digest a prompt and 16 bytes a row. The file appears whole or not at all. Raises
    InputError where the journal or prompts.parquet is missing or unreadable, or the policy is wrong, RunStopped where
    nothing can be written.
    """
    folder = Path(folder)
    policy = complete_policy(policy)
    paths = journal.journal_paths(folder)
    if not paths:
        raise InputError(f"{folder} has no {journal.JOURNAL}; run notebook 02_generate_responses for it first")
    known_prompts = {**read_known_prompts(folder / PROMPTS), **(later_prompts or {})}
    temporary = folder / f"{VERIFIED}.tmp"

    def write(fingerprint: str | None) -> VerificationSummary:
        return _write(
            temporary,
            paths,
            markers=markers,
            vocabulary_size=vocabulary_size,
            known_prompts=known_prompts,
            policy=policy,
            fingerprint=fingerprint,
        )

    try:
        # A run has one fingerprint, so one pass is enough but where the first row's is not that of most rows.
        summary = write(None)
        if summary.rows and (most := _most_common(summary.fingerprints)) != next(iter(summary.fingerprints)):
            summary = write(most)
        temporary.replace(folder / VERIFIED)
    except OSError as error:
        raise RunStopped(f"can't write {folder / VERIFIED}: {error}; mend the folder, then run it again") from error
    return summary


def verify(
    columns: ResponseColumns,
    *,
    markers: Markers,
    thinking: Sequence[Thinking],
    vocabulary_size: int,
    known_prompts: Mapping[str, bytes],
    policy: Mapping[str, Verdict] = DEFAULT_POLICY,
    fingerprint: str | None = None,
    earlier_keys: KnownKeys | None = None,
) -> pa.Table:
    """A batch as a table of records.VERIFIED_SCHEMA, its rows in the batch's order.

    `thinking` is markers.thinking_mode of each prompt; `known_prompts` gives `checks.prompt_digests` by prompt key;
    `fingerprint` is the run's, by default that of most rows here (at a tie the first); `earlier_keys` are those of
    rows before this batch. Reasons of a row stand in the order of DEFAULT_POLICY. Raises InputError for a policy
    that names an unknown reason or verdict.
    """
    policy = complete_policy(policy)
    segments = segment_outputs(columns.outputs, markers=markers, thinking=thinking, matched_ids=columns.matched_ids)
    truncated = np.array(columns.finish_reasons, dtype=np.str_) == "length"
    shapes = shapes_of(segments, truncated)
    expected = _most_common(Counter(columns.fingerprints)) if fingerprint is None else fingerprint
    found = {
        **reasons_of_ids(columns, segments, shapes),
        **reasons_of_keys(columns, known_prompts, earlier_keys or KnownKeys()),
        "fingerprints_mixed": np.array([own != expected for own in columns.fingerprints], dtype=np.bool_),
        "id_out_of_vocabulary": columns.prompts.rows_with_id_outside(vocabulary_size)
        | columns.outputs.rows_with_id_outside(vocabulary_size),
    }
    matrix = np.column_stack([found[name] for name in DEFAULT_POLICY])
    severity = np.array([SEVERITY.index(policy[name]) for name in DEFAULT_POLICY])
    position = segments.closer_position.astype(np.int32)
    values = {
        "key": columns.keys,
        "prompt_ids": columns.prompts.to_arrow(VERIFIED_SCHEMA.field("prompt_ids").type),
        "output_ids": columns.outputs.to_arrow(VERIFIED_SCHEMA.field("output_ids").type),
        "verdict": np.array(SEVERITY)[(matrix * severity).max(axis=1)],
        "reasons": _name_lists(matrix),
        "shape": shapes,
        "prompt_tokens": columns.prompts.lengths,
        "output_tokens": columns.outputs.lengths,
        "closer_position": pa.array(position, mask=position < 0),
        "closers": segments.closers,
        "reasoning_tokens": segments.reasoning_tokens,
        "answer_tokens": segments.answer_tokens,
        "tool_tokens": segments.tool_tokens,
        "tool_calls": segments.tool_calls,
        "finish_reason": columns.finish_reasons,
        "ends_with_stop": segments.ends_with_stop,
    }
    return pa.table(
        [pa.array(values[field.name], type=field.type) for field in VERIFIED_SCHEMA], schema=VERIFIED_SCHEMA
    )


def read_known_prompts(path: Path) -> dict[str, bytes]:
    """The digest of every prompt of a prompts.parquet, by key. Raises InputError where it can't be read."""
    known: dict[str, bytes] = {}
    try:
        with open_parquet(path) as file:
            for batch in file.iter_batches(batch_size=4096, columns=["key", "prompt_ids"]):
                prompts = IdLists.from_arrow(batch["prompt_ids"])
                keys = batch["key"].to_pylist()
                known.update(zip(keys, prompt_digests(prompts), strict=True))
    except (OSError, pa.ArrowException, KeyError) as error:
        raise InputError(f"{path} can't be read ({error}); run notebook 01_tokenize_prompts for it first") from error
    return known


def _name_lists(matrix: Bools) -> pa.ListArray:
    """Each row's reasons by name."""
    _, columns = np.nonzero(matrix)
    offsets = np.concatenate([[0], np.cumsum(np.count_nonzero(matrix, axis=1))])
    names = pa.array(list(DEFAULT_POLICY)).take(pa.array(columns))
    return pa.ListArray.from_arrays(
        pa.array(offsets, type=pa.int32()), names, type=VERIFIED_SCHEMA.field("reasons").type
    )


def _write(
    path: Path,
    journals: Sequence[Path],
    *,
    markers: Markers,
    vocabulary_size: int,
    known_prompts: Mapping[str, bytes],
    policy: Mapping[str, Verdict],
    fingerprint: str | None,
) -> VerificationSummary:
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("verdict", "shape", "reasons", "fingerprint")}
    prompt_ids = output_ids = 0
    keys = KnownKeys()
    options = {"compression": "zstd", "compression_level": 3, "use_dictionary": False}
    # Compression is a third of the work and leaves the interpreter free: a batch is written while the next is checked.
    schema = VERIFIED_SCHEMA.with_metadata({POLICY: msgspec.json.encode(dict(policy))})
    with pq.ParquetWriter(path, schema, **options) as writer, ThreadPoolExecutor(max_workers=1) as pool:
        written = pool.submit(lambda: None)
        for columns in _batches(journals):
            fingerprint = columns.fingerprints[0] if fingerprint is None else fingerprint
            table = verify(
                columns,
                markers=markers,
                thinking=[
                    thinking_mode(columns.prompts.row(row).tolist(), markers) for row in range(len(columns.keys))
                ],
                vocabulary_size=vocabulary_size,
                known_prompts=known_prompts,
                policy=policy,
                fingerprint=fingerprint,
                earlier_keys=keys,
            )
            written.result()
            written = pool.submit(writer.write_table, table)
            for key in columns.keys:
                keys.add(key)
            counts["fingerprint"].update(columns.fingerprints)
            counts["reasons"].update(table["reasons"].combine_chunks().flatten().to_pylist())
            for name in ("verdict", "shape"):
                counts[name].update(table[name].to_pylist())
            prompt_ids += len(columns.prompts.ids)
            output_ids += len(columns.outputs.ids)
        written.result()
    return VerificationSummary(
        rows=counts["verdict"].total(),
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        verdicts={name: counts["verdict"][name] for name in SEVERITY},
        shapes=dict(counts["shape"].most_common()),
        reasons=dict(counts["reasons"].most_common()),
        fingerprints=dict(counts["fingerprint"]),
    )


def _batches(journals: Iterable[Path]) -> Iterator[ResponseColumns]:
    batch: list[ResponseTexts] = []
    size = 0
    for path in journals:
        for response in journal.read_records(path, ResponseTexts):
            batch.append(response)
            size += len(memoryview(response.prompt_ids)) + len(memoryview(response.output_ids))
            if size >= _BATCH_BYTES:
                yield ResponseColumns.from_texts(batch)
                batch, size = [], 0
    if batch:
        yield ResponseColumns.from_texts(batch)


def _most_common(counts: Mapping[str, int]) -> str:
    """The name counted most; at a tie the first."""
    return max(counts, key=lambda name: counts[name], default="")
