"""The command export and what it publishes; settings of a run file; one row's mask to look at."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import datasets  # type: ignore[import-untyped]
import huggingface_hub
import msgspec
import numpy as np
import pytest
import training_data
import yaml
from training_data import KIMI, MASKS, ROWS

from rawtokens.__main__ import main
from rawtokens.errors import InputError, RunStopped
from rawtokens.reporting import token_statistics
from rawtokens.run_file import load_run_file
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.training.estimates import cost_takeaway, hidden_state_bytes, storage_table
from rawtokens.training.export import export
from rawtokens.training.handoff import selection_table, selection_takeaway
from rawtokens.training.manifest import read_exports, write_exports
from rawtokens.training.mask_view import blocks_of, mask_html, show_mask
from rawtokens.training.policies import select_rows
from rawtokens.training.publish import publish
from rawtokens.training.rows import read_training_rows
from rawtokens.training.settings import TrainingSettings, training_settings

KEPT = [row for row in ROWS if row[0] not in ("g#0/0", "h#0/0")]
MANIFEST = {
    "fingerprint": "f",
    "model": "MODEL",
    "tokenizer": "kimi",
    "sampling": {"temperature": 1.0},
    "server": {"url": "http://10.0.0.7:30000"},
}


def write(folder: Path) -> Path:
    """A data set that all stages before this one have left."""
    training_data.write(folder)
    (folder / "run.json").write_text(json.dumps(MANIFEST))
    token_statistics.write_summary(folder, token_statistics.summary(folder, "A"))
    return folder


@pytest.fixture
def run_file(tmp_path: Path, kimi_folder: Path) -> Path:
    write(tmp_path / "outputs" / "r" / "A")
    (tmp_path / "evaluation.jsonl").write_text(
        '{"prompt": "What is 2+2? Say it in many words, please, and say why."}\n'
    )
    asked = {
        "run": "r",
        "model": {"tokenizer": str(kimi_folder)},
        "datasets": {"A": {"prompts": "p.jsonl"}},
        "training": {"formats": ["parquet", "specforge"], "held_out": 0.4, "evaluation_prompts": ["evaluation.jsonl"]},
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(asked))
    return path


def run(run_file: Path, *arguments: str) -> int:
    return main(["export", str(run_file), "--outputs", str(run_file.parent / "outputs"), *arguments])


def test_the_command_exports_and_publishes_into_a_folder(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(run_file, "--to", str(tmp_path / "card")) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == (
        f"A: published: {tmp_path / 'card'}; its license is unknown: fill it in at the head of README.md before you "
        "share it"
    )
    assert "A: 9 rows verified = " in said
    assert "evaluation.jsonl: 0 of 1 prompt share 13 ids in a row with 0 training rows" in said
    training, card = tmp_path / "outputs" / "r" / "A" / "training", tmp_path / "card"
    files = sorted(path.relative_to(card).as_posix() for path in card.rglob("*") if path.is_file())
    assert files == [
        "README.md",
        "contamination.json",
        "draft_vocabulary/d2t-32000.npy",
        "draft_vocabulary/t2d-32000.npy",
        "draft_vocabulary/token_freq.pt",
        "draft_vocabulary/vocab_mapping.pt",
        "loss_report.json",
        "manifest.json",
        *(f"{name}/{split}-00000-of-00001.{suffix}" for name, suffix in (("parquet", "parquet"), ("specforge", "jsonl"))
          for split in ("held_out", "train")),
    ]  # fmt: skip
    for name in files[1:]:
        assert (card / name).read_bytes() == (training / name).read_bytes()


def test_a_published_folder_is_a_data_set_with_both_splits(run_file: Path, tmp_path: Path) -> None:
    assert run(run_file, "--to", str(tmp_path / "card")) == 0
    found = datasets.load_dataset(str(tmp_path / "card"), cache_dir=str(tmp_path / "cache"))
    rows = {row["key"]: (row["input_ids"], row["loss_mask"]) for split in ("train", "held_out") for row in found[split]}
    assert rows == {
        key: ([*prompt, *output], [0] * len(prompt) + [int(one) for one in MASKS[key][0]])
        for key, prompt, output, _ in KEPT
    }
    text = (tmp_path / "card" / "README.md").read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["configs"][0]["data_files"] == [
        {"split": "train", "path": "parquet/train-*"},
        {"split": "held_out", "path": "parquet/held_out-*"},
    ]
    assert "| left out: flagged: never_closed | 1 |" in text
    everything = text + (tmp_path / "card" / "manifest.json").read_text()
    assert "10.0.0.7" not in everything
    assert str(tmp_path) not in everything


@pytest.mark.parametrize("form", ["parquet", "speculators"])
def test_the_card_describes_the_files_beside_it(run_file: Path, tmp_path: Path, form: str) -> None:
    assert run(run_file, "--format", form, "--to", str(tmp_path / "card")) == 0
    text = (tmp_path / "card" / "README.md").read_text()
    found = datasets.load_dataset(str(tmp_path / "card"), cache_dir=str(tmp_path / "cache"))
    told = re.findall(r"^\| `(\w+)` \|", text.partition("| column | what it is |")[2].partition("##")[0], re.MULTILINE)
    assert told == found["train"].column_names
    sizes = f"{len(found['train'])} in the split `train`, {len(found['held_out'])} in `held_out`"
    lead = text.partition("\n# ")[2].partition("##")[0]
    assert f"7 rows, of 9 responses of MODEL: {sizes}. Left out: 2, counted by reason" in lead
    assert "`loss_mask` (`sampled`) is unshifted: loss_mask[i] is 1 where the target sampled" in lead
    assert "`output_ids`" not in text
    code = text.partition("```python\n")[2].partition("```")[0]
    code = code.replace('"OWNER/NAME"', f"{str(tmp_path / 'card')!r}, cache_dir={str(tmp_path / 'cache')!r}")
    made: dict[str, np.ndarray] = {}
    exec(code, made)
    outputs = {key: output for key, _, output, _ in KEPT}
    key = found["train"][0]["id" if form == "speculators" else "key"]
    assert made["sampled"].tolist() == outputs[key]


def test_what_was_reported_of_an_earlier_export_is_not_published_with_the_next(run_file: Path, tmp_path: Path) -> None:
    assert run(run_file) == 0
    asked = json.loads(run_file.read_text())
    asked["training"] = {"formats": ["parquet"], "mask": "answer", "draft_vocabulary": 9}
    run_file.write_text(json.dumps(asked))
    assert run(run_file, "--to", str(tmp_path / "card")) == 0
    names = sorted(path.relative_to(tmp_path / "card").as_posix() for path in (tmp_path / "card").rglob("*.*"))
    assert [name for name in names if "parquet" not in name] == [
        "README.md",
        "draft_vocabulary/d2t-9.npy",
        "draft_vocabulary/t2d-9.npy",
        "draft_vocabulary/token_freq.pt",
        "draft_vocabulary/vocab_mapping.pt",
        "loss_report.json",
        "manifest.json",
    ]


def test_an_export_whose_reports_do_not_come_about_keeps_none_of_an_earlier_one(run_file: Path, tmp_path: Path) -> None:
    assert run(run_file) == 0
    folder = tmp_path / "outputs" / "r" / "A"
    export(folder, markers=KIMI, settings=TrainingSettings(mask="answer"), on_line=lambda _: None)
    assert sorted(path.name for path in (folder / "training").iterdir() if path.name[0] != ".") == [
        "manifest.json",
        "parquet",
        "specforge",
    ]


def test_formats_on_the_command_line_stand_in_for_the_run_files(run_file: Path) -> None:
    assert run(run_file, "--format", "arrow") == 0
    folder = run_file.parent / "outputs" / "r" / "A"
    assert [entry.format for entry in read_exports(folder)] == ["arrow"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "csv"], "--format csv is not known; expected one of parquet, arrow,"),
        (["--to", "hub:nobody"], "'hub:nobody' names no hub data set; expected hub:OWNER/NAME"),
        (["--dataset", "B"], "has no data set 'B'"),
        (["--format", "torchspec", "--to", "DIR"], "torchspec alone can't be published: a data set needs"),
        (["--to", "EXISTS"], "exists; publish into a new folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    places = {"DIR": str(tmp_path / "new"), "EXISTS": str(tmp_path)}
    assert run(run_file, *(places.get(word, word) for word in arguments)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("wrong", ["a folder that exists", "no hub id", "no format to load", "no summary", "no run"])
def test_what_can_not_be_published_is_told_before_anything_is_exported(
    run_file: Path, tmp_path: Path, wrong: str
) -> None:
    folder = tmp_path / "outputs" / "r" / "A"
    to = {"a folder that exists": str(tmp_path), "no hub id": "hub:nobody"}.get(wrong, str(tmp_path / "card"))
    if missing := {"no summary": "summary.json", "no run": "run.json"}.get(wrong):
        (folder / missing).unlink()
    formats = ["--format", "torchspec"] if wrong == "no format to load" else []
    assert run(run_file, "--to", to, *formats) == 2
    assert not (folder / "training").exists()


def test_evaluation_prompts_that_are_not_there_are_missed_before_anything_is_exported(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_file.parent / "evaluation.jsonl").unlink()
    assert run(run_file) == 2
    assert "evaluation.jsonl does not exist; correct training.evaluation_prompts" in capsys.readouterr().err
    assert not (run_file.parent / "outputs" / "r" / "A" / "training").exists()


class Hub:
    """Stands where the hub's client stands, and keeps what it was given."""

    failure: Exception | None = None
    created: tuple[str, str, bool] | None = None
    files: tuple[str, ...] = ()

    def create_repo(self, repository: str, *, repo_type: str, private: bool, exist_ok: bool) -> None:
        if Hub.failure:
            raise Hub.failure
        assert exist_ok
        Hub.created = (repository, repo_type, private)

    def upload_folder(self, *, folder_path: Path, repo_id: str, repo_type: str, commit_message: str) -> object:
        assert (repo_id, repo_type) == ("me/data", "dataset")
        Hub.files = tuple(sorted(p.relative_to(folder_path).as_posix() for p in folder_path.rglob("*") if p.is_file()))
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")


