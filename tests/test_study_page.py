"""What docs/train_a_drafter.md tells people with GPUs to type, held to the trainers' own parsers and schemas."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from rawtokens.demo.vllm_server import ENVIRONMENT as VLLM_ENVIRONMENT
from rawtokens.demo.vllm_server import find_vllm_python
from rawtokens.study.environment import ENVIRONMENT, find_speculators

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "train_a_drafter.md").read_text("utf-8")
SPECFORGE_SCHEMA = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("schema", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["schema"] = module
spec.loader.exec_module(module)
made = module.Config.model_validate(json.load(sys.stdin))
print(made.mode, made.data.prompts_path)
"""

VLLM_PARSER = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
made = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(json.loads(sys.argv[1]))
print(json.dumps([made.speculative_config, made.kv_transfer_config.kv_connector]))
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def command(start: str) -> list[str]:
    """The words of the one command that begins so."""
    (found,) = [block for block in blocks("sh") if block.startswith(start)]
    return shlex.split(found.replace("\\\n", " "))


def run(*words: str | Path, stdin: str = "", environment: dict[str, str] = ENVIRONMENT) -> str:
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_pages_python_is_python() -> None:
    found = blocks("python")
    assert len(found) == 2
    for block in found:
        compile(block, "page", "exec")


@pytest.mark.trainers
def test_speculators_takes_every_option_of_the_train_command(demo_folder: Path) -> None:
    program, name, *options = command("speculators train")
    assert (program, name) == ("speculators", "train")
    options = [str(demo_folder) if word == "MODEL" else word for word in options]
    resolved = yaml.safe_load(run(find_speculators(), "-m", "speculators", "train", *options, "--dump-config"))["train"]
    assert resolved["draft"]["target_layer_ids"] == [2, 30, 58]
    assert resolved["draft"]["draft_vocab_size"] == 32_000
    assert resolved["generation"]["on_missing"] == "generate"
    assert resolved["loss"]["ttt_steps"] == 4


@pytest.mark.trainers
def test_speculators_knows_every_option_of_prepare_data() -> None:
    options = [word for word in command("speculators prepare-data") if word.startswith("--")]
    known = run(find_speculators(), "-m", "speculators", "prepare-data", "--help")
    assert options == ["--model", "--data", "--output", "--seq-length"]
    assert all(re.search(rf"{option}\b", known) for option in options)


@pytest.mark.trainers
def test_specforges_schema_takes_the_pages_file(tmp_path: Path) -> None:
    (text,) = blocks("yaml")
    (schema,) = (ROOT / ".venv-specforge").glob("lib/python*/site-packages/specforge/config/schema.py")
    program = tmp_path / "validate.py"
    program.write_text(SPECFORGE_SCHEMA)
    found = run(find_speculators(), program, schema, stdin=json.dumps(yaml.safe_load(text)))
    assert found.split() == ["online", "outputs/RUN/NAME/training/verbatim.jsonl"]


@pytest.mark.vllm
def test_vllm_takes_the_options_that_hand_out_hidden_states() -> None:
    program, name, _model, port, _number, *options = command("vllm serve")
    assert (program, name, port) == ("vllm", "serve", "--port")
    asked = json.dumps(options)
    found = run(find_vllm_python(), "-c", VLLM_PARSER, asked, environment=VLLM_ENVIRONMENT).splitlines()[-1]
    speculative, connector = json.loads(found)
    assert speculative["method"] == "extract_hidden_states"
    assert connector == "ExampleHiddenStatesConnector"
