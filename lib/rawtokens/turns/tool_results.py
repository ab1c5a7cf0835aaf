"""A user's Python function in the tools' place, and what it answered: tool_results.jsonl.

What it answers is on the disk before a prompt holds it, so that a run that goes on has the same history, whatever the
function would say the second time. It is the user's code and is run as it is; this module does not know whether it
does what the tools would.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from copy import deepcopy
from pathlib import Path

import msgspec

from ..errors import RunStopped, one_line
from ..records import Json
from ..shards import WHOLE, Shard
from ..target.prompt_encoders import load_function
from .daemon_threads import in_daemon_thread
from .history import Ended
from .reading import Call
from .side_files import SideFile, read_lines

TOOL_RESULTS = "tool_results.jsonl"
FUNCTION_SECONDS = 1800.0
"""For how long a function may take over one call: a test suite in a sandbox takes minutes."""
LEFT_RUNNING = 64
"""Calls that never came back: each has a thread that nothing can end."""
ToolFunction = Callable[[str, dict[str, Json], list[dict[str, Json]]], Json]
"""(name, arguments, messages so far) to a text, or a JSON value that is written as JSON; None answers nothing."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line: what the function answered to call `place` of the turn `key`; `function` is its name and hash."""

    key: str
    place: int
    name: str
    arguments: dict[str, object]
    content: str
    function: str


class ToolResults:
    """Answers calls: from the file where it was asked before, else by the function, where there is one."""

    def __init__(self, folder: Path, function: str = "", *, shard: Shard = WHOLE) -> None:
        """`function` is `module:function` or `path/to/file.py:function`; "" asks none.

        Raises InputError where it can't be imported.
        """
        self._known = {(line.key, line.place): line for line in read_lines(folder, TOOL_RESULTS, ToolResult)}
        self._file = SideFile(folder, TOOL_RESULTS, shard)
        self._function, self._name = None, ""
        self._late: list[Future[Json]] = []
        if function:
            self._function, name, sha256 = load_function(function, "tool_function")
            self._name = f"{name} {sha256[:16]}"

    def recorded(self, key: str, place: int, call: Call, messages: Sequence[Mapping[str, Json]]) -> str | None:
        """What the file has, and no function asked: for turns that stand already."""
        known = self._known.get((key, place))
        if known and (known.name, known.arguments) == (call.name, call.arguments):
            return known.content
        return None

    def __call__(self, key: str, place: int, call: Call, messages: Sequence[Mapping[str, Json]]) -> str | Ended | None:
        """What the tool answers; None leaves the call to the prompt file.

        Reasons: tool_function_failed, tool_function_timeout, call_not_answered, call_not_kept. Raises RunStopped where
        nothing can be written, and where LEFT_RUNNING calls have not come back.
        """
        known = self.recorded(key, place, call, messages)
        if known is not None or self._function is None:
            return known
        function = self._function
        asked = in_daemon_thread(  # with copies to their depth: what it changes in them is not what the model said
            lambda: function(call.name, deepcopy(dict(call.arguments)), deepcopy(list(map(dict, messages))))
        )
        if not wait([asked], FUNCTION_SECONDS).done:
            return self._left(asked, call)
        try:
            answered = asked.result()
            content = answered if isinstance(answered, str) else json.dumps(answered, ensure_ascii=False)
        except (Exception, SystemExit) as error:  # the user's own code
            return Ended("tool_function_failed", f"{self._name} on {call.name!r}: {one_line(error)}")
        if answered is None:
            return Ended("call_not_answered", f"{self._name} gave None for {call.name!r}")
        line = ToolResult(
            key=key, place=place, name=call.name, arguments=dict(call.arguments), content=content, function=self._name
        )
        if not _is_kept(line):
            return Ended("call_not_kept", f"JSON can't hold the call of {call.name!r}, or what {self._name} gave")
        self._file.append(line, sync=True)
        self._known[key, place] = line
        return content

    def close(self) -> None:
        """Write nothing more: what a function says when its run is over, another run may have asked for again."""
        self._file.close()

    def _left(self, asked: Future[Json], call: Call) -> Ended:
        self._late.append(asked)
        running = sum(not other.done() for other in self._late)
        if running >= LEFT_RUNNING:
            raise RunStopped(
                f"{self._name} has not come back from {running} calls within {FUNCTION_SECONDS:.0f} s each; mend it, "
                "then run the same command, and `rawtokens retry RUN.yaml --dataset NAME --where "
                "reason=tool_function_timeout` for the conversations that ended by it"
            )
        return Ended("tool_function_timeout", f"{self._name} on {call.name!r}: nothing within {FUNCTION_SECONDS:.0f} s")


def _is_kept(line: ToolResult) -> bool:
    """Whether the line read back is the same: NaN is not, and a lone surrogate can't be written."""
    try:
        return msgspec.json.decode(msgspec.json.encode(line), type=ToolResult) == line
    except (ValueError, OverflowError, RecursionError):
        return False
