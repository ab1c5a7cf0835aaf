"""Figures hold what their rows hold: heights, labels and notes are read back from what was drawn."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import small_dataset
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch

from rawtokens.fidelity import audit_figures
from rawtokens.reporting import comparison_figures, completion_bias, figures, throughput, token_statistics
from rawtokens.reporting.display import figure_html
from rawtokens.reporting.drawing import WIDTH, short_name, title_of
from rawtokens.reporting.figure_titles import TITLES, figures_of
from rawtokens.reporting.vocabulary_coverage import count_ids
from rawtokens.training import training_figures

OF_ROWS: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "reasoning_length": figures.reasoning_length,
    "closer_position": figures.closer_position,
    "answer_length": figures.answer_length,
    "truncation": figures.truncation,
    "output_length": figures.output_length,
    "prompt_length": figures.prompt_length,
    "shapes": figures.shapes,
    "verdict_reasons": figures.verdict_reasons,
    "segments": figures.segments,
    "tool_calls": figures.tool_calls,
}
OF_TIME = {"ids_per_second": figures.ids_per_second, "in_flight": figures.in_flight}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_dataset.write(tmp_path / "set")


@pytest.fixture
def rows(folder: Path) -> pd.DataFrame:
    return token_statistics.read_verified(folder)


def texts(figure: Figure) -> list[str]:
    """All words in a figure, legend and ticks included."""
    figure.draw_without_rendering()
    found = [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_visible()]
    return [text for text in found if text]


def words_in(figure: Figure) -> list[str]:
    """All words but the title."""
    return [text for text in texts(figure) if text != title_of(figure)]


def axes_of(figure: Figure) -> Axes:
    """The figure's first pair of axes."""
    return figure.axes[0]


def drawn_rows(figure: Figure) -> float:
    """The sum of all bar heights of a histogram."""
    return sum(patch.get_height() for patch in axes_of(figure).patches if isinstance(patch, Rectangle))


def many_rows(count: int) -> pd.DataFrame:
    """Rows of every shape with log-normal lengths."""
    random = np.random.default_rng(1)
    reasoning = random.lognormal(6, 1.2, count).astype("int32")
    answer = random.lognormal(5, 1, count).astype("int32")
    shape = random.choice(token_statistics.SHAPES, count)
    return pd.DataFrame(
        {
            "verdict": random.choice(["accept", "flag", "reject"], count, p=[0.9, 0.08, 0.02]),
            "reasons": [[] if number % 10 else ["loop", "never_closed"] for number in range(count)],
            "shape": shape,
            "prompt_tokens": random.lognormal(4, 1, count).astype("int32") + 1,
            "output_tokens": reasoning + answer + 2,
            "closer_position": pd.Series(reasoning, dtype="Int32").where(shape == "closed"),
            "reasoning_tokens": reasoning,
            "answer_tokens": answer,
            "tool_tokens": np.zeros(count, dtype="int32"),
            "tool_calls": random.poisson(1, count),
            "finish_reason": np.where(np.char.startswith(shape.astype(str), "truncated"), "length", "stop"),
            "ends_with_stop": np.ones(count, dtype=bool),
        }
    )


@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("count", [0, 1, 8])
def test_every_figure_can_be_drawn_and_saved(rows: pd.DataFrame, name: str, count: int) -> None:
    figure = OF_ROWS[name](rows.head(count))
    html = figure_html(figure, alt="words", caption="words")
    assert html.startswith('<figure><img src="data:image/svg+xml')
    assert count or any(text.startswith(("no row", "there are no")) for text in texts(figure))


def every_figure(folder: Path, rows: pd.DataFrame) -> dict[str, Figure]:
    """Each figure of `figures` by its name."""
    timings, prompts = throughput.read_timings(folder), token_statistics.read_prompts(folder)
    line, planned = throughput.timeline(timings), completion_bias.read_planned(folder, 1)
    return {
        **{name: draw(rows) for name, draw in OF_ROWS.items()},
        **{name: draw(line) for name, draw in OF_TIME.items()},
        "prompt_modes": figures.prompt_modes(prompts),
        "cache_hits": figures.cache_hits(timings, throughput.cache_line(timings)),
        "coverage": figures.coverage(count_ids(folder)),
        "completion": figures.completion(planned, completion_bias.output_lengths(planned, timings, folder)),
    }


