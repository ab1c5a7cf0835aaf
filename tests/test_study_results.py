"""Tables and sentences of the study, from counts that are worked out by hand."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from rawtokens.errors import InputError
from rawtokens.study import figures, results, takeaways
from rawtokens.study.datasets import ArmFacts
from rawtokens.study.forms import ARMS, form_of
from rawtokens.study.measuring import Head
from rawtokens.study.results import Confirmed, Study

NONE = [0, 0, 0, 0, 0]


def facts(arm: str, **changes: int) -> ArmFacts:
    given = {
        "rows": 5,
        "positions": 90,
        "supervised_ids": 50,
        "available_ids": 70,
        "uncovered_ids": 0,
        "changed_rows": 0,
        "reasoning_ids": 20,
    }
    return ArmFacts(arm=arm, digest=f"d-{arm}", left_out={}, **{**given, **changes})


def head(arm: str, seed: int, counts: list[list[list[int]]]) -> Head:
    return Head(
        arm=arm,
        digest="d",
        seed=seed,
        rows=5,
        steps=10,
        positions=900,
        supervised_ids=150,
        loss=1.0,
        train_seconds=2.0,
        evaluate_seconds=1.0,
        counts=counts,
    )


def sequences(accepted: int, *, of: int = 40, steps: int = 10, part: int = 0) -> list[list[list[int]]]:
    """`of` equal sequences, in each `accepted` of `steps` steps take the first draft and no other."""
    counts = [NONE, NONE, NONE]
    counts[part] = [steps, accepted, 0, 0, 0]
    return [counts] * of


def study(counts: dict[str, list[list[list[list[int]]]]], **more: object) -> Study:
    """A study of these arms, a list of counts a seed."""
    given = {
        "form": form_of("full"),
        "arms": [facts(arm) for arm in counts],
        "heads": [head(arm, seed + 1, each) for arm, seeds in counts.items() for seed, each in enumerate(seeds)],
        "sequences": 40,
        **more,
    }
    return msgspec.convert(given, Study)


def test_acceptance_length_is_the_targets_id_and_the_accepted_drafts_a_step() -> None:
    assert results.acceptance_length(np.array([10.0, 6, 3, 1, 0])) == 2.0
    assert np.isnan(results.acceptance_length(np.array([0.0, 0, 0, 0, 0])))


def test_the_table_has_means_over_seeds_and_differences_to_verbatim() -> None:
    table = results.acceptance_table(
        study({"verbatim": [sequences(6), sequences(8)], "template": [sequences(2), sequences(3)]})
    )
    assert list(table.index) == ["verbatim", "template"]
    assert table["seeds"].tolist() == [[1.6, 1.8], [1.2, 1.3]]
    assert table["length"].tolist() == pytest.approx([1.7, 1.25])
    assert table["sd"].tolist() == pytest.approx([0.1 * 2**0.5, 0.05 * 2**0.5])
    assert table["difference"].tolist() == pytest.approx([0.0, -0.45])


def test_a_length_by_part_counts_that_parts_steps_alone() -> None:
    both = [[[10, 5, 0, 0, 0], [10, 2, 1, 0, 0], NONE]] * 4
    line = results.part_table(study({"verbatim": [both]})).loc["verbatim"]
    assert (line["reasoning"], line["answer"]) == pytest.approx((1.5, 1.3))
    assert np.isnan(line["tool calls"])


def test_one_seed_has_no_interval() -> None:
    table = results.acceptance_table(study({"verbatim": [sequences(5)], "template": [sequences(3)]}))
    assert table[["low", "high"]].isna().all(axis=None)
    assert table.loc["template", ["difference low", "difference high"]].isna().all()


def test_an_interval_grows_with_unlike_prompts_and_with_unlike_seeds() -> None:
    alike = results.acceptance_table(study({"verbatim": [sequences(5)] * 3})).loc["verbatim"]
    assert alike["low"] == alike["high"] == alike["length"] == 1.5
    prompts = sequences(0, of=20) + sequences(10, of=20)
    unlike = results.acceptance_table(study({"verbatim": [prompts] * 3})).loc["verbatim"]
    assert unlike["low"] < 1.2 < 1.8 < unlike["high"]
    seeds = results.acceptance_table(study({"verbatim": [sequences(4), sequences(5), sequences(6)]})).loc["verbatim"]
    assert (seeds["high"] - seeds["low"]) / 2 == pytest.approx(4.30 * 0.1 / 3**0.5)


def test_the_interval_of_a_difference_holds_the_seeds_of_both_arms() -> None:
    arms = {"verbatim": [sequences(5), sequences(6)], "template": [sequences(3), sequences(4)]}
    line = results.acceptance_table(study(arms)).loc["template"]
    assert line["difference"] == pytest.approx(-0.2)
    width = 4.30 * (2 * 0.005 / 2) ** 0.5  # two degrees of freedom
    assert (line["difference low"], line["difference high"]) == pytest.approx((-0.2 - width, -0.2 + width))


def test_a_difference_of_the_same_prompts_has_a_narrower_interval_than_the_lengths() -> None:
    spread = [each for number in range(10) for each in sequences(number, of=4)]
    lower = [[[steps, max(0, first - 1), 0, 0, 0], NONE, NONE] for ((steps, first, *_), _, _) in spread]
    line = results.acceptance_table(study({"verbatim": [spread] * 3, "template": [lower] * 3})).loc["template"]
    assert line["difference high"] - line["difference low"] < (line["high"] - line["low"]) / 2
    assert line["difference high"] < 0


def test_the_position_table_has_the_share_of_all_steps() -> None:
    table = results.position_table(study({"verbatim": [[[[10, 8, 4, 2, 1], NONE, NONE]]]}))
    assert table.to_numpy()[0].tolist() == [0.8, 0.4, 0.2, 0.1]


def test_a_study_without_the_verbatim_arm_can_not_be_compared() -> None:
    with pytest.raises(InputError, match="no head of the verbatim arm"):
        results.acceptance_table(study({"template": [sequences(1)]}))


def test_a_difference_whose_interval_leaves_out_0_is_told_and_others_as_none() -> None:
    given = study(
        {
            "verbatim": [sequences(7), sequences(8), sequences(7)],
            "retokenised": [sequences(7), sequences(7), sequences(7)],
            "template": [sequences(2), sequences(3), sequences(3)],
        }
    )
    said = takeaways.acceptance(given)
    assert said == (
        "Heads trained on ids as captured reach an acceptance length of 1.73. Parsed, re-rendered by the template: "
        "1.27, -27% (95 % interval of the difference: -0.60 to -0.34). Decoded and re-tokenised: 1.70, no difference "
        "measured (95 % interval of the difference: -0.13 to +0.06)."
    )


def test_one_seed_measures_nothing() -> None:
    given = study({"verbatim": [sequences(7)], "template": [sequences(2)]})
    assert takeaways.acceptance(given).endswith("1.20, no difference measured (one seed, no interval).")
    assert takeaways.parts(given) == "No arm was measured to be below as captured."


def test_what_was_lost_is_told_by_part_and_position() -> None:
    given = study({"verbatim": [sequences(6)] * 2, "template": [sequences(2)] * 2})
    assert takeaways.parts(given) == (
        "Parsed, re-rendered by the template, the arm furthest below as captured: reasoning 1.20 against 1.60, "
        "-0.40 (-0.40 to -0.40)."
    )
    assert "as captured 60% of the first drafts and 0% of the last" in takeaways.positions(given)


def test_counts_of_vllm_stand_beside_the_walks() -> None:
    found = Confirmed(
        arm="verbatim",
        seed=1,
        drafts=401,
        accepted=240,
        accepted_by_position=[240, 0, 0, 0],
        sequences=40,
        equal_outputs=39,
    )
    given = study({"verbatim": [sequences(6)]}, confirmed=[found])
    (line,) = results.confirmed_table(given).to_dict("records")
    assert (line["steps here"], line["in vLLM"]) == (400, 401)
    assert line["accepted by position here"] == line["accepted by position in vLLM"] == "240 0 0 0"
    assert takeaways.confirmed(given) == "as captured: 1.600 here, 1.599 in vLLM."
    assert takeaways.confirmed(study({"verbatim": [sequences(6)]})).startswith("No head was tried in vLLM")


def test_the_data_are_told_by_what_heads_were_trained_on_and_other_heads_are_refused() -> None:
    given = study({"verbatim": [sequences(6)], "template": [sequences(2)]})
    arms = [facts("verbatim"), facts("template", reasoning_ids=5, positions=140)]
    said = takeaways.data(msgspec.structs.replace(given, arms=arms))
    assert said == (
        "Each head saw 50 supervised ids 3 times in 10 steps, in 5 rows of 90 to 140 positions in all. 0 rows were "
        "left out. Reasoning is 40% of the ids as captured, and least, 10%, where they are parsed, re-rendered by the "
        "template."
    )
    with pytest.raises(InputError, match="template, seed 1: trained on 5 rows, 150 supervised ids; expected 4 and 150"):
        results.data_table(msgspec.structs.replace(given, arms=[facts("verbatim"), facts("template", rows=4)]))


def test_the_conversation_is_told_by_the_ids_that_are_trained_on() -> None:
    rows = {"verbatim": ([1, 2, 3, 4], [0, 1, 1, 1]), "template": ([1, 9, 4], [0, 0, 1])}
    given = study({"verbatim": [sequences(6)]}, conversation=rows)
    assert takeaways.conversation(given) == (
        "The target said 3 ids; parsed, re-rendered by the template trains on 1. Other ids than the captured: parsed, "
        "re-rendered by the template."
    )
    table = results.conversation_table(given, most=2)
    assert table["first"].tolist() == ["2 3 ..", "4"]


def test_figures_are_drawn_for_one_arm_and_for_all() -> None:
    for names in (["verbatim"], list(ARMS)):
        given = study({name: [sequences(6), sequences(7), sequences(5)] for name in names})
        bars = figures.arms(results.acceptance_table(given)).axes[0]
        assert [label.get_text() for label in bars.get_yticklabels()] == [ARMS[name] for name in names]
        lines = figures.positions(results.position_table(given)).axes[0].get_lines()
        assert len(lines) == len(names)
        rows = {name: ([1, 2, 3], [0, 1, 1]) for name in names}
        assert figures.conversation(rows).axes[0].get_yticklabels()[-1].get_text() == ARMS[names[-1]]
    assert figures.conversation({}).axes[0].texts[0].get_text() == "no conversation is in every arm"


def test_a_folder_without_a_study_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="make study"):
        results.read_study(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(InputError, match="can't be read"):
        results.read_study(tmp_path)
