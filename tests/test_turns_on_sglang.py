"""Conversations on the real SGLang, greedy in float32: a run that is killed ends with the undisturbed run's records."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from turns_client import follow

from rawtokens import runs
from rawtokens.__main__ import main
from rawtokens.capture.planned import count_missing
from rawtokens.demo.server import DemoServer
from rawtokens.demo.tool_cycles import TOOL_CYCLES, write_tool_cycles
from rawtokens.journal import JOURNAL, read_responses
from rawtokens.prompts import tokenize_file
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.turns.derived import derive_turns
from rawtokens.turns.endings import read_endings
from rawtokens.turns.report import read_turns
from rawtokens.verification import verify_journal

pytestmark = pytest.mark.engine

OPTIONS = PromptOptions(turns="each", template_kwargs={"thinking": True})
CONVERSATIONS = 12
KILLED_AT = (3, 11, 22)
"""Lines of the journal at which the client is killed."""


def prepare(folder: Path, target: Tokenizer) -> Path:
    folder.mkdir()
    write_tool_cycles(folder)
    tokenize_file(folder / TOOL_CYCLES, folder, target, OPTIONS, limit=CONVERSATIONS)
    runs.record_tokenizing(folder, target, OPTIONS)
    return folder


def lines(folder: Path) -> int:
    path = folder / JOURNAL
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_at(folder: Path, url: str, model: Path, count: int) -> bool:
    """Start a client, and kill it when so many lines stand; False where it was done before."""
    script = Path(__file__).with_name("turns_client.py")
    client = subprocess.Popen([sys.executable, str(script), str(folder), url, str(model)])
    try:
        while lines(folder) < count and client.poll() is None:
            time.sleep(0.002)
        client.kill()
        return client.wait() == -signal.SIGKILL
    finally:
        client.kill()


def said(folder: Path) -> dict[str, tuple[list[int], list[int]]]:
    found = list(read_responses(folder / JOURNAL))
    assert len({item.key for item in found}) == len(found)
    return {item.key: (item.prompt_ids, item.output_ids) for item in found}


def test_a_killed_run_of_conversations_ends_with_the_records_of_an_undisturbed_one(
    demo_server: DemoServer, demo_folder: Path, demo_target: Tokenizer, tmp_path: Path
) -> None:
    whole = prepare(tmp_path / "whole", demo_target)
    follow(whole, demo_server.url, str(demo_folder))
    disturbed = prepare(tmp_path / "disturbed", demo_target)
    kills = sum(kill_at(disturbed, demo_server.url, demo_folder, count) for count in KILLED_AT)
    assert kills == len(KILLED_AT)
    assert count_missing(disturbed, 1) > 0
    follow(disturbed, demo_server.url, str(demo_folder))
    assert said(disturbed) == said(whole)
    ends = [{str(key): (end.turns, end.reason) for key, end in read_endings(f).items()} for f in (whole, disturbed)]
    assert ends[0] == ends[1]
    assert len(ends[0]) == CONVERSATIONS
    assert sum(reason == "complete" for _, reason in ends[0].values()) > CONVERSATIONS // 2
    assert count_missing(disturbed, 1) == 0


def test_cycles_are_exact_and_later_turns_come_from_the_prefix_cache(
    demo_server: DemoServer, demo_folder: Path, demo_target: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare(tmp_path / "cycles", demo_target)
    follow(folder, demo_server.url, str(demo_folder))
    later = derive_turns(folder, demo_target)
    found = verify_journal(
        folder, markers=demo_target.markers, vocabulary_size=demo_target.vocabulary_size, later_prompts=later
    )
    assert found.verdicts["reject"] == 0
    assert found.reasons.get("prompt_changed", 0) == found.reasons.get("prompt_unknown", 0) == 0
    responses = {item.key: item for item in read_responses(folder / JOURNAL)}
    turns = read_turns(folder)
    cycles = turns[turns["made"] == "cycle"]
    assert len(cycles) >= CONVERSATIONS
    for key in cycles["key"]:
        source, _, turn = key.removesuffix("/0").rpartition("#")
        before, here = responses[f"{source}#{int(turn) - 1}/0"], responses[key]
        sampled = [*before.prompt_ids, *before.output_ids]
        assert here.prompt_ids[: len(sampled)] == sampled
        results = demo_target.decode(here.prompt_ids[len(sampled) :])
        assert results.startswith("<|im_system|>tool<|im_middle|>## Return of functions.")
        assert results.endswith("<|im_end|><|im_assistant|>assistant<|im_middle|><think>")
        assert here.cached_tokens >= len(before.prompt_ids)
    assert json.loads((folder / "run.json").read_text())["turns"] == "each"


def test_notebooks_show_conversations_by_turns(demo_server: DemoServer, demo_folder: Path, tmp_path: Path) -> None:
    write_tool_cycles(tmp_path)
    run_file = tmp_path / "tiny.yaml"
    run_file.write_text(
        json.dumps(
            {
                "run": "tiny",
                "model": {"tokenizer": str(demo_folder), "template_kwargs": {"thinking": True}},
                "servers": {"urls": [demo_server.url]},
                "sampling": {"temperature": 0.0, "max_new_tokens": 256},
                "audit": {"replay": 2},
                "datasets": {"B3_tool_cycles": {"prompts": TOOL_CYCLES, "turns": "each", "limit": 6}},
            }
        )
    )
    assert main(["run", str(run_file), "--outputs", str(tmp_path / "outputs")]) == 0
    folder = tmp_path / "outputs" / "tiny" / "B3_tool_cycles"
    pages = {path.stem[:2]: path.read_text() for path in (folder / "reports").iterdir()}
    assert "6 conversations foresee 29 answers" in pages["01"]
    for page in ("02", "03"):
        assert (
            f"{sum(end.reason == 'complete' for end in read_endings(folder).values())} of 6 conversations"
            in pages[page]
        )
    assert "in their prefix cache" in pages["02"]
    assert pages["03"].count("tool result ·") >= 1
    assert not [name for name, page in pages.items() if str(tmp_path) in page or str(demo_folder) in page]
    verified = pq.read_table(folder / "verified.parquet").to_pylist()
    assert len(verified) == lines(folder) > 6
    assert {row["verdict"] for row in verified} <= {"accept", "flag"}
    made = (folder / JOURNAL).read_bytes()
    assert main(["run", str(run_file), "--outputs", str(tmp_path / "outputs")]) == 0
    assert (folder / JOURNAL).read_bytes() == made
