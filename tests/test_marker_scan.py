"""The scan in lanes and blocks finds what a plain look at every id finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawtokens.response_checks import marker_scan
from rawtokens.response_checks.marker_scan import positions_near

WANTED = [[], [7], [163586, 163607], [1, 128798, 128822], [2, 9, 35, 500], [0, 2**31 - 1]]


def plain(ids: list[int], wanted: list[int]) -> set[int]:
    return {place for place, item in enumerate(ids) if item in wanted}


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("block", [128, 256, 1 << 18])
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 1200))
@settings(max_examples=15, deadline=None)
def test_every_wanted_id_is_found_in_order_and_nothing_far_from_one(
    wanted: list[int], block: int, seed: int, size: int
) -> None:
    random = np.random.default_rng(seed)
    ids = random.integers(-5, 164_000, size).astype(np.int32)
    for item in wanted:
        ids[random.random(size) < 0.02] = item
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marker_scan, "_BLOCK", block)
        found = positions_near(ids, wanted).tolist()
    assert found == sorted(set(found))
    assert plain(ids.tolist(), wanted) <= set(found)
    assert all(min(abs(int(ids[place]) - item) for item in wanted) <= 64 for place in found)
