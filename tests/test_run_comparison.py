"""Two runs side by side: differences of medians against resampling by hand, answers against their ids."""

from pathlib import Path

import matplotlib as mpl
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_dataset
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rawtokens.errors import InputError
from rawtokens.records import VERIFIED_SCHEMA
from rawtokens.reporting import comparison_figures, comparison_takeaways, greedy_answers, run_comparison
from rawtokens.reporting.drawing import WIDTH, title_of
from rawtokens.reporting.figure_titles import TITLES
from rawtokens.reporting.run_comparison import Sample

SHORT_IDS = st.lists(st.integers(0, 3), max_size=6)


def manifest(folder: Path, **settings: object) -> None:
    (folder / "run.json").write_bytes(msgspec.json.encode(settings))


def rewrite(folder: Path, **columns: list[object]) -> None:
    """Put other values into columns of a data set's verified.parquet."""
    table = pq.read_table(folder / "verified.parquet")
    for name, values in columns.items():
        field = VERIFIED_SCHEMA.field(name)
        table = table.set_column(VERIFIED_SCHEMA.get_field_index(name), field, pa.array(values, type=field.type))
    pq.write_table(table, folder / "verified.parquet", row_group_size=3)


def texts(figure: Figure) -> list[str]:
    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Run `one` with data sets A and B, run `two` with B and C; all hold the same eight rows."""
    for run, names in {"one": "AB", "two": "BC"}.items():
        for name in names:
            small_dataset.write(tmp_path / run / name)
            manifest(tmp_path / run / name, sampling={"temperature": 0.0, "top_k": -1}, tokenizer="/somewhere/model")
    return tmp_path / "one", tmp_path / "two"


def samples(lengths: dict[str, list[int]]) -> dict[str, Sample]:
    """Samples of closed rows with these lengths of reasoning."""
    found = {}
    for name, values in lengths.items():
        rows = pd.DataFrame({"reasoning_tokens": values, "answer_tokens": 2, "output_tokens": np.array(values) + 4})
        found[name] = Sample("run", name, Path(), rows.assign(shape="closed", verdict="accept"))
    return found


def test_data_sets_of_the_same_name_are_a_pair(runs: tuple[Path, Path]) -> None:
    first, second = (run_comparison.read_samples(run) for run in runs)
    assert [(one.run, one.dataset) for one in first] == [("one", "A"), ("one", "B")]
    assert [(a.run, a.dataset, b.run, b.dataset) for a, b in run_comparison.pairs(first, second)] == [
        ("one", "B", "two", "B")
    ]
    assert list(run_comparison.side_by_side(first, second)) == ["A · one", "B · one", "B · two", "C · two"]
    assert list(run_comparison.side_by_side(first, [])) == ["A", "B"]


def test_two_single_data_sets_are_a_pair_whatever_their_names(runs: tuple[Path, Path]) -> None:
    first, second = run_comparison.read_samples(runs[0] / "A"), run_comparison.read_samples(runs[1] / "C")
    ((one, other),) = run_comparison.pairs(first, second)
    assert (one.run, one.dataset, other.run, other.dataset) == ("one", "A", "two", "C")


def test_a_run_against_itself_keeps_both(runs: tuple[Path, Path]) -> None:
    first = run_comparison.read_samples(runs[0])
    names = list(run_comparison.side_by_side(first, first))
    assert names == ["A · one (1)", "A · one (2)", "B · one (1)", "B · one (2)"]


def test_a_folder_without_a_verified_data_set_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no verified"):
        run_comparison.read_samples(tmp_path)


def test_counts_and_shares_stand_side_by_side(runs: tuple[Path, Path]) -> None:
    rewrite(runs[1] / "B", shape=["closed"] * 8)
    named = run_comparison.side_by_side(*(run_comparison.read_samples(run) for run in runs))
    table = run_comparison.sample_table(named)
    assert list(table.loc["A · one"]) == pytest.approx([8, 4, 3, 1, 4 / 6, 3.5, 2, 11, 80])
    assert table.loc["B · two", "thinking ended"] == 1
    shares = run_comparison.share_table(named, "shape", ("closed",))
    assert shares.loc["A · one", "closed"] == 0.25
    assert list(shares.loc["B · two"]) == [1.0] + [0.0] * 6
    assert shares.sum(axis=1).tolist() == pytest.approx([1.0] * 4)


def test_resampled_medians_are_those_of_resampling() -> None:
    random = np.random.default_rng(3)
    for size in (10, 11, 400):
        lengths = random.lognormal(6, 1, size)
        drawn = np.median(random.choice(lengths, (20_000, size)), axis=1)
        quick = run_comparison.resampled_medians(lengths, random, times=20_000)
        wanted, found = (np.quantile(each, [0.025, 0.25, 0.5, 0.75, 0.975]) for each in (drawn, quick))
        assert found == pytest.approx(wanted, rel=0.06)
        assert set(np.round(quick, 6)) - set(np.round((lengths[:, None] + lengths) / 2, 6).ravel()) == set()


def test_a_difference_beyond_chance_is_told_from_none() -> None:
    random = np.random.default_rng(1)
    drawn = {name: random.lognormal(6, 1, 500).astype(int).tolist() for name in "ab"}
    longer = [value * 2 for value in drawn["b"]]
    named = samples({"a": drawn["a"], "b": drawn["b"], "c": longer})
    same = run_comparison.median_differences([(named["a"], named["b"])]).set_index("length")
    assert same["low"]["reasoning"] < 0 < same["high"]["reasoning"]
    assert list(same.loc["answer", ["difference", "low", "high"]]) == [0, 0, 0]
    other = run_comparison.median_differences([(named["a"], named["c"])])
    line = other.set_index("length").loc["reasoning"]
    assert 0 < line["low"] <= line["difference"] <= line["high"]
    assert line["difference"] == np.median(longer) - np.median(drawn["a"])
    assert comparison_takeaways.differences(other, 1).startswith("Of 3 differences of medians 2 have a 95 % interval")
    pd.testing.assert_frame_equal(other, run_comparison.median_differences([(named["a"], named["c"])]))


def test_of_few_rows_no_medians_are_compared() -> None:
    named = samples({"a": [5] * 9, "b": [5] * 500})
    table = run_comparison.median_differences([(named["a"], named["b"])])
    assert table.empty
    assert comparison_takeaways.differences(table, 1).startswith("No data set has 10 rows or more")
    assert "no data set has enough rows in both runs" in texts(comparison_figures.median_differences(table))
    assert comparison_takeaways.differences(table, 0).startswith("There are no two runs with a data set in common")


def test_settings_that_differ_are_named_and_folders_shortened(runs: tuple[Path, Path]) -> None:
    manifest(runs[1] / "B", sampling={"temperature": 1.0, "top_k": -1}, tokenizer="/other/model", fingerprint="x")
    found = run_comparison.pairs(*(run_comparison.read_samples(run) for run in runs))
    table = run_comparison.settings_table(found)
    assert table.to_numpy().tolist() == [["B", "sampling.temperature", "0.0", "1.0"]]
    assert comparison_takeaways.settings(table, 1) == "1 setting differs: sampling.temperature."
    manifest(runs[1] / "B", sampling={"temperature": 0.0}, tokenizer="/other/one")
    assert run_comparison.settings_table(found).to_numpy().tolist() == [
        ["B", "sampling.top_k", "-1", "–"],
        ["B", "tokenizer", "model", "one"],
    ]


@given(SHORT_IDS, SHORT_IDS)
def test_the_first_difference_is_where_plain_lists_part(one: list[int], other: list[int]) -> None:
    place = greedy_answers.first_difference(np.array(one, dtype=np.int32), np.array(other, dtype=np.int32))
    if place is None:
        assert one == other
    else:
        assert one[:place] == other[:place]
        assert one[place : place + 1] != other[place : place + 1]


def test_greedy_answers_are_compared_by_key_and_prompt_ids(runs: tuple[Path, Path]) -> None:
    first, second = runs[0] / "B", runs[1] / "B"
    whole = greedy_answers.agreement(first, second)
    assert (whole.keys, whole.other_prompts, whole.identical, whole.parted.tolist()) == (8, 0, 8, [])
    table = pq.read_table(second / "verified.parquet")
    keys, outputs, prompts = (table[name].to_pylist() for name in ("key", "output_ids", "prompt_ids"))
    outputs[0] = [*outputs[0][:4], 99, *outputs[0][5:]]  # another id at position 4
    outputs[1] = outputs[1][:6]  # ends earlier, by itself
    prompts[2] = [1]
    keys[3] = "new#0/0"
    outputs[4] = outputs[4][:9]  # cut earlier
    outputs[5] = [*outputs[5], 9]  # goes on where the other stopped
    ends: list[object] = [*["stop"] * 4, *["length"] * 2, *["stop"] * 2]
    rewrite(second, key=keys[::-1], output_ids=outputs[::-1], prompt_ids=prompts[::-1], finish_reason=ends[::-1])
    found = greedy_answers.agreement(first, second)
    assert (found.keys, found.other_prompts, found.identical, found.cut_short) == (7, 1, 2, 1)
    assert dict(zip(found.part_keys, found.parted.tolist(), strict=True)) == {"a#0/0": 4, "b#0/0": 6, "f#0/0": 3}
    in_parts = greedy_answers.agreement(first, second, most_ids=9)  # some nine parts of the keys
    assert in_parts[:4] == found[:4]
    places = dict(zip(in_parts.part_keys, in_parts.parted.tolist(), strict=True))
    assert places == dict(zip(found.part_keys, found.parted.tolist(), strict=True))
    assert list(greedy_answers.agreement_table({"B": found}).loc["B"]) == pytest.approx([7, 1, 6, 2, 2 / 6, 1, 3, 4])
    assert comparison_takeaways.agreement({"B": found}, 1) == (
        "7 keys are in both, 1 of them with other prompt ids; 2 of 6 answers are identical id by id, 1 more is the "
        "same up to the limit that cut one of them; 3 differ, first at id 5 in the median and at 4 at the earliest."
    )


def test_only_temperature_zero_is_greedy(runs: tuple[Path, Path], tmp_path: Path) -> None:
    assert greedy_answers.is_greedy(runs[0] / "A")
    manifest(runs[0] / "A", sampling={"temperature": 0.7})
    assert not greedy_answers.is_greedy(runs[0] / "A")
    assert not greedy_answers.is_greedy(tmp_path)
    assert comparison_takeaways.agreement({}, 1).endswith("no data set was generated at temperature 0 by both runs.")


@pytest.mark.parametrize("count", [0, 1, 20])
def test_every_figure_and_sentence_of_a_comparison_can_be_made(count: int) -> None:
    named = samples({"W" * 60: list(range(count)), "B2_opencodeinstruct · greedy_b": list(range(5, 5 + 2 * count))})
    one, other = named.values()
    table = run_comparison.median_differences([(one, other)])
    parted = greedy_answers.Agreement(count, 0, 0, 0, np.arange(count), tuple(map(str, range(count))))
    drawn = {
        "shapes_by_sample": comparison_figures.shapes_by_sample(named),
        "verdicts_by_sample": comparison_figures.verdicts_by_sample(named),
        "reasoning_by_sample": comparison_figures.reasoning_by_sample(named),
        "median_differences": comparison_figures.median_differences(table),
        "first_differences": comparison_figures.first_differences({"a": parted}),
    }
    for name, figure in drawn.items():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        edges = figure.get_tightbbox(canvas.get_renderer())  # type: ignore[no-untyped-call]
        assert -0.02 <= edges.x0 <= edges.x1 <= WIDTH + 0.02  # inches
        assert title_of(figure) == TITLES[name]
        assert figure.get_size_inches()[0] == WIDTH
        assert all(axes.get_xlabel() for axes in figure.axes if axes.axison)
    for sentence in (
        comparison_takeaways.counts(named),
        comparison_takeaways.shapes(named),
        comparison_takeaways.verdicts(named),
        comparison_takeaways.reasoning(named),
        comparison_takeaways.differences(table, 1),
        comparison_takeaways.agreement({"a": parted}, 1),
    ):
        assert sentence.endswith(".")
        assert "nan" not in sentence


def test_a_long_name_is_shortened_where_it_labels_a_bar() -> None:
    named = samples({"moonshotai_Kimi-K2-Thinking_glaive_function_calling_v2": [1, 2], "b": [3]})
    labels = [text for text in texts(comparison_figures.shapes_by_sample(named)) if "…" in text]
    assert set(labels) == {"moonshotai_…n_calling_v2"}


def test_what_is_beyond_eight_lines_is_counted() -> None:
    named = samples({f"set {number}": [1] * (number + 1) for number in range(11)})
    words = texts(comparison_figures.reasoning_by_sample(named))
    assert "3 smaller ones not drawn" in words
    assert "set 2" not in words
    assert "set 10" in words
