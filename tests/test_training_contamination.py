"""Overlaps of evaluation prompts with training rows, against plain search."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import training_data
from hypothesis import given, settings
from hypothesis import strategies as st
from small_dataset import END
from training_data import KIMI, Row

from rawtokens.errors import InputError
from rawtokens.response_checks.response_columns import IdLists
from rawtokens.training.contamination import (
    Contamination,
    Overlap,
    contamination_table,
    contamination_takeaway,
    ngrams,
    write_contamination,
)
from rawtokens.training.rows import read_training_rows


def by_words(texts: Sequence[str]) -> list[list[int]]:
    """A tokenizer whose texts are numbers."""
    return [[int(word) for word in text.split()] for text in texts]


def check(folder: Path, rows: list[Row], prompts: list[list[int]], n: int) -> Overlap:
    training_data.write(folder, rows)
    lines = [{"messages": [{"role": "user", "content": " ".join(map(str, ids))}]} for ids in prompts]
    (folder / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = Contamination(str(folder / "evaluation.jsonl"), by_words, n=n)
    for batch in read_training_rows(folder, KIMI, np.ones(len(rows), dtype=np.bool_)):
        found.add(batch)
    return found.overlap()


def test_a_prompt_that_stands_in_a_row_is_found_and_its_row_named(tmp_path: Path) -> None:
    rows: list[Row] = [
        ("a#0/0", training_data.prompt_of(*range(100, 140)), [1, 2, END], "stop"),
        ("b#0/0", training_data.prompt_of(5), [*range(200, 230), END], "stop"),
        ("c#0/0", training_data.prompt_of(7, 8, 9), [1, END], "stop"),
    ]
    prompts = [
        list(range(100, 140)),  # a whole prompt
        [*range(900, 940), *range(210, 223)],  # 13 ids of an output, and much else
        list(range(300, 340)),
        list(range(12)),  # shorter than an n-gram
    ]
    found = check(tmp_path, rows, prompts, 13)
    assert found == Overlap(
        file="evaluation.jsonl",
        n=13,
        prompts=4,
        left_out=0,
        too_short=1,
        overlapping=2,
        mostly=1,
        rows=2,
        keys=["a#0/0", "b#0/0"],
    )
    assert contamination_takeaway([found]).startswith(
        "evaluation.jsonl: 2 of 4 prompts share 13 ids in a row with 2 training rows, 1 of them half"
    )
    assert contamination_table([found]).iloc[0].tolist() == ["evaluation.jsonl", 4, 0, 1, 2, 1, 2]
    assert json.loads(write_contamination(tmp_path, [found]).read_bytes())[0]["overlapping"] == 2


def test_twelve_ids_in_a_row_are_no_overlap_of_thirteen(tmp_path: Path) -> None:
    rows: list[Row] = [("a#0/0", training_data.prompt_of(*range(100, 112)), [1, END], "stop")]
    assert check(tmp_path, rows, [[7, *range(100, 112), 8]], 13).overlapping == 0


WORDS = st.lists(st.integers(1, 4), min_size=1, max_size=12)


@given(
    st.lists(WORDS, min_size=1, max_size=4), st.lists(WORDS, min_size=1, max_size=4, unique_by=tuple), st.integers(1, 4)
)
@settings(max_examples=30)
def test_it_finds_what_plain_search_finds(
    tmp_path_factory: pytest.TempPathFactory, outputs: list[list[int]], prompts: list[list[int]], n: int
) -> None:
    rows: list[Row] = [
        (f"r{number}#0/0", training_data.prompt_of(1000 + number), [*ids, END], "stop")
        for number, ids in enumerate(outputs)
    ]
    found = check(tmp_path_factory.mktemp("wild"), rows, prompts, n)
    grams = [{tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)} for ids in outputs]
    asked = [[tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)] for ids in prompts]
    known = set().union(*grams)
    hits = [sum(gram in known for gram in each) for each in asked]
    assert found.overlapping == sum(hit > 0 for hit in hits)
    assert found.mostly == sum(len(each) > 0 and 2 * hit >= len(each) for hit, each in zip(hits, asked, strict=True))
    assert found.too_short == sum(not each for each in asked)
    wanted = {gram for each in asked for gram in each}
    assert found.rows == sum(bool(own & wanted) for own in grams)


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=5), st.integers(1, 4))
def test_no_ngram_reaches_over_the_end_of_a_row(lists: list[list[int]], n: int) -> None:
    columns = IdLists.from_lists(lists)
    _, valid = ngrams(columns, n)
    for row, (start, end) in enumerate(pairwise(columns.offsets.tolist())):
        assert int(valid[start:end].sum()) == max(0, len(lists[row]) - n + 1)


def test_rows_that_are_no_conversation_are_counted(tmp_path: Path) -> None:
    (tmp_path / "evaluation.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "1 2 3"}]}\n{"messages": 7}\n'
    )
    found = Contamination(str(tmp_path / "evaluation.jsonl"), by_words, n=2).overlap()
    assert (found.prompts, found.left_out, found.overlapping) == (1, 1, 0)


def test_no_files_and_a_senseless_n_are_told(tmp_path: Path) -> None:
    assert contamination_takeaway([]).startswith("No evaluation prompts are given")
    with pytest.raises(InputError, match="n-grams of 0 ids"):
        Contamination("x", by_words, n=0)
    with pytest.raises(InputError):
        Contamination(str(tmp_path / "missing.jsonl"), by_words)