@pytest.mark.parametrize("many", [False, True])
def test_every_figure_has_a_title_and_axes_with_labels(folder: Path, rows: pd.DataFrame, many: bool) -> None:
    for name, figure in every_figure(folder, many_rows(2_000) if many else rows).items():
        assert title_of(figure) == TITLES[name]
        shown = [axes for axes in figure.axes if axes.axison]
        assert shown, name
        assert shown[-1].get_xlabel(), name
        # Bars are named by the words at their ticks.
        named = all(
            axes.get_ylabel() or not axes.get_yticklabels()[0].get_text().replace(",", "").isdecimal() for axes in shown
        )
        assert named, name


def test_no_text_is_too_small_for_a_phone(folder: Path, rows: pd.DataFrame) -> None:
    """A phone shows a figure 360 CSS pixels wide, 96 to the inch; 9 of them can be read."""
    for name, figure in every_figure(folder, rows).items():
        figure.draw_without_rendering()
        assert figure.get_size_inches()[0] == WIDTH
        sizes = [float(text.get_fontsize()) for text in figure.findobj(mpl.text.Text) if text.get_text()]
        assert min(sizes) / 72 * 96 * 360 / (WIDTH * 96) >= 9, name


def test_nothing_reaches_over_the_edge(folder: Path) -> None:
    for name, figure in every_figure(folder, many_rows(2_000)).items():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
        drawn = figure.get_tightbbox(canvas.get_renderer())  # type: ignore[no-untyped-call]
        assert drawn.x0 >= -0.02, name
        assert drawn.x1 <= WIDTH + 0.02, name


def test_titles_and_figures_are_the_same_list() -> None:
    drawn = {
        name
        for module in (figures, comparison_figures, audit_figures, training_figures)
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    }
    assert drawn == set(TITLES)
    assert len(set(TITLES.values())) == len(TITLES)


def test_notebooks_draw_figures_of_the_list_alone_and_put_the_title_in_the_caption() -> None:
    notebooks = Path(__file__).parents[1] / "notebooks"
    assert "reasoning_length" in figures_of(notebooks / "04_report_token_statistics.ipynb")
    assert "median_differences" in figures_of(notebooks / "07_compare_runs.ipynb")
    for name in ("04_report_token_statistics", "07_compare_runs"):
        code = (notebooks / f"{name}.ipynb").read_text(encoding="utf-8")
        for figure in figures_of(notebooks / f"{name}.ipynb"):
            assert re.search(rf"TITLES\[\\?[\"']{figure}\\?[\"']\]", code), figure


