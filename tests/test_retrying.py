"""Retrying over real files: generate() on a mock transport, verify_journal, and the pipeline's own stage records."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawtokens import journal
from rawtokens.__main__ import main
from rawtokens.capture import retrying
from rawtokens.capture.retried_rows import read_retried
from rawtokens.capture.retrying import GENERATION_REASONS, Retried, retry
from rawtokens.errors import InputError, LockedError, RunStopped
from rawtokens.generation import Target, generate
from rawtokens.journal import JOURNAL, REJECTED, read_keys, read_rejections, read_responses
from rawtokens.markers import Markers
from rawtokens.notebook_stages.pipeline import Plan, run_stages
from rawtokens.records import PROMPTS_SCHEMA, Rejection, Sampling
from rawtokens.run_file import load_run_file
from rawtokens.shards import Shard
from rawtokens.verification import verify_journal

ROOT = Path(__file__).parents[1]
END, USER, OPENER, CLOSER = 163586, 163587, 163606, 163607
MARKERS = Markers(family="kimi", opener=(OPENER,), closer=(CLOSER,), turn_ends=(END,), role_ids=(USER,))
WHOLE = [1008, CLOSER, 5, END]
CUT = [1008, 1009, 1010]
PROMPTS = 6
KEYS = [f"{number}#0/0" for number in range(PROMPTS)]
RUN = "run: demo\nmodel: {tokenizer: ./model}\ndatasets: {A: {prompts: a.jsonl}}\n"


class Killed(BaseException):
    """What a kill is here: nothing behind it happens, not even cleaning up."""


class Run:
    """A data set A of six prompts, and the server that answers them as `cut` and `refused` say."""

    def __init__(self, base: Path) -> None:
        self.base, self.folder = base, base / "outputs" / "demo" / "A"
        self.cut: set[int] = set()
        self.refused: set[int] = set()
        self.asked: list[int] = []

    @property
    def plan(self) -> Plan:
        settings = load_run_file(self.base / "run.yaml")
        return Plan(
            settings=settings,
            run_folder=self.folder.parent,
            notebooks=ROOT / "notebooks",
            datasets=("A",),
        )

    def stage(self, number: str) -> None:
        run_stages(msgspec.structs.replace(self.plan, stages=(number,), one_stage=True), on_line=lambda _: None)

    def execute(
        self, notebook: Path, *, executed: Path, report: Path, parameters: Mapping[str, object], **_: object
    ) -> None:
        """What stands in for execute_notebook: the stage's own function, and the two files that it would leave."""
        if notebook.stem.startswith("02"):
            self.generate()
        else:
            verify_journal(self.folder, markers=MARKERS, vocabulary_size=163840)
            for name in ("audits.parquet", "audits.json"):
                (self.folder / name).touch()
        for path in (executed, report):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))

    def generate(self) -> None:
        target = Target(
            urls=("http://one:1",),
            sampling=Sampling(max_new_tokens=16),
            stop_ids=(END,),
            vocabulary_size=163840,
            fingerprint="f" * 16,
        )
        self.asked.clear()
        asyncio.run(generate(self.folder, target, window=2, transport=httpx.MockTransport(self.answer)))

    def answer(self, request: httpx.Request) -> httpx.Response:
        ids = json.loads(request.content)["input_ids"]
        self.asked.append(ids[1])
        if ids[1] in self.refused:
            return httpx.Response(400, json={"error": "no"})
        output = CUT if ids[1] in self.cut else WHOLE
        finish = {"type": "length"} if output is CUT else {"type": "stop", "matched": END}
        meta = {"finish_reason": finish, "prompt_tokens": len(ids), "completion_tokens": len(output)}
        return httpx.Response(200, json={"output_ids": output, "meta_info": meta})

    def lines(self) -> list[bytes]:
        return (self.folder / JOURNAL).read_bytes().splitlines(keepends=True)

    def keys(self) -> list[str]:
        return sorted(read_keys(self.folder / JOURNAL))

    def rejected(self) -> list[str]:
        return sorted(item.key for item in read_rejections(self.folder) if item.stage == "generate")

    def aside(self, what: str = "raw_responses") -> list[bytes]:
        files = sorted(self.folder.glob(f"{what}.set-aside-*.jsonl"))
        return [line for path in files for line in path.read_bytes().splitlines(keepends=True)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Six rows: 1 and 4 cut in thinking, 2 and 5 refused by the server, 0 and 3 whole; verified."""
    (tmp_path / "model").mkdir()
    (tmp_path / "run.yaml").write_text(RUN)
    made = Run(tmp_path)
    made.folder.mkdir(parents=True)
    write_prompts(made.folder)
    monkeypatch.setattr("rawtokens.notebook_stages.notebook_runs.execute_notebook", made.execute)
    stage_01 = Rejection(stage="tokenize", key="9#0", line=9, reason="template_error", detail="d")
    journal.append_rejections(made.folder, [stage_01])
    made.cut, made.refused = {1, 4}, {2, 5}
    made.stage("02")
    made.stage("03")
    made.cut, made.refused = set(), set()
    return made


def write_prompts(folder: Path, *, changed: int = -1, count: int = PROMPTS) -> None:
    row = {"turn": 0, "prompt_tokens": 3, "thinking": "opened", "messages": "[]", "tools": "[]"}
    row |= {"template_kwargs": "{}", "notices": []}
    rows = [
        {"key": f"{n}#0", "source_id": str(n), "prompt_ids": [USER, n, OPENER] + [7] * (n == changed), **row}
        for n in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")


def test_rejected_rows_alone_are_generated_again(run: Run) -> None:
    before = run.lines()
    assert run.rejected() == ["2#0/0", "5#0/0"]
    found = retry(run.plan, "A")
    assert (found.lines, found.again) == (2, 2)
    assert run.rejected() == []
    assert [item.stage for item in read_rejections(run.folder)] == ["tokenize"]
    assert sorted(json.loads(line)["key"] for line in found.files[0].read_bytes().splitlines()) == ["2#0/0", "5#0/0"]
    run.stage("02")
    assert sorted(run.asked) == [2, 5]
    assert run.lines()[: len(before)] == before
    assert run.keys() == KEYS


def test_rows_with_a_reason_are_set_aside_and_generated_again(run: Run) -> None:
    before = run.lines()
    found = retry(run.plan, "A", where="reason=truncated_in_thinking")
    assert (found.lines, found.again) == (2, 2)
    cut = [line for line in before if line[8:9] in b"14"]
    assert run.aside() == cut
    assert run.lines() == [line for line in before if line not in cut]
    assert journal.journal_paths(run.folder) == [run.folder / JOURNAL]
    assert run.rejected() == ["2#0/0", "5#0/0"]
    run.stage("02")
    assert sorted(run.asked) == [1, 4]
    assert run.keys() == ["0#0/0", "1#0/0", "3#0/0", "4#0/0"]
    assert {tuple(item.output_ids) for item in read_responses(run.folder / JOURNAL)} == {tuple(WHOLE)}


def test_a_code_of_generation_takes_rejections_with_it_alone_and_needs_no_stage_03(run: Run) -> None:
    (run.folder / "verified.parquet").unlink()
    assert retry(run.plan, "A", where="reason=aborted") == Retried(lines=0, again=0, files=())
    found = retry(run.plan, "A", where="reason=bad_request")
    assert (found.lines, found.again, len(run.aside("rejected"))) == (2, 2, 2)
    assert run.rejected() == []


def test_a_code_of_both_takes_rejections_and_rows(run: Run) -> None:
    both = Rejection(stage="generate", key="2#0/0", line=None, reason="id_out_of_vocabulary", detail="d")
    journal.append_rejections(run.folder, [both])
    lines = run.lines()
    (run.folder / JOURNAL).write_bytes(lines[0].replace(b"1008", b"999999") + b"".join(lines[1:]))
    run.stage("03")
    found = retry(run.plan, "A", where="reason=id_out_of_vocabulary")
    assert (found.lines, found.again, len(found.files)) == (2, 2, 2)
    run.refused = {5}
    run.stage("02")
    assert run.rejected() == ["5#0/0"]
    assert run.keys() == ["0#0/0", "1#0/0", "2#0/0", "3#0/0", "4#0/0"]


def test_of_a_repeated_key_the_later_line_goes_and_nothing_is_generated(run: Run) -> None:
    lines = run.lines()
    (run.folder / JOURNAL).write_bytes(b"".join([*lines, lines[0]]))
    run.stage("03")
    found = retry(run.plan, "A", where="reason=key_repeated")
    assert (found.lines, found.again) == (1, 0)
    assert run.lines() == lines
    assert run.aside() == [lines[0]]


def test_a_changed_prompt_is_asked_anew_with_its_new_ids(run: Run) -> None:
    write_prompts(run.folder, changed=3)
    with pytest.raises(InputError, match="run stage 03 for A first"):
        retry(run.plan, "A", where="reason=prompt_changed")
    run.stage("03")
    assert retry(run.plan, "A", where="reason=prompt_changed").again == 1
    run.stage("02")
    assert run.asked == [3]
    (made,) = [item for item in read_responses(run.folder / JOURNAL) if item.key == "3#0/0"]
    assert made.prompt_ids == [USER, 3, OPENER, 7]


def test_a_row_without_a_prompt_is_set_aside_but_not_generated(run: Run) -> None:
    write_prompts(run.folder, count=4)
    run.stage("03")
    found = retry(run.plan, "A", where="reason=prompt_unknown")
    assert (found.lines, found.again) == (1, 0)
    assert json.loads(run.aside()[0])["key"] == "4#0/0"


STALE: dict[str, Callable[[Path], object]] = {
    "a row came": lambda folder: (folder / JOURNAL).open("ab").write(b'{"key":"5#0/0","prompt_ids":[]}\n'),
    "the journal has another order": lambda folder: (folder / JOURNAL).write_bytes(
        b"".join(reversed((folder / JOURNAL).read_bytes().splitlines(keepends=True)))
    ),
    "verified.parquet is gone": lambda folder: (folder / "verified.parquet").unlink(),
    "verified.parquet is another": lambda folder: (folder / "verified.parquet").write_bytes(b"PAR1"),
}


@pytest.mark.parametrize("name", STALE)
def test_a_verification_of_another_journal_is_refused(run: Run, name: str) -> None:
    STALE[name](run.folder)
    before = run.lines()
    with pytest.raises(InputError, match=r"not of the journal as it is now; run stage 03 for A first"):
        retry(run.plan, "A", where="reason=truncated_in_thinking")
    assert (run.lines(), run.aside()) == (before, [])


def test_rows_are_checked_against_the_journal_though_the_stage_record_agrees(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "stage_is_current", lambda *_: True)
    lines = run.lines()
    for other in (lines[1:], [*lines, lines[0]], [lines[1], lines[0], *lines[2:]]):
        (run.folder / JOURNAL).write_bytes(b"".join(other))
        with pytest.raises(InputError, match="run stage 03 for A first"):
            retry(run.plan, "A", where="reason=truncated_in_thinking")
        assert run.lines() == other


def test_a_torn_tail_stays_for_the_next_writer_to_mend(run: Run) -> None:
    with (run.folder / JOURNAL).open("ab") as file:
        file.write(b'{"key":"5#0/0","prompt_')
    run.stage("03")
    assert retry(run.plan, "A", where="reason=truncated_in_thinking").again == 2
    assert run.lines()[-1] == b'{"key":"5#0/0","prompt_'
    run.stage("02")
    assert run.keys() == ["0#0/0", "1#0/0", "3#0/0", "4#0/0"]


def test_every_shard_keeps_its_own_lines(run: Run) -> None:
    lines = sorted(run.lines())
    (run.folder / JOURNAL).unlink()
    shards = [run.folder / f"raw_responses.{number}-of-2.jsonl" for number in (1, 2)]
    for path, own in zip(shards, (lines[:2], lines[2:]), strict=True):
        path.write_bytes(b"".join(own))
    run.stage("03")
    found = retry(run.plan, "A", where="reason=truncated_in_thinking")
    assert (found.lines, found.again) == (2, 2)
    assert [path.read_bytes() for path in shards] == [lines[0], lines[2]]
    assert [path.name.partition(".set-aside-")[0] for path in found.files] == [path.stem for path in shards]
    assert journal.journal_paths(run.folder) == shards


def test_foreign_lines_leave_a_journal_and_its_records_stay(run: Run) -> None:
    lines = run.lines()
    other = lines[0].replace(b"f" * 16, b"e" * 16).replace(b"0#0/0", b"5#0/0")
    foreign = [b'{"id": 1, "text": "hello"}\n', other, b"\xff junk"]
    (run.folder / JOURNAL).write_bytes(b"".join([foreign[0], *lines, *foreign[1:]]))
    (run.folder / "run.json").write_text(json.dumps({"fingerprint": "f" * 16}))
    with pytest.raises(InputError, match="line 1 is no record of this kit"):
        retry(run.plan, "A")
    found = retry(run.plan, "A", where="foreign")
    assert (found.lines, found.again) == (3, 0)
    assert (run.lines(), run.aside()) == (lines, foreign)
    assert retry(run.plan, "A", where="foreign") == Retried(lines=0, again=0, files=())


def test_a_file_of_another_pipeline_is_set_aside_whole_and_every_row_generated(run: Run) -> None:
    foreign = b'[{"text": "a"},\n{"text": "b"}]'
    (run.folder / JOURNAL).write_bytes(foreign)
    (run.folder / REJECTED).unlink()
    found = retry(run.plan, "A", where="foreign")
    assert (found.lines, found.again) == (2, 6)
    assert found.files[0].read_bytes() == foreign
    run.stage("02")
    assert run.keys() == KEYS


class Steps:
    """Counts what retry does to the disk, and kills before step `last`: from there on nothing is done."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int) -> None:
        self.count, self.last = 0, last
        for place, name in ((os, "fsync"), (Path, "replace")):
            patch.setattr(place, name, self.behind(self.step, getattr(place, name)))
        patch.setattr(Path, "unlink", self.behind(self.alive, Path.unlink))

    @staticmethod
    def behind(check: Callable[[], None], do: Callable[..., object]) -> Callable[..., object]:
        def checked(*arguments: object, **options: object) -> object:
            check()
            return do(*arguments, **options)

        return checked

    def step(self) -> None:
        self.count += self.count <= self.last
        self.alive()

    def alive(self) -> None:
        if self.count > self.last:
            raise Killed


def test_a_kill_at_any_step_loses_no_row_and_the_end_has_every_key_once(run: Run) -> None:
    shutil.copytree(run.folder, run.base / "start")
    lines, where = run.lines(), "reason=truncated_in_thinking"
    kept = [line for line in lines if line[8:9] not in b"14"]
    both = Rejection(stage="generate", key="2#0/0", line=None, reason="truncated_in_thinking", detail="d")
    states, last = [], 0
    while True:
        shutil.rmtree(run.folder)
        shutil.copytree(run.base / "start", run.folder)
        (run.folder / REJECTED).unlink()
        journal.append_rejections(run.folder, [both])
        try:
            with pytest.MonkeyPatch.context() as patch:
                Steps(patch, last)
                retry(run.plan, "A", where=where)
        except Killed:
            states.append((run.lines() == lines, run.rejected() == ["2#0/0"]))
        else:
            break
        assert run.lines() in (lines, kept)
        assert set(run.lines()) | set(run.aside()) == set(lines)
        assert run.rejected() or len(run.aside("rejected")) == 1
        assert journal.journal_paths(run.folder) == [run.folder / JOURNAL]
        if run.lines() == lines:
            retry(run.plan, "A", where=where)  # the same command goes on
        run.generate()
        assert sorted(run.asked) == [1, 2, 4, 5]
        assert run.keys() == KEYS
        assert {tuple(item.output_ids) for item in read_responses(run.folder / JOURNAL)} == {tuple(WHOLE)}
        last += 1
    assert sorted(set(states), reverse=True) == [(True, True), (True, False), (False, False)]
    assert len(states) == 13
    assert not list(run.folder.glob(".*.tmp"))


def test_what_a_killed_retry_left_is_written_over(run: Run) -> None:
    for part in ("kept", "set-aside"):
        (run.folder / f".{JOURNAL}.{part}.tmp").write_bytes(b"half a line")
    before = run.lines()
    retry(run.plan, "A", where="reason=truncated_in_thinking")
    assert sorted(run.lines() + run.aside()) == sorted(before)
    assert not list(run.folder.glob(".*.tmp"))


def test_a_full_disk_leaves_everything_as_it_was(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    before = run.lines()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(RunStopped, match="No space left on device; make room or mend the folder"):
            retry(run.plan, "A", where="reason=truncated_in_thinking")
    assert (run.lines(), run.aside()) == (before, [])
    assert not list(run.folder.glob(".*.tmp"))


@pytest.mark.parametrize("name", ["raw_responses.lock", "raw_responses.2-of-3.lock", ".stages.lock"])
def test_a_run_that_is_going_on_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(retrying, "_DYING_SECONDS", 0.0)
    with journal.lock(run.folder / name), pytest.raises(LockedError, match=f"process {os.getpid()}"):
        retry(run.plan, "A")
    assert run.rejected() == ["2#0/0", "5#0/0"]


def test_a_shard_that_starts_while_rows_are_set_aside_is_refused(run: Run) -> None:
    shard = run.folder / "raw_responses.1-of-2.jsonl"
    with retrying._writers_locked(run.folder):
        with pytest.raises(LockedError, match="as a whole or in another number of shards"):
            journal.open_journal(shard, wait_seconds=0).__enter__()
        assert not shard.exists()
    with journal.open_journal(shard, wait_seconds=0):
        pass


def test_rejections_of_every_shard_are_set_aside(run: Run) -> None:
    first, second = (item for item in read_rejections(run.folder) if item.stage == "generate")
    (run.folder / REJECTED).unlink()
    journal.append_rejections(run.folder, [first])
    journal.append_rejections(run.folder, [second], shard=Shard(2, 3))
    found = retry(run.plan, "A", where="reason=bad_request")
    assert (found.lines, found.again, len(run.aside("rejected"))) == (2, 2, 2)
    assert run.rejected() == []
    run.stage("02")
    assert sorted(run.asked) == [2, 5]


def test_what_was_retried_is_on_record_before_anything_moves(run: Run) -> None:
    retry(run.plan, "A", where="reason=aborted")
    assert read_retried(run.folder) == []  # nothing had it
    retry(run.plan, "A")
    retry(run.plan, "A", where="reason=truncated_in_thinking")
    assert [(item.reason, item.lines) for item in read_retried(run.folder)] == [("", 2), ("truncated_in_thinking", 2)]


def test_the_reasons_of_generation_are_those_in_its_source() -> None:
    modules = ("engines/answers.py", "engines/sglang.py", "engines/vllm.py", "capture/asking.py", "capture/given_up.py")
    sources = [ROOT / "lib/rawtokens" / name for name in modules]
    text = "".join(path.read_text() for path in sources)
    named = set(re.findall(r'(?<!_)reason="(\w+)"', text)) | {"connection"}  # the other half of a condition
    stopping = {"nan_weights", "key_refused", "no_generate_route", "no_token_ids", "weight_version_differs"}
    assert named - stopping == set(GENERATION_REASONS)


def command(run: Run, *options: str) -> int:
    outputs = str(run.folder.parents[1])
    return main(["retry", str(run.base / "run.yaml"), "--outputs", outputs, "--dataset", *(options or ["A"])])


def test_the_command_says_how_many_where_and_what_next(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(run, "A", "--where", "reason=truncated_in_thinking") == 0
    (aside,) = run.folder.glob("raw_responses.set-aside-*.jsonl")
    assert capsys.readouterr().out == (
        f"A: rows to generate again: 2; lines set aside: 2, in {aside}; next: rawtokens run {run.base / 'run.yaml'} "
        f"--dataset A --outputs {run.folder.parents[1]}\n"
    )
    assert command(run) == 0
    assert "A: rows to generate again: 2;" in capsys.readouterr().out
    assert command(run) == 0
    assert capsys.readouterr().out == "A: nothing to retry\n"


def test_greedy_sampling_is_told_that_the_same_may_come(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (run.base / "run.yaml").write_text(f"{RUN}sampling: {{temperature: 0}}\n")
    assert command(run) == 0
    assert "again: 2 (greedy or seeded: the same ids may come again);" in capsys.readouterr().out


BAD: dict[str, tuple[list[str], str]] = {
    "unknown code": (["A", "--where", "reason=frob"], "Reasons of rows that were sent: empty, "),
    "a code of stage 01": (
        ["A", "--where", "reason=template_error"],
        "no row that was sent has reason 'template_error'; a row that stage 01 rejected it judges anew at each run",
    ),
    "no reason": (["A", "--where", "verdict=flag"], "--where 'verdict=flag' is not known; expected reason=CODE"),
    "unknown data set": (["B"], "has no data set 'B'; it has A"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(run: Run, capsys: pytest.CaptureFixture[str], name: str) -> None:
    options, words = BAD[name]
    assert command(run, *options) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_no_such_run_is_one_line_and_no_folder(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run.folder)
    assert command(run) == 2
    assert "A has no prompts.parquet, so nothing was generated there; run stage 01 for A first" in (
        capsys.readouterr().err
    )
    assert not run.folder.exists()
