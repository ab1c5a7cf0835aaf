"""The progress of a run of stage 02 at one moment, from its counts and its servers.

This module does not know where a progress is shown or kept (`progress_reports`), nor how often it is asked for.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .progress import Progress, Tally
from .servers import Server


def progress_now(
    tally: Tally,
    servers: Sequence[Server],
    *,
    planned: int,
    present: int,
    rejected: int,
    started: float,
    max_new_tokens: int,
    journal: Path,
) -> Progress:
    """The record of this moment.

    `rejected` rows stand in a file, those that a server still holds back are added; `started` is on the monotonic
    clock. The other counts are `Progress`'s.
    """
    now = time.monotonic()
    progress = tally.progress(
        planned=planned,
        present=present,
        rejected=rejected + sum(len(server.given_up) for server in servers),
        asked={asked.key: now - asked.at for server in servers for asked in server.asked.values()},
        servers={server.url: len(server.asked) for server in servers},
        seconds=now - started,
        max_new_tokens=max_new_tokens,
        journal_bytes=journal.stat().st_size if journal.exists() else 0,
    )
    silent = {server.url: seconds for server in servers if (seconds := server.silent_seconds())}
    return msgspec.structs.replace(progress, silent=silent)