def test_the_hub_gets_what_a_folder_would_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "A")
    settings = TrainingSettings(formats=("parquet", "torchspec"), held_out=0.0)
    exported = export(folder, markers=KIMI, settings=settings, on_line=lambda _: None)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    assert publish(folder, exported, "hub:me/data", name="A").startswith(
        "https://hub/me/data/commit/1; its license is unknown"
    )
    assert Hub.created == ("me/data", "dataset", True)
    publish(folder, exported, str(tmp_path / "card"), name="A")
    card = tmp_path / "card"
    assert Hub.files == tuple(sorted(p.relative_to(card).as_posix() for p in card.rglob("*") if p.is_file()))
    monkeypatch.setattr(Hub, "failure", OSError("401 Client Error"))
    with pytest.raises(RunStopped, match="the hub did not take me/data: 401 Client Error; log in by `hf auth login`"):
        publish(folder, exported, "hub:me/data", name="A")


@pytest.mark.parametrize("to", ["folder", "hub:me/data"])
@pytest.mark.parametrize("finished", [True, False])
def test_files_of_another_export_are_not_published_under_this_ones_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, finished: bool
) -> None:
    folder = write(tmp_path / "A")
    exported = export(folder, markers=KIMI, settings=TrainingSettings(held_out=0.0), on_line=lambda _: None)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "files", ())
    if finished:
        export(folder, markers=KIMI, settings=TrainingSettings(mask="answer"), on_line=lambda _: None)
    else:
        write_exports(folder, [])  # an export that is just swapping its files in
    with pytest.raises(RunStopped, match="was exported anew before it was published; nothing was: run the same"):
        publish(folder, exported, to if to.startswith("hub:") else str(tmp_path / to), name="A")
    assert not (tmp_path / "folder").exists()
    assert Hub.files == ()


