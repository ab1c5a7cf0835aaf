import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawtokens.errors import InputError
from rawtokens.shards import WHOLE, Shard, shard_of


@given(source=st.text(st.characters(exclude_categories=["Cs"])), count=st.integers(min_value=1, max_value=9))
def test_a_key_is_of_one_shard_and_samples_and_turns_stay_together(source: str, count: int) -> None:
    shards = [Shard(index, count) for index in range(1, count + 1)]
    keys = [f"{source}#{turn}/{sample}" for turn in (0, 1, 12) for sample in (0, 1, 17)]
    holders = [[shard for shard in shards if shard.holds(key)] for key in keys]
    assert [len(found) for found in holders] == [1] * len(keys)
    assert len({found[0] for found in holders}) == 1


def test_the_split_is_the_same_on_every_machine_and_even() -> None:
    keys = [f"{number}#0/0" for number in range(8000)]
    assert [key for key in keys[:12] if Shard(2, 3).holds(key)] == ["2#0/0", "7#0/0"]
    sizes = [sum(map(Shard(index, 8).holds, keys)) for index in range(1, 9)]
    assert sum(sizes) == 8000
    assert min(sizes) > 900
    assert max(sizes) < 1100


def test_files_are_named_by_shard() -> None:
    assert Shard(2, 8).file_name("raw_responses.jsonl") == "raw_responses.2-of-8.jsonl"
    assert WHOLE.file_name("raw_responses.jsonl") == "raw_responses.jsonl"
    assert (str(Shard(2, 8)), str(WHOLE)) == ("2/8", "")


@pytest.mark.parametrize(
    "text", ["0/8", "9/8", "2", "2/", "/8", "2/8/1", "-1/8", "a/b", " 2/8", "2 of 8", "1/0", "2/9999999"]
)
def test_what_names_no_shard_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected I/N with I from 1 to N"):
        shard_of(text)


def test_a_shards_name_is_read_back() -> None:
    assert (shard_of("2/8"), shard_of("1/1"), shard_of("")) == (Shard(2, 8), WHOLE, WHOLE)
