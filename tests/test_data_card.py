import json
import shutil
from pathlib import Path

import datasets  # type: ignore[import-untyped]
import msgspec
import pyarrow.parquet as pq
import pytest
import small_dataset
from html_pages import check_page
from huggingface_hub import DatasetCard

from rawtokens.errors import InputError
from rawtokens.fidelity.audit_records import Audits, rate, write_audits
from rawtokens.reporting.data_card import Exported, data_card, write_data_card
from rawtokens.reporting.token_statistics import summary, write_summary

MANIFEST = {
    "tokenizer": "moonshotai/Kimi-K2.5",
    "tokenizer_revision": "0123abc",
    "chat_template_sha256": "9606",
    "template_kwargs": {"thinking": True},
    "engine": "sglang",
    "engine_version": "0.5.23",
    "model": "Kimi|K2.5",
    "quantization": None,
    "sampling": {"temperature": 0.6, "max_new_tokens": 4096},
    "fingerprint": "31e9149557adb1fb",
}
RERENDERING = (
    "rows_changed",
    "reasoning_ids_lost",
    "rows_with_empty_thinking",
    "rows_unread",
    "rows_with_changed_calls",
)
DRIFT = (
    "rows_changed",
    "ids_changed",
    "reasoning_ids_lost",
    "answer_ids_lost",
    "tool_call_ids_lost",
    "rows_with_lost_text",
    "rows_not_decoded",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A verified data set with what the card is made from."""
    made = small_dataset.write(tmp_path / "run" / "B1")
    write_summary(made, summary(made, "B1"))
    (made / "run.json").write_text(json.dumps(MANIFEST))
    rates = {name: rate(2, 8, "d") for name in DRIFT}
    again = {name: rate(1, 8, "d") for name in RERENDERING}
    audits = Audits(rows=8, ids=99, rerendered_rows=8, seed=1, drift=rates, rerendering=again, unread={}, examples=[])
    write_audits(made, audits)
    return made


def line(card: str, *cells: str) -> bool:
    return f"| {' | '.join(cells)} |" in card


def test_a_card_tells_how_the_data_was_captured_and_what_became_of_every_row(folder: Path) -> None:
    card = data_card(folder, "B1")
    assert line(card, "tokenizer revision", "`0123abc`")
    assert line(card, "target model", "`Kimi\\|K2.5`")
    assert "quantization" not in card
    assert line(card, "temperature", "`0.6`")
    assert line(card, "rows of the prompt file", "11")
    assert line(card, "responses", "8")
    assert line(card, "row without a prompt", "`template_error`", "1")
    assert line(card, "response not given", "`count_mismatch`", "1")
    assert line(card, "verification, a row may have several", "`stop_missing`", "1")
    assert line(card, "`opened`", "10")
    assert line(card, "`closed`", "2")
    assert "rendered and tokenised once, on the client, before they were sent. The output ids are what" in card
    assert "Re-tokenising would change 2 of 8 rows" in card
    assert str(folder.parent) not in card


def test_lengths_are_those_of_the_files(folder: Path) -> None:
    outputs = sorted(pq.read_table(folder / "verified.parquet")["output_tokens"].to_pylist())
    (found,) = [text for text in data_card(folder, "B1").splitlines() if text.startswith("| output |")]
    cells = found.strip("| ").split(" | ")
    assert (cells[1], cells[2], cells[6], cells[7]) == ("8", str(outputs[0]), str(outputs[-1]), str(sum(outputs)))


def test_the_hub_s_own_reader_takes_the_front_matter(folder: Path) -> None:
    found = DatasetCard(data_card(folder, "B1")).data.to_dict()  # type: ignore[no-untyped-call]
    assert found["license"] == "unknown"
    assert found["pretty_name"] == "B1"
    assert found["size_categories"] == ["n<1K"]
    assert "sglang" in found["tags"]
    assert "license: unknown  # fill this in" in data_card(folder, "B1")


def test_the_card_as_readme_loads_the_data_with_every_id(folder: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    hub.mkdir()
    shutil.copy(folder / "verified.parquet", hub)
    (hub / "README.md").write_text(data_card(folder, "B1"))
    rows = datasets.load_dataset(str(hub), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows["output_ids"][:] == pq.read_table(folder / "verified.parquet")["output_ids"].to_pylist()


def test_the_card_s_own_words_load_it(folder: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    hub.mkdir()
    shutil.copy(folder / "verified.parquet", hub)
    card = data_card(folder, "B1")
    (hub / "README.md").write_text(card)
    code = card.partition("```python\n")[2].partition("```")[0]
    code = code.replace('"OWNER/NAME"', f"{str(hub)!r}, cache_dir={str(tmp_path / 'cache')!r}")
    found: dict[str, object] = {}
    exec(code, found)
    assert found["ids"] == [*small_dataset.PROMPT, 1, 2, 3, small_dataset.CLOSER, 4, small_dataset.END]


def test_other_splits_are_named(folder: Path) -> None:
    splits = {"train": "data/train-*.parquet", "test": "data/test-*.parquet"}
    card = data_card(folder, "B1", exported=Exported(splits=splits, rows=1_234, lead="LEAD", columns="COLUMNS"))
    assert "prompt_ids" not in card
    assert card.count("LEAD") == card.count("COLUMNS") == 1
    assert DatasetCard(card).data.to_dict()["size_categories"] == ["1K<n<10K"]  # type: ignore[no-untyped-call]
    assert DatasetCard(card).data.to_dict()["configs"] == [  # type: ignore[no-untyped-call]
        {
            "config_name": "default",
            "data_files": [
                {"split": "train", "path": "data/train-*.parquet"},
                {"split": "test", "path": "data/test-*.parquet"},
            ],
        }
    ]


def test_the_card_is_a_page_too(folder: Path) -> None:
    assert "license is for you to fill in" in write_data_card(folder, "B1")
    page = (folder / "data_card.html").read_text()
    check_page(page, folder=folder)
    assert "license: unknown" not in page
    assert "<h2>Counts in and out</h2>" in page
    assert (folder / "data_card.md").read_text() == data_card(folder, "B1")


def test_a_run_that_ended_early_says_so(folder: Path) -> None:
    numbers = msgspec.json.decode((folder / "summary.json").read_bytes(), type=dict)
    completion = {"planned": 4000, "standardised_difference": -0.5, "largest_shift": "mean prompt ids"}
    (folder / "summary.json").write_bytes(msgspec.json.encode({**numbers, "completion": completion}))
    card = data_card(folder, "B1")
    assert "8 of 4,000 planned responses are here" in card
    assert "mean prompt ids: -0.50 deviations" in card


def test_what_is_missing_is_named(folder: Path) -> None:
    (folder / "run.json").unlink()
    assert "does not say how this data was captured" in write_data_card(folder, "B1")
    assert not (folder / "data_card.md").exists()
    with pytest.raises(InputError, match=r"no run.json of a capture"):
        data_card(folder, "B1")
    (folder / "summary.json").unlink()
    with pytest.raises(InputError, match=r"summary.json can't be read .*04_report_token_statistics"):
        data_card(folder, "B1")


def test_without_audits_the_card_says_so(folder: Path) -> None:
    (folder / "audits.json").unlink()
    assert "It was not tried here." in data_card(folder, "B1")
