"""Exports as the trainers' own code reads them: ids and masks identical, no row lost but those that we name.

speculators 0.9.0 and SpecForge 0.2.0 run in environments of their own (make trainers).
"""

import hashlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import training_data
from small_dataset import CLOSER, END
from training_data import KIMI, VOCABULARY, Row

from rawtokens.training.draft_vocabulary import write_draft_vocabulary
from rawtokens.training.export import export
from rawtokens.training.loss_report import TrainerLoss
from rawtokens.training.policies import select_rows
from rawtokens.training.settings import TrainingSettings
from rawtokens.training.survey import Survey, survey

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.trainers
LENGTHS = (1_000, 2_048, 100_000)


def many_rows() -> list[Row]:
    """800 rows of up to 4,000 ids: the first 500 ended by themselves, the others were cut, some of them in thinking."""
    random = np.random.default_rng(11)
    rows: list[Row] = []
    for number in range(800):
        prompt = training_data.prompt_of(number, *random.integers(10, 160_000, [3, 1200][number % 7 == 0]).tolist())
        body = np.minimum(random.zipf(1.3, int(random.integers(300, 4_000))) + 10, 160_000).tolist()
        place = len(body) * 2 // 3
        closed = [*body[:place], CLOSER, *body[place:]]
        if number < 500:
            rows.append((f"r{number}#0/0", prompt, [*closed, END], "stop"))
        else:
            rows.append((f"r{number}#0/0", prompt, body if number % 5 == 0 else closed, "length"))
    return rows


ROWS = many_rows()
MASKS = ("sampled", "answer")


def run(environment: str, script: str, *arguments: object, questions: object = None) -> object:
    python = ROOT / environment / "bin" / "python"
    assert python.exists(), f"{environment} is missing; make trainers sets it up"
    command = [str(python), str(ROOT / "tests" / "trainer_loaders" / script), *map(str, arguments)]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def digest(ids: Sequence[int], mask: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps((list(ids), list(mask))).encode()).hexdigest()


def expected(mask: str, max_length: int, fewest: int = 1) -> dict[str, str]:
    """The digest of every row that has enough ids to train on within the length, by key; masks by plain reading."""
    found = {}
    for key, prompt, output, _ in ROWS:
        closer = output.index(CLOSER) if CLOSER in output else len(output)
        ones = [int(mask == "sampled" or place > closer) for place in range(len(output))]
        ids, row = [*prompt, *output][:max_length], [*[0] * len(prompt), *ones][:max_length]
        if sum(row) >= fewest:
            found[key] = digest(ids, row)
    return found


class Exported:
    """A data set exported with one mask, and what the survey says of it."""

    def __init__(self, folder: Path, mask: str) -> None:
        self.folder = training_data.write(folder, ROWS)
        formats = ("specforge", "speculators", "torchspec")
        settings = TrainingSettings(formats=formats, mask=mask, held_out=0.0, report_lengths=LENGTHS, flagged="keep")
        self.entries = export(self.folder, markers=KIMI, settings=settings, on_line=lambda _: None)
        selection = select_rows(self.folder, settings)
        self.survey: Survey = survey(
            self.folder, selection, markers=KIMI, vocabulary_size=VOCABULARY, settings=settings
        )
        self.left_out = sum(self.entries[0].left_out.values())
        self.vocabulary = write_draft_vocabulary(self.folder, self.survey.counts, 8_000)
        self.answers = self.asked()

    def asked(self) -> dict[str, object]:
        """What speculators answers to every question of these tests, asked at once."""
        d2t, t2d, mapping, ours = map(str, self.vocabulary)
        file = str(self.file("speculators"))
        questions: dict[str, list[object]] = {
            **{f"rows {length}": ["rows", file, length] for length in LENGTHS},
            "cache": ["load", str(self.file("torchspec"))],
            "counted": ["frequencies", file, str(self.folder / "freq.pt")],
            "counts": ["load", ours],
            "chosen": ["vocabulary", ours, d2t, t2d, VOCABULARY],
            "mapping": ["load", mapping],
        }
        answers = run(".venv-speculators", "speculators_rows.py", questions=list(questions.values()))
        assert isinstance(answers, list)
        return dict(zip(questions, answers, strict=True))

    def file(self, name: str) -> Path:
        (path,) = (self.folder / "training" / name).iterdir()
        return path

    def loss(self, trainer: str, length: int) -> TrainerLoss:
        return next(x for x in self.survey.losses.losses if (x.trainer, x.max_length) == (trainer, length))


