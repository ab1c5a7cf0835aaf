"""What stands below the table of a run: over folders as stages leave them, no stage runs here."""

import re
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_dataset

from rawtokens.notebook_stages.pipeline import NOTEBOOKS, Plan, _parts
from rawtokens.notebook_stages.stages import digest_of, write_stage_record
from rawtokens.records import VERIFIED_SCHEMA
from rawtokens.reporting.closing import RETRIED, older_figures, retry_command, retry_lines, warnings_among
from rawtokens.reporting.reading_guide import entries
from rawtokens.response_checks.checks import DEFAULT_POLICY
from rawtokens.run_file import load_run_file

ROOT = Path(__file__).parents[1]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "run.yaml").write_text(
        "run: tiny\nmodel: {tokenizer: ./tokenizer}\nservers: {urls: ['http://127.0.0.1:1']}\n"
        "datasets: {A: {prompts: a.jsonl}, B: {prompts: b.jsonl}}\n"
    )
    settings = load_run_file(tmp_path / "run.yaml")
    return Plan(settings=settings, run_folder=tmp_path / "tiny", notebooks=ROOT / "notebooks", datasets=("A", "B"))


@pytest.fixture
def folder(plan: Plan) -> Path:
    return small_dataset.write(plan.run_folder / "A")


def finish(plan: Plan, stage: str) -> None:
    """Let a stage of data set A have finished with the files that are there now."""
    executed = plan.run_folder / "A" / "notebooks" / f"{NOTEBOOKS[stage]}.ipynb"
    executed.parent.mkdir(exist_ok=True)
    executed.write_text("{}")
    parts = _parts(plan, stage, "A")
    write_stage_record(executed, digest=digest_of(parts), outputs=[], parts=parts)


def reject(folder: Path, *reasons: str) -> None:
    """Let the first rows of verified.parquet be rejected, each for one of these reasons."""
    rows = pq.read_table(folder / "verified.parquet").to_pylist()
    for row, reason in zip(rows, reasons, strict=False):
        row |= {"verdict": "reject", "reasons": [reason]}
    pq.write_table(pa.Table.from_pylist(rows, schema=VERIFIED_SCHEMA), folder / "verified.parquet")


def told(plan: Plan) -> list[str]:
    return list(retry_lines(plan, retry_command(Path("run.yaml"), ["--outputs", "my runs"])))


FAILED = (
    "A: 1 generation failed (count_mismatch 1); once the cause is mended: "
    "rawtokens retry run.yaml --dataset A --outputs 'my runs'"
)


def test_rows_to_an_earlier_prompt_come_with_the_command_that_draws_them_again(plan: Plan, folder: Path) -> None:
    reject(folder, "prompt_changed", "prompt_changed", "prompt_unknown", "key_repeated")
    finish(plan, "03")
    assert told(plan) == [
        "A: 1 response without the stop id that the server matched (stop_missing); once the cause is mended (the guide "
        "tells of stop_missing): rawtokens retry run.yaml --dataset A --where reason=stop_missing --outputs 'my runs'",
        "A: 2 responses to an earlier prompt (prompt_changed); next: rawtokens retry run.yaml --dataset A "
        "--where reason=prompt_changed --outputs 'my runs'",
        FAILED,
    ]


def test_rows_are_not_told_by_a_verification_that_is_not_of_the_journal(plan: Plan, folder: Path) -> None:
    reject(folder, "prompt_changed")
    assert told(plan) == [FAILED]
    finish(plan, "03")
    assert len(told(plan)) == 3
    (folder / "raw_responses.jsonl").write_bytes(b"")
    assert told(plan) == [FAILED]


def test_a_damaged_file_is_left_to_the_stage_that_reads_it(plan: Plan, folder: Path) -> None:
    (folder / "verified.parquet").write_bytes(b"PAR1")
    finish(plan, "03")
    assert told(plan) == []


def test_what_is_told_to_be_drawn_again_is_what_the_guide_says() -> None:
    advice = {code: text.partition("**What to do:**")[2] for code, text in entries().items()}
    rejecting = [code for code, verdict in DEFAULT_POLICY.items() if verdict == "reject"]
    assert set(RETRIED) == {code for code in rejecting if re.search(r"retry|draw", advice[code], re.IGNORECASE)}


def test_figures_are_older_where_their_files_changed(plan: Plan, folder: Path) -> None:
    assert older_figures(plan, ["A", "B"]) == {}  # made by papermill alone, or not at all
    finish(plan, "03")
    assert older_figures(plan, ["A", "B"]) == {}
    (folder / "summary.json").write_bytes(msgspec.json.encode({"rows": 11}))
    finish(plan, "04")
    assert older_figures(plan, ["A", "B"]) == {}
    (folder / "raw_responses.jsonl").write_bytes(b"")
    assert older_figures(plan, ["A", "B"]) == {"A": "stage 04 has not run since: raw_responses.jsonl changed"}
    (folder / "summary.json").unlink()
    assert older_figures(plan, ["A", "B"]) == {"A": "stage 03 has not run since: raw_responses.jsonl changed"}


def test_warnings_are_told_again_with_their_stage() -> None:
    lines = [
        "A 01_tokenize_prompts: running",
        "  notice: a notice",
        "  warning: the chat template never reads 'thinkng'; giving it changes nothing",
        "A 01_tokenize_prompts: done in 3 s",
        "B 01_tokenize_prompts: running",
        "  a warning: that is none",
    ]
    assert warnings_among(lines) == [
        "A 01_tokenize_prompts: warning: the chat template never reads 'thinkng'; giving it changes nothing"
    ]
