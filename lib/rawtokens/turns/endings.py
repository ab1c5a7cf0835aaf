"""How the conversations of a data set ended, and which of them go on.

A conversation is over where ended.jsonl says so of the turns that the journal has, or where its next turn was rejected.
ended.jsonl can be made again from the journal: stage 02 judges anew what it does not name. This module does not know
why a conversation ends.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa

from ..capture.known_keys import KnownKeys
from ..capture.planned import Keys
from ..prompts import PROMPTS, prompt_batches
from ..records import Ending, open_parquet
from ..shards import WHOLE, Shard
from .keys import TurnKey, split_key
from .script import Message, expected_turns, script_digest
from .side_files import read_lines, side_paths

ENDED = "ended.jsonl"
COMPLETE = "complete"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a conversation stands: how many turns are in the journal, how many the file foresees.

    `over` says whether no turn is missing: it ended, or its next turn was rejected.
    """

    key: TurnKey  # of the first turn
    turns: int
    expected: int
    over: bool
    rejected: bool

    @property
    def planned(self) -> int:
        """Generations that it is counted with: those made, and those that the file foresees while it goes on."""
        if self.over:
            return self.turns + self.rejected
        return max(self.expected, self.turns + 1)


def has_turns(folder: Path) -> bool:
    """Whether every turn of a data set's conversations is generated (turns: each).

    False without prompts, and where they can't be read: who reads them says so.
    """
    try:
        with open_parquet(folder / PROMPTS) as file:
            if "later" not in file.schema_arrow.names:
                return False
    except (OSError, pa.ArrowException):
        return False
    first = next(prompt_batches(folder, ["later"], rows=1), None)
    return first is not None and first["later"].null_count == 0


def ended_files(folder: Path) -> list[Path]:
    """ended.jsonl, or one a shard."""
    return side_paths(folder, ENDED)


def read_endings(folder: Path) -> dict[TurnKey, Ending]:
    """The ending of each conversation, by its first turn's key: the one of most turns, the last of those.

    The last of all may stand in another file: of a run in other shards. Raises InputError for a foreign line.
    """
    found: dict[TurnKey, Ending] = {}
    for ending in read_lines(folder, ENDED, Ending):
        key = split_key(ending.key).conversation
        if key not in found or ending.turns >= found[key].turns:
            found[key] = ending
    return found


def standings(
    folder: Path, samples: int, known: KnownKeys, rejected: Keys, *, shard: Shard = WHOLE
) -> Iterator[Standing]:
    """Every conversation of `shard`, in the order of the prompts; `known` are the journals' keys. Reads no ids."""
    endings = {
        (split_key(ending.key).conversation, ending.turns, ending.script)
        for ending in read_lines(folder, ENDED, Ending)
    }
    for batch in prompt_batches(folder, ["key", "later"]):
        for prompt_key, later in zip(batch["key"].to_pylist(), batch["later"].to_pylist(), strict=True):
            if not shard.holds(f"{prompt_key}/"):
                continue
            foreseen = expected_turns(cast("list[Message]", msgspec.json.decode(later)))
            digest = script_digest(later)
            for sample in range(samples):
                key = split_key(f"{prompt_key}/{sample}")
                turns = _turns(key, known)
                ended = (key, turns, digest) in endings
                lost = str(key._replace(turn=turns)) in rejected
                yield Standing(key=key, turns=turns, expected=foreseen, over=ended or lost, rejected=lost)


def count_going_on(folder: Path, samples: int, known: KnownKeys, rejected: Keys, *, shard: Shard = WHOLE) -> int:
    """How many conversations are not over: each misses a generation at least."""
    return sum(not found.over for found in standings(folder, samples, known, rejected, shard=shard))


def _turns(key: TurnKey, known: KnownKeys) -> int:
    turn = 0
    while str(key._replace(turn=turn)) in known:
        turn += 1
    return turn
