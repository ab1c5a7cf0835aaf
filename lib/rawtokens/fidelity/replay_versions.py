"""Which rows a replay asks about, and their spellings: as captured, re-tokenised and re-rendered.

Rows that are not rejected are drawn with a seed. Re-tokenising changes few rows, so that a draw of a few dozen may hold
none: of those that it changes a third of the draw's number is added, marked as added. This module asks nothing.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from ..reporting.samples import Sample
from ..runs import read_manifest
from ..target.id_bytes import IdBytes, Integers, first_difference
from ..target.target_tokenizer import Tokenizer
from ..target.tool_arguments import wanted_form
from .audit_rows import conversation_of, read_conversations, read_keys, read_rows
from .audits import AUDITS_TABLE
from .drift import retokenise
from .replies import Unread
from .rerendering import rerender


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One spelling of a row: `ids` are sent and scored from number `first` on; `places` as in replay.REPLAY_SCHEMA."""

    key: str
    drawn: bool  # False: added
    version: str
    ids: list[int]
    first: int
    places: list[int]


def sampled_versions(folder: Path, tokenizer: Tokenizer, rows: int, seed: int) -> Iterator[Version]:
    """Each sampled row as captured and, where they differ, re-tokenised and re-rendered; rows without ids are left out.

    Raises InputError where verified.parquet is missing.
    """
    path = folder / "verified.parquet"
    keys = read_keys(path, rejected=False)
    chance = random.Random(seed)
    drawn = set(chance.sample(list(keys), min(rows, len(keys))))
    audited = pq.read_table(folder / AUDITS_TABLE, columns=["changed_tokens"])["changed_tokens"].to_pylist()
    changing = [place for place in keys if place not in drawn and audited[place]]
    chosen = drawn | set(chance.sample(changing, min(-(-rows // 3), len(changing))))
    conversations = read_conversations(folder, [keys[place] for place in chosen])
    table, form = IdBytes.of(tokenizer), wanted_form(tokenizer)
    date = str(read_manifest(folder).get("template_date") or "")
    added = {keys[place] for place in chosen - drawn}
    for _, samples in read_rows(path, places=chosen):
        for sample in samples:
            prompt, output = sample.prompt_ids, sample.output_ids
            if not output:
                continue
            drawn_row = sample.key not in added
            every = range(len(output))
            yield _version(sample, "captured", [*prompt, *output], len(prompt), every, drawn=drawn_row)
            (again,) = retokenise([output], table)
            if again != output:
                places = table.partners(output, again)
                yield _version(sample, "retokenised", [*prompt, *again], len(prompt), places, drawn=drawn_row)
            conversation = conversation_of(conversations, sample.key)
            try:
                made = rerender(sample, conversation, table, form=form, template_date=date) if conversation else None
            except Unread:
                continue
            if made is not None and not made.same and len(made.ids) > 1:
                first = max(1, min(first_difference(prompt, made.ids), len(made.ids) - 1))
                yield _version(sample, "rerendered", made.ids, first, made.partners - first, drawn=drawn_row)


def _version(
    sample: Sample, version: str, ids: list[int], first: int, places: Sequence[int] | Integers, *, drawn: bool
) -> Version:
    return Version(
        key=sample.key,
        drawn=drawn,
        version=version,
        ids=ids,
        first=first,
        places=[max(int(place), -1) for place in places],
    )