@pytest.fixture(scope="module", params=MASKS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Exported]:
    return request.param, Exported(tmp_path_factory.mktemp(request.param), request.param)


def test_the_files_are_larger_than_a_block_of_datasets(exported: tuple[str, Exported]) -> None:
    assert exported[1].file("speculators").stat().st_size > 10_000_000
    assert {row[3] for row in ROWS} == {"stop", "length"}


@pytest.mark.parametrize(("trainer", "fewest"), [("SpecForge (EAGLE-3)", 1), ("SpecForge (DFlash)", 2)])
@pytest.mark.parametrize("length", LENGTHS)
def test_specforge_loads_the_ids_and_masks_that_were_captured(
    exported: tuple[str, Exported], length: int, trainer: str, fewest: int
) -> None:
    mask, made = exported
    found = run(".venv-specforge", "specforge_rows.py", made.file("specforge"), length, fewest)
    assert found == list(expected(mask, length, fewest).values())
    hold_to_report(made, made.loss(trainer, length), expected(mask, length, fewest))


@pytest.mark.parametrize("length", LENGTHS)
def test_speculators_loads_the_ids_and_masks_that_were_captured(exported: tuple[str, Exported], length: int) -> None:
    mask, made = exported
    assert made.answers[f"rows {length}"] == list(expected(mask, length).values())
    hold_to_report(made, made.loss("speculators", length), expected(mask, length))


def hold_to_report(made: Exported, loss: TrainerLoss, loaded: dict[str, str]) -> None:
    """The rows that did not come are those that the loss report names, and no others."""
    rows = {row[0]: len(row[1]) + len(row[2]) for row in ROWS}
    assert loss.rows == len(ROWS) - made.left_out
    assert loss.rows - loss.dropped == len(loaded)
    assert loss.cut == sum(rows[key] > loss.max_length for key in loaded)
    everything = expected(made.entries[0].mask, 10**6)
    assert loss.dropped_keys == [key for key in everything if key not in loaded][:100]


def test_torch_loads_torchspecs_cache(exported: tuple[str, Exported]) -> None:
    mask, made = exported
    found = made.answers["cache"]
    assert isinstance(found, list)
    rows = {}
    for row in found:
        assert set(row) == {
            "data_id",
            "metadata",
            "multimodal_inputs",
            "formatted_prompt",
            "input_ids",
            "packed_loss_mask",
        }
        assert row["input_ids"]["dtype"] == "torch.int64"
        (ids,) = row["input_ids"]["values"]
        lengths = [int(length) for length in row["packed_loss_mask"].split(",")]
        rows[row["data_id"]] = digest(ids, [place % 2 for place, length in enumerate(lengths) for _ in range(length)])
    assert rows == expected(mask, 10**6)


def test_speculators_counts_and_chooses_the_same_draft_vocabulary(exported: tuple[str, Exported]) -> None:
    _, made = exported
    assert made.answers["counted"] == made.answers["counts"]
    assert made.answers["chosen"] == {"equal": [True, True], "dtypes": ["torch.int64", "torch.bool"]}
    d2t, t2d, *_ = made.vocabulary
    assert made.answers["mapping"] == {
        "d2t": {"dtype": "torch.int64", "values": np.load(d2t).tolist()},
        "t2d": {"dtype": "torch.bool", "values": np.load(t2d).tolist()},
    }
