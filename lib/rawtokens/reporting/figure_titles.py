"""The list of the report's figures: a title for each figure function, and which of them a notebook draws.

The one place that names every figure; `drawing.titled` puts the title above the figure and notebooks put it in the
caption. This module does not know how a figure is drawn.
"""

import re
from pathlib import Path

import msgspec

TITLES = {
    "shapes": "Rows by shape and finish reason",
    "verdict_reasons": "Rows by verification reason",
    "reasoning_length": "How long the model thinks",
    "truncation": "How many more would close at twice the limit",
    "closer_position": "Where the response begins",
    "answer_length": "How long answers are",
    "output_length": "How long outputs are",
    "segments": "What the output ids are",
    "tool_calls": "Tool calls in one response",
    "prompt_length": "How long prompts are",
    "prompt_modes": "Prompts by template arguments",
    "ids_per_second": "How fast the ids came",
    "in_flight": "Requests in flight",
    "cache_hits": "Prompt ids from the prefix cache",
    "coverage": "How many ids a draft vocabulary needs",
    "completion": "What is generated and what is missing",
    "lost_ids": "Ids that a text or a chat would lose",
    "likelihood_by_position": "Log-likelihood by position",
    "loss_behind_changes": "What a change costs the ids behind it",
    "shapes_by_sample": "Shapes side by side",
    "verdicts_by_sample": "Verdicts side by side",
    "reasoning_by_sample": "How long each thinks",
    "median_differences": "Difference of medians between two runs",
    "first_differences": "Where greedy answers first differ",
    "draft_coverage": "What a draft vocabulary covers",
    "trainer_losses": "What trainers lose, by their length",
}
"""Figure functions of `figures`, `comparison_figures`, fidelity's `audit_figures` and training's `training_figures`, by
name, with their titles."""

_CALL = re.compile(r"figures\.(\w+)\(")


class _Cell(msgspec.Struct):
    cell_type: str
    source: str | list[str]


class _Notebook(msgspec.Struct):
    cells: list[_Cell]


def figures_of(notebook: Path) -> dict[str, str]:
    """The figures that a notebook draws, in its order: name and title. Raises KeyError for one without a title."""
    cells = msgspec.json.decode(notebook.read_bytes(), type=_Notebook).cells
    code = "\n".join("".join(cell.source) for cell in cells if cell.cell_type == "code")
    return {name: TITLES[name] for name in _CALL.findall(code)}
