from pathlib import Path

import pytest

from rawtokens.errors import InputError
from rawtokens.notebook_stages.stage_parameters import prompt_options, stage_parameters
from rawtokens.records import Sampling
from rawtokens.response_checks.checks import DEFAULT_POLICY, policy_from
from rawtokens.run_file import SamplingSettings, ServerSettings, check_sampling, load_run_file
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.thinking_modes import mix_from

SMALLEST = "run: demo\nmodel: {tokenizer: org/model}\ndatasets:\n  B1: {prompts: prompts.json}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def test_every_key_but_three_has_a_default(tmp_path: Path) -> None:
    settings = load_run_file(write(tmp_path, SMALLEST))
    assert settings.sampling == SamplingSettings(
        temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=512, samples_per_prompt=1, seed=None
    )
    assert settings.servers == ServerSettings(urls=("http://127.0.0.1:30000",), api_key_env=None, max_in_flight="auto")
    assert settings.datasets["B1"].format == "auto"


def test_paths_are_relative_to_the_run_file_and_hub_ids_stay(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    settings = load_run_file(write(tmp_path, SMALLEST))
    assert settings.model.tokenizer == "org/model"
    assert settings.datasets["B1"].prompts == str(tmp_path / "prompts.json")
    local = load_run_file(write(tmp_path, SMALLEST.replace("org/model", "./model")))
    assert local.model.tokenizer == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("written", "found"),
    [("hub:o/n@abc#all/test", "hub:o/n@abc#all/test"), ("hub:./set#test", "hub:{folder}/set#test")],
)
def test_a_hub_data_set_keeps_its_name_and_a_folder_of_one_is_relative_to_the_run_file(
    tmp_path: Path, written: str, found: str
) -> None:
    settings = load_run_file(write(tmp_path, SMALLEST.replace("prompts.json", written)))
    assert settings.datasets["B1"].prompts == found.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SMALLEST + "colour: red\n", "the top level has no key 'colour'; its keys: run, model, datasets"),
        (
            SMALLEST.replace("prompts.json", "p.json, fromat: x"),
            "datasets.B1 has no key 'fromat'; did you mean format\\? Its keys: prompts, format",
        ),
        (SMALLEST.replace("run: demo\n", ""), "the top level needs the key 'run'"),
        (SMALLEST.replace("run: demo", "run: ../up"), "'../up' becomes a folder"),
        (SMALLEST + "sampling: {temperature: hot}\n", "sampling.temperature is 'hot'; expected a number"),
        (
            SMALLEST + "sampling: {temprature: 1.0}\n",
            r"sampling has no key 'temprature'; did you mean temperature\? Its keys: temperature, top_p",
        ),
        (SMALLEST.replace("org/model", "org/model, markers: {turnend: E}"), "did you mean turn_end"),
        (SMALLEST.replace("prompts.json", "p.json, mix: [{share: a}]"), r"B1.mix\[0\].share is 'a'; expected a number"),
        (SMALLEST.replace("prompts.json", "p.json, limit: 1.5"), "limit is 1.5; expected a whole number or null"),
        (SMALLEST.replace("{prompts: prompts.json}", "3"), "datasets.B1 is 3; expected keys with values"),
        (SMALLEST + "  B2: {prompts: p.json, turn: last}\n", "datasets.B2 has no key 'turn'; did you mean turns"),
        (SMALLEST.replace("B1:", "1:"), "datasets has the key 1, which YAML does not read as text; put it in quotes"),
        (SMALLEST.replace("org/model", "org/model, template_date: now"), "is 'now'; expected a date such as"),
        (SMALLEST + "training: {flagged: maybe}\n", "training.flagged is 'maybe'; expected one of drop, keep"),
        (SMALLEST + "training: {mask: maybe}\n", r"run.yaml: training.mask is 'maybe'; expected one of sampled"),
        (SMALLEST + "training: {formats: parquet}\n", "training.formats is 'parquet'; expected a list"),
        (SMALLEST + "sampling: {top_p: 0}\n", "top_p is 0.0; expected more than 0, at most 1"),
        (SMALLEST + "sampling: {temperature: -1}\n", "temperature is -1.0; expected 0 or more"),
        (SMALLEST + "sampling: {temperature: .nan}\n", "temperature is nan"),
        (SMALLEST + "sampling: {temperature: .inf}\n", "temperature is inf"),
        (SMALLEST + "sampling: {top_k: 0}\n", r"top_k is 0; expected -1 \(off\), or 1 or more"),
        (SMALLEST + "sampling: {max_new_tokens: 0}\n", "max_new_tokens is 0"),
        (SMALLEST + "sampling: {seed: 0}\n", "seed is 0; expected 1 or more, or null for none"),
        (SMALLEST + "sampling: {samples_per_prompt: 0}\n", "samples_per_prompt is 0"),
        (SMALLEST.replace("org/model", "org/model, markers: {}"), "model.markers needs the key 'turn_end'"),
        (SMALLEST.replace("org/model", "org/model, markers: {turn_end: E, opener: O}"), "opener but no closer"),
        (SMALLEST + "audit: {policy: {loops: accept}}\n", "policy: reason 'loops' is not known"),
        (SMALLEST + "audit: {policy: {loop: drop}}\n", "policy.loop is 'drop'; expected one of accept, flag, reject"),
        (SMALLEST + "audit: {policy: {loop: 1}}\n", "audit.policy.loop is 1; expected one of"),
        (SMALLEST + "servers: {urls: []}\n", "name one server at least"),
        (SMALLEST + "servers: {max_in_flight: many}\n", "'many'; expected a positive number or auto"),
        (SMALLEST.replace("prompts.json", "p.json, tool_function: 'a:b'"), "tool_function of B1 .* set turns: each"),
        (SMALLEST.replace("prompts.json", "p.json, turns: every"), "turns of B1 is 'every'"),
        (
            SMALLEST.replace("prompts.json", "p.json, control_tokens: drop"),
            "'drop'; expected one of skip, keep, as_text",
        ),
        (
            SMALLEST.replace("prompts.json", "p.json, mix: [{share: 0.5}]"),
            r"datasets.B1: the shares of mix are \[0.5\]",
        ),
        (
            SMALLEST.replace("prompts.json", "p.json, mix: [{part: 1}]"),
            r"datasets.B1.mix\[0\] has no key 'part'; its keys: share",
        ),
        (SMALLEST.replace("prompts.json", "p.json, limit: 0"), "limit of B1 is 0; expected a positive number"),
        (SMALLEST + "  B1: {prompts: other.json}\n", "`B1` is given twice"),
        (SMALLEST + "run: other\n", "`run` is given twice"),
        (SMALLEST.replace("B1:", "reports:"), "can't be called 'reports'"),
        (SMALLEST.replace("B1:", "? [a]\n  :"), "can't be read as YAML"),
        (SMALLEST + "servers: {urls: ['127.0.0.1:30000']}\n", "'127.0.0.1:30000' is not valid; .* http://HOST:30000"),
        (SMALLEST + "servers: {api_key_env: my key}\n", "give the name, never the key"),
        ("", "the top level is null; expected keys with values"),
        ("run: [", "can't be read as YAML"),
        ("- 1\n", r"the top level is \[1\]; expected keys"),
    ],
)
def test_a_wrong_run_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load_run_file(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_markers_of_a_model_of_no_known_family_reach_every_stage_that_loads_the_tokenizer(tmp_path: Path) -> None:
    given = SMALLEST.replace("org/model", 'org/model, markers: {turn_end: "<|im_end|>"}')
    settings = load_run_file(write(tmp_path, given))
    for stage in ("00", "01", "03"):
        found = stage_parameters(settings, stage, "B1", folder=tmp_path)["markers"]
        assert found == '{"turn_end":"<|im_end|>","opener":"","closer":""}'
    assert stage_parameters(load_run_file(write(tmp_path, SMALLEST)), "01", "B1", folder=tmp_path)["markers"] == ""


def test_a_policy_of_one_s_own_reaches_the_stage_that_judges(tmp_path: Path) -> None:
    settings = load_run_file(write(tmp_path, SMALLEST + "audit: {policy: {loop: accept}}\n"))
    given = stage_parameters(settings, "03", "B1", folder=tmp_path)["policy"]
    assert policy_from(str(given)) == {**DEFAULT_POLICY, "loop": "accept"}


def test_one_server_in_several_spellings_is_one_server(tmp_path: Path) -> None:
    urls = "servers: {urls: ['http://a:1/', 'http://a:1', 'http://b:1']}\n"
    assert load_run_file(write(tmp_path, SMALLEST + urls)).servers.urls == ("http://a:1", "http://b:1")


def test_a_key_in_the_place_of_its_variable_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_run_file(write(tmp_path, SMALLEST + "servers: {api_key_env: sk-abcdefghijklmnop}\n"))
    assert "sk-abc" not in str(caught.value)
    with pytest.raises(
        InputError, match=r"servers.urls is a value of type str \(not shown\); expected a list"
    ) as caught:
        load_run_file(write(tmp_path, SMALLEST + "servers: {urls: 'http://user:sk-abcdef@host:1'}\n"))
    assert "sk-abc" not in str(caught.value)


@pytest.mark.parametrize("name", ["model", "some/deep/folder", "./model"])
def test_a_tokenizer_that_is_no_hub_id_is_a_folder_beside_the_run_file(tmp_path: Path, name: str) -> None:
    settings = load_run_file(write(tmp_path, SMALLEST.replace("org/model", name)))
    assert settings.model.tokenizer == str(tmp_path / name)


@pytest.mark.parametrize("content", [b"\x80\x00\xff", b"run: a\x00", b"\t{", b"[" * 5000])
def test_junk_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(InputError, match="can't be read as YAML") as caught:
        load_run_file(tmp_path / "run.yaml")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="Is a directory"):
        load_run_file(tmp_path)


