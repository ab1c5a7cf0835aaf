"""What became of a prompt file: prompts.parquet and rejected.jsonl in, DataFrames out.

Files are read batch by batch, ids never: a million rows cost no more memory than their lengths. This module does not
know why a row was rejected or noticed (conversations and rendering do), nor how a table is drawn or put in words.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from ..capture.rejections import each_rejection
from ..conversations import detect_format
from ..prompts import prompt_batches
from ..target.control_tokens import AS_TEXT, IN_TEXT, NOT_PROVED, found_tokens
from ..target.rendering import PromptOptions
from ..target.thinking_modes import wanted_shares
from .token_statistics import rejection_table

_OTHER_FORMAT = "format_of_the_row: "
_OUTCOMES = {IN_TEXT: "rows kept", AS_TEXT: "rows as text"}


def rejected_table(folder: Path) -> pd.DataFrame:
    """Rows that became no prompt: `token_statistics.rejection_table` of stage 01, without the stage."""
    return rejection_table(folder, stage="tokenize").drop(columns="stage")


def notice_table(folder: Path) -> pd.DataFrame:
    """Notices of prompts by kind: columns notice, rows, first key, detail (of the first), most frequent first."""
    counts: Counter[str] = Counter()
    first: dict[str, tuple[str, str]] = {}
    for key, notices in _notices(folder):
        for kind, detail in {
            kind: detail for kind, _, detail in (notice.partition(": ") for notice in notices)
        }.items():
            counts[kind] += 1
            first.setdefault(kind, (key, detail))
    lines = [(kind, count, *first[kind]) for kind, count in counts.most_common()]
    return pd.DataFrame(lines, columns=["notice", "rows", "first key", "detail"])


def control_token_table(folder: Path) -> pd.DataFrame:
    """Control tokens that rows' own texts hold, by token, most frequent first; a row counts once for each token.

    Columns: token, id, occurrences, rows rejected, rows kept (as control ids), rows as text.
    """
    found: dict[tuple[str, int], Counter[str]] = {}
    for outcome, detail in _control_findings(folder):
        for token, number, count in found_tokens(detail):
            line = found.setdefault((token, number), Counter())
            line["occurrences"] += count
            line[outcome] += 1
    columns = ["occurrences", "rows rejected", *_OUTCOMES.values()]
    lines = [(*kind, *(line[name] for name in columns)) for kind, line in found.items()]
    table = pd.DataFrame(lines, columns=["token", "id", *columns])
    table["id"] = table["id"].astype(str)  # an id is a name: no thousands separators
    return table.sort_values("occurrences", ascending=False, kind="stable", ignore_index=True)


def mode_table(prompts: pd.DataFrame, options: PromptOptions, *, most: int = 20) -> pd.DataFrame:
    """Prompts by template arguments and thinking, with the share that each set of arguments has and was to have.

    Columns: template arguments (JSON), thinking, rows, share and wanted share (of all rows with those arguments; no
    wanted share where rows brought arguments of their own). After `most` lines the others are one.
    """
    wanted = wanted_shares(options.template_kwargs, options.mix)
    counts = prompts.value_counts(["template_kwargs", "thinking"]).reset_index(name="rows")
    totals = prompts["template_kwargs"].value_counts()
    lines = [
        (arguments, thinking, rows, totals[arguments] / len(prompts), wanted.get(arguments))
        for arguments, thinking, rows in counts.head(most).itertuples(index=False)
    ]
    lines += [(arguments, "", 0, 0.0, share) for arguments, share in wanted.items() if arguments not in totals]
    left = int(counts["rows"].iloc[most:].sum())
    if left:
        lines.append((f"{len(counts) - most:,} others", "", left, left / len(prompts), None))
    return pd.DataFrame(lines, columns=["template arguments", "thinking", "rows", "share", "wanted share"])


def format_table(folder: Path, path: str | Path, wanted: str) -> pd.DataFrame:
    """Prompts by the format that their rows were read by: columns format, rows, share.

    `path` and `wanted` are the prompt file and the format asked for. Raises InputError as `detect_format` does.
    """
    counts: Counter[str] = Counter()
    for _, notices in _notices(folder):
        own = next((notice.removeprefix(_OTHER_FORMAT) for notice in notices if notice.startswith(_OTHER_FORMAT)), "")
        counts[own] += 1
    counts[detect_format(path) if wanted == "auto" else wanted] += counts.pop("", 0)
    rows = counts.total()
    lines = [(name, count, count / rows) for name, count in counts.most_common() if count]
    return pd.DataFrame(lines, columns=["format", "rows", "share"])


def _control_findings(folder: Path) -> Iterator[tuple[str, str]]:
    """What became of each row with control tokens in its texts, and the detail that names them."""
    for rejection in each_rejection(folder):
        if rejection.reason in (IN_TEXT, NOT_PROVED):
            yield "rows rejected", rejection.detail
    for _, notices in _notices(folder):
        for notice in notices:
            kind, detail = _kind_and_detail(notice)
            if kind in _OUTCOMES:
                yield _OUTCOMES[kind], detail


def _kind_and_detail(notice: str) -> tuple[str, str]:
    kind, _, detail = notice.partition(": ")
    return kind, detail


def _notices(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for batch in prompt_batches(folder, ["key", "notices"]):
        yield from zip(batch["key"].to_pylist(), batch["notices"].to_pylist(), strict=True)
