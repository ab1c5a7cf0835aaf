"""Counts before there is a summary.json: as far as the files tell them, and the same as the summary's."""

from pathlib import Path

import pytest
import small_dataset

from rawtokens.reporting.known_counts import known_counts, rejected_reasons
from rawtokens.reporting.token_statistics import summary


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([], {}),
        (["prompts.parquet", "rejected.jsonl"], {"rows": 11, "rejected_before_generation": 1}),
        (
            ["prompts.parquet", "rejected.jsonl", "raw_responses.jsonl"],
            {"rows": 11, "rejected_before_generation": 1, "generated": 8, "rejected_at_generation": 1},
        ),
    ],
)
def test_each_stage_adds_its_counts(tmp_path: Path, there: list[str], expected: dict[str, int]) -> None:
    for path in small_dataset.write(tmp_path).iterdir():
        if path.name not in there:
            path.unlink()
    assert known_counts(tmp_path) == expected


def test_after_verification_counts_are_those_of_the_summary(tmp_path: Path) -> None:
    folder = small_dataset.write(tmp_path)
    known, told = known_counts(folder), summary(folder, "A")
    assert (known["accepted"], known["flagged"], known["rejected"]) == (4, 3, 1)
    assert known == {name: told[name] for name in known}
    assert rejected_reasons(folder) == {"stop_missing": 1}


@pytest.mark.parametrize(
    ("name", "known"), [("prompts.parquet", 0), ("raw_responses.jsonl", 2), ("verified.parquet", 4)]
)
def test_a_damaged_file_tells_nothing(tmp_path: Path, name: str, known: int) -> None:
    (small_dataset.write(tmp_path) / name).write_bytes(b"{}\n")
    assert len(known_counts(tmp_path)) == known