def test_sampling_from_a_notebook_is_checked_alike() -> None:
    check_sampling(Sampling(temperature=0.0, top_k=1, seed=1))
    with pytest.raises(InputError, match="top_k is -2"):
        check_sampling(Sampling(top_k=-2))


def test_a_missing_run_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_run_file(tmp_path / "none.yaml")


@pytest.mark.parametrize("revision", ["", "revision: main, ", "revision: abc123, "])
def test_a_hub_repositorys_own_code_needs_a_pinned_commit(tmp_path: Path, revision: str) -> None:
    text = SMALLEST.replace("tokenizer: org/model", f"{revision}trust_remote_code: true, tokenizer: org/model")
    with pytest.raises(InputError, match="full hash of a commit"):
        load_run_file(write(tmp_path, text))


def test_the_kimi_run_waits_for_a_pinned_commit_and_is_complete_else(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "notebooks" / "kimi_k25.yaml").read_text()
    with pytest.raises(InputError, match=r"trust_remote_code runs the Python of moonshotai/Kimi-K2\.5"):
        load_run_file(write(tmp_path, text))
    settings = load_run_file(write(tmp_path, text.replace("revision: null", f"revision: {'a' * 40}")))
    assert settings.model.trust_remote_code
    assert settings.sampling.max_new_tokens == 32768


def test_a_data_sets_template_arguments_win_over_the_models(tmp_path: Path) -> None:
    text = """
run: demo
model: {tokenizer: org/model, template_kwargs: {thinking: true, effort: low}}
datasets:
  plain: {prompts: a.json}
  mixed:
    prompts: b.json
    turns: continue
    control_tokens: as_text
    template_kwargs: {effort: high}
    mix:
      - {share: 0.8, template_kwargs: {thinking: true}}
      - {share: 0.2, template_kwargs: {thinking: false}}
"""
    settings = load_run_file(write(tmp_path, text))
    assert prompt_options(settings, "plain") == PromptOptions(template_kwargs={"thinking": True, "effort": "low"})
    asked = prompt_options(settings, "mixed")
    assert (asked.turns, asked.control_tokens) == ("continue", "as_text")
    assert asked.template_kwargs == {"thinking": True, "effort": "high"}
    assert [portion.share for portion in asked.mix] == [0.8, 0.2]
    given = stage_parameters(settings, "01", "mixed", folder=tmp_path)
    assert mix_from(str(given["mix"])) == asked.mix
    assert (given["turns"], given["control_tokens"]) == ("continue", "as_text")
