"""The checksum of a row from the journal's text and from arrays."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
import training_data
from hypothesis import given
from hypothesis import strategies as st

from rawtokens.errors import InputError
from rawtokens.response_checks.response_columns import IdLists
from rawtokens.training.checksums import IdTexts, journal_checksums, mask_checksums, row_checksums

IDS = st.lists(st.integers(0, 9_999_999), max_size=20)


@given(st.lists(IDS, max_size=5))
def test_a_rows_text_is_its_ids_in_decimal(rows: list[list[int]]) -> None:
    expected = [",".join(map(str, row)).encode() for row in rows]
    texts = IdTexts()
    if max((max(row, default=0) for row in rows), default=0) < 200_000:
        assert list(texts.row_texts(IdLists.from_lists(rows))) == expected


def test_a_long_row_is_written_whole() -> None:
    ids = np.arange(100_000, dtype=np.int32)
    assert IdTexts().text(ids) == ",".join(map(str, range(100_000))).encode()


@pytest.mark.parametrize("wrong", [-1, 10_000_000, 2**31 - 1])
def test_what_is_no_id_is_refused(wrong: int) -> None:
    with pytest.raises(InputError, match=f"id {wrong} is none of a vocabulary"):
        IdTexts().text(np.array([5, wrong], dtype=np.int32))


@given(st.text(min_size=1), IDS, IDS)
def test_the_journals_checksum_is_that_of_the_arrays(key: str, prompt: list[int], output: list[int]) -> None:
    key = key.encode("utf-8", "replace").decode()
    line = msgspec.json.encode({"key": key, "prompt_ids": prompt, "output_ids": output, "finish_reason": "stop"})
    from rawtokens.training.checksums import _line_checksum

    ids = ",".join(map(str, [*prompt, *output])).encode()
    wanted = hashlib.sha256(key.encode() + b"\n" + ids).digest()[:16]
    assert _line_checksum(line + b"\n", "line") == wanted
    assert _line_checksum(line.replace(b",", b", ") + b"\n", "line") == wanted or b"," in key.encode()
    assert row_checksums([key], iter([ids]))[0] == wanted.rstrip(b"\0")


def test_a_torn_last_line_is_no_row_and_a_foreign_line_is_named(tmp_path: Path) -> None:
    training_data.write(tmp_path)
    journal = tmp_path / "raw_responses.jsonl"
    whole = journal_checksums(tmp_path)
    assert len(whole) == len(training_data.ROWS)
    with journal.open("ab") as file:
        file.write(b'{"key":"z#0/0","prompt_')
    assert (journal_checksums(tmp_path) == whole).all()
    with journal.open("ab") as file:
        file.write(b"\n")
    with pytest.raises(InputError, match=r"raw_responses\.jsonl: line 10 is no record of this kit"):
        journal_checksums(tmp_path)


def test_masks_that_differ_have_other_checksums() -> None:
    mask = np.array([0, 1, 1, 0, 1, 0], dtype=np.int8)
    one, two = mask_checksums(mask, np.array([0, 3, 6]))
    assert one != two
    assert mask_checksums(mask[:3], np.array([0, 3]))[0] == one
