"""What `rawtokens run` says below its table: figures that are older than their files, rows to retry, warnings.

This module does not know how a stage works, nor whether a second try gives another answer.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ..capture.rejections import each_rejection
from ..errors import InputError
from ..notebook_stages.pipeline import Plan, stage_changes
from .known_counts import rejected_reasons
from .wording import counted

RETRIED = {
    "empty": "without content",
    "stop_missing": "without the stop id that the server matched",
    "stop_in_middle": "with a stop id before the end",
    "prompt_changed": "to an earlier prompt",
    "fingerprints_mixed": "of another model, tokenizer or sampling",
    "all_equal_ids": "of one id again and again",
    "count_mismatch": "of another length than the server counted",
}
"""Reasons of rejected responses that the guide says to draw again, and what such a response is."""
_AT_ONCE = ("empty", "prompt_changed")  # the others have a cause that would give the same again
_MOST_CHANGES = 2


def older_figures(plan: Plan, names: Iterable[str]) -> dict[str, str]:
    """The data sets whose figures are older than the files that they are of, with what changed since, in words."""
    found = {}
    for name in names:
        folder = plan.run_folder / name
        made = ("04", "summary.json"), ("03", "verified.parquet")
        stage = next((stage for stage, file in made if (folder / file).exists()), "")
        changes = stage_changes(plan, stage, name) if stage else []
        if changes and changes != ["not run"]:  # by papermill alone: nothing is on record to compare with
            more = f", and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
            found[name] = f"stage {stage} has not run since: {', '.join(changes[:_MOST_CHANGES])}{more}"
    return found


def retry_lines(plan: Plan, command: Callable[[str, str], str]) -> Iterator[str]:
    """A line for each reason with rows that can be generated again; `command` gives the command of a name and reason.

    A data set whose stage 03 is not of the files as they are is left out: its rows are judged first.
    """
    for name in plan.datasets:
        folder = plan.run_folder / name
        try:
            failed = Counter(item.reason for item in each_rejection(folder) if item.stage == "generate")
            judged = (folder / "verified.parquet").exists() and not stage_changes(plan, "03", name)
            rejected = rejected_reasons(folder) if judged else Counter[str]()
        except (InputError, OSError, pa.ArrowException):  # the stage that reads the file next names it
            continue
        for reason, words in RETRIED.items():
            if rejected[reason]:
                when = "next" if reason in _AT_ONCE else f"once the cause is mended (the guide tells of {reason})"
                told = f"{counted(rejected[reason], 'response')} {words} ({reason})"
                yield f"{name}: {told}; {when}: {command(name, reason)}"
        if failed:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in failed.most_common())
            told = f"{counted(failed.total(), 'generation')} failed ({reasons})"
            yield f"{name}: {told}; once the cause is mended: {command(name, '')}"


def retry_command(run_file: Path, options: Sequence[str]) -> Callable[[str, str], str]:
    """What `retry_lines` takes: `rawtokens retry` with the run file, and these options at its end."""

    def command(name: str, reason: str) -> str:
        where = ["--where", f"reason={reason}"] if reason else []
        return shlex.join(["rawtokens", "retry", str(run_file), "--dataset", name, *where, *options])

    return command


def warnings_among(lines: Iterable[str]) -> list[str]:
    """The warnings among a run's lines, each behind the stage that gave it, as `LABEL: running` began it."""
    found, label = [], ""
    for line in lines:
        if line.startswith("  warning: "):
            found.append(f"{label}: {line.strip()}")
        elif line.endswith(": running"):
            label = line.removesuffix(": running")
    return found
