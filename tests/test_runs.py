import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import small_dataset

from rawtokens import runs
from rawtokens.engines.answers import ServerFacts
from rawtokens.errors import InputError, ResumeError, ServerError
from rawtokens.records import Json, Sampling
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.target.thinking_modes import Portion

FACTS = ServerFacts(version="0.5.23", model="demo", weight_version="default", dtype="bfloat16")


def tokenized(folder: Path, **changes: Json) -> None:
    """A manifest as stage 01 writes it."""
    part: dict[str, Json] = {"tokenizer": "demo", "tokenizer_sha256": "a", "template_kwargs": {}, **changes}
    part |= {"vocabulary_size": 163840, "stop_ids": [163586]}
    (folder / runs.MANIFEST).write_bytes(msgspec.json.encode(part))


def generating(folder: Path, facts: ServerFacts = FACTS, sampling: Sampling | None = None) -> str:
    return runs.record_generating(folder, facts, sampling or Sampling())


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
        (FACTS, Sampling(temperature=0.5), "sampling.temperature: was 1.0, now 0.5"),
        (FACTS, Sampling(seed=1), "sampling.sampling_seed: was None, now 1"),
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


def test_a_difference_is_told_by_its_entry_and_not_by_all_of_them(tmp_path: Path) -> None:
    tokenized(tmp_path)
    generating(tmp_path)
    with pytest.raises(ResumeError, match=r"\(sampling\.max_new_tokens: was 512, now 9\)"):
        generating(tmp_path, sampling=Sampling(max_new_tokens=9))


def test_a_whole_number_and_its_float_are_one_setting(tmp_path: Path) -> None:
    tokenized(tmp_path)
    first = generating(tmp_path, sampling=Sampling(temperature=1))
    tokenized(tmp_path)
    assert generating(tmp_path, sampling=Sampling(temperature=1.0)) == first


def test_responses_of_another_set_up_are_not_added_to_when_the_manifest_is_lost(tmp_path: Path) -> None:
    tokenized(tmp_path)
    fingerprint = generating(tmp_path)
    small_dataset.write_lines(
        tmp_path / "raw_responses.jsonl",
        [msgspec.structs.replace(small_dataset.response("a#0/0", [1], start=0, seconds=1), fingerprint=fingerprint)],
    )
    tokenized(tmp_path)  # run.json as after `rm run.json` and a new stage 01
    assert generating(tmp_path) == fingerprint
    tokenized(tmp_path)
    with pytest.raises(ResumeError, match=f"another set-up .fingerprint {fingerprint}"):
        generating(tmp_path, sampling=Sampling(temperature=0.5))
    assert "fingerprint" not in runs.read_manifest(tmp_path)


def test_an_answer_that_the_context_cant_hold_is_refused_before_a_prompt_is_sent(tmp_path: Path) -> None:
    tokenized(tmp_path)
    with pytest.raises(InputError, match="max_new_tokens is 4096, the server's context holds 4096 ids"):
        generating(tmp_path, msgspec.structs.replace(FACTS, context_length=4096), Sampling(max_new_tokens=4096))


def test_sampling_that_no_server_takes_is_refused(tmp_path: Path) -> None:
    tokenized(tmp_path)
    with pytest.raises(InputError, match="top_k is 0"):
        generating(tmp_path, sampling=Sampling(top_k=0))


def test_no_stage_02_starts_while_prompts_are_being_rewritten(tmp_path: Path, target: Tokenizer) -> None:
    runs.record_tokenizing(tmp_path, target, PromptOptions())
    runs.guard_tokenizing(tmp_path, target, PromptOptions(template_kwargs={"thinking": False}))
    with pytest.raises(InputError, match="run stage 01 first"):
        generating(tmp_path)
    runs.record_tokenizing(tmp_path, target, PromptOptions(template_kwargs={"thinking": False}))
    generating(tmp_path)
    with pytest.raises(ResumeError, match=r"template_kwargs\.thinking: was False, now True"):
        runs.guard_tokenizing(tmp_path, target, PromptOptions(template_kwargs={"thinking": True}))
    generating(tmp_path)


def test_other_sampling_is_refused_though_nothing_is_missing(tmp_path: Path) -> None:
    tokenized(tmp_path)
    runs.guard_sampling(tmp_path, Sampling(temperature=0.3))  # no response yet: whatever is set is the run's
    generating(tmp_path)
    runs.guard_sampling(tmp_path, Sampling(samples_per_prompt=5))
    with pytest.raises(ResumeError, match=r"sampling\.top_k: was -1, now 5"):
        runs.guard_sampling(tmp_path, Sampling(top_k=5))
    with pytest.raises(InputError, match="top_p is 2"):
        runs.guard_sampling(tmp_path, Sampling(top_p=2))


def test_what_a_router_hid_guards_once_a_server_tells_it(tmp_path: Path) -> None:
    tokenized(tmp_path)
    first = generating(tmp_path, ServerFacts())
    assert generating(tmp_path) == first
    with pytest.raises(ResumeError, match="model: was 'demo', now 'other'"):
        generating(tmp_path, msgspec.structs.replace(FACTS, model="other"))
    assert generating(tmp_path, ServerFacts()) == first


