"""README's commands: every one is run somewhere or says why not, and the command line takes each as it stands."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import small_dataset

from rawtokens.__main__ import DEMO_MODEL, _parser
from rawtokens.conversations import read_conversations
from rawtokens.records import Conversation
from rawtokens.run_file import load_run_file

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
COMMANDS = ("make", "rawtokens", "papermill", "python")

RUN_BY: dict[str, tuple[str, str]] = {  # a command in a code block: the file that runs it, and how it stands there
    "make demo": (".ci/run", "make demo"),
    "make test": (".ci/run", "make test"),
    "rawtokens serve-demo": ("tests/test_main.py", 'told(capsys, "serve-demo")'),
    "rawtokens run my_run.yaml": ("tests/test_readme.py", 'load_run_file(tmp_path / "my_run.yaml")'),
    "rawtokens run notebooks/demo.yaml": ("Makefile", "$(RUN) run notebooks/demo.yaml --demo-server"),
    "rawtokens run RUN.yaml --dataset B1_glaive --stage 02": ("tests/test_pipeline.py", 'stage="02", datasets=["B"]'),
    "rawtokens status RUN.yaml": ("tests/test_main.py", 'main(["status"'),
    "rawtokens retry RUN.yaml --dataset B1_glaive": ("tests/test_retrying.py", '"retry"'),
    "rawtokens run RUN.yaml --stage 05": ("tests/test_pipeline.py", '"05"'),
    "rawtokens export RUN.yaml --dataset B1_glaive --format specforge": (
        "tests/test_training_handoff.py",
        'main(["export"',
    ),
    "rawtokens compare outputs/RUN_A outputs/RUN_B": ("tests/test_report_notebooks.py", 'main(["compare"'),
    "papermill --cwd notebooks notebooks/03_verify_responses.ipynb OUT.ipynb -f params.yaml": (
        "tests/test_readme.py",
        "papermill --cwd",
    ),
    "rawtokens check-server http://HOST:30000 --tokenizer moonshotai/Kimi-K2.5 --revision COMMIT --trust-remote-code": (
        "tests/test_main.py",
        "check-server",
    ),
}
IN_THE_TEXT: dict[str, tuple[str, str]] = {  # the same of commands in sentences that are not in a block
    "make setup": ("Makefile", ".venv/.ready: requirements.lock"),
    "make lab": ("tests/test_lab.py", 'main(["lab"])'),
    "make bench": ("tests/test_benchmarks.py", "bench_export.py"),
    "make test-vllm": (".ci/run", "make test-vllm"),
    "make test-trainers": (".ci/run", "make test-trainers"),
    "make test-chromium": (".ci/run", "make test-chromium"),
    "make study": (".ci/run", "make test-study"),
    "make chaos": ("tests/test_chaos.py", "from chaos"),
    "make drift-study": ("tests/test_drift_report.py", "drift_study.main("),
    "make example": ("tests/test_example.py", "make_example"),
    "rawtokens run": ("Makefile", "$(RUN) run"),
    "rawtokens run RUN.yaml": ("Makefile", "$(RUN) run"),
    "rawtokens run RUN.yaml --stage 01": ("tests/test_pipeline.py", 'stage="01"'),
    "rawtokens run RUN.yaml --stage 02 --shard 2/8": ("tests/test_pipeline.py", "shard_of"),
    "rawtokens retry": ("tests/test_retrying.py", '"retry"'),
    "rawtokens serve-demo --model DIR": ("tests/test_server.py", "serve_in_foreground"),
    "papermill --help-notebook NOTEBOOK": ("tests/test_readme.py", '"--help-notebook"'),
}
NOT_RUN = {  # with the reason; the rest of them is tried on the demo's model
    "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --revision COMMIT --trust-remote-code --tp 8 "
    "--host 0.0.0.0 --port 30000": "needs eight GPUs",
    "rawtokens run notebooks/kimi_k25.yaml": "needs that server",
    "rawtokens export RUN.yaml --dataset B1_glaive --to hub:OWNER/NAME": "needs the hub and a token",
    "python -m rawtokens.demo.hit_rate URL .demo-model --per-kind 100": "asks 700 questions",
    "python -m sglang_router.launch_router --worker-urls http://HOST1:30000 http://HOST2:30000": "needs two servers",
    "python -c \"from huggingface_hub import HfApi; print(HfApi().model_info('moonshotai/Kimi-K2.5').sha)\"": (
        "needs the hub"
    ),
}


def in_blocks() -> list[str]:
    blocks = re.findall(r"^```\w*\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    lines = [re.split(r"\s{2,}#|\s#\s", line)[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.split(" ")[0] in COMMANDS]


def everywhere(program: str) -> list[str]:
    """The commands of one program, in blocks and in the text."""
    return [*in_blocks(), *re.findall(rf"`({program} [^`]+)`", README)]


def test_every_command_of_a_block_is_run_or_says_why_not() -> None:
    assert len(in_blocks()) > 8
    assert [line for line in in_blocks() if line not in RUN_BY and line not in NOT_RUN] == []


def test_every_command_of_the_text_is_run_or_says_why_not() -> None:
    found = {line for program in COMMANDS for line in everywhere(program)}
    assert sorted(found - {*RUN_BY, *IN_THE_TEXT, *NOT_RUN}) == []
    assert sorted({*RUN_BY, *IN_THE_TEXT, *NOT_RUN} - found) == []


@pytest.mark.parametrize("command", [*RUN_BY, *IN_THE_TEXT])
def test_what_is_said_to_run_a_command_holds_it(command: str) -> None:
    file, words = {**IN_THE_TEXT, **RUN_BY}[command]
    assert words in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("line", [line for line in everywhere("rawtokens") if line.startswith("rawtokens ")])
def test_the_command_line_takes_it(line: str) -> None:
    arguments = shlex.split(line)[1:]
    if arguments in (["run"], ["retry"]):  # named in a sentence
        return
    assert callable(_parser().parse_args(arguments).command)


@pytest.mark.parametrize("line", [line for line in everywhere("make") if line.startswith("make ")])
def test_make_has_the_target(line: str) -> None:
    assert re.search(rf"^{shlex.split(line)[1]}:", MAKEFILE, flags=re.MULTILINE)


def test_the_readme_s_own_prompts_are_prompts_for_the_server_that_it_starts(tmp_path: Path) -> None:
    section = README.partition("## Your own prompts\n")[2].partition("\n## ")[0]
    for language, name in (("json", "my_prompts.jsonl"), ("yaml", "my_run.yaml")):
        (text,) = re.findall(rf"^```{language}\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
        (tmp_path / name).write_text(text, encoding="utf-8")
    settings = load_run_file(tmp_path / "my_run.yaml")
    rows = list(read_conversations(settings.datasets["my_prompts"].prompts))
    assert [row.messages[-1]["content"] for row in rows if isinstance(row, Conversation)] == [
        "What is 17 + 25?",
        "How many metres are 3 kilometres?",
    ]
    assert settings.servers.urls == (f"http://127.0.0.1:{_parser().parse_args(['serve-demo']).port}",)
    assert settings.model.tokenizer == str(tmp_path / DEMO_MODEL.name)


def test_a_notebook_runs_by_papermill_alone(tmp_path: Path, kimi_folder: Path) -> None:
    """README's command with its words filled in: `papermill --cwd notebooks ... -f params.yaml`."""
    folder = small_dataset.write(tmp_path / "my_data")
    expected = (folder / "verified.parquet").read_bytes()
    (folder / "verified.parquet").unlink()
    params = tmp_path / "params.yaml"
    params.write_text(f"output_dir: {folder}\ntokenizer: {kimi_folder}\nreplay_rows: 0\nrerendered_rows: 0\n")
    (line,) = [line for line in in_blocks() if line.startswith("papermill")]
    places = {"OUT.ipynb": str(tmp_path / "out.ipynb"), "params.yaml": str(params)}
    program = shutil.which("papermill", path=str(Path(sys.executable).parent))
    command = [program or "papermill", *(places.get(word, word) for word in shlex.split(line)[1:]), "--log-output"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "B1_glaive: 8 responses in = 8 rows in verified.parquet" in done.stderr
    assert len((folder / "verified.parquet").read_bytes()) > len(expected) // 4
    assert "rawtokens: completed 03_verify_responses" in (tmp_path / "out.ipynb").read_text()


def test_papermill_lists_a_notebook_s_parameters() -> None:
    program = shutil.which("papermill", path=str(Path(sys.executable).parent)) or "papermill"
    command = [program, "--help-notebook", str(ROOT / "notebooks" / "03_verify_responses.ipynb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0
    assert "output_dir: str" in done.stdout
    assert "folder of the data set" in done.stdout