@given(st.text(), st.integers(3, 40))
def test_a_long_name_keeps_both_of_its_ends(name: str, limit: int) -> None:
    short = short_name(name, limit)
    assert len(short) <= limit
    if len(name) <= limit:
        assert short == name
    else:
        before, after = short.split("…", 1) if "…" not in name else (short[: (limit - 1) // 2], "")
        assert name.startswith(before)
        assert name.endswith(after)


@pytest.mark.parametrize("name", OF_TIME)
@pytest.mark.parametrize("count", [0, 1, 8])
def test_every_figure_over_time_can_be_drawn_and_saved(folder: Path, name: str, count: int) -> None:
    line = throughput.timeline(throughput.read_timings(folder).head(count))
    figure = OF_TIME[name](line)
    figure.savefig(io.BytesIO(), format="svg")
    assert ("no response is on record" in texts(figure)) == (count == 0)


def test_rows_of_one_shape_alone_are_enough(rows: pd.DataFrame) -> None:
    for shape in token_statistics.SHAPES:
        for draw in OF_ROWS.values():
            draw(rows[rows["shape"] == shape])
    closerless = rows[rows["shape"] == "thinking_off"]
    assert words_in(figures.closer_position(closerless)) == ["no row has a closer"]
    assert words_in(figures.reasoning_length(closerless)) == ["no row has reasoning"]


def test_a_hundred_thousand_rows_make_a_small_drawing() -> None:
    rows = many_rows(100_000)
    for draw in OF_ROWS.values():
        drawing = io.BytesIO()
        draw(rows).savefig(drawing, format="svg")
        assert drawing.tell() < 150_000


def test_the_histogram_holds_every_row() -> None:
    rows = many_rows(5_000)
    assert drawn_rows(figures.output_length(rows)) == 5_000
    assert drawn_rows(figures.prompt_length(rows)) == 5_000
    assert drawn_rows(figures.closer_position(rows)) == (rows["shape"] == "closed").sum()


def test_lengths_of_zero_are_counted_where_a_log_axis_can_not_draw_them(rows: pd.DataFrame) -> None:
    rows["reasoning_tokens"] = [0, 0, 5, 16, 1, 0, 4, 0]
    figure = figures.reasoning_length(rows)
    assert drawn_rows(figure) == 4
    assert "2 with 0 ids not drawn" in texts(figure)
    rows["reasoning_tokens"] = 0
    assert words_in(figures.reasoning_length(rows)) == ["no row has reasoning: 6 rows have 0 ids"]


def test_rows_cut_while_thinking_stand_apart(rows: pd.DataFrame) -> None:
    words = texts(figures.reasoning_length(rows))
    assert {"thinking ended: 5", "cut while thinking: 1"} <= set(words)


def test_lengths_stand_on_a_log_axis_with_plain_numbers(rows: pd.DataFrame) -> None:
    for draw in (figures.reasoning_length, figures.output_length, figures.prompt_length, figures.closer_position):
        assert axes_of(draw(rows)).get_xscale() == "log"
    assert {"10", "100", "1,000"} <= set(texts(figures.output_length(many_rows(1_000))))


def test_percentiles_are_marked_as_far_as_the_rows_allow(rows: pd.DataFrame) -> None:
    def marks(figure: Figure) -> list[str]:
        return [text for text in texts(figure) if text.startswith(("median ", "p9"))]

    assert marks(figures.output_length(rows)) == ["median 11"]
    assert [mark.split()[0] for mark in marks(figures.output_length(many_rows(50)))] == ["median", "p90"]
    lengths = pd.DataFrame({"prompt_tokens": range(1, 1002)})
    assert marks(figures.prompt_length(lengths)) == ["median 501", "p90 901", "p99 991"]


def test_stacked_bars_carry_their_counts(rows: pd.DataFrame) -> None:
    figure = figures.shapes(rows)
    words = texts(figure)
    assert {"stop: 6", "length: 2", "2 stop", "1 length", *token_statistics.SHAPES} <= set(words)
    assert "8" in texts(figures.shapes(rows.assign(shape="closed")))


def test_bars_stand_in_the_order_of_their_table(rows: pd.DataFrame) -> None:
    figure = figures.verdict_reasons(rows)
    axes = axes_of(figure)
    assert axes.yaxis_inverted()
    table = token_statistics.reason_table(rows)
    assert [label.get_text() for label in axes.get_yticklabels()] == table.index.tolist()
    widths = sum(
        patch.get_width() for bars in axes.containers if isinstance(bars, BarContainer) for patch in bars.patches
    )
    assert widths == table["rows"].sum()


def test_tool_calls_are_labelled_with_their_rows(rows: pd.DataFrame) -> None:
    assert [text for text in texts(figures.tool_calls(rows)) if text in ("6", "1")].count("1") >= 2


def test_the_line_over_time_holds_every_id(folder: Path) -> None:
    line = throughput.timeline(throughput.read_timings(folder))
    steps = [patch for patch in axes_of(figures.ids_per_second(line)).patches if isinstance(patch, StepPatch)]
    heights, edges, _ = steps[0].get_data()
    assert (np.diff(edges) * heights).sum() == pytest.approx(80)


def test_time_is_given_in_a_unit_that_fits() -> None:
    def label(seconds: float) -> str:
        line = pd.DataFrame({"seconds": [1.0], "width_s": [seconds], "ids_per_second": [1.0], "in_flight": [1.0]})
        return axes_of(figures.in_flight(line)).get_xlabel()

    assert [label(90), label(600), label(10_000)] == [
        "seconds since the first request",
        "minutes since the first request",
        "hours since the first request",
    ]


def test_the_style_is_the_kits_whatever_the_notebook_has_set(rows: pd.DataFrame) -> None:
    with mpl.rc_context({"figure.facecolor": "black", "axes.facecolor": "black", "text.color": "white"}):
        before = dict(mpl.rcParams)
        figure = figures.shapes(rows)
        assert dict(mpl.rcParams) == before
    assert to_hex(figure.get_facecolor()) == "#ffffff"
    assert to_hex(axes_of(figure).get_facecolor()) == "#ffffff"
    assert to_hex(axes_of(figure).patches[0].get_facecolor()) == "#1845fb"


def test_the_same_rows_give_the_same_bytes(rows: pd.DataFrame) -> None:
    pages = {figure_html(figures.output_length(rows), alt="words", caption="words") for _ in range(2)}
    assert len(pages) == 1