def test_a_moved_journal_is_refused_with_the_command_that_sets_it_aside(tmp_path: Path) -> None:
    tokenized(tmp_path)
    generating(tmp_path)
    moved = small_dataset.response("a#0/0", [1], start=0, seconds=1)
    small_dataset.write_lines(tmp_path / "raw_responses.2-of-2.jsonl", [moved])
    with pytest.raises(ResumeError, match=r"2-of-2\.jsonl was generated by .* retry RUN\.yaml .* --where foreign"):
        generating(tmp_path)


def test_shards_that_start_together_write_one_manifest(tmp_path: Path) -> None:
    """Four processes at once, half of them behind a router that hides the server's facts."""
    tokenized(tmp_path)
    code = (
        "import sys; from pathlib import Path; from rawtokens import runs; from rawtokens.records import Sampling\n"
        "from rawtokens.engines.answers import ServerFacts\n"
        "facts = ServerFacts(version='0.5.23', model='demo') if int(sys.argv[2]) % 2 else ServerFacts()\n"
        "sys.stdin.readline(); print(runs.record_generating(Path(sys.argv[1]), facts, Sampling()))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    shards = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for shard in shards:
        assert shard.stdin
        shard.stdin.write("\n")
        shard.stdin.flush()
    told = {shard.communicate()[0].strip() for shard in shards}
    manifest = runs.read_manifest(tmp_path)
    assert told == {manifest["fingerprint"]}
    assert (manifest["model"], manifest["engine_version"]) == ("demo", "0.5.23")


@pytest.mark.parametrize("change", [{"tokenizer_sha256": "b"}, {"template_kwargs": {"thinking": False}}])
def test_what_stage_01_recorded_is_in_the_fingerprint(tmp_path: Path, change: dict[str, Json]) -> None:
    tokenized(tmp_path)
    first = generating(tmp_path)
    tokenized(tmp_path, **change)
    assert generating(tmp_path) != first


def test_the_settings_of_a_run_are_its_own_when_read_back(tmp_path: Path, target: Tokenizer) -> None:
    portion = Portion(share=1.0, template_kwargs={"thinking": False})
    for options in (PromptOptions(), PromptOptions(mix=(portion,))):
        (tmp_path / runs.MANIFEST).unlink(missing_ok=True)
        runs.record_tokenizing(tmp_path, target, options)
        generating(tmp_path)
        runs.guard_settings(tmp_path, Sampling(), options)
        with pytest.raises(ResumeError, match=r"control_tokens: was 'skip', now 'keep'"):
            runs.guard_settings(tmp_path, Sampling(), msgspec.structs.replace(options, control_tokens="keep"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (PromptOptions(template_kwargs={"thinking": False}), "template_kwargs.thinking: was None, now False"),
        (PromptOptions(mix=(Portion(share=1.0, template_kwargs={"thinking": False}),)), "mix: was .*, now "),
        (PromptOptions(control_tokens="keep"), "control_tokens: was 'skip', now 'keep'"),
        (PromptOptions(turns="continue"), "turns: was 'last', now 'continue'"),
    ],
)
def test_other_modes_than_those_of_the_responses_are_refused_at_every_stage(
    tmp_path: Path, target: Tokenizer, options: PromptOptions, words: str
) -> None:
    runs.record_tokenizing(tmp_path, target, PromptOptions())
    runs.guard_settings(tmp_path, Sampling(), options)  # no response yet: whatever is asked for is the run's
    generating(tmp_path)
    runs.guard_settings(tmp_path, Sampling(), PromptOptions())
    with pytest.raises(ResumeError, match=words):
        runs.guard_settings(tmp_path, Sampling(), options)
    with pytest.raises(ResumeError, match=words):
        runs.guard_tokenizing(tmp_path, target, options)


def test_a_run_that_goes_on_takes_the_date_of_its_responses(tmp_path: Path) -> None:
    assert runs.recorded_date(tmp_path) == ""
    tokenized(tmp_path, template_date="2026-01-31")
    assert runs.recorded_date(tmp_path) == ""  # no response yet: prompts may be made anew, with today's
    generating(tmp_path)
    assert runs.recorded_date(tmp_path) == "2026-01-31"


def test_what_was_asked_of_the_template_is_on_record(tmp_path: Path, target: Tokenizer) -> None:
    mix = (Portion(share=0.75, template_kwargs={"thinking": True}), Portion(share=0.25))
    runs.record_tokenizing(tmp_path, target, PromptOptions(template_kwargs={"a": 1}, mix=mix))
    manifest = runs.read_manifest(tmp_path)
    assert manifest["template_kwargs"] == {"a": 1}
    assert manifest["mix"] == [
        {"share": 0.75, "template_kwargs": {"thinking": True}},
        {"share": 0.25, "template_kwargs": {}},
    ]
    assert (manifest["turns"], manifest["control_tokens"], manifest["template_date"]) == ("last", "skip", "")
    assert manifest["chat_template_sha256"] == target.identity["chat_template_sha256"]
