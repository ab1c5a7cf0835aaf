from pathlib import Path

import msgspec
import pytest

from rawtokens import runs
from rawtokens.engines.sglang import ServerFacts
from rawtokens.errors import InputError, ResumeError, ServerError
from rawtokens.records import Json, Sampling

SMALLEST = "run: demo\nmodel: {tokenizer: org/model}\ndatasets:\n  B1: {prompts: prompts.json}\n"
FACTS = ServerFacts(version="0.5.23", model="demo", weight_version="default", dtype="bfloat16")


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def tokenized(folder: Path, **changes: Json) -> None:
    """A manifest as stage 01 writes it."""
    part: dict[str, Json] = {"tokenizer": "demo", "tokenizer_sha256": "a", "template_kwargs": {}, **changes}
    part |= {"vocabulary_size": 163840, "stop_ids": [163586]}
    (folder / runs.MANIFEST).write_bytes(msgspec.json.encode(part))


def generating(folder: Path, facts: ServerFacts = FACTS, sampling: Sampling | None = None) -> str:
    return runs.record_generating(folder, facts, sampling or Sampling())


def test_every_key_but_three_has_a_default(tmp_path: Path) -> None:
    settings = runs.load_run_file(write(tmp_path, SMALLEST))
    assert settings.sampling == runs.SamplingSettings(
        temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=512, samples_per_prompt=1, seed=None
    )
    assert settings.servers == runs.ServerSettings(
        urls=("http://127.0.0.1:30000",), api_key_env=None, max_in_flight="auto"
    )
    assert settings.datasets["B1"].format == "auto"


def test_paths_are_relative_to_the_run_file_and_hub_ids_stay(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    settings = runs.load_run_file(write(tmp_path, SMALLEST))
    assert settings.model.tokenizer == "org/model"
    assert settings.datasets["B1"].prompts == str(tmp_path / "prompts.json")
    local = runs.load_run_file(write(tmp_path, SMALLEST.replace("org/model", "./model")))
    assert local.model.tokenizer == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SMALLEST + "colour: red\n", "unknown field `colour`"),
        (SMALLEST.replace("prompts.json", "p.json, fromat: x"), "unknown field `fromat`"),
        (SMALLEST.replace("run: demo\n", ""), "missing required field `run`"),
        (SMALLEST.replace("run: demo", "run: ../up"), "'../up' becomes a folder"),
        (SMALLEST + "sampling: {temperature: hot}\n", r"Expected `float`, got `str` - at `\$.sampling.temperature`"),
        (SMALLEST + "sampling: {top_p: 0}\n", "0 < top_p <= 1"),
        (SMALLEST + "sampling: {samples_per_prompt: 0}\n", "samples_per_prompt is 0"),
        (SMALLEST + "servers: {urls: []}\n", "name one server at least"),
        (SMALLEST + "servers: {max_in_flight: many}\n", "'many'; expected a positive number or auto"),
        (SMALLEST.replace("prompts.json", "p.json, turns: each"), "turns of B1 is 'each'"),
        ("run: [", "can't be read as YAML"),
        ("- 1\n", "Expected `object`"),
    ],
)
def test_a_wrong_run_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        runs.load_run_file(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_run_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        runs.load_run_file(tmp_path / "none.yaml")


def test_a_fingerprint_stays_over_resumes(tmp_path: Path) -> None:
    tokenized(tmp_path)
    first = generating(tmp_path)
    assert len(first) == 16
    assert generating(tmp_path) == first
    assert generating(tmp_path, ServerFacts()) == first  # a router that hides the facts contradicts nothing
    assert generating(tmp_path, sampling=Sampling(samples_per_prompt=4)) == first


@pytest.mark.parametrize(
    ("facts", "sampling", "words"),
    [
        (msgspec.structs.replace(FACTS, model="other"), Sampling(), "model: was 'demo', now 'other'"),
        (msgspec.structs.replace(FACTS, weight_version="2"), Sampling(), "weight_version: was 'default', now '2'"),
        (msgspec.structs.replace(FACTS, version="0.6"), Sampling(), "engine_version: was '0.5.23', now '0.6'"),
        (FACTS, Sampling(temperature=0.5), "sampling: was"),
        (FACTS, Sampling(seed=1), "sampling: was"),
    ],
)
def test_a_resume_with_other_ids_is_refused(tmp_path: Path, facts: ServerFacts, sampling: Sampling, words: str) -> None:
    tokenized(tmp_path)
    generating(tmp_path)
    before = (tmp_path / runs.MANIFEST).read_bytes()
    with pytest.raises(ResumeError, match=words):
        generating(tmp_path, facts, sampling)
    assert (tmp_path / runs.MANIFEST).read_bytes() == before


def test_generating_before_tokenizing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run stage 01 first"):
        generating(tmp_path)


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / runs.MANIFEST).write_text("{")
    with pytest.raises(InputError, match=r"run\.json can't be read"):
        runs.read_manifest(tmp_path)


def test_a_server_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    tokenized(tmp_path)
    with pytest.raises(ServerError, match="vocabulary has 32000 ids, the tokenizer's model has 163840"):
        generating(tmp_path, msgspec.structs.replace(FACTS, vocabulary_size=32000))
    assert "fingerprint" not in runs.read_manifest(tmp_path)


@pytest.mark.parametrize("revision", ["", "revision: main, ", "revision: abc123, "])
def test_a_hub_repositorys_own_code_needs_a_pinned_commit(tmp_path: Path, revision: str) -> None:
    text = SMALLEST.replace("tokenizer: org/model", f"{revision}trust_remote_code: true, tokenizer: org/model")
    with pytest.raises(InputError, match="full hash of a commit"):
        runs.load_run_file(write(tmp_path, text))


def test_the_kimi_run_waits_for_a_pinned_commit_and_is_complete_else(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "notebooks" / "kimi_k25.yaml").read_text()
    with pytest.raises(InputError, match=r"trust_remote_code runs the Python of moonshotai/Kimi-K2\.5"):
        runs.load_run_file(write(tmp_path, text))
    settings = runs.load_run_file(write(tmp_path, text.replace("revision: null", f"revision: {'a' * 40}")))
    assert settings.model.trust_remote_code
    assert settings.sampling.max_new_tokens == 32768
