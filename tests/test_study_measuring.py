"""Which heads are on record, and which are to be trained: a study goes on where it was stopped."""

from pathlib import Path

import msgspec
import pytest
from test_study_results import facts, head, sequences

from rawtokens.demo.model import STAMP
from rawtokens.errors import InputError, RunStopped
from rawtokens.study.__main__ import changed_form, main
from rawtokens.study.datasets import vocabulary_files
from rawtokens.study.environment import called, find_speculators
from rawtokens.study.forms import form_of
from rawtokens.study.measuring import Ground, head_digest, head_folder, missing_seeds, read_heads

FORM = form_of("full")
ARM = facts("retokenised")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """The files that decide a head, and nothing trained yet."""
    given = Ground(place=tmp_path / "arms", model=tmp_path / "model", captured=tmp_path / "captured")
    for path in (
        given.place / "evaluation.jsonl",
        given.model / STAMP,
        *vocabulary_files(given.captured, FORM.draft_vocabulary).values(),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"something")
    (given.place / ARM.arm).mkdir()
    return given


def put(ground: Ground, seed: int, digest: str, ending: str = "\n") -> None:
    made = msgspec.structs.replace(head(ARM.arm, seed, sequences(3)), digest=digest)
    with (ground.place / ARM.arm / "results.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(made) + ending.encode())


def test_seeds_on_record_are_not_trained_again(ground: Ground) -> None:
    assert missing_seeds(ground, ARM, FORM) == [1, 2, 3, 4, 5]
    put(ground, 2, head_digest(ground, ARM, FORM))
    assert missing_seeds(ground, ARM, FORM) == [1, 3, 4, 5]
    assert [each.seed for each in read_heads(ground, ARM, FORM)] == [2]


def test_a_head_of_other_rows_settings_evaluation_or_target_does_not_count(ground: Ground) -> None:
    put(ground, 1, head_digest(ground, ARM, FORM))
    others = [
        (msgspec.structs.replace(ARM, digest="other rows"), FORM),
        (ARM, msgspec.structs.replace(FORM, epochs=9)),
    ]
    for arm, form in others:
        assert read_heads(ground, arm, form) == []
    for path in (ground.place / "evaluation.jsonl", ground.model / STAMP):
        before = path.read_bytes()
        path.write_bytes(b"others")
        assert read_heads(ground, ARM, FORM) == []
        path.write_bytes(before)
    assert [each.seed for each in read_heads(ground, ARM, FORM)] == [1]


def test_a_line_that_a_kill_tore_is_trained_again_and_spoils_no_other(ground: Ground) -> None:
    digest = head_digest(ground, ARM, FORM)
    put(ground, 1, digest)
    path = ground.place / ARM.arm / "results.jsonl"
    path.write_bytes(path.read_bytes() + path.read_bytes()[:40])  # a torn start of seed 1's line, no newline
    put(ground, 2, digest)
    assert missing_seeds(ground, ARM, FORM) == [2, 3, 4, 5]
    put(ground, 2, digest)
    assert missing_seeds(ground, ARM, FORM) == [3, 4, 5]


def test_a_head_that_vllm_is_to_count_has_to_be_there(ground: Ground) -> None:
    form = msgspec.structs.replace(FORM, confirmed=(ARM.arm,))
    digest = head_digest(ground, ARM, form)
    for seed in form.seeds:
        put(ground, seed, digest)
    assert missing_seeds(ground, ARM, form) == [1]
    weights = head_folder(ground.place, ARM.arm, digest, 1) / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"")
    assert missing_seeds(ground, ARM, form) == []


def test_a_program_that_fails_is_told_with_its_last_line_and_its_log(tmp_path: Path) -> None:
    log = tmp_path / "x" / "program.log"
    with pytest.raises(RunStopped, match=r"ended with exit code 3: no rows \(its log: .*program.log\)"):
        called(["/bin/sh", "-c", "echo first; echo no rows; exit 3"], log=log)
    assert log.read_text() == "first\nno rows\n"


def test_an_environment_that_is_not_there_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAWTOKENS_SPECULATORS_PYTHON", str(tmp_path / "python"))
    with pytest.raises(InputError, match="make trainers"):
        find_speculators()


def test_a_form_takes_changes_by_name_and_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert changed_form("short", ["prompts=60", "seeds=[1,2]"]) == msgspec.structs.replace(
        form_of("short"), prompts=60, seeds=(1, 2)
    )
    for change in ("prompts=many", 'prompts="6"', "promts=6"):
        assert main(["--form", "short", "--set", change]) == 2
        assert "expected NAME=JSON" in capsys.readouterr().err
