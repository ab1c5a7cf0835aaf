import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils import chat_template_utils

from rawtokens.demo.vocabulary import chat_template, control_names, rank_bytes
from rawtokens.errors import InputError, TokenizerError
from rawtokens.records import Json
from rawtokens.target import prompt_workers
from rawtokens.target.target_tokenizer import PROBES, Tokenizer, load_tokenizer, template_arguments
from rawtokens.target.tokenizer_checks import check_class


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kimi's control tokens and template over a vocabulary of single bytes, which loads in no time."""
    folder = tmp_path_factory.mktemp("small")
    letters = bytes_to_unicode()
    raw = RawTokenizer(models.BPE(vocab={letters[byte]: byte for byte in range(256)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in control_names()])
    raw.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "TokenizersBackend", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "unk_token": "[UNK]", "pad_token": "[PAD]"}))
    (folder / "chat_template.jinja").write_text(chat_template())
    return folder


def _copy(folder: Path, to: Path, *left_out: str) -> Path:
    return Path(shutil.copytree(folder, to, ignore=shutil.ignore_patterns(*left_out)))


@pytest.fixture
def copied(small_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the small folder without the named files."""
    return lambda *left_out: _copy(small_folder, tmp_path / "copy", *left_out)


def test_markers_and_identity_of_kimi_are_found(target: Tokenizer) -> None:
    assert target.markers.family == "kimi"
    assert (target.markers.opener, target.markers.closer, target.markers.turn_ends) == ((163606,), (163607,), (163586,))
    assert sorted(target.identity) == [
        "chat_template_sha256",
        "prompt_encoder",
        "prompt_encoder_sha256",
        "template_date",
        "tokenizer",
        "tokenizer_class",
        "tokenizer_revision",
        "tokenizer_sha256",
    ]
    assert len(target.identity["tokenizer_sha256"]) == 64
    assert "/" not in target.identity["tokenizer"]


def test_given_markers_take_the_place_of_a_family_here_and_in_every_process(small_folder: Path) -> None:
    target = load_tokenizer(str(small_folder), markers='{"turn_end": "[EOS]"}')
    markers = target.markers
    assert (markers.family, markers.opener, markers.closer, markers.turn_ends) == ("given", (), (), (257,))
    assert prompt_workers._load(target.source).markers == markers


@pytest.mark.parametrize(
    ("markers", "words"),
    [
        ("turn_end", "markers is 'turn_end'.*expected JSON like"),
        ("[]", "Expected `object`, got `array`"),
        ('{"turn_end": "[EOS]", "closer": "x"}', "markers give closer but no opener"),
        ('{"turn_end": "[EOS]", "stop": "x"}', "unknown field `stop`"),
    ],
)
def test_markers_that_are_none_are_refused(markers: str, words: str, small_folder: Path) -> None:
    with pytest.raises(InputError, match=words):
        load_tokenizer(str(small_folder), markers=markers)


def test_the_vocabulary_bound_is_the_model_configs(copied: Callable[..., Path]) -> None:
    folder = copied()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 163840 + 64}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_tokenizer(str(folder)).vocabulary_size == 163904


def test_special_ids_are_shown_when_decoded(target: Tokenizer) -> None:
    assert target.decode([163606, 18699, 163607, 163586]) == "<think>Hi</think><|im_end|>"


def test_a_tokenizer_that_encodes_otherwise_than_its_file_is_refused(
    kimi_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _copy(kimi_folder, tmp_path / "copy")
    encoder = load_tokenizer(str(folder)).encoder
    content = json.loads((folder / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    content["pre_tokenizer"]["trim_offsets"] = True
    (folder / "tokenizer.json").write_text(json.dumps(content))
    monkeypatch.setattr("rawtokens.target.target_tokenizer.AutoTokenizer.from_pretrained", lambda *_, **__: encoder)
    with pytest.raises(TokenizerError, match="other ids than its tokenizer"):
        load_tokenizer(str(folder))


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no such folder") as caught:
        load_tokenizer(str(tmp_path / "none"))
    assert str(tmp_path / "none") in str(caught.value)


def test_a_folder_without_tokenizer_files_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="can't be loaded") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_a_damaged_file_is_one_clear_line(copied: Callable[..., Path], name: str, content: str) -> None:
    folder = copied()
    (folder / name).write_text(content)
    with pytest.raises(TokenizerError, match=r"can't be loaded|no known family|no chat template") as caught:
        load_tokenizer(str(folder))
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value) or "family" in str(caught.value)


def test_template_arguments_are_a_json_object() -> None:
    assert template_arguments('{"thinking": true}') == {"thinking": True}
    for text in ("", "{", "[1]", "thinking", "null"):
        with pytest.raises(InputError, match="expected JSON like"):
            template_arguments(text)
    with pytest.raises(InputError, match="'truncation', which is no argument of a chat template"):
        template_arguments('{"truncation": true, "max_length": 9}')


def test_a_tokenizer_without_chat_template_is_refused(copied: Callable[..., Path]) -> None:
    folder = copied("chat_template.jinja")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError, match="no chat template"):
        load_tokenizer(str(folder))


def test_remote_code_needs_a_pinned_commit() -> None:
    with pytest.raises(InputError, match="full hash of a commit"):
        load_tokenizer("org/model", revision="main", trust_remote_code=True)


def test_probes_cover_what_tokenizers_were_seen_to_split_differently() -> None:
    text = "".join(PROBES)
    assert all(kind in text for kind in ["  ", "\n\n", "\t", "你", "🙂", "def ", "'", "1234"])


MESSAGES: list[dict[str, Json]] = [{"role": "user", "content": "Hi"}]
DATED = "{{ strftime_now('%d %B %Y') }} {% macro day() %}{{ strftime_now('%A') }}{% endmacro %}{{ day() }}"
PLAIN_TURN = "<|im_user|>{{ messages[0].content }}<|im_end|>"


@pytest.fixture
def with_template(copied: Callable[..., Path]) -> Callable[[str], Path]:
    """A copy of the small folder with another chat template."""

    def write(template: str) -> Path:
        folder = copied()
        (folder / "chat_template.jinja").write_text(template)
        return folder

    return write


# render, encode, prompt_ids


@pytest.mark.parametrize("thinking", [True, False])
def test_rendered_and_encoded_is_what_apply_chat_template_gives(target: Tokenizer, thinking: bool) -> None:
    tools: list[dict[str, Json]] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    text = target.render(MESSAGES, tools=tools, template_kwargs={"thinking": thinking})
    arguments = {"tools": tools, "add_generation_prompt": True, "thinking": thinking}
    assert text == target.encoder.apply_chat_template(MESSAGES, tokenize=False, **arguments)
    ids = target.encoder.apply_chat_template(MESSAGES, return_dict=False, **arguments)
    assert (
        target.encode([text])
        == [ids]
        == [target.prompt_ids(MESSAGES, tools=tools, template_kwargs={"thinking": thinking})]
    )


def test_an_answer_to_go_on_with_is_left_open(target: Tokenizer) -> None:
    messages: list[dict[str, Json]] = [*MESSAGES, {"role": "assistant", "content": "It is "}]
    text = target.render(messages, continue_final=True)
    assert text.endswith("<|im_middle|><think></think>It is ")
    assert target.encode([text]) == [target.prompt_ids(messages, continue_final=True)]


def test_control_ids_are_all_that_text_can_spell(target: Tokenizer) -> None:
    assert target.control_ids == frozenset(range(163584, 163840))


def test_an_added_token_of_spaces_is_ordinary_text(copied: Callable[..., Path]) -> None:
    folder = copied()
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"] += [{**content["added_tokens"][-1], "id": 512, "content": "\t\t\t", "special": False}]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    target = load_tokenizer(str(folder))
    assert target.encode(["\t\t\t"]) == [[512]]
    assert 512 not in target.control_ids


# A template's date


def test_a_date_is_held_for_the_stage_and_stands_in_the_identity(with_template: Callable[[str], Path]) -> None:
    folder = str(with_template(DATED + PLAIN_TURN))
    pinned = load_tokenizer(folder, template_date="2024-02-29")
    assert pinned.template_date == pinned.identity["template_date"] == pinned.source.template_date == "2024-02-29"
    expected = "29 February 2024 Thursday<|im_user|>Hi<|im_end|>"
    assert pinned.render(MESSAGES) == expected
    other = load_tokenizer(folder, template_date="2025-12-31")
    assert other.render(MESSAGES) == "31 December 2025 Wednesday<|im_user|>Hi<|im_end|>"
    assert pinned.prompt_ids(MESSAGES) == pinned.encode([expected])[0]


def test_todays_date_is_that_of_the_load_and_renders_as_transformers_does(
    with_template: Callable[[str], Path],
) -> None:
    before = date.today()
    target = load_tokenizer(str(with_template(DATED + PLAIN_TURN)))
    assert target.template_date in (before.isoformat(), date.today().isoformat())
    chat_template_utils._compile_jinja_template.cache_clear()
    fresh = target.encoder.apply_chat_template(MESSAGES, tokenize=False)
    if date.today() == before:
        assert target.render(MESSAGES) == fresh


def test_a_template_without_a_date_has_none(small_folder: Path) -> None:
    target = load_tokenizer(str(small_folder))
    assert target.template_date == target.identity["template_date"] == ""
    assert load_tokenizer(str(small_folder), template_date="2024-02-29").identity == target.identity


def test_a_date_that_is_none_is_refused(with_template: Callable[[str], Path]) -> None:
    with pytest.raises(InputError, match=r"template_date is '29\.02\.2024'; expected a date as 2026-01-31"):
        load_tokenizer(str(with_template(DATED)), template_date="29.02.2024")


# The beginning of a sequence


def test_a_template_that_begins_twice_is_refused(with_template: Callable[[str], Path]) -> None:
    folder = with_template("[BOS][BOS]" + PLAIN_TURN)
    with pytest.raises(TokenizerError, match=r"begin with '\[BOS\]' twice: the chat template writes it twice"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("begin", "template", "problem"),
    [
        (True, PLAIN_TURN, r"adds '\[BOS\]' at the beginning of a prompt"),
        (True, "[BOS]" + PLAIN_TURN, r"begin with '\[BOS\]' twice: the encoder adds a second one"),
        (False, PLAIN_TURN, r"adds '\[EOS\]' at the end of a prompt"),
    ],
)
def test_an_id_that_the_template_did_not_write_is_refused(
    with_template: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, begin: bool, template: str, problem: str
) -> None:
    folder = with_template(template)
    encoder = load_tokenizer(str(folder)).encoder

    def added(ids: list[int]) -> list[int]:
        return [256, *ids] if begin else [*ids, 257]

    class Adding(type(encoder)):  # type: ignore[misc]
        def __call__(self, text: str, **arguments: object) -> dict[str, list[int]]:
            return {"input_ids": added(super().__call__(text, **arguments)["input_ids"])}

    encoder.__class__ = Adding
    monkeypatch.setattr("rawtokens.target.target_tokenizer.AutoTokenizer.from_pretrained", lambda *_, **__: encoder)
    with pytest.raises(TokenizerError, match=problem):
        load_tokenizer(str(folder))


def test_a_beginning_that_the_template_leaves_out_is_noticed(copied: Callable[..., Path]) -> None:
    folder = copied()
    content = json.loads((folder / "tokenizer.json").read_text())
    begin, text = {"SpecialToken": {"id": "[BOS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    content["post_processor"] = {"type": "TemplateProcessing", "single": [begin, text], "pair": [begin, text, text]}
    content["post_processor"]["special_tokens"] = {"[BOS]": {"id": "[BOS]", "ids": [256], "tokens": ["[BOS]"]}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    target = load_tokenizer(str(folder))
    assert target.notices == ("the tokenizer begins plain text with '[BOS]', which the chat template does not write",)
    assert target.encode(["Hi"]) == [[72, 105]]


def test_a_template_that_refuses_the_probe_is_noticed(with_template: Callable[[str], Path]) -> None:
    target = load_tokenizer(str(with_template("{{ raise_exception('a system message first') }}")))
    assert len(target.notices) == 1
    assert target.notices[0].endswith("the prompts' beginning is unchecked: a system message first")


# The class that transformers chose


@pytest.fixture
def without_json(kimi_folder: Path, tmp_path: Path) -> Path:
    """Kimi's folder as its repository has it: tiktoken.model, a class of its own, no tokenizer.json."""
    folder = _copy(kimi_folder, tmp_path / "copy", "tokenizer.json")
    lines = (b"%s %d\n" % (base64.b64encode(piece), i) for i, piece in enumerate(rank_bytes()))
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    names = {163584 + place: name for place, name in enumerate(control_names())}
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(i): {"content": name, **plain} for i, name in names.items()}
    config |= {"tokenizer_class": "TikTokenTokenizer"}
    config["auto_map"] = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "kimi_k25", "text_config": {"vocab_size": 163840}}')
    return folder


