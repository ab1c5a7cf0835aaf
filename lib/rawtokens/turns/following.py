"""Stage 02's conversations: which request comes next when an answer has come, and where a killed run goes on.

A worker that has an answer goes on with the same conversation, so the window stays full and the prefix cache holds
what the turns share. Where a run begins again, every conversation that is not over is read back from the journal, and
its next turn is asked. This module does not know how a request is made.
"""

import asyncio
from collections.abc import Awaitable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec

from ..capture.known_keys import KnownKeys
from ..capture.planned import BLOCK_ROWS, Keys, Request
from ..errors import InputError
from ..journal import journal_paths, key_of, response_of
from ..prompts import prompt_batches
from ..records import Conversation, Ending, Json, Response, ResponseLine
from ..shards import WHOLE, Shard
from .daemon_threads import in_daemon_thread
from .endings import ENDED, Standing, standings
from .history import Ended
from .keys import TurnKey, split_key
from .script import expected_turns, script_digest
from .side_files import SideFile
from .talk import NextTurn, Reader, Talk, next_turn
from .tool_results import ToolResults

THREADS = 64
"""Tool functions that run at the same time; the tokenizer is asked by one thread at a time (Reader.lock)."""
COLUMNS = ["key", "source_id", "messages", "tools", "template_kwargs", "later"]


class Following:
    """The conversations of one run; made for `generation.generate`, whose loop calls all methods."""

    def __init__(self, folder: Path, reader: Reader, *, tool_function: str = "", shard: Shard = WHOLE) -> None:
        """`tool_function` as ToolResults has it. Raises InputError where it can't be imported."""
        self._folder, self._reader, self._shard = folder, reader, shard
        self._results = ToolResults(folder, tool_function, shard=shard)
        self._ended = SideFile(folder, ENDED, shard)
        self._begun: list[Standing] = []  # as many as were under way when the last run ended
        self._counted: dict[TurnKey, int] = {}  # of what is in flight: generations that `planned` counts it with
        self._talks: dict[TurnKey, tuple[Talk, str]] = {}  # of what is in flight, with the script's digest
        self._places = asyncio.Semaphore(THREADS)
        self.planned = 0

    def begin(self, samples: int, known: KnownKeys, rejected: Keys) -> int:
        """Find what goes on, count what is planned by what the file foresees, and return how many generations stand."""
        present = 0
        for found in standings(self._folder, samples, known, rejected, shard=self._shard):
            self.planned += found.planned
            present += found.turns
            if found.turns and not found.over:
                self._begun.append(found)
        return present

    def requests(self, first: Iterable[Request]) -> Iterator[Request | Awaitable[Request | None]]:
        """The next turns of conversations that had begun, then the first turns, which `first` gives block by block.

        A next turn is found once it is awaited, None where the conversation is over.
        """
        yield from self._resumed()
        blocks = prompt_batches(self._folder, COLUMNS, rows=BLOCK_ROWS)
        block: dict[str, dict[str, object]] = {}
        for request in first:
            prompt_key = request.key.rpartition("/")[0]
            while prompt_key not in block:
                block = {str(row["key"]): row for row in next(blocks).to_pylist()}
            key, row = split_key(request.key), block[prompt_key]
            self._talks[key], self._counted[key] = talk_of(row), expected_turns(msgspec.json.decode(str(row["later"])))
            yield request

    async def after(self, request: Request, line: ResponseLine | None) -> Request | None:
        """The conversation's next request, or None where it is over; `line` is None where its request was given up."""
        key = split_key(request.key)
        talk, digest = self._talks.pop(key.conversation)
        if line is None:
            self._over(key, key.turn + 1)
            return None
        response = _response(line)
        async with self._places:
            work = in_daemon_thread(lambda: next_turn(talk, response, self._reader, self._results))
            found = await asyncio.wrap_future(work)
        return self._goes_on(key, found, digest)

    def close(self) -> None:
        """The run is over: what a tool function says from here on goes nowhere."""
        self._results.close()

    def _goes_on(self, key: TurnKey, found: NextTurn | Ended, digest: str) -> Request | None:
        """The request behind turn `key`, or its conversation's end, on record."""
        if isinstance(found, Ended):
            turns = key.turn + 1
            detail = found.detail.encode(errors="backslashreplace").decode()  # a lone surrogate, of whoever's words
            self._ended.append(Ending(key=str(key), turns=turns, reason=found.reason, detail=detail, script=digest))
            self._over(key, turns)
            return None
        self._talks[key.conversation] = found.talk, digest
        following = key._replace(turn=key.turn + 1)
        self.planned += following.turn >= self._counted[key.conversation]
        return Request(key=str(following), prompt_ids=found.prompt_ids)

    def _over(self, key: TurnKey, turns: int) -> None:
        """Count a conversation with the turns that it came to."""
        self.planned += turns - max(self._counted.pop(key.conversation), turns)

    def _resumed(self) -> Iterator[Awaitable[Request | None]]:
        """Every conversation that had begun, at its next turn."""
        begun: dict[str, list[Standing]] = {}
        for found in self._begun:
            begun.setdefault(f"{found.key.source_id}#0", []).append(found)
        if not begun:
            return
        lines = _lines_of(self._folder, {found.key for found in self._begun})
        for batch in prompt_batches(self._folder, [*COLUMNS, "prompt_ids"]):
            prompts = batch["prompt_ids"]
            for place, row in enumerate(batch.select(COLUMNS).to_pylist()):
                for found in begun.get(row["key"], ()):
                    turns, self._counted[found.key] = lines[found.key], found.planned
                    answers = [decoded(turns[turn]) for turn in range(found.turns)]
                    yield self._read_back(found.key, row, prompts[place].as_py(), answers)

    async def _read_back(
        self, key: TurnKey, row: dict[str, object], prompt_ids: list[int], answers: Sequence[Response]
    ) -> Request | None:
        """A conversation from its records to its next request, or its end."""
        talk, digest = talk_of(row)
        async with self._places:
            work = in_daemon_thread(lambda: self._replayed(key, talk, prompt_ids, answers))
            here, found = await asyncio.wrap_future(work)
        return self._goes_on(here, found, digest)

    def _replayed(
        self, key: TurnKey, talk: Talk, prompt_ids: list[int], answers: Sequence[Response]
    ) -> tuple[TurnKey, NextTurn | Ended]:
        """The last turn that stands, and what follows from all that do."""
        found: NextTurn | Ended
        for turn, response in enumerate(answers):
            here, last = key._replace(turn=turn), turn + 1 == len(answers)
            if response.prompt_ids != prompt_ids:
                found = Ended("prompt_changed", f"turn {turn} was generated from another prompt than there is now")
                break
            # Calls behind which a turn stands have had their answers: a function that is new here is not asked.
            results = self._results if last else self._results.recorded
            found = next_turn(talk, response, self._reader, results)
            if isinstance(found, Ended) or last:
                break
            talk, prompt_ids = found.talk, found.prompt_ids
        if isinstance(found, Ended) and here.turn + 1 < len(answers):  # told with all turns that stand
            here = key._replace(turn=len(answers) - 1)
        return here, found


