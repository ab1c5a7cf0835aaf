"""audits.json: rates with their counts and their definitions, of a data set's audits.

This module does not know how a rate is found.
"""

from pathlib import Path

import msgspec

from ..atomic_files import write_atomically
from ..errors import InputError

AUDITS = "audits.json"


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """`count` of `of`, with what is counted; no share where there is nothing to have a share of."""

    count: int
    of: int
    share: float | None
    definition: str


def rate(count: int, of: int, definition: str) -> Rate:
    """A rate with its share."""
    return Rate(count=count, of=of, share=count / of if of else None, definition=definition)


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """The first change of a row: ids as captured, and those that their text encodes to."""

    key: str
    position: int
    place: str
    was: list[int]
    becomes: list[int]


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a server thought of a seeded sample. Log-likelihoods in nats an id, null where there is no id.

    `rows` were drawn with `seed`, and all numbers are theirs; `added_rows` are further ones that re-tokenising changes.
    `temperature` is the capture's, `versions` how many sequences of each kind were scored, of all rows.
    """

    rows: int
    added_rows: int
    seed: int
    temperature: float | None
    model: str | None
    ids: int
    rates: dict[str, Rate]
    log_likelihood: float | None
    versions: dict[str, int]
    not_scored: dict[str, int]


class Audits(msgspec.Struct, frozen=True, kw_only=True):
    """audits.json: what was asked of which rows. `replay` is null where no server scored any."""

    rows: int
    ids: int
    rerendered_rows: int
    seed: int
    drift: dict[str, Rate]
    rerendering: dict[str, Rate]
    unread: dict[str, int]
    examples: list[Example]
    replay: Replay | None = None
    replay_note: str = ""  # why there is none, in words


def read_audits(folder: Path) -> Audits:
    """audits.json. Raises InputError where it is missing or no audit."""
    try:
        return msgspec.json.decode((folder / AUDITS).read_bytes(), type=Audits)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(
            f"{folder / AUDITS} can't be read ({error}); run notebook 03_verify_responses again"
        ) from error


def write_audits(folder: Path, audits: Audits) -> None:
    """Write audits.json. Raises RunStopped where it can't."""
    write_atomically(folder / AUDITS, msgspec.json.format(msgspec.json.encode(audits), indent=1) + b"\n")
