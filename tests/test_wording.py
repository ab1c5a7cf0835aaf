"""Counts in words: every sentence of a report says `1 row is` and `2 rows are`, over rows and numbers of all sizes."""

import re
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small_dataset
import training_data

from rawtokens.fidelity import audit_takeaways
from rawtokens.fidelity.audit_records import Audits, Rate, Replay, rate
from rawtokens.reporting import (
    comparison_takeaways,
    completion_takeaways,
    prompt_takeaways,
    takeaways,
    throughput,
    token_statistics,
)
from rawtokens.reporting.completion_bias import STATES, Lengths
from rawtokens.reporting.greedy_answers import Agreement
from rawtokens.reporting.run_comparison import Sample, median_differences
from rawtokens.reporting.vocabulary_coverage import IdCounts
from rawtokens.reporting.wording import lengths_in_words
from rawtokens.training import draft_vocabulary, estimates, handoff, loss_report
from rawtokens.training.contamination import Overlap, contamination_takeaway
from rawtokens.training.export import export
from rawtokens.training.policies import select_rows
from rawtokens.training.settings import TrainingSettings
from rawtokens.training.survey import survey
from rawtokens.turns import report
from rawtokens.turns.endings import COMPLETE

NUMBERS = (0, 1, 2, 40)
PAIRS = [*product(NUMBERS, NUMBERS)]
_NOUNS = "id|row|call|request|prompt|response|generation|answer|key|conversation|turn|difference|setting|token|time"
_OF = r"(?<![\w.,])(?:{number}) of [\d,]+ (?:[a-z-]+ )?[a-z]+ (?:\([^)]*\) )?(?:with a closer )?"
_WRONG = (
    re.compile(rf"(?<![\w.,%/-])(?<!, )1 (?:(?!row )[a-z-]+ )?(?:{_NOUNS}|one)s\b"),  # `1 rows`, `1 prompt ids`
    re.compile(rf"(?<![\w.,%/-])(?:0|[2-9]|\d[\d,]*\d) (?:[a-z-]+ )?(?:{_NOUNS})\b(?! of| [a-z]+s\b)"),  # `2 row`
    re.compile(_OF.format(number="1") + r"(?:are|were|have|call|share|end|begin|leave)\b"),
    re.compile(
        _OF.format(number=r"0|[2-9]|\d[\d,]*\d") + r"(?:is|was|has|(?<!with )calls|shares|ends|begins|leaves)\b"
    ),
    re.compile(r"(?<![\w.,])1 (?:differ|go|have|are)\b"),
)


def agree(sentence: str) -> None:
    for wrong in _WRONG:
        found = wrong.search(sentence)
        assert found is None, f"{found[0]!r} in {sentence!r}"


@pytest.mark.parametrize(
    "sentence",
    [
        "1 rows in",
        "Of 1 prompt ids",
        "2 row",
        "1 of 8 rows are closed",
        "1 of 12 rows (8.3%) were cut",
        "1 differ,",
        "2 of 3 rows is",
        "40 of 41 rows with a closer has",
        "1 of 30 prompts share",
    ],
)
def test_the_check_itself_hears_a_wrong_number(sentence: str) -> None:
    with pytest.raises(AssertionError):
        agree(sentence)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset.write(tmp_path_factory.mktemp("words") / "small")


OF_ROWS = (
    "reasoning_length",
    "closer_position",
    "closer_share",
    "answer_length",
    "truncation",
    "output_length",
    "shapes",
    "verdict_reasons",
    "segments",
    "tool_calls",
)


@pytest.mark.parametrize("name", OF_ROWS)
def test_sentences_of_rows_agree_with_their_numbers(folder: Path, name: str) -> None:
    rows = token_statistics.read_verified(folder)
    tell = getattr(takeaways, name)
    agree(tell(rows))
    for place, others in product(range(len(rows)), (0, 1, 2, 30)):
        one, other = rows.iloc[[place]], rows.iloc[[(place + 3) % len(rows)]]
        agree(tell(pd.concat([one, *[other] * others], ignore_index=True)))
        short = {"output_tokens": 1, "reasoning_tokens": 1, "answer_tokens": 1, "tool_calls": 1}
        agree(tell(pd.concat([one.assign(**short), *[other] * others], ignore_index=True)))


@pytest.mark.parametrize("count", NUMBERS)
@pytest.mark.parametrize("value", [1, 2, 7])
def test_sentences_of_lengths_agree_with_their_numbers(count: int, value: int) -> None:
    agree(lengths_in_words(pd.Series([value] * count, dtype="int64"), "row", "rows", "output id"))
    agree(takeaways.prompt_length(pd.DataFrame({"prompt_tokens": [value] * count})))


@pytest.mark.parametrize("count", NUMBERS)
@pytest.mark.parametrize("ids", [1, 2])
def test_sentences_of_requests_agree_with_their_numbers(folder: Path, count: int, ids: int) -> None:
    whole = throughput.read_timings(folder)
    timings = pd.concat([whole] * 5, ignore_index=True).head(count)
    timings = timings.assign(completion_tokens=ids, prompt_tokens=ids)
    for cached in (0, 1):
        asked = timings.assign(cached_tokens=[cached] * len(timings))
        agree(takeaways.cache_hits(asked))
        agree(takeaways.finish_reasons(asked.assign(finish_reason=["length"] * min(1, count) + ["stop"] * (count - 1))))
        line = throughput.timeline(asked)
        agree(takeaways.ids_per_second(asked, line))
        agree(takeaways.in_flight(asked, line))
    agree(takeaways.failures({"timeout": count} if count else {}))
    agree(takeaways.coverage(IdCounts(np.full((2, 2, ids), count, dtype=np.int64), count)))
    agree(takeaways.coverage(IdCounts(np.array([[[count], [0]], [[0], [0]]], dtype=np.int64), count)))


