"""The stages in order, with notebooks that only leave the files of their stage: no kernel starts here."""

import json
import shutil
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import papermill
import pyarrow.parquet as pq
import pytest
import small_dataset

from rawtokens import journal
from rawtokens.engines.sglang import sampling_parameters
from rawtokens.errors import InputError, LockedError, ResumeError, TokenizerError
from rawtokens.fidelity.audit_records import Audits
from rawtokens.fidelity.replay import REPLAY_SCHEMA, summarise
from rawtokens.notebook_stages import pipeline
from rawtokens.notebook_stages.pipeline import NOTEBOOKS, Plan, run_stages
from rawtokens.notebook_stages.stage_parameters import stage_parameters
from rawtokens.records import Json, Sampling
from rawtokens.run_file import RunFile, load_run_file
from rawtokens.shards import shard_of

ROOT = Path(__file__).parents[1]
RUN = """run: demo
model: {tokenizer: ./model}
servers: {urls: ["http://one:1"]}
datasets: {A: {prompts: a.jsonl}, B: {prompts: b.jsonl}}
"""


class Notebooks:
    """What stands in for the notebooks: each leaves the files of its stage, and is remembered."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.urls: list[str] = []
        self.shards: list[str] = []
        self.audits = b"{}"

    def execute(
        self, notebook: Path, *, executed: Path, report: Path, parameters: Mapping[str, object], **_: object
    ) -> None:
        folder = Path(str(parameters["output_dir"]))
        self.ran.append(f"{notebook.stem[:2]} {folder.name}")
        if parameters.get("shard"):
            self.shards.append(str(parameters["shard"]))
        if "urls" in parameters:
            self.urls.append(str(parameters["urls"]))
        source = small_dataset.write(folder.parent / "source")
        if notebook.stem.startswith("01"):
            limit = parameters["limit"]
            table = pq.read_table(source / "prompts.parquet")
            pq.write_table(table.slice(0, int(str(limit)) or len(table)), folder / "prompts.parquet")
            shutil.copy(source / "rejected.jsonl", folder)
            (folder / "run.json").write_text("{}")
        elif notebook.stem.startswith("02"):
            shutil.copy(source / "raw_responses.jsonl", folder)
            with (folder / "raw_responses.jsonl").open("ab") as file:
                response = small_dataset.response("j#0/0", [1], start=9, seconds=1)
                file.write(msgspec.json.encode(response) + b"\n")
        else:
            names = {"00": ["server_check.json"], "04": ["summary.json"], "05": ["training/manifest.json"]}
            (folder / "training").mkdir(exist_ok=True)
            for name in names.get(notebook.stem[:2], ["verified.parquet", "audits.parquet", "audits.json"]):
                (folder / name).write_bytes(self.audits if name == "audits.json" else b"{}")
        for path in (executed, report):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
        shutil.rmtree(source)


@pytest.fixture
def notebooks(monkeypatch: pytest.MonkeyPatch) -> Notebooks:
    made = Notebooks()
    monkeypatch.setattr("rawtokens.notebook_stages.notebook_runs.execute_notebook", made.execute)
    return made


@pytest.fixture
def settings(tmp_path: Path) -> RunFile:
    (tmp_path / "model").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"):
        (tmp_path / "model" / name).write_text(name)
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(name)
    (tmp_path / "run.yaml").write_text(RUN)
    return load_run_file(tmp_path / "run.yaml")


def plan(settings: RunFile, folder: Path, *, stage: str = "", datasets: Sequence[str] = ("A", "B")) -> Plan:
    return Plan(
        settings=settings,
        run_folder=folder / "outputs" / "demo",
        notebooks=ROOT / "notebooks",
        datasets=tuple(datasets),
        stages=(stage,) if stage else tuple(NOTEBOOKS),
        one_stage=bool(stage),
    )


EVERYTHING = ["01 A", "01 B", "00 demo", "02 A", "02 B", "03 A", "03 B", "04 A", "04 B", "05 A", "05 B"]


def run(notebooks: Notebooks, todo: Plan, **options: object) -> list[str]:
    notebooks.ran.clear()
    run_stages(todo, on_line=lambda _: None, **options)  # type: ignore[arg-type]
    return list(notebooks.ran)


def test_stages_run_in_order_and_nothing_unchanged_runs_again(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path
) -> None:
    assert run(notebooks, plan(settings, tmp_path)) == EVERYTHING
    assert run(notebooks, plan(settings, tmp_path)) == []
    assert (tmp_path / "outputs" / "demo" / "index.html").exists()


AFTER_01 = ["01 A", "02 A", "03 A", "04 A", "05 A"]

MODEL = ["01 A", "03 A", "05 A"]  # what a tokenizer decides


def outputs(folder: Path, name: str) -> Path:
    return folder / "outputs" / "demo" / "A" / name


CHANGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "prompt file": (lambda folder: (folder / "a.jsonl").write_text("new"), ["01 A"]),
    "chat template": (lambda folder: (folder / "model" / "chat_template.jinja").write_text("new"), MODEL),
    "tokenizer config": (lambda folder: (folder / "model" / "tokenizer_config.json").write_text("n"), MODEL),
    "weights": (lambda folder: (folder / "model" / "model.safetensors").write_text("new"), []),
    "prompts.parquet lost": (lambda folder: outputs(folder, "prompts.parquet").unlink(), ["01 A"]),
    "prompts.parquet cut": (lambda folder: outputs(folder, "prompts.parquet").write_bytes(b"PAR1"), ["01 A"]),
    "rejected.jsonl lost": (lambda folder: outputs(folder, "rejected.jsonl").unlink(), ["01 A"]),
    "run.json lost": (lambda folder: outputs(folder, "run.json").unlink(), ["01 A"]),
    "journal lost": (lambda folder: outputs(folder, "raw_responses.jsonl").unlink(), ["00 demo", "02 A"]),
    "verified.parquet lost": (lambda folder: outputs(folder, "verified.parquet").unlink(), ["03 A"]),
    "report lost": (lambda folder: outputs(folder, f"reports/{NOTEBOOKS['04']}.html").unlink(), ["04 A"]),
    "summary edited": (lambda folder: outputs(folder, "summary.json").write_text('{"a":1}'), ["04 A"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_runs_what_depends_on_it(notebooks: Notebooks, settings: RunFile, tmp_path: Path, name: str) -> None:
    change, expected = CHANGES[name]
    todo = plan(settings, tmp_path, datasets=["A"])
    run(notebooks, todo)
    change(tmp_path)
    assert run(notebooks, todo) == expected  # what comes out the same spares the stages behind it
    assert run(notebooks, todo) == []


def test_a_smaller_limit_runs_every_stage_and_needs_no_server(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path
) -> None:
    todo = plan(settings, tmp_path, datasets=["A"])
    run(notebooks, todo)
    fewer = msgspec.structs.replace(settings.datasets["A"], limit=3)
    changed = msgspec.structs.replace(settings, datasets={**settings.datasets, "A": fewer})
    assert run(notebooks, plan(changed, tmp_path, datasets=["A"])) == AFTER_01


@pytest.mark.parametrize(
    ("part", "changes", "expected"),
    [
        ("sampling", {"temperature": 0.5}, ["02 A"]),
        ("sampling", {"max_new_tokens": 9}, ["02 A"]),
        ("model", {"template_kwargs": {"thinking": False}}, ["01 A"]),
        ("model", {"revision": "main"}, MODEL),
        ("servers", {"urls": ("http://two:1",), "max_in_flight": 3}, []),
    ],
)
def test_a_setting_runs_the_stages_that_take_it(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path, part: str, changes: dict[str, object], expected: list[str]
) -> None:
    run(notebooks, plan(settings, tmp_path, datasets=["A"]))
    changed = msgspec.structs.replace(settings, **{part: msgspec.structs.replace(getattr(settings, part), **changes)})
    assert run(notebooks, plan(changed, tmp_path, datasets=["A"])) == expected


def test_new_code_runs_the_stages_again_but_asks_no_server_where_nothing_is_missing(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(notebooks, plan(settings, tmp_path))
    monkeypatch.setattr("rawtokens.notebook_stages.stages._kit_digest", lambda: "new")
    started: list[str] = []

    @contextmanager
    def start() -> Iterator[Callable[[], str]]:
        started.append("server")
        yield lambda: "http://own:1"

    assert run(notebooks, plan(settings, tmp_path), start_server=start) == [
        item for item in EVERYTHING if item != "00 demo"
    ]
    assert started == []


def test_what_is_missing_starts_an_own_server_once(notebooks: Notebooks, settings: RunFile, tmp_path: Path) -> None:
    started: list[str] = []

    @contextmanager
    def start() -> Iterator[Callable[[], str]]:
        started.append("started")
        yield lambda: "http://own:1"
        started.append("stopped")

    assert run(notebooks, plan(settings, tmp_path), start_server=start) == EVERYTHING
    assert started == ["started", "stopped"]
    assert set(notebooks.urls) == {'["http://own:1"]'}


def test_a_stage_alone_runs_that_stage_alone(notebooks: Notebooks, settings: RunFile, tmp_path: Path) -> None:
    assert run(notebooks, plan(settings, tmp_path, stage="01", datasets=["B"])) == ["01 B"]
    assert run(notebooks, plan(settings, tmp_path, stage="00", datasets=["B"])) == ["00 demo"]
    assert run(notebooks, plan(settings, tmp_path, stage="02", datasets=["B"])) == ["02 B"]
    assert run(notebooks, plan(settings, tmp_path, stage="02", datasets=["B"])) == []
    assert run(notebooks, plan(settings, tmp_path, stage="00", datasets=["B"])) == ["00 demo"]
    assert run(notebooks, plan(settings, tmp_path, stage="03", datasets=["B"])) == ["03 B"]


def test_figures_of_before_a_single_stage_are_marked_in_the_index(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path
) -> None:
    run(notebooks, plan(settings, tmp_path))
    index = tmp_path / "outputs" / "demo" / "index.html"
    assert "(older)" not in index.read_text()
    outputs(tmp_path, "raw_responses.jsonl").unlink()
    (tmp_path / "outputs" / "demo" / "A" / "rejected.jsonl").write_bytes(b"")
    run(notebooks, plan(settings, tmp_path, stage="02", datasets=["A"]))
    page = index.read_text()
    assert "A (older)" in page
    assert "B (older)" not in page
    assert "stage 04 has not run since: rejected.jsonl changed" in page


def test_a_replay_without_its_server_is_tried_again_where_the_stage_is_asked_for(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path
) -> None:
    asked = msgspec.structs.replace(settings, audit=msgspec.structs.replace(settings.audit, replay=5))
    assert run(notebooks, plan(asked, tmp_path)) == EVERYTHING
    assert run(notebooks, plan(asked, tmp_path)) == []
    replayed = summarise(REPLAY_SCHEMA.empty_table(), seed=1, not_scored={}, temperature=None, model=None)
    audits = Audits(rows=1, ids=1, rerendered_rows=0, seed=1, drift={}, rerendering={}, unread={}, examples=[])
    notebooks.audits = msgspec.json.encode(msgspec.structs.replace(audits, replay=replayed))
    only_03 = plan(asked, tmp_path, stage="03", datasets=["A"])
    assert [run(notebooks, only_03), run(notebooks, only_03)] == [["03 A"], []]


@pytest.mark.parametrize("stage", ["02", "03", "04", "05"])
def test_a_stage_before_its_prompts_says_what_to_run(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path, stage: str
) -> None:
    with pytest.raises(InputError, match=r"A/prompts\.parquet is missing; run stage 01 for A first"):
        run(notebooks, plan(settings, tmp_path, stage=stage))
    assert notebooks.ran == []


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("03", r"A/raw_responses\.jsonl is missing; run stage 02 for A first"),
        ("04", r"A/verified\.parquet is missing; run stage 03 for A first"),
    ],
)
def test_a_stage_before_its_inputs_starts_no_kernel(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path, stage: str, words: str
) -> None:
    folder = small_dataset.write(tmp_path / "outputs" / "tiny" / "A")
    (folder / ("raw_responses.jsonl" if stage == "03" else "verified.parquet")).unlink()
    only = msgspec.structs.replace(plan(settings, tmp_path, stage=stage), datasets=("A",), run_folder=folder.parent)
    with pytest.raises(InputError, match=words):
        run(notebooks, only)
    assert notebooks.ran == []


def test_what_is_missing_or_wrong_is_told_before_a_kernel_starts(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = msgspec.structs.replace(settings.servers, api_key_env="SERVER_AUTH")
    monkeypatch.delenv("SERVER_AUTH", raising=False)
    with pytest.raises(InputError, match="SERVER_AUTH"):
        run(notebooks, plan(msgspec.structs.replace(settings, servers=keyed), tmp_path))
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(InputError, match=r"b\.jsonl does not exist; correct datasets\.B\.prompts"):
        run(notebooks, plan(settings, tmp_path))
    (tmp_path / "b.jsonl").mkdir()
    with pytest.raises(InputError, match=r"b\.jsonl is no file; give datasets\.B\.prompts a file"):
        run(notebooks, plan(settings, tmp_path))
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(TokenizerError, match=r"no such folder; correct model\.tokenizer"):
        run(notebooks, plan(settings, tmp_path))
    assert notebooks.ran == []


@pytest.mark.parametrize(
    ("key", "named", "stages"),
    [
        ("model.prompt_encoder", "model: {tokenizer: ./model, prompt_encoder: 'gone.py:encode'}", ["", "01", "03"]),
        (
            "datasets.A.tool_function",
            "datasets: {A: {prompts: a.jsonl, turns: each, tool_function: 'gone.py:f'}}",
            [""],
        ),
        ("training.evaluation_prompts", "training: {evaluation_prompts: [a.jsonl, gone.py]}", [""]),
        ("training.evaluation_prompts", "training: {evaluation_prompts: ['gone.py*']}", [""]),
    ],
)
def test_every_file_that_a_run_file_names_is_missed_before_a_kernel_starts(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path, key: str, named: str, stages: list[str]
) -> None:
    lines = {line.partition(":")[0]: line for line in RUN.splitlines()}
    lines[named.partition(":")[0]] = named
    (tmp_path / "run.yaml").write_text("\n".join(lines.values()))
    changed = load_run_file(tmp_path / "run.yaml")
    if "A" in changed.datasets and "B" in changed.datasets:
        run(notebooks, plan(settings, tmp_path))
    for stage in stages:
        with pytest.raises(InputError, match=rf"gone\.py.*{key}|gone\.py\* finds no file"):
            run(notebooks, plan(changed, tmp_path, stage=stage, datasets=("A",)))
        assert notebooks.ran == []


def test_a_second_run_over_the_same_data_set_is_refused(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path
) -> None:
    with (
        journal.lock(tmp_path / "outputs" / "demo" / "B" / ".stages.lock"),
        pytest.raises(LockedError, match="B is being written by process"),
    ):
        run(notebooks, plan(settings, tmp_path))
    assert notebooks.ran == []
    assert run(notebooks, plan(settings, tmp_path)) == EVERYTHING


def test_a_journal_of_another_pipeline_is_refused_and_stays(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path
) -> None:
    todo = plan(settings, tmp_path, datasets=["A"])
    run(notebooks, todo)
    path = tmp_path / "outputs" / "demo" / "A" / "raw_responses.jsonl"
    path.write_text('{"id": 1, "text": "x"}\n')
    with pytest.raises(InputError, match="line 1 is no record of this kit"):
        run(notebooks, todo)
    assert path.read_text() == '{"id": 1, "text": "x"}\n'


@pytest.mark.parametrize("stage", NOTEBOOKS)
def test_the_notebooks_defaults_are_the_demos_run_file(stage: str) -> None:
    """Stepping through the notebooks by hand goes on with what `make demo` made."""
    settings = load_run_file(ROOT / "notebooks" / "demo.yaml")
    folder = ROOT / "outputs" / "demo" / ("" if stage == "00" else "B1_glaive")
    known = papermill.inspect_notebook(str(ROOT / "notebooks" / f"{NOTEBOOKS[stage]}.ipynb"))
    defaults = {name: literal_eval(parameter["default"]) for name, parameter in known.items()}
    paths = [name for name, value in defaults.items() if str(value).startswith("../")]
    defaults |= {name: str((ROOT / "notebooks" / defaults[name]).resolve()) for name in paths}
    given = stage_parameters(settings, stage, "B1_glaive", folder=folder.resolve())
    assert {name: defaults[name] for name in given} == given


def test_notebooks_are_found_beside_the_run_file_or_in_the_clone(tmp_path: Path) -> None:
    assert pipeline.notebooks_folder(tmp_path / "run.yaml") == ROOT / "notebooks"
    (tmp_path / f"{NOTEBOOKS['01']}.ipynb").write_text("")
    assert pipeline.notebooks_folder(tmp_path / "run.yaml") == tmp_path


def test_a_pattern_reads_every_file_that_it_finds_and_a_new_one_runs_again(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path
) -> None:
    (tmp_path / "run.yaml").write_text(RUN.replace("a.jsonl", '"[ab].jsonl"').replace(", B: {prompts: b.jsonl}", ""))
    settings = load_run_file(tmp_path / "run.yaml")
    assert run(notebooks, plan(settings, tmp_path, datasets=["A"], stage="01")) == ["01 A"]
    assert run(notebooks, plan(settings, tmp_path, datasets=["A"], stage="01")) == []
    (tmp_path / "b.jsonl").write_text("changed")
    assert run(notebooks, plan(settings, tmp_path, datasets=["A"], stage="01")) == ["01 A"]
    for path in tmp_path.glob("*.jsonl"):
        path.unlink()
    with pytest.raises(InputError, match="finds no file"):
        run(notebooks, plan(settings, tmp_path, datasets=["A"], stage="01"))


@pytest.mark.parametrize(
    "changed", ["sampling: {temperature: 0.7}", "model: {tokenizer: ./model, template_kwargs: {thinking: false}}"]
)
def test_other_settings_than_the_responses_have_are_refused_at_every_stage(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path, changed: str
) -> None:
    run(notebooks, plan(settings, tmp_path))
    sampling = sampling_parameters(Sampling(), stop_ids=[163586])
    manifest: dict[str, Json] = {"fingerprint": "f" * 16, "sampling": sampling, "template_kwargs": {"thinking": True}}
    manifest |= {"vocabulary_size": 163840, "stop_ids": [163586]}
    (tmp_path / "outputs" / "demo" / "A" / "run.json").write_text(json.dumps(manifest))
    name = changed.partition(":")[0]
    kept = [line for line in RUN.splitlines() if not line.startswith(name)]
    (tmp_path / "run.yaml").write_text("\n".join([*kept, changed]))
    with pytest.raises(ResumeError, match="holds responses of another set-up"):
        run(notebooks, plan(load_run_file(tmp_path / "run.yaml"), tmp_path, stage="03"))
    assert notebooks.ran == []


def sharded(settings: RunFile, folder: Path, text: str) -> Plan:
    todo = plan(settings, folder, stage="02", datasets=["A"])
    return msgspec.structs.replace(todo, shard=shard_of(text))


def test_shards_run_beside_each_other_and_each_shard_once(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path
) -> None:
    run(notebooks, plan(settings, tmp_path, stage="01", datasets=["A"]))
    folder = tmp_path / "outputs" / "demo" / "A"
    (folder / "raw_responses.1-of-2.jsonl").touch()
    with journal.lock(folder / ".stages.lock", shared=True), journal.lock(folder / ".stages.1-of-2.lock"):
        with pytest.raises(LockedError, match="A is being written by process"):
            run(notebooks, sharded(settings, tmp_path, "1/2"))
        with pytest.raises(LockedError):
            run(notebooks, plan(settings, tmp_path, stage="03", datasets=["A"]))
        assert notebooks.ran == []
        assert run(notebooks, sharded(settings, tmp_path, "2/2")) == ["02 A"]
    assert notebooks.shards == ["2/2"]
    assert [path.name for path in (folder / "notebooks").glob("02*.ipynb")] == [f"{NOTEBOOKS['02']}.2-of-2.ipynb"]
    assert (folder / "reports" / f"{NOTEBOOKS['02']}.2-of-2.html").exists()
    with journal.lock(folder / ".stages.lock"), pytest.raises(LockedError):
        run(notebooks, sharded(settings, tmp_path, "2/2"))


def test_what_other_shards_miss_is_told_by_every_stage_behind(
    notebooks: Notebooks, settings: RunFile, tmp_path: Path
) -> None:
    told: list[str] = []
    run(notebooks, plan(settings, tmp_path, datasets=["A"]))
    path = tmp_path / "outputs" / "demo" / "A" / "raw_responses.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))
    run_stages(plan(settings, tmp_path, stage="03", datasets=["A"]), on_line=told.append)
    assert told[-1] == "A: missing yet: 3 generations of the data set; stage 02 makes what is missing"
    run_stages(sharded(settings, tmp_path, "1/2"), on_line=told.append)
    assert told[-1] == "A: no shard misses anything; next: the same command without --shard and --stage"
