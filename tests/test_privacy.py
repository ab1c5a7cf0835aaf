import sys
import sysconfig
from pathlib import Path

import pytest

from rawtokens.errors import InputError
from rawtokens.privacy import Scrubber, refuse_key


@pytest.mark.parametrize(
    "value",
    [
        "sk-abc123",
        "sk-proj-0123456789abcdef",
        "hf_abcdefghijkl",
        "Bearer 0123456",
        '{"Authorization": "bearer abcdefg"}',
        "ghp_0123456789",
        "github_pat_0123456789",
        "AKIA0123456789ABCDEF",
        "http://user:password@host:30000",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)
def test_a_key_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(InputError, match="urls looks like a key") as refusal:
        refuse_key("urls", value)
    assert value not in str(refusal.value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "http://127.0.0.1:30000",
        "./sk-learn-prompts.jsonl",
        "data/sk-learn-prompts.jsonl",
        "task-force",
        "moonshotai/Kimi-K2.5",
        "RAWTOKENS_API_KEY",
        "/data/hf_cache/prompts.parquet",
    ],
)
def test_an_ordinary_value_passes(value: str) -> None:
    refuse_key("prompts", value)


def test_the_value_of_a_secret_variable_is_refused_by_the_variable_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "correct horse")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "sometimes")
    with pytest.raises(InputError, match="the environment variable MY_API_KEY"):
        refuse_key("api_key_env", "correct horse")
    refuse_key("mode", "sometimes")


def test_paths_of_the_machine_and_secrets_leave_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, home = tmp_path / "home" / "ann" / "project", tmp_path / "home" / "ann"
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MY_TOKEN", "correct horse")
    text = Scrubber().text
    assert text(f"'{project}/outputs' {project}, {project}2") == "'./outputs' ., ~/project2"
    assert text(f"File {sysconfig.get_path('stdlib')}/json/decoder.py") == "File [python]/json/decoder.py"
    assert text(f"{sys.prefix}/bin/python") == "[python]/bin/python"
    assert text(f"see {home} and /data/prompts.jsonl, /mnt{home}") == f"see ~ and /data/prompts.jsonl, /mnt{home}"
    assert text("key=correct horse.") == "key=[secret]."


def test_a_model_s_words_about_root_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.chdir(tmp_path)
    assert Scrubber().text("cd /root && ls /usr/bin") == "cd /root && ls /usr/bin"


def test_a_tree_is_cleaned_to_its_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = {"cells": [{"source": f"open('{tmp_path}/a')", "count": 3}], "none": None}
    assert Scrubber().tree(tree) == {"cells": [{"source": "open('./a')", "count": 3}], "none": None}


def test_paths_inside_a_json_parameter_leave_text_too() -> None:
    given = ['{"tokenizer": "/somewhere/else/model", "revision": "", "deep": {"a": 1}}', "{no JSON", "[1]"]
    scrubber = Scrubber(given)
    assert scrubber.text('a "/somewhere/else/model" b /somewhere/else/x') == 'a "model" b else/x'
