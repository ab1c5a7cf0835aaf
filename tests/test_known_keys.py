from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawtokens.capture import known_keys
from rawtokens.capture.known_keys import KnownKeys, scan_keys
from rawtokens.errors import InputError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def record(key: str, ids: int = 3) -> bytes:
    return msgspec.json.encode({"key": key, "prompt_ids": [1], "output_ids": list(range(ids))}) + b"\n"


@given(there=st.lists(TEXTS), later=st.lists(TEXTS), asked=st.lists(TEXTS))
def test_known_keys_are_a_set(there: list[str], later: list[str], asked: list[str]) -> None:
    known = KnownKeys(key.encode() for key in there)
    for key in later:
        known.add(key)
    everything = [*there, *later, *asked]
    expected = [key in {*there, *later} for key in everything]
    assert [key in known for key in everything] == expected
    assert known.contains_each(everything).tolist() == expected


def test_new_keys_are_merged_and_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_NEW_KEYS", 10)
    known = KnownKeys(b"old-%d" % number for number in range(50))
    for number in range(95):
        known.add(f"new-{number}")
    assert len(known) == 145
    assert known.contains_each([f"new-{number}" for number in range(95)]).all()
    assert known.contains_each([f"old-{number}" for number in range(50)]).all()
    assert not known.contains_each([f"other-{number}" for number in range(95)]).any()


def test_a_digest_that_ends_in_zeros_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed-width bytes drop zeros at their end when they are read, and must not when they are compared."""
    digests = {"a": bytes(16), "b": b"\1" + bytes(15), "c": b"\1\0\1" + bytes(13), "d": b"\0\1" + bytes(14)}
    monkeypatch.setattr(known_keys, "_digest", digests.__getitem__)
    known = KnownKeys()
    known._sorted = np.array(sorted([digests["a"], digests["c"]]), dtype="S16")
    assert [name for name in "abcd" if name in known] == ["a", "c"]


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_lines_longer_and_shorter_than_a_block_are_read_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(known_keys, "_BLOCK_BYTES", block)
    keys = ["a", "b/c#0/1", 'quo"te', "back\\slash", "ünï\u2028cödé", '","prompt_ids":', "line\nfeed"]
    path = tmp_path / "raw_responses.jsonl"
    path.write_bytes(b"".join(record(key, ids=number * 5) for number, key in enumerate(keys)) + record("torn")[:-1])
    assert [key.decode() for key in scan_keys(path)] == keys


def test_one_key_in_two_spellings_is_one_key(tmp_path: Path) -> None:
    path = tmp_path / "raw_responses.jsonl"
    path.write_bytes(b'{"key":"\\u00fc\\/1","prompt_ids":[]}\n')
    assert "ü/1" in KnownKeys.of([path])


@pytest.mark.parametrize("foreign", [b"\n", b"{}\n", b'{"key":"x"}\n', b'{"key":"\xff","prompt_ids":[]}\n', b"\0\0\n"])
def test_a_line_without_a_key_is_named(tmp_path: Path, foreign: bytes) -> None:
    path = tmp_path / "raw_responses.jsonl"
    path.write_bytes(record("a") * 2 + foreign + record("b"))
    with pytest.raises(InputError, match=r"line 3 is no record of this kit .* --where foreign"):
        KnownKeys.of([path])


def test_a_key_takes_sixteen_bytes(tmp_path: Path) -> None:
    known = KnownKeys(b"%d" % number for number in range(10_000))
    assert known._sorted.nbytes == 160_000