def test_a_hub_that_does_not_answer_is_no_traceback(tmp_path: Path) -> None:
    """The real client, against a port that nobody listens on, in a process of its own: it reads its address once."""
    folder = write(tmp_path / "A")
    export(folder, markers=KIMI, settings=TrainingSettings(held_out=0.0), on_line=lambda _: None)
    program = (
        "import sys; from pathlib import Path; from rawtokens.errors import RunStopped\n"
        "from rawtokens.training.manifest import read_exports\n"
        "from rawtokens.training.publish import publish\n"
        "folder = Path(sys.argv[1])\n"
        "try: publish(folder, read_exports(folder), 'hub:me/data', name='A')\n"
        "except RunStopped as error: print(error)\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_secret"}
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.startswith("the hub did not take me/data: ")
    assert "hf_secret" not in done.stdout


def test_a_run_files_training_section_is_checked(run_file: Path) -> None:
    found = load_run_file(run_file).training
    assert found.formats == ("parquet", "specforge")
    assert found.evaluation_prompts == (str(run_file.parent / "evaluation.jsonl"),)
    content = json.loads(run_file.read_text())
    wrong: dict[str, object] = {
        "formats": ["csv"],
        "mask": "all",
        "held_out": 1.0,
        "max_length": 0,
        "shard_gb": 0,
        "flagged": "maybe",
        "draft_vocabulary": 0,
        "report_lengths": [0],
        "unheard_of": 1,
    }
    for name, value in wrong.items():
        run_file.write_text(json.dumps({**content, "training": {name: value}}))
        with pytest.raises(InputError, match=rf"run file .*{name}"):
            load_run_file(run_file)


