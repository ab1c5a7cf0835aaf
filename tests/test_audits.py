"""The audits of a data set: what is written, what is counted, and what is said of it."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import small_dataset

from rawtokens.errors import InputError
from rawtokens.fidelity import audit_figures, audit_takeaways
from rawtokens.fidelity.audit_records import Audits, Rate, read_audits
from rawtokens.fidelity.audits import AUDITS_SCHEMA, audit_drift
from rawtokens.fidelity.replay_losses import likelihood_by_position, loss_behind_changes
from rawtokens.target.target_tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset.write(tmp_path_factory.mktemp("audited"))


@pytest.fixture(scope="module")
def audits(folder: Path, target: Tokenizer) -> Audits:
    return audit_drift(folder, target)


def test_every_row_of_verified_parquet_has_its_line_in_order(folder: Path, audits: Audits) -> None:
    verified, table = (pq.read_table(folder / name) for name in ("verified.parquet", "audits.parquet"))
    assert table.schema == AUDITS_SCHEMA
    assert table["key"].to_pylist() == verified["key"].to_pylist()
    assert table["output_tokens"].to_pylist() == verified["output_tokens"].to_pylist()
    assert audits.rows == small_dataset.ROWS
    assert read_audits(folder) == audits


def test_rates_are_counts_over_counts_with_a_definition(folder: Path, audits: Audits) -> None:
    rows = pq.read_table(folder / "audits.parquet").to_pylist()
    drift = audits.drift
    assert drift["rows_changed"].of == len(rows)
    assert drift["rows_changed"].count == sum(row["changed_tokens"] > 0 for row in rows)
    assert drift["ids_changed"].count == sum(row["changed_tokens"] for row in rows)
    assert drift["ids_changed"].of == sum(row["output_tokens"] for row in rows)
    kinds = ("reasoning", "answer", "tool_call")
    for kind in kinds:
        assert drift[f"{kind}_ids_lost"].count == sum(row[f"changed_{kind}_tokens"] for row in rows)
    for found in [*drift.values(), *audits.rerendering.values()]:
        assert 0 <= found.count <= found.of
        assert found.share == (found.count / found.of if found.of else None)
        assert found.definition


def test_rows_that_can_not_be_rendered_are_counted_with_their_reason(audits: Audits) -> None:
    # Prompts of this data set have no messages; rows are still compared, or told to be unread.
    read = audits.rerendering["rows_changed"].of
    assert audits.rerendered_rows == small_dataset.ROWS
    assert sum(audits.unread.values()) == audits.rerendering["rows_unread"].count == small_dataset.ROWS - read


def test_a_sample_is_drawn_with_its_seed(folder: Path, target: Tokenizer, audits: Audits) -> None:
    def drawn(seed: int) -> list[str]:
        assert audit_drift(folder, target, rerendered_rows=3, seed=seed).rerendered_rows == 3
        rows = pq.read_table(folder / "audits.parquet").to_pylist()
        return [row["key"] for row in rows if row["rerendered"] is not None]

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_data_set_without_verified_rows_is_refused(tmp_path: Path, target: Tokenizer) -> None:
    with pytest.raises(InputError, match="03_verify_responses"):
        audit_drift(tmp_path, target)
    with pytest.raises(InputError, match=r"audits\.json"):
        read_audits(tmp_path)
    (tmp_path / "audits.json").write_text(json.dumps({"rows": "many"}))
    with pytest.raises(InputError, match=r"audits\.json"):
        read_audits(tmp_path)


def made(count: int, of: int) -> Rate:
    return Rate(count=count, of=of, share=count / of if of else None, definition="d")


def found(rows: int) -> Audits:
    """Audits of `rows` rows of ten ids, of which one row and two ids change and all reasoning is lost."""
    none = made(0, rows)
    kinds = {"reasoning_ids_lost": made(2, 5 * rows), "answer_ids_lost": none, "tool_call_ids_lost": made(0, 0)}
    return Audits(
        rows=rows,
        ids=10 * rows,
        rerendered_rows=rows,
        seed=1,
        drift={
            "rows_changed": made(1, rows),
            "ids_changed": made(2, 10 * rows),
            "rows_with_lost_text": none,
            "rows_not_decoded": none,
            **kinds,
        },
        rerendering={
            "rows_changed": made(rows, rows),
            **kinds,
            "reasoning_ids_lost": made(5 * rows, 5 * rows),
            "rows_with_empty_thinking": made(rows, rows),
            "rows_with_changed_calls": made(0, 0),
            "rows_unread": none,
        },
        unread={},
        examples=[],
        replay_note="not asked for; audit.replay",
    )


def test_takeaways_say_the_numbers() -> None:
    assert audit_takeaways.drift(found(20)) == (
        "Re-tokenising would change 1 of 20 rows (5.00%) and 2 of 200 ids (1.00%): 2 in reasoning."
    )
    assert audit_takeaways.rerendering(found(20)) == (
        "Rendered again by the chat template, 20 of 20 rows (100.00%) would not be what the model saw and said: 100 of "
        "100 reasoning ids (100.00%) lost; 20 rows would train a thinking that is empty."
    )
    assert audit_takeaways.replay(found(20)) == "Replay: not asked for; audit.replay."


def test_nothing_to_audit_is_said_and_drawn_as_that(target: Tokenizer) -> None:
    empty = found(0)
    assert audit_takeaways.drift(empty) == "No row was compared."
    assert audit_takeaways.rerendering(empty) == "No row was rendered again."
    assert audit_takeaways.examples(empty, target).empty
    assert len(audit_figures.lost_ids(empty).axes) == 1


def test_figures_draw_every_version() -> None:
    from test_replay import CAPTURED, RERENDERED, RETOKENISED, scores_table

    table = scores_table(CAPTURED, RETOKENISED, RERENDERED)
    (bars,) = audit_figures.lost_ids(found(20)).axes
    assert [text.get_text() for text in bars.texts][:2] == ["2 of 100 ids", "0 of 20 ids"]
    lost = audit_takeaways.lost_table(found(20))
    assert lost.fillna(-1).to_numpy().tolist()[:4] == [
        ["re-tokenised", "reasoning", 2, 100, 0.02],
        ["re-tokenised", "answer", 0, 20, 0.0],
        ["re-tokenised", "tool calls", 0, 0, -1.0],
        ["re-rendered", "reasoning", 100, 100, 1.0],
    ]
    (lines,) = audit_figures.likelihood_by_position(likelihood_by_position(table)).axes
    assert [line.get_label() for line in lines.lines] == ["as captured", "re-tokenised", "re-rendered"]
    (losses,) = audit_figures.loss_behind_changes(loss_behind_changes(table)).axes
    assert len(losses.lines) == 3  # two versions and the level of no loss
