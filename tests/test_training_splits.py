"""Held-out rows depend on the first prompt's ids alone: not on keys, order, other rows or later turns."""

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import training_data
from hypothesis import given
from hypothesis import strategies as st
from small_dataset import END
from training_data import ROWS, Row

from rawtokens.response_checks.response_columns import IdLists
from rawtokens.training.policies import select_rows
from rawtokens.training.settings import TrainingSettings
from rawtokens.training.splits import held_out, place_of, places_by_source, source_of


def split(folder: Path, rows: list[Row], share: float = 0.4) -> dict[str, bool]:
    """Which keys are held out."""
    training_data.write(folder, rows)
    found = select_rows(folder, TrainingSettings(held_out=share)).held_out.tolist()
    return dict(zip([row[0] for row in rows], found, strict=True))


def test_the_place_of_a_prompt_is_what_it_was() -> None:
    """Another hash would move rows from one side to the other between two versions of the kit.

    The digits are sha256sum's over the twelve bytes of three little-endian ints.
    """
    assert place_of(np.array([1, 2, 3], dtype=np.int32)) == 0x4636993D3E1DA4E9 / 2**64


def test_growth_another_order_and_other_keys_move_no_row(tmp_path: Path) -> None:
    first = split(tmp_path / "a", ROWS)
    more = [(f"m{n}#0/0", training_data.prompt_of(n), [1, END], "stop") for n in range(1000, 1100)]
    mixed = [*ROWS, *more]
    random.Random(3).shuffle(mixed)
    grown = split(tmp_path / "b", mixed)
    assert {key: grown[key] for key in first} == first
    assert 20 < sum(grown[row[0]] for row in more) < 60
    renamed = split(tmp_path / "c", [(f"x{row[0]}", *row[1:]) for row in ROWS])
    assert list(renamed.values()) == list(first.values())


def test_a_smaller_share_is_part_of_a_larger_one(tmp_path: Path) -> None:
    rows: list[Row] = [(f"m{n}#0/0", training_data.prompt_of(n), [1, END], "stop") for n in range(300)]
    shares = (0.0, 0.05, 0.3, 0.9)
    found = [split(tmp_path / str(share), rows, share) for share in shares]
    counts = [sum(chosen.values()) for chosen in found]
    assert counts[0] == 0
    assert 60 < counts[2] < 120 < 240 < counts[3]
    for small, large in pairwise(found):
        assert all(large[key] for key, out in small.items() if out)


def test_samples_and_turns_of_one_conversation_are_on_one_side(tmp_path: Path) -> None:
    rows: list[Row] = []
    for number in range(60):
        prompt = training_data.prompt_of(number)
        rows.append((f"s{number}#0/0", prompt, [1, END], "stop"))
        rows.append((f"s{number}#0/1", prompt, [2, END], "stop"))
        rows.append((f"s{number}#1/0", [*prompt, 1, END, 7], [2, END], "stop"))
    found = split(tmp_path, rows)
    for number in range(60):
        assert len({found[f"s{number}#{turn}"] for turn in ("0/0", "0/1", "1/0")}) == 1
    assert set(found.values()) == {True, False}


def test_a_row_of_an_unknown_source_goes_by_its_own_prompt() -> None:
    prompts = IdLists.from_lists([[1, 2], [1, 2]])
    places = {"known": 0.0}
    share = place_of(np.array([1, 2], dtype=np.int32))
    assert held_out(["known#0/0", "other#0/0"], prompts, places, share).tolist() == [True, False]


@given(st.text(), st.integers(0, 99), st.integers(0, 99))
def test_a_source_is_what_stands_before_the_last_signs(source: str, turn: int, sample: int) -> None:
    assert source_of(f"{source}#{turn}/{sample}") == source


def test_places_are_those_of_first_turns(tmp_path: Path) -> None:
    rows: list[Row] = [
        ("s#1/0", [5, 6], [1, END], "stop"),
        ("s#0/0", [5], [1, END], "stop"),
    ]
    training_data.write(tmp_path, rows)
    assert places_by_source(tmp_path) == {"s": place_of(np.array([5], dtype=np.int32))}