@pytest.mark.parametrize("lengths", [[], [0], [128, -1], [1 << 31], [10**20]])
def test_lengths_that_no_loss_can_be_told_for_are_refused(lengths: list[int]) -> None:
    with pytest.raises(InputError, match=r"training.report_lengths is \(.*expected one length at least, each from 1"):
        training_settings(json.dumps({"report_lengths": lengths}))


def test_settings_come_out_of_a_notebooks_text() -> None:
    assert training_settings("{}") == TrainingSettings()
    asked = TrainingSettings(formats=("arrow",), held_out=0.5, evaluation_prompts=("a",))
    assert training_settings(msgspec.json.encode(asked).decode()) == asked
    with pytest.raises(InputError, match=r"training is '\{\"mask\":\"all\"\}': .*expected one of sampled, reasoning"):
        training_settings('{"mask":"all"}')


def test_every_row_is_in_the_table_and_the_sentence(tmp_path: Path) -> None:
    selection = select_rows(training_data.write(tmp_path), TrainingSettings(held_out=0.0))
    table = selection_table(selection)
    assert table["rows"].to_dict() == {
        "train": 7,
        "held out": 0,
        "left out: flagged: never_closed": 1,
        "left out: rejected: stop_in_middle": 1,
        "all rows": 9,
    }
    assert selection_takeaway(selection) == (
        "9 rows verified = 7 to train on + 0 held out + 2 left out (1 flagged: never_closed, 1 rejected: "
        "stop_in_middle). Rows with the prompt of an earlier one: 1."
    )


def test_one_rows_mask_is_shown_in_blocks_that_hold_every_id(
    tmp_path: Path, target: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = training_data.write(tmp_path)
    (rows,) = read_training_rows(folder, KIMI, np.ones(len(ROWS), dtype=np.bool_))
    settings = TrainingSettings(mask="answer")
    blocks = blocks_of(rows, 1, settings)
    assert [(block.label, block.mask, len(block.ids)) for block in blocks] == [
        ("prompt", 0, 5),
        ("reasoning", 0, 1),
        ("closer", 0, 1),
        ("answer", 1, 1),
        ("tool calls", 0, 7),
        ("stop id", 1, 1),
    ]
    assert [item for block in blocks for item in block.ids] == [*ROWS[1][1], *ROWS[1][2]]
    html = mask_html("b#0/0 <script>", blocks, target)
    assert "<script" not in html
    assert "answer · 1 id · loss mask 1" in html
    assert "16 ids, 2 of them trained on" in html
    show_mask(rows, settings, target, special_ids=())
    show_mask(None, settings, target, special_ids=())
    assert "No row is left to train on." in capsys.readouterr().out


def test_costs_are_told_from_counts(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path)
    settings = TrainingSettings(formats=("parquet", "specforge"), held_out=0.0)
    exported = export(folder, markers=KIMI, settings=settings, on_line=lambda _: None)
    ids = sum(len(row[1]) + len(row[2]) for row in KEPT)
    table = storage_table(exported)
    assert table["ids"].tolist() == [ids, ids]
    size = (folder / "training" / exported[1].files[0].name).stat().st_size
    assert table["bytes an id"].iloc[1] == pytest.approx(size / ids)
    assert hidden_state_bytes(7168) == 57_344
    said = cost_takeaway(exported, hidden_size=7168, ids_per_second=ids / 7200)
    assert said.startswith(f"{ids} ids of the train split are 0.3 kB as int32.")
    assert "would be 4.5 MB on the disk" in said
    assert said.endswith("2.0 hours at 0 ids a second.")
    assert cost_takeaway([], hidden_size=1) == "There is no row to train on."