@pytest.mark.parametrize(("some", "others"), PAIRS)
def test_sentences_of_prompts_agree_with_their_numbers(some: int, others: int) -> None:
    modes = {"thinking": ["opened", "off", "by_model"], "rows": [some, others, 1], "share": 0.5, "wanted share": 0.5}
    agree(prompt_takeaways.prompt_modes(pd.DataFrame({"template arguments": ["a", "b", "c"], **modes})))
    found = pd.DataFrame({"token": ["<a>"] * some, "occurrences": [1] * some})
    agree(prompt_takeaways.control_tokens(found, "skip"))
    rejected = pd.DataFrame({"reason": ["a", "b"][: min(2, some)], "rows": [1] * min(2, some)})
    agree(prompt_takeaways.rejected_rows(rejected, some + others))


@pytest.mark.parametrize(("some", "others"), PAIRS)
def test_sentences_of_what_is_missing_agree_with_their_numbers(some: int, others: int) -> None:
    for state in STATES[1:]:
        states = ["generated"] * some + [state] * others
        rows = pd.DataFrame({"key": map(str, range(len(states))), "prompt_tokens": 1, "turn": 0, "thinking": "off"})
        rows = rows.assign(template_kwargs="{}", tools=False, place=0.5, state=pd.Categorical(states, list(STATES)))
        for unit in ("generation", "conversation"):
            cut = Lengths(np.array([1.0, 9.0]), np.full(others, 1.0), np.full(others, 1.0))
            agree(completion_takeaways.completion(rows, cut, unit=unit))


@pytest.mark.parametrize(("some", "others"), PAIRS)
def test_sentences_of_a_comparison_agree_with_their_numbers(folder: Path, some: int, others: int) -> None:
    rows = pd.concat([token_statistics.read_verified(folder)] * 5, ignore_index=True)
    named = {name: Sample("run", name, folder, rows.head(count)) for name, count in (("a", some), ("b", others))}
    for tell in (comparison_takeaways.counts, comparison_takeaways.shapes, comparison_takeaways.reasoning):
        agree(tell(named))
    table = median_differences([(named["a"], named["b"])])
    shifted = table.assign(low=[1.0] * min(1, len(table)) + [-1.0] * (len(table) - 1), high=2.0)
    for lines in (table, shifted, table.head(1), shifted.head(1)):
        agree(comparison_takeaways.differences(lines, 1))
    parted = np.arange(some)
    found = Agreement(some + others + 1, 0, 1, others, parted, tuple(map(str, parted)))
    agree(comparison_takeaways.agreement({"a": found}, 1))
    agree(comparison_takeaways.settings(pd.DataFrame({"setting": [f"s{n}" for n in range(some)]}), 1))


@pytest.mark.parametrize(("some", "others"), PAIRS)
def test_sentences_of_audits_agree_with_their_numbers(some: int, others: int) -> None:
    rates: dict[str, Rate] = defaultdict(lambda: rate(some, some + others, ""))
    asked = {"seed": 1, "rows": some, "added_rows": 0, "ids": some, "versions": {}, "not_scored": {}, "model": None}
    replay = Replay(**asked, temperature=1.0, log_likelihood=-1.0, rates=rates)  # type: ignore[arg-type]
    made = {"rows": some + others, "ids": some, "rerendered_rows": others, "seed": 1, "unread": {}, "examples": []}
    audits = Audits(**made, drift=rates, rerendering=rates, replay=replay)  # type: ignore[arg-type]
    for tell in (audit_takeaways.drift, audit_takeaways.rerendering):
        agree(tell(audits))
    if some:
        agree(audit_takeaways.replay(audits))


@pytest.mark.parametrize("count", [1, 2, 9])
def test_sentences_of_training_data_agree_with_their_numbers(tmp_path: Path, count: int) -> None:
    folder = training_data.write(tmp_path, training_data.ROWS[:count])
    settings = TrainingSettings(held_out=0.0, truncated_in_thinking="generate_longer", report_lengths=(4, 100))
    selection = select_rows(folder, settings)
    agree(handoff.selection_takeaway(selection))
    told: list[str] = []
    exported = export(folder, markers=training_data.KIMI, settings=settings, on_line=told.append)
    agree(" ".join(told))
    agree(estimates.cost_takeaway(exported, hidden_size=1))
    found = survey(
        folder,
        selection,
        markers=training_data.KIMI,
        vocabulary_size=training_data.VOCABULARY,
        settings=settings,
    )
    agree(loss_report.loss_takeaway(found.losses))
    agree(draft_vocabulary.coverage_takeaway(found.counts, 1))
    assert not [trainer.name for trainer in loss_report.TRAINERS if re.search(r", | and ", trainer.name)]  # `X loses`


@pytest.mark.parametrize(("some", "others"), PAIRS)
def test_sentences_of_evaluation_prompts_agree_with_their_numbers(some: int, others: int) -> None:
    counts = {"too_short": others, "overlapping": some, "mostly": min(1, some), "rows": some, "left_out": 0}
    agree(contamination_takeaway([Overlap(file="a", n=1 + some, prompts=some + others, keys=[], **counts)]))


@pytest.mark.parametrize(("some", "others"), PAIRS)
def test_sentences_of_conversations_agree_with_their_numbers(some: int, others: int) -> None:
    ends = [COMPLETE] * some + [report.GOING_ON] * others
    agree(report.endings_said(pd.DataFrame({"end": ends})))
    agree(report.cache_said(pd.DataFrame({"turn": [1], "prompt ids": [some], "cached ids": [others]})))
