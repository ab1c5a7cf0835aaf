"""What twice the limit would bring: against distributions whose answer is known, and numbers counted by hand."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawtokens.reporting import figures, takeaways
from rawtokens.reporting.token_statistics import SHAPES
from rawtokens.reporting.truncation import FEWEST, estimate, more_rows, thinking_curve, truncation_table

COLUMNS = ["shape", "reasoning_tokens", "output_tokens", "reasons"]


def table(*lines: tuple[str, int, int]) -> pd.DataFrame:
    """Rows of (shape, reasoning ids, how many rows); an output is its reasoning alone, plus 5 where it closed."""
    rows: list[tuple[str, int, int, list[str]]] = []
    for shape, reasoning, count in lines:
        rows += [(shape, reasoning, reasoning + 5 * (shape == "closed"), [])] * count
    return pd.DataFrame(rows, columns=COLUMNS)


def cut_at(lengths: np.ndarray, limit: int) -> pd.DataFrame:
    """Rows that would think for `lengths` ids, under a limit."""
    cut = lengths > limit
    reasoning = np.minimum(lengths, limit)
    shape = np.where(cut, "truncated_in_thinking", "closed")
    return pd.DataFrame(
        {
            "shape": shape,
            "reasoning_tokens": reasoning,
            "output_tokens": np.where(cut, reasoning, reasoning + 5),
            "reasons": [[] for _ in lengths],
        }
    )


@pytest.mark.parametrize("kind", ["straight on log axes", "memoryless", "log-normal"])
@pytest.mark.parametrize("seed", range(5))
def test_the_range_holds_what_comes_true(kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = {
        "straight on log axes": 200 * (1 + random.pareto(1.5, 20_000)),
        "memoryless": 1_500 * random.exponential(1, 20_000),
        "log-normal": random.lognormal(7, 1, 20_000),
    }[kind].astype("int64") + 1
    found = estimate(cut_at(lengths, 4_096))
    assert found is not None
    low, high = more_rows(found)
    true = int(((lengths > 4_096) & (lengths <= 8_192)).sum())
    assert low - 2 * np.sqrt(true) <= true <= high + 2 * np.sqrt(true)
    assert high - low < found.cut


def test_the_rows_at_half_the_limit_are_counted() -> None:
    rows = table(
        ("closed", 50, 100),  # closed before half
        ("closed", 51, 30),
        ("tool_closed", 80, 5),
        ("never_closed", 90, 4),
        ("truncated_in_answer", 70, 1),
        ("truncated_in_thinking", 100, 20),
        ("truncated_in_thinking", 60, 3),  # a full context
        ("thinking_off", 0, 9),
    )
    found = estimate(rows)
    assert found is not None
    assert found._replace(low=None, high=None) == (163, 100, 20, 0, 3, 60, 36, None, None)
    assert found.low == pytest.approx(0.4736, abs=1e-3)  # Wilson's interval of 36 in 60 is 0.474 to 0.714
    assert found.high == pytest.approx(1 - (1 - 0.7143) ** 2, abs=1e-3)
    assert more_rows(found) == (9, 19)
    lines = truncation_table(found)["value"]
    assert lines["of these closed by the limit"] == 36
    assert lines["would close at twice the limit, high (rows)"] == 19


def test_a_loop_is_taken_never_to_close() -> None:
    rows = table(("closed", 60, 40), ("truncated_in_thinking", 100, 10))
    rows.loc[rows.index[-4:], "reasons"] = pd.Series([["loop", "truncated_in_thinking"]] * 4, index=rows.index[-4:])
    found = estimate(rows)
    assert found is not None
    assert (found.cut, found.loops, found.half, found.closed) == (10, 4, 46, 40)
    assert "4 of them in a loop" in takeaways.truncation(rows)
    rows["reasons"] = [["loop"]] * len(rows)
    assert takeaways.truncation(rows).endswith("A larger limit closes no loop.")


def test_of_too_few_rows_nothing_is_said() -> None:
    enough = table(("closed", 60, FEWEST - 1), ("truncated_in_thinking", 100, 1))
    assert "would close by 200 ids" in takeaways.truncation(enough)
    few = table(("closed", 60, FEWEST - 2), ("closed", 3, 500), ("truncated_in_thinking", 100, 1))
    found = estimate(few)
    assert found is not None
    assert (found.low, found.high) == (None, None)
    assert takeaways.truncation(few).endswith("of fewer than 30 nothing is said about a larger limit.")
    assert truncation_table(found)["value"].iloc[-1] is None
    assert "no estimate" in [text.get_text() for text in figures.truncation(few).axes[0].texts]


def test_where_none_closed_in_time_the_low_end_is_none() -> None:
    found = estimate(table(("truncated_in_thinking", 100, 30)))
    assert found is not None
    assert found.low == 0
    assert more_rows(found) == (0, 7)


def test_where_nothing_was_cut_there_is_nothing_to_estimate() -> None:
    assert estimate(table(("closed", 60, 40))) is None
    assert takeaways.truncation(table(("closed", 60, 40))) == "No row was cut while thinking."
    assert takeaways.truncation(table(("thinking_off", 0, 4))).startswith("No row thinks")
    assert truncation_table(None).empty


def test_the_sentence_says_what_it_takes_for_granted() -> None:
    said = takeaways.truncation(table(("closed", 60, 90), ("truncated_in_thinking", 100, 10)))
    assert said.startswith("10 of 100 rows (10.0%) were cut while thinking, at 100 ids. Of 100 rows")
    assert "90 (90%) closed by the limit" in said
    assert re.search(r"8 to 10 of 10 would close by 200 ids: the low end takes it that .* at each doubling", said)


def test_a_cut_row_counts_as_longer_than_it_became() -> None:
    rows = table(("closed", 10, 2), ("truncated_in_thinking", 15, 1), ("closed", 20, 1))
    curve = thinking_curve(rows)
    assert curve["ids"].tolist() == [10, 20]
    assert curve["ended"].tolist() == pytest.approx([0.5, 1.0])
    cut_last = thinking_curve(table(("closed", 10, 3), ("truncated_in_thinking", 15, 1)))
    assert cut_last.to_numpy().tolist() == [[10, 0.75], [15, 0.75]]
    assert thinking_curve(table(("truncated_in_thinking", 15, 2))).to_numpy().tolist() == [[15, 0]]
    assert thinking_curve(table(("thinking_off", 0, 2))).empty


@given(
    st.lists(st.tuples(st.sampled_from(SHAPES), st.integers(0, 70_000), st.integers(1, 40)), max_size=12),
    st.booleans(),
)
def test_any_rows_have_a_curve_a_figure_and_a_sentence(lines: list[tuple[str, int, int]], loop: bool) -> None:
    rows = table(*lines)
    if loop:
        rows["reasons"] = [["loop"] if number % 2 else [] for number in range(len(rows))]
    curve, found = thinking_curve(rows), estimate(rows)
    assert curve["ids"].is_monotonic_increasing
    assert curve["ended"].between(0, 1).all()
    assert curve["ended"].is_monotonic_increasing
    assert takeaways.truncation(rows).endswith(".")
    assert "nan" not in takeaways.truncation(rows)
    if found is None:
        return
    assert found.cut + found.elsewhere == (rows["shape"] == "truncated_in_thinking").sum()
    assert found.closed <= found.half
    if found.low is not None and found.high is not None:
        assert 0 <= found.low <= found.high <= 1
        assert found.half >= FEWEST


@pytest.mark.parametrize(
    "rows",
    [
        table(("truncated_in_thinking", 1, 1)),
        table(("truncated_in_thinking", 0, 3)),
        table(("closed", 60, 90), ("truncated_in_thinking", 100, 10)),
        table(("truncated_in_thinking", 131_072, 40)),
    ],
)
def test_the_figure_is_drawn_whatever_was_cut(rows: pd.DataFrame) -> None:
    figures.truncation(rows).draw_without_rendering()
