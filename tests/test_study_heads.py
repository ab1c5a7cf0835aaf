"""The walk over a greedy output and the order of training, on ids that are counted by hand; no torch."""

from rawtokens.study.heads.walking import Greedy, parts_of, steps_of, walk

PROMPT = [7, 8, 9]


def sequence(output: list[int], parts: list[int] | None = None) -> Greedy:
    return Greedy("k", [*PROMPT, *output], len(PROMPT), parts or [0] * len(output))


def drafts(given: Greedy, right: list[list[bool]]) -> list[list[int]]:
    """Drafts for every place a step can stand at: the true id where `right[k][place]`, else one that is no id."""
    length = len(given.ids)
    return [
        [given.ids[j + 2 + k] if j + 2 + k < length and row[j] else -1 for j in range(length - 1)]
        for k, row in enumerate(right)
    ]


def always(given: Greedy, *answers: bool) -> list[list[int]]:
    return drafts(given, [[answer] * len(given.ids) for answer in answers])


def test_a_head_that_is_never_right_takes_a_step_an_id() -> None:
    given = sequence([1, 2, 3, 4, 5])
    assert walk(always(given, False, False), given, parts=1) == [[4, 0, 0]]


def test_a_head_that_is_always_right_takes_an_id_of_the_targets_own_after_each_draft() -> None:
    given = sequence([1, 2, 3, 4, 5, 6, 7])
    assert walk(always(given, True, True), given, parts=1) == [[2, 2, 2]]


def test_a_draft_behind_a_miss_does_not_count() -> None:
    given = sequence([1, 2, 3, 4])
    assert walk(always(given, False, True), given, parts=1) == [[3, 0, 0]]


def test_drafts_beyond_the_outputs_end_are_not_accepted() -> None:
    given = sequence([1, 2])
    assert walk(always(given, True, True, True), given, parts=1) == [[1, 1, 0, 0]]


def test_a_step_counts_to_the_part_of_the_first_id_that_it_drafts() -> None:
    given = sequence([1, 2, 3, 4], parts=[0, 0, 1, 2])
    assert walk(always(given, False), given, parts=3) == [[1, 0], [1, 0], [1, 0]]
    assert walk(always(given, True), given, parts=3) == [[1, 1], [0, 0], [1, 1]]


def test_a_step_reads_the_draft_made_where_it_stands() -> None:
    given = sequence([1, 2, 3, 4])
    only_first = [[j == len(PROMPT) - 1 for j in range(len(given.ids))]]  # known id 3, the output's first
    assert walk(drafts(given, only_first), given, parts=1) == [[2, 1]]


def test_an_output_of_one_id_needs_no_step() -> None:
    given = sequence([1])
    assert walk(always(given, True), given, parts=1) == [[0, 0]]


def test_every_row_is_in_one_step_in_an_order_that_the_seed_decides() -> None:
    rows = [30, 10, 20, 40, 50, 5, 45]
    first, again, other = (list(steps_of(rows, 50, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(row for step in first for row in step) == list(range(len(rows)))


def test_equal_ids_take_as_many_steps_but_one_in_long_rows_and_in_short_ones() -> None:
    for rows in ([10] * 240, [240] * 10, [1] * 2_400, [90, 150] * 10):
        assert len(list(steps_of(rows, 250, seed=3))) in (9, 10)


def test_parts_keep_the_rows_order_and_bound_their_positions() -> None:
    assert list(parts_of([0, 1, 2, 3], [11, 11, 11, 200], 20)) == [[0, 1], [2], [3]]
