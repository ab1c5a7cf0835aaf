"""Ids of rows: the same on every run and machine, told apart or reported, never overwritten."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prompt_rows import only, read, read_rows, reasons

from rawtokens.conversations import read_conversations
from rawtokens.conversations.ids import SeenIds, content_id
from rawtokens.records import Conversation, Json, Rejection


def ids(folder: Path, *written: str) -> list[str]:
    """The ids that rows get whose id is written so in JSON."""
    lines = [f'{{"id": {text}, "prompt": "Ask {place}"}}\n' for place, text in enumerate(written)]
    return [row.source_id if isinstance(row, Conversation) else row.key for row in read(folder / "r", "".join(lines))]


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("7", "7"),
        ('"7"', "7"),
        ('" 7"', " 7"),
        ("7.0", "7.0"),
        ("-0", "0"),
        ("1e22", "1e+22"),
        ("9" * 4000, "9" * 4000),
        ('"a#0/1"', "a#0/1"),
        ('"a\\nb\\u0000\\u2028"', "a\nb\0\u2028"),
        ('"#"', "#"),
    ],
)
def test_an_id_is_its_own_text_whatever_signs_it_holds(tmp_path: Path, written: str, made: str) -> None:
    assert ids(tmp_path, written) == [made]


def test_keys_are_unambiguous_for_ids_that_look_like_keys(tmp_path: Path) -> None:
    own = ["a", "a#0", "a#0#0", "a/0", "a#0/0", "a\n", "a#row2", "a#row2#0"]
    assert ids(tmp_path, *map(json.dumps, own)) == own
    keys = [f"{source_id}#0/{sample}" for source_id in own for sample in (0, 1)]
    assert len(set(keys)) == len(keys)
    assert [key.rpartition("/")[0].rpartition("#")[0] for key in keys] == [name for name in own for _ in range(2)]


def test_a_duplicate_never_takes_the_key_of_a_row_that_comes_later(tmp_path: Path) -> None:
    found = read_rows(tmp_path, [{"id": own, "prompt": "Hi"} for own in ("a", "a", "a#row2", "a:line2", "a")])
    assert reasons(found) == ["", "duplicate_id", "", "", "duplicate_id"]
    assert [row.key for row in found if isinstance(row, Rejection)] == ["a#row2", "a#row5"]


@pytest.mark.parametrize("missing", ["null", "NaN", '""', '" \\n"'])
def test_a_missing_id_comes_from_content(tmp_path: Path, missing: str) -> None:
    (made,) = ids(tmp_path, missing)
    assert made.startswith("sha256-")


def test_numbers_and_texts_of_one_spelling_are_one_id_and_reported(tmp_path: Path) -> None:
    assert ids(tmp_path, "7", '"7"', "7.0", '"7.0"') == ["7", "7#row2", "7.0", "7.0#row4"]


def test_a_number_is_one_id_in_every_container(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [7], "prompt": ["Hi"]}), tmp_path / "rows.parquet")
    found = [
        only(list(read_conversations(tmp_path / "rows.parquet"))),
        only(read(tmp_path / "a", '[{"id": 7, "prompt": "Hi"}]')),
        only(read(tmp_path / "b", "id,prompt\n7,Hi\n")),
    ]
    assert [row.source_id for row in found] == ["7", "7", "7"]


def test_an_id_from_content_depends_on_no_hash_seed_and_no_order(tmp_path: Path) -> None:
    row: Json = {"prompt": "Grüße", "b": {"y": [1, 2.5, None], "x": "\ud83d"}, "a": float("nan"), "none": None}
    turned: Json = {"a": float("nan"), "b": {"x": "\ud83d", "y": [1, 2.5, None], "z": None}, "prompt": "Grüße"}
    program = f"from rawtokens.conversations.ids import content_id; nan = float('nan'); print(content_id({row!r}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert found == {content_id(turned).encode() + b"\n"}
    assert content_id(turned) == "sha256-ded30aca30c347f99c79"


def test_what_json_lacks_gives_an_id_without_an_address_in_memory() -> None:
    class Picture:
        pass

    assert content_id({"a": Picture()}) == content_id({"a": Picture()})  # type: ignore[dict-item]


@given(names=st.lists(st.text(max_size=3), max_size=60))
@settings(max_examples=60, deadline=None)
def test_seen_ids_are_those_of_a_set(names: list[str]) -> None:
    ours, known = SeenIds(), set[str]()
    for name in names:
        assert ours.add(name) == (name not in known)
        known.add(name)


def test_seen_ids_stay_right_and_small_as_they_grow() -> None:
    ours = SeenIds()
    names = [str(number) for number in range(200_000)]
    random.Random(1).shuffle(names)
    assert all(ours.add(name) for name in names)
    assert not any(ours.add(name) for name in names[::7])
    assert ours.size_in_bytes / len(names) <= 24


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"prompt": st.sampled_from(["a", "b"])}, optional={"id": st.sampled_from([7, "7", 7.0, "7#row2", "x"])}
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_two_rows_share_a_key_and_a_second_reading_gives_the_same(
    tmp_path: Path, rows: list[dict[str, object]]
) -> None:
    found = read_rows(tmp_path, rows)
    keys = [row.key if isinstance(row, Rejection) else f"{row.source_id}#0" for row in found]
    assert len(set(keys)) == len(rows)
    assert read_rows(tmp_path, rows) == found