def talk_of(row: dict[str, object]) -> tuple[Talk, str]:
    """A conversation at its first prompt, from its row of prompts.parquet."""
    decode, later = msgspec.json.decode, str(row["later"])
    conversation = Conversation(
        source_id=str(row["source_id"]),
        line=0,
        messages=tuple(cast("list[dict[str, Json]]", decode(str(row["messages"])))),
        tools=tuple(cast("list[dict[str, Json]]", decode(str(row["tools"])))),
        template_kwargs=cast("dict[str, Json]", decode(str(row["template_kwargs"]))),
        later=tuple(cast("list[dict[str, Json]]", decode(later))),
    )
    return Talk.begin(conversation), script_digest(later)


def _lines_of(folder: Path, wanted: Container[TurnKey]) -> dict[TurnKey, dict[int, bytes]]:
    """The journals' lines of these conversations, by turn: as many as were under way when the run ended."""
    found: dict[TurnKey, dict[int, bytes]] = {}
    for path in journal_paths(folder):
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n") and (text := key_of(line)) is not None:
                    key = split_key(text)
                    if key.conversation in wanted:
                        found.setdefault(key.conversation, {})[key.turn] = line
    return found


def decoded(line: bytes) -> Response:
    """The record of a journal's line that has a key. Raises InputError where it holds none."""
    response = response_of(line)
    if response is None:
        key = key_of(line)
        raise InputError(
            f"the journal's line of {key!r} is no record of this kit; `rawtokens retry RUN --dataset NAME --where "
            "foreign` sets such lines aside; then run again"
        )
    return response


def _response(line: ResponseLine) -> Response:
    return msgspec.json.decode(msgspec.json.encode(line), type=Response)