def test_a_generic_class_in_kimis_place_is_caught_without_a_tokenizer_json(without_json: Path) -> None:
    with pytest.raises(TokenizerError, match=r"other ids than its tiktoken\.model with Kimi's split pattern") as caught:
        load_tokenizer(str(without_json))
    assert "loaded as TokenizersBackend by transformers " in str(caught.value)
    assert "trust_remote_code" in str(caught.value)


def test_a_class_of_the_models_own_that_was_not_loaded_is_refused(small_folder: Path, tmp_path: Path) -> None:
    encoder = load_tokenizer(str(small_folder)).encoder
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", null]}}')
    with pytest.raises(TokenizerError, match=r"the model has a class of its own \(own.OwnTokenizer\)") as caught:
        check_class(encoder, str(tmp_path), "")
    assert "loaded as TokenizersBackend by transformers " in str(caught.value)


def test_a_class_with_nothing_beside_it_is_noticed(small_folder: Path, tmp_path: Path) -> None:
    encoder = load_tokenizer(str(small_folder)).encoder
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert check_class(encoder, str(tmp_path), "")[0].startswith("no tokenizer.json lies beside it to compare")


@pytest.mark.parametrize("name", ["text_config", "llm_config", "language_config"])
def test_the_vocabulary_bound_of_a_nested_config_is_found(copied: Callable[..., Path], name: str) -> None:
    folder = copied()
    config = {"model_type": "llama", "vision_config": {"vocab_size": 9}, name: {"vocab_size": 163_904}}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_tokenizer(str(folder)).vocabulary_size == 163_904


