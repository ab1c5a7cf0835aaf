"""Keys of turns: SOURCE_ID#TURN/SAMPLE.

A source id may itself hold `#` and `/`, so keys are read from their end. This module does not know what a turn is.
"""

from typing import NamedTuple


class TurnKey(NamedTuple):
    """The parts of a key; `turn` counts the model's answers of a conversation from 0."""

    source_id: str
    turn: int
    sample: int

    def __str__(self) -> str:
        return f"{self.source_id}#{self.turn}/{self.sample}"

    @property
    def conversation(self) -> "TurnKey":
        """The key of the conversation's first turn: one of all its turns."""
        return self._replace(turn=0)


def split_key(key: str) -> TurnKey:
    """The parts of a generation's key. Raises ValueError for a text that is none."""
    prompt, _, sample = key.rpartition("/")
    source_id, mark, turn = prompt.rpartition("#")
    if not mark or not turn.isdecimal() or not sample.isdecimal():
        raise ValueError(f"{key!r} is no key of a generation; expected SOURCE_ID#TURN/SAMPLE")
    return TurnKey(source_id, int(turn), int(sample))
