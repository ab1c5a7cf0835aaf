"""The study's two captures, by the kit's own stages on the real SGLang: answers to train on, and greedy ones.

Training answers are drawn at temperature 1, those of the evaluation at 0; both in float32, as the hidden states are
computed, and in a run folder of their own. What is on record is not asked again. This module does not know what the
answers are used for.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..demo.model import write_demo_model
from ..demo.server import launch_demo_server
from ..notebook_stages.pipeline import Plan, notebooks_folder, run_stages
from ..run_file import load_run_file
from .forms import MAX_NEW_TOKENS, Form
from .questions import evaluation_dialogues, training_dialogues, write_questions

TRAINING, EVALUATION = "training", "evaluation"
RUN = """\
run: {name}
model: {{tokenizer: {model}}}
sampling: {{temperature: {temperature}, max_new_tokens: {max_new_tokens}}}
datasets: {{prompts: {{prompts: {name}.jsonl}}}}
"""


def capture(folder: Path, model: Path, form: Form, on_line: Callable[[str], None]) -> dict[str, Path]:
    """Write the model and the prompt files, ask, record and verify; returns the two data sets' folders.

    Raises what the stages raise.
    """
    write_demo_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    questions = training_dialogues(form.prompts)
    write_questions(folder / f"{TRAINING}.jsonl", questions)
    write_questions(folder / f"{EVALUATION}.jsonl", evaluation_dialogues(form.evaluation_prompts, apart_from=questions))

    @contextmanager
    def server() -> Iterator[Callable[[], str]]:
        with launch_demo_server(
            model, log_path=folder / "server.log", extra_arguments=("--dtype", "float32")
        ) as launched:
            yield lambda: launched.wait_until_ready().url

    captured = {}
    for name, temperature in ((TRAINING, 1.0), (EVALUATION, 0.0)):
        run = folder / f"{name}.yaml"
        asked = {"temperature": temperature, "max_new_tokens": MAX_NEW_TOKENS}
        run.write_text(RUN.format(name=name, model=json.dumps(str(model)), **asked), "utf-8")
        plan = Plan(
            settings=load_run_file(run),
            run_folder=folder / name,
            notebooks=notebooks_folder(run),
            datasets=("prompts",),
            stages=("01", "02", "03"),
        )
        run_stages(plan, start_server=server, on_line=on_line)
        captured[name] = plan.run_folder / "prompts"
    return captured
