"""The demo model: expanding its rows changes no probability, its folder is whole or absent, its prompts are new."""

import json
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

from rawtokens.conversations import read_conversations
from rawtokens.demo import prompts
from rawtokens.demo.model import EMBEDDING, STAMP, WEIGHTS, Bits, expanded, read_weights, write_demo_model
from rawtokens.errors import InputError
from rawtokens.records import Conversation, Prompt
from rawtokens.target.rendering import PromptOptions, tokenize_conversations
from rawtokens.target.target_tokenizer import Tokenizer

ENGINE_PYTHON = Path(__file__).parents[1] / ".venv-sglang/bin/python"
Floats = npt.NDArray[np.float32]

COMPARE = """
import json, math, sys
import torch
for name in ("nms", "qnms"):
    torch.library.define("torchvision::" + name, "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM
folder, weights = sys.argv[1:]
shape = json.load(open(folder + "/config.json"))
compact = load_file(weights)
used = compact.pop("used_ids").long()
small = LlamaForCausalLM(LlamaConfig(**{**shape, "vocab_size": len(used) + 1, "bos_token_id": None,
                                        "eos_token_id": None, "pad_token_id": None}))
missing = small.load_state_dict({"model." + name: value.float() for name, value in compact.items()}, strict=False)
assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys, missing
small = small.float().eval()
large = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
assert large.lm_head.weight.data_ptr() == large.model.embed_tokens.weight.data_ptr()
place = {int(i): row for row, i in enumerate(used)}
ids = json.loads(sys.stdin.read())
unused = torch.ones(large.config.vocab_size, dtype=torch.bool)
unused[used] = False
many = math.log(int(unused.sum()))
with torch.no_grad():
    logits = small(torch.tensor([[place.get(i, len(used)) for i in ids]])).logits[0].double()
    logits[:, -1] += many
    expected = logits.log_softmax(-1)
    found = large(torch.tensor([ids])).logits[0].double().log_softmax(-1)
print(json.dumps({
    "used": (found[:, used] - expected[:, :-1]).abs().max().item(),
    "unused": (found[:, unused] - (expected[:, -1:] - many)).abs().max().item(),
    "total": (found.exp().sum(-1) - 1).abs().max().item(),
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("demo") / "model"
    assert write_demo_model(made)
    return made


def as_bits(values: Floats) -> Bits:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def as_floats(bits: Bits) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return found


def test_expanding_changes_no_probability() -> None:
    random = np.random.default_rng(0)
    used = np.sort(random.choice(163_840, 50, replace=False)).astype(np.int32)
    rows = as_bits(random.normal(size=(51, 16)).astype(np.float32))
    hidden = random.normal(size=(4, 16))
    compact = hidden @ as_floats(rows).T.astype(np.float64)
    compact[:, -1] += np.log(163_840 - 50)
    full = log_softmax(hidden @ as_floats(expanded(rows, used)).T.astype(np.float64))
    np.testing.assert_allclose(full[:, used], log_softmax(compact)[:, :-1], atol=1e-9)
    others = np.setdiff1d(np.arange(163_840), used)
    shared = log_softmax(compact)[:, -1] - np.log(len(others))
    np.testing.assert_allclose(full[:, others], np.repeat(shared[:, None], len(others), 1), atol=1e-9)


def test_the_committed_weights_are_small_and_hold_every_marker() -> None:
    weights = read_weights()
    assert WEIGHTS.stat().st_size < 4_000_000
    assert weights.tensors[EMBEDDING].shape == (len(weights.used_ids) + 1, weights.shape["hidden_size"])
    assert {163586, 163588, 163595, 163596, 163597, 163598, 163599, 163606, 163607} <= set(weights.used_ids.tolist())
    assert (np.diff(weights.used_ids) > 0).all()


def test_the_folder_is_a_llama_with_the_whole_vocabulary(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert (config["vocab_size"], config["eos_token_id"], config["tie_word_embeddings"]) == (163_840, 163_586, True)
    weights = read_weights()
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        names = set(file.keys())
        assert file.get_slice(f"model.{EMBEDDING}").get_shape() == [163_840, config["hidden_size"]]
    assert names == {f"model.{name}" for name in weights.tensors}


def test_writing_again_changes_nothing(folder: Path) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert not write_demo_model(folder)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_damaged_folder_is_written_anew(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert write_demo_model(folder)
    assert (folder / "tokenizer.json").stat().st_size > 1_000_000


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else"):
        write_demo_model(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_broken_weights_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.raises(InputError, match=r"no demo weights file"):
        write_demo_model(tmp_path / "model", weights=tmp_path / "broken.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.safetensors"]


def test_the_stamp_says_what_is_in_the_folder(folder: Path) -> None:
    sizes = json.loads((folder / STAMP).read_text())["sizes"]
    assert set(sizes) == {path.name for path in folder.iterdir()} - {STAMP}


@pytest.mark.engine
@pytest.mark.skipif(not ENGINE_PYTHON.exists(), reason="needs .venv-sglang (make setup)")
def test_the_expanded_model_has_the_trained_probabilities(folder: Path) -> None:
    ids = [163587, 2482, 163601, 5376, 387, 220, 17, 10, 17, 30, 163586, 163588, 69702, 163601, 163606, 1008, 150_000]
    done = subprocess.run(
        [ENGINE_PYTHON, "-c", COMPARE, folder, WEIGHTS], input=json.dumps(ids), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    worst = json.loads(done.stdout.splitlines()[-1])
    assert max(worst.values()) < 1e-4, worst


def demo_prompts(name: str, target: Tokenizer) -> list[Prompt]:
    conversations = list(read_conversations(prompts.PROMPTS / name))
    assert all(isinstance(each, Conversation) for each in conversations)
    made = tokenize_conversations(
        [each for each in conversations if isinstance(each, Conversation)], target, PromptOptions()
    )
    kept = [each for each in made if isinstance(each, Prompt)]
    assert len(kept) == len(made), "no demo row may be rejected"
    return kept


def test_every_demo_row_is_a_prompt_that_thinks(target: Tokenizer) -> None:
    for name, count in ((prompts.GLAIVE, 68), (prompts.OPENCODEINSTRUCT, 64)):
        found = demo_prompts(name, target)
        assert len(found) == count
        assert {prompt.prompt_ids[-1] for prompt in found} == {163606}
        assert len({tuple(prompt.prompt_ids) for prompt in found}) == count


def test_the_glaive_file_has_the_layouts_quirks() -> None:
    rows = json.loads((prompts.PROMPTS / prompts.GLAIVE).read_text())
    assert 25 <= sum('"parameters"' in row["system"] for row in rows) <= 40
    assert sum("FUNCTION RESPONSE: " in row["chat"] for row in rows) >= 7
    assert sum(row["chat"].count("USER: ") > 1 for row in rows) >= 3
    assert any('\'{"recipient"' in row["chat"] and "I'm" in row["chat"] for row in rows)
    assert any(not row["chat"].endswith(prompts.END) for row in rows)
    assert not any("<|im_end|>" in row["chat"] for row in rows)


def test_the_code_file_has_the_nine_text_columns() -> None:
    table = pq.read_table(prompts.PROMPTS / prompts.OPENCODEINSTRUCT)
    assert table.column_names == [
        "id", "input", "output", "domain", "generation_algorithm", "llm_judgement", "unit_tests",
        "tests_execution_status", "average_test_score",
    ]  # fmt: skip
    assert {str(field.type) for field in table.schema} == {"string"}


def test_the_shipped_files_are_what_the_module_writes() -> None:
    assert json.loads((prompts.PROMPTS / prompts.GLAIVE).read_text("utf-8")) == prompts.glaive_rows()
    assert pq.read_table(prompts.PROMPTS / prompts.OPENCODEINSTRUCT).to_pylist() == prompts.code_rows()
