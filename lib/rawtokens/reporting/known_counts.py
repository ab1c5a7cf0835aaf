"""What the files of stages 01 to 03 tell before there is a summary.json: its counts, as far as they are known.

A file that can't be read tells nothing here; the stage that reads it next names it. This module does not know whether
a file is of the settings that are there now.
"""

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..capture.rejections import each_rejection
from ..errors import InputError
from ..journal import journal_paths, read_keys
from ..prompts import PROMPTS
from ..records import open_parquet


def known_counts(folder: Path) -> dict[str, int | float | None]:
    """Counts of a data set by their names in summary.json; none where stage 01 has not run."""
    found: dict[str, int | float | None] = {}
    with suppress(InputError, OSError, pa.ArrowException):
        with open_parquet(folder / PROMPTS) as file:
            prompts = int(file.metadata.num_rows)
        rejected = Counter(rejection.stage for rejection in each_rejection(folder))
        found |= {"rows": prompts + rejected["tokenize"], "rejected_before_generation": rejected["tokenize"]}
        if journals := journal_paths(folder):
            generated = sum(1 for path in journals for _ in read_keys(path))
            found |= {"generated": generated, "rejected_at_generation": rejected["generate"]}
            found |= _verdicts(folder / "verified.parquet")
    return found


def rejected_reasons(folder: Path) -> Counter[str]:
    """How many rows with verdict `reject` verified.parquet has, by reason; a row may have several.

    Raises OSError and pa.ArrowException where it can't be read.
    """
    counts: Counter[str] = Counter()
    with open_parquet(folder / "verified.parquet") as file:
        for batch in file.iter_batches(columns=["verdict", "reasons"]):
            rows = batch.filter(pc.equal(batch["verdict"], "reject"))
            counts.update(reason for reasons in rows["reasons"].to_pylist() for reason in set(reasons))
    return counts


def _verdicts(path: Path) -> dict[str, int | float | None]:
    counts: Counter[str] = Counter()
    with open_parquet(path) as file:
        for batch in file.iter_batches(columns=["verdict"]):
            counts.update(batch["verdict"].to_pylist())
    return {"accepted": counts["accept"], "flagged": counts["flag"], "rejected": counts["reject"]}
