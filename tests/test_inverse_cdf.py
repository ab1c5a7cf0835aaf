"""The engine's draw, in the engine's own environment: torch is not in the client's."""

import json
import os
import subprocess

import numpy as np
import numpy.typing as npt
import pytest

from rawtokens.demo.server import LAUNCHER, find_engine_python

pytestmark = pytest.mark.engine

DRAW = """
import json, sys, torch
from inverse_cdf import draw_ids
weights, draws = json.load(sys.stdin)
torch.manual_seed(0)
rows = torch.tensor(weights, dtype=torch.float32).expand(draws, -1)
json.dump(draw_ids(rows).tolist(), sys.stdout)
"""


def drawn_counts(weights: npt.NDArray[np.float64], draws: int) -> npt.NDArray[np.int64]:
    answer = subprocess.run(
        [find_engine_python(), "-c", DRAW],
        input=json.dumps([weights.tolist(), draws]),
        env=os.environ | {"PYTHONPATH": str(LAUNCHER.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return np.bincount(json.loads(answer.stdout), minlength=len(weights))


def uneven_weights(size: int) -> npt.NDArray[np.float64]:
    """Weights over three orders of magnitude, in no scale, a third of them zero; so are the first and last 20."""
    random = np.random.default_rng(size)
    weights = 10 ** random.uniform(-2, 1, size)
    weights[random.random(size) < 1 / 3] = 0
    weights[:20] = weights[-20:] = 0
    return weights


@pytest.mark.parametrize("size", [4 * 512, 700], ids=["in blocks", "in one block"])
def test_ids_are_drawn_in_proportion_and_never_at_zero(size: int) -> None:
    draws = 100_000
    weights = uneven_weights(size)
    counts = drawn_counts(weights, draws)
    assert counts.sum() == draws
    assert counts[weights == 0].sum() == 0
    expected = (weights / weights.sum() * draws)[weights > 0]
    chi_square = ((counts[weights > 0] - expected) ** 2 / expected).sum()
    degrees = len(expected) - 1
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)  # four standard deviations around its mean


def test_one_certain_id_is_always_drawn() -> None:
    weights = np.zeros(163_840)
    weights[163_586] = 1e-30
    assert drawn_counts(weights, 50)[163_586] == 50
