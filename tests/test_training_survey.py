"""The loss report against plain reading, and the draft vocabulary by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import training_data
from training_data import KIMI, MASKS, NAMES, ROWS, VOCABULARY

from rawtokens.errors import InputError
from rawtokens.reporting.display import figure_html
from rawtokens.training import draft_vocabulary, training_figures
from rawtokens.training.draft_vocabulary import IdCounts, choose, coverage_table
from rawtokens.training.loss_report import PARTS, TRAINERS, TrainerLoss, loss_table, loss_takeaway, write_loss_report
from rawtokens.training.policies import select_rows
from rawtokens.training.settings import TrainingSettings
from rawtokens.training.survey import Survey, survey
from rawtokens.training.torch_archive import read_archive

LENGTHS = (1, 6, 7, 8, 9, 11, 14, 16, 17, 100)
KEPT = [row for row in ROWS if row[0] not in ("g#0/0", "h#0/0")]


def look(folder: Path, **asked: object) -> Survey:
    settings = TrainingSettings(**{"held_out": 0.0, "report_lengths": LENGTHS, **asked})  # type: ignore[arg-type]
    selection = select_rows(folder, settings)
    return survey(folder, selection, markers=KIMI, vocabulary_size=VOCABULARY, settings=settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_data.write(tmp_path_factory.mktemp("survey"))


def plain_loss(mask: str, trainer: str, length: int, *, shift: bool = False) -> TrainerLoss:
    """What a trainer does to each row, id by id."""
    (asked,) = [known for known in TRAINERS if known.name == trainer]
    loss = TrainerLoss(
        trainer=trainer, max_length=length, supervised=dict.fromkeys(PARTS, 0), lost=dict.fromkeys(PARTS, 0)
    )
    for key, prompt, output, _ in KEPT:
        ones = {name: [0] * len(prompt) + [int(one) for one in MASKS[key][place]] for place, name in enumerate(NAMES)}
        row = ones[mask]
        if not any(row):
            continue
        if shift:
            row = [int(one or after) for one, after in zip(row, [*row[1:], 0], strict=True)]
        size = len(prompt) + len(output)
        gone = sum(row[:length]) < asked.fewest or (not asked.cuts and size >= length)
        loss.rows += 1
        loss.dropped += gone
        loss.cut += not gone and size > length
        loss.dropped_keys += [key] * gone
        for part in PARTS:
            wanted = [own and under for own, under in zip(ones[part], ones[mask], strict=True)]
            loss.supervised[part] += sum(wanted)
            loss.lost[part] += sum(wanted) if gone else sum(wanted[length:])
    return loss


@pytest.mark.parametrize("mask", NAMES)
@pytest.mark.parametrize("shift", [False, True])
def test_the_report_names_what_plain_reading_finds(folder: Path, mask: str, shift: bool) -> None:
    found = look(folder, mask=mask, boundary_shift=shift).losses.losses
    assert found == [plain_loss(mask, trainer.name, length, shift=shift) for trainer in TRAINERS for length in LENGTHS]
    for loss in found:
        assert all(0 <= loss.lost[part] <= loss.supervised[part] for part in PARTS)


def test_held_out_rows_are_no_part_of_the_report(folder: Path) -> None:
    whole, part = look(folder), look(folder, held_out=0.5)
    assert 0 < part.losses.losses[0].rows < whole.losses.losses[0].rows
    counted = part.counts.total + part.counts.held_out
    assert counted.tolist() == whole.counts.total.tolist()


def test_a_table_a_sentence_and_a_file_tell_the_report(folder: Path, tmp_path: Path) -> None:
    report = look(folder).losses
    table = loss_table(report)
    assert list(table["max length"]) == list(LENGTHS) * len(TRAINERS)
    at_eleven = table[(table["trainer"] == "speculators") & (table["max length"] == 11)].iloc[0]
    assert at_eleven["lost"] == sum(max(0, len(row[1]) + len(row[2]) - 11) for row in KEPT)
    assert loss_takeaway(report).startswith("With a length of 17 no trainer drops or cuts any of 7 rows. At 1 ")
    written = write_loss_report(tmp_path, report)
    assert written.read_bytes().count(b'"trainer"') == len(table)
    html = figure_html(training_figures.trainer_losses(report), alt="a", caption="c")
    assert html.startswith("<figure><img")


def test_ids_are_counted_by_part(folder: Path) -> None:
    counts = look(folder).counts
    found: dict[str, dict[int, int]] = {part: {} for part in PARTS}
    for key, _, output, _ in KEPT:
        for place, part in enumerate(NAMES[1:], start=1):
            for one, item in zip(MASKS[key][place], output, strict=True):
                if one == "1":
                    found[part][item] = found[part].get(item, 0) + 1
    for number, part in enumerate(PARTS):
        seen = np.flatnonzero(counts.train[number]).tolist()
        assert {item: int(counts.train[number][item]) for item in seen} == found[part]
    only = look(folder, mask="answer").counts
    assert only.train[1].tolist() == counts.train[1].tolist()
    assert only.train[0].sum() == only.train[2].sum() == 0


def counts_of(total: list[int], held_out: list[int] | None = None) -> IdCounts:
    counts = IdCounts(len(total), "sampled")
    counts.train[0] = total
    counts.held_out[:] = held_out or [0] * len(total)
    return counts


def test_the_most_frequent_ids_are_chosen_and_the_smaller_of_equals() -> None:
    made = choose(counts_of([0, 5, 2, 9, 2, 0]), 3)
    assert made.t2d.tolist() == [False, True, True, True, False, False]
    assert made.d2t.tolist() == [1, 1, 1]
    assert (np.arange(3) + made.d2t).tolist() == [1, 2, 3]
    assert made.d2t.dtype == np.int64
    assert made.t2d.dtype == np.bool_


def test_ids_that_never_occur_fill_up_from_below() -> None:
    assert np.flatnonzero(choose(counts_of([0, 0, 0, 7, 0]), 3).t2d).tolist() == [0, 1, 3]
    whole = choose(counts_of([1, 0]), 10)
    assert whole.d2t.tolist() == [0, 0]
    assert whole.t2d.all()
    with pytest.raises(InputError, match="draft vocabulary of 0 ids"):
        choose(counts_of([1]), 0)


def test_coverage_is_the_share_of_occurrences() -> None:
    table = coverage_table(counts_of([10, 0, 30, 60], [1, 1, 1, 1]), (1, 2, 3, 400))
    assert table["ids"].tolist() == [1, 2, 3, 4]
    assert table["all"].tolist() == [0.6, 0.9, 1.0, 1.0]
    assert table["held out"].tolist() == [0.25, 0.5, 0.75, 1.0]
    assert table["answer"].isna().all()


def test_an_id_outside_the_vocabulary_is_refused(folder: Path) -> None:
    settings = TrainingSettings(held_out=0.0)
    with pytest.raises(InputError, match="is outside the vocabulary of 1000 ids"):
        survey(folder, select_rows(folder, settings), markers=KIMI, vocabulary_size=1000, settings=settings)


def test_the_mapping_is_written_as_trainers_read_it(folder: Path, tmp_path: Path) -> None:
    counts = look(folder).counts
    paths = draft_vocabulary.write_draft_vocabulary(tmp_path, counts, 8)
    assert [path.name for path in paths] == ["d2t-8.npy", "t2d-8.npy", "vocab_mapping.pt", "token_freq.pt"]
    made = choose(counts, 8)
    assert np.load(paths[0]).tolist() == made.d2t.tolist()
    assert np.load(paths[1]).tolist() == made.t2d.tolist()
    archived = read_archive(paths[3])
    assert isinstance(archived, dict)
    assert archived == {item: int(counts.total[item]) for item in np.flatnonzero(counts.total).tolist()}


def test_nothing_to_train_on_draws_and_says_so(tmp_path: Path) -> None:
    found = look(training_data.write(tmp_path, [ROWS[7]]))
    assert loss_takeaway(found.losses) == "There is no row to train on."
    assert draft_vocabulary.coverage_takeaway(found.counts, 10) == "There is no id to train on."
    for figure in (training_figures.trainer_losses(found.losses), training_figures.draft_coverage(found.counts, 10)):
        assert figure.axes
    assert isinstance(loss_table(found.losses), pd.DataFrame)


def test_coverage_is_drawn_for_the_parts_that_there_are(folder: Path) -> None:
    found = look(folder).counts
    figure = training_figures.draft_coverage(found, 10)
    assert [line.get_label() for line in figure.axes[0].lines][:4] == ["all", "reasoning", "answer", "tool calls"]
    said = draft_vocabulary.coverage_takeaway(found, 4)
    assert said.startswith(
        f"{int((found.total > 0).sum())} different ids are trained on. A draft vocabulary of 4 covers "
    )