# A model's own Python in place of a chat template

OWN = """
def text(messages, tools, template_kwargs):
    return "".join(f"<|im_user|>{m['content']}<|im_end|>" for m in messages) + "<think>" * template_kwargs.get("n", 1)

def ids(messages, tools, template_kwargs):
    return [259, 72, 105, 258, 278]

def odd_ids(messages, tools, template_kwargs):
    return [258, 999]

def failing(messages, tools, template_kwargs):
    raise KeyError("reasoning_effort")

number = 7
"""


@pytest.fixture
def own_function(copied: Callable[..., Path], tmp_path: Path) -> Callable[[str], Tokenizer]:
    """Loads a folder without a chat template, with a function of a file in its place."""
    folder = copied("chat_template.jinja")
    (tmp_path / "own_prompts.py").write_text(OWN)
    return lambda name: load_tokenizer(str(folder), prompt_encoder=f"{tmp_path / 'own_prompts.py'}:{name}")


@pytest.mark.parametrize("name", ["text", "ids"])
def test_a_function_renders_in_place_of_a_template(own_function: Callable[[str], Tokenizer], name: str) -> None:
    target = own_function(name)
    assert target.render(MESSAGES) == "<|im_user|>Hi<|im_end|><think>"
    assert target.encode([target.render(MESSAGES)]) == [target.prompt_ids(MESSAGES)] == [[259, 72, 105, 258, 278]]
    assert target.notices == ()


