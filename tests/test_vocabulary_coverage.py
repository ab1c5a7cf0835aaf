"""Counts of ids and what they cover, against plain counting."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawtokens.errors import InputError
from rawtokens.records import VERIFIED_SCHEMA
from rawtokens.reporting import figures, takeaways
from rawtokens.reporting import vocabulary_coverage as vocabulary
from rawtokens.reporting.drawing import title_of

Row = tuple[list[int], int, str, str]  # output ids, how many of them are reasoning, verdict, shape

ROWS = st.lists(
    st.lists(st.integers(0, 300), max_size=12).flatmap(
        lambda ids: st.tuples(
            st.just(ids),
            st.integers(0, len(ids)),
            st.sampled_from(["accept", "flag", "reject"]),
            st.sampled_from(["closed", "channels"]),
        )
    ),
    max_size=12,
)


def written(folder: Path, rows: list[Row]) -> Path:
    lines = [
        {
            "key": f"{number}#0/0",
            "prompt_ids": [1],
            "output_ids": ids,
            "verdict": verdict,
            "reasons": [],
            "shape": shape,
            "reasoning_tokens": reasoning,
            **dict.fromkeys(("prompt_tokens", "output_tokens", "closers", "answer_tokens", "tool_tokens"), 0),
            "tool_calls": 0,
            "finish_reason": "stop",
            "ends_with_stop": True,
        }
        for number, (ids, reasoning, verdict, shape) in enumerate(rows)
    ]
    pq.write_table(pa.Table.from_pylist(lines, schema=VERIFIED_SCHEMA), folder / "verified.parquet", row_group_size=5)
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.integers(1, 5))
def test_every_id_of_a_kept_row_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Row], block: int
) -> None:
    monkeypatch.setattr(vocabulary, "_ROWS", block)
    found = vocabulary.count_ids(written(tmp_path, rows))
    for half in range(2):
        kept = [row for row in rows[half::2] if row[2] != "reject"]
        thinking = Counter(id_ for ids, n, _, shape in kept if shape != "channels" for id_ in ids[:n])
        every = Counter(id_ for ids, *_ in kept for id_ in ids)
        for part, wanted in enumerate((thinking, every - thinking)):
            counts = found.counts[half, part]
            assert {id_: int(counts[id_]) for id_ in np.flatnonzero(counts).tolist()} == dict(wanted)
    curve = vocabulary.coverage_curve(found)
    assert curve["all"].is_monotonic_increasing
    assert (curve.drop(columns="ids").fillna(0) <= 1).all(axis=None)
    assert curve.empty or curve["all"].iloc[-1] == 1
    assert takeaways.coverage(found).endswith(".")


def test_a_rejected_row_may_hold_any_number(tmp_path: Path) -> None:
    wild = ([2**31 - 1, -5, 7], 1, "reject", "closed")
    found = vocabulary.count_ids(written(tmp_path, [wild, ([3, 4], 1, "accept", "closed")]))
    assert found.counts.shape == (2, 2, 5)
    assert found.total.tolist() == [0, 0, 0, 1, 1]


def test_the_most_frequent_ids_are_taken_first(tmp_path: Path) -> None:
    rows: list[Row] = [([5] * 6 + [6] * 3, 6, "accept", "closed"), ([5, 8], 0, "flag", "closed")]
    curve = vocabulary.coverage_curve(vocabulary.count_ids(written(tmp_path, rows))).set_index("ids")
    assert curve["all"].head(3).tolist() == pytest.approx([7 / 11, 10 / 11, 1])
    assert curve["thinking"].head(1).tolist() == [1.0]
    assert curve["behind the thinking"].head(2).tolist() == pytest.approx([1 / 5, 4 / 5])
    # 5 and 6 from the first row cover half of the second; 5 and 8 from the second cover six of nine of the first.
    assert curve.loc[2, "other half"] == pytest.approx((1 / 2 + 6 / 9) / 2)


def test_the_table_has_a_line_for_every_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids = np.concatenate([np.arange(40_000), rng.integers(0, 100, 60_000)]).tolist()
    found = vocabulary.count_ids(written(tmp_path, [(ids, 50_000, "accept", "closed")] * 2))
    table = vocabulary.coverage_table(found)
    assert table.index.tolist() == [f"{size:,} most frequent" for size in vocabulary.SIZES]
    assert table["all"].tolist() == pytest.approx([0.68, 0.76, 0.92, 1, 1])
    assert takeaways.coverage(found) == (
        "200,000 output ids (without rejected rows) hold 40,000 different ones; the 32,000 most frequent cover 92.00% "
        "of them all. Chosen on half of the rows they cover 92.00% of the other half: nearer to what new text will "
        "find."
    )
    assert vocabulary.distinct(found)["all"] == 40_000


def test_one_row_has_no_other_half(tmp_path: Path) -> None:
    found = vocabulary.count_ids(written(tmp_path, [([1, 2], 1, "accept", "closed")]))
    assert vocabulary.coverage_curve(found)["other half"].isna().all()
    assert takeaways.coverage(found) == (
        "2 output ids (without rejected rows) hold 2 different ones: a draft vocabulary of 32,000 holds them all."
    )
    assert title_of(figures.coverage(found)) == "How many ids a draft vocabulary needs"


@pytest.mark.parametrize("rows", [[], [([1], 0, "reject", "closed")], [([], 0, "accept", "closed")]])
def test_no_ids_have_an_empty_table_and_a_figure_that_says_so(tmp_path: Path, rows: list[Row]) -> None:
    found = vocabulary.count_ids(written(tmp_path, rows))
    assert vocabulary.coverage_table(found).empty
    assert takeaways.coverage(found) == "No row that is not rejected has output ids."
    figures.coverage(found).draw_without_rendering()


def test_the_counts_of_a_data_set_add_up(tmp_path: Path) -> None:
    found = vocabulary.count_ids(small_dataset.write(tmp_path))
    assert int(found.total.sum()) == 78  # 80, less the two of the rejected row
    assert int(found.counts[:, 0].sum()) == 31
    assert found.rows == 8


def test_a_missing_or_damaged_file_names_the_notebook(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run notebook 03_verify_responses"):
        vocabulary.count_ids(tmp_path)
    (tmp_path / "verified.parquet").write_bytes(b"no table")
    with pytest.raises(InputError, match="run notebook 03_verify_responses again"):
        vocabulary.count_ids(tmp_path)
