"""Which responses answer another prompt than prompts.parquet has now: it was made anew since they were asked for.

Verification rejects them (prompt_changed); here they are known before it runs. This module does not know what differs
between the two prompts.
"""

from itertools import islice
from pathlib import Path

import msgspec

from ..errors import InputError
from ..journal import journal_paths, read_records
from ..prompts import PROMPTS
from ..response_checks.checks import prompt_digests
from ..response_checks.response_columns import IdLists
from ..verification import read_known_prompts

_ROWS = 1024


class _Asked(msgspec.Struct):
    """The fields of a journal line that tell what was asked; msgspec skips the output ids."""

    key: str
    prompt_ids: msgspec.Raw


def answers_to_earlier_prompts(folder: Path) -> set[str]:
    """The keys of a data set's responses whose prompt ids are not those that prompts.parquet has now.

    Later turns of conversations, which do not stand there, are left out. Memory: a digest a prompt, and the keys found.
    Raises InputError where a file can't be read.
    """
    paths = journal_paths(folder)
    known = read_known_prompts(folder / PROMPTS) if paths else {}
    found: set[str] = set()
    for path in paths:
        records = read_records(path, _Asked)
        while block := list(islice(records, _ROWS)):
            for record, digest in zip(block, prompt_digests(_ids(block, path)), strict=True):
                expected = known.get(record.key.rpartition("/")[0])
                if expected is not None and expected != digest:
                    found.add(record.key)
    return found


def _ids(block: list[_Asked], path: Path) -> IdLists:
    try:
        return IdLists.from_texts([record.prompt_ids for record in block])
    except (msgspec.MsgspecError, OverflowError) as error:
        raise InputError(
            f"{path} has prompt ids that are none ({error}); take the line out or move the file away, then run again"
        ) from error