def test_a_function_stands_in_the_identity_by_name_and_source(own_function: Callable[[str], Tokenizer]) -> None:
    identity = own_function("text").identity
    assert identity["prompt_encoder"] == "own_prompts.py:text"
    assert identity["prompt_encoder_sha256"] == hashlib.sha256(OWN.encode()).hexdigest()
    assert identity["chat_template_sha256"] == ""


def test_a_functions_template_arguments_reach_it(own_function: Callable[[str], Tokenizer]) -> None:
    assert own_function("text").render(MESSAGES, template_kwargs={"n": 2}).endswith("<think><think>")


def test_ids_that_are_not_their_texts_are_refused_row_by_row(own_function: Callable[[str], Tokenizer]) -> None:
    target = own_function("odd_ids")
    assert "unchecked" in target.notices[0]
    with pytest.raises(ValueError, match="ids that their own text does not encode to"):
        target.render(MESSAGES)
    assert target.prompt_ids(MESSAGES) == [258, 999]


def test_a_function_can_not_leave_an_answer_open(own_function: Callable[[str], Tokenizer]) -> None:
    with pytest.raises(ValueError, match="can't leave the last message open"):
        own_function("text").render(MESSAGES, continue_final=True)


def test_a_function_that_fails_on_the_probe_is_noticed(own_function: Callable[[str], Tokenizer]) -> None:
    assert own_function("failing").notices[0].endswith("'reasoning_effort'")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("text", "expected `module:function`"),
        ("none.py:text", "can't be imported"),
        ("no_such_module:text", "can't be imported: No module named 'no_such_module'"),
        ("json:no_such_function", "json has no function 'no_such_function'"),
    ],
)
def test_a_function_that_is_not_there_is_named(small_folder: Path, name: str, problem: str) -> None:
    with pytest.raises(TokenizerError, match=problem):
        load_tokenizer(str(small_folder), prompt_encoder=name)


def test_a_number_is_no_function(own_function: Callable[[str], Tokenizer]) -> None:
    with pytest.raises(TokenizerError, match="has no function 'number'"):
        own_function("number")
