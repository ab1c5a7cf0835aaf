import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rawtokens.errors import InputError, TokenizerError
from rawtokens.target_tokenizer import PROBES, Tokenizer, load_tokenizer, template_arguments


@pytest.fixture
def copied(kimi_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the Kimi folder without the named files."""

    def copy(*left_out: str) -> Path:
        folder = tmp_path / "copy"
        shutil.copytree(kimi_folder, folder, ignore=shutil.ignore_patterns(*left_out))
        return folder

    return copy


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


def test_the_vocabulary_bound_is_the_model_configs(copied: Callable[..., Path]) -> None:
    folder = copied()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 163840 + 64}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_tokenizer(str(folder)).vocabulary_size == 163904


def test_special_ids_are_shown_when_decoded(target: Tokenizer) -> None:
    assert target.decode([163606, 18699, 163607, 163586]) == "<think>Hi</think><|im_end|>"


def test_a_tokenizer_that_encodes_otherwise_than_its_file_is_refused(
    copied: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied()
    encoder = load_tokenizer(str(folder)).encoder
    content = json.loads((folder / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    content["pre_tokenizer"]["trim_offsets"] = True
    (folder / "tokenizer.json").write_text(json.dumps(content))
    monkeypatch.setattr("rawtokens.target_tokenizer.AutoTokenizer.from_pretrained", lambda *_, **__: encoder)
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
