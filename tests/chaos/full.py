"""All scenarios over one data set on real servers, compared with two undisturbed runs, as a table.

What it proves: no row missing, none doubled, no id altered, and so the same lengths, though the client, the servers,
the disk and the wire failed. It does not measure speed.
"""

import argparse
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from chaos import scenarios, storage
from chaos.client_runs import ClientRun
from chaos.ground import MAX_NEW_TOKENS, Ground, Outcome, make_ground, with_truth
from chaos.scenarios import Scenario, Stage
from rawtokens.demo.model import write_demo_model
from rawtokens.demo.server import DemoServer, start_demo_server

FLOAT32 = ["--dtype", "float32"]
FIRST_PORT = 31_500
NEED_MOUNTS = ("disk full, read-only", "disk vanished")
SCENARIOS: dict[str, Scenario] = {
    "client killed": scenarios.client_killed,
    "torn tails": scenarios.tail_torn,
    "wire faults": scenarios.wire_faults,
    "wire faults, client killed": partial(scenarios.wire_faults, kills=12, rate=0.2),
    "rows poisoned": scenarios.rows_poisoned,
    "NaN signs, key refused": scenarios.must_stop,
    "file limit": scenarios.file_cut_short,
    "disk full, read-only": scenarios.disk_full,
    "disk vanished": scenarios.disk_vanished,
    "two writers": scenarios.two_writers,
    "the command and its kernel killed": scenarios.command_killed,
    "server killed and stalled": scenarios.server_killed,
    "two servers, each killed": scenarios.two_servers,
    "everything at once": scenarios.everything_at_once,
}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table; `failure` says what went another way than it must."""

    name: str
    stage: Stage
    outcome: Outcome
    failure: str
    seconds: float

    @property
    def good(self) -> bool:
        rejections = len(self.stage.expected_rejections)
        return not self.failure and self.outcome.whole and self.outcome.rejected == rejections


def play(name: str, scenario: Scenario, stage: Stage) -> Result:
    """One scenario, from its empty folder to the comparison."""
    started, failure = time.monotonic(), ""
    if name not in NEED_MOUNTS:
        stage.ground.copy_to(stage.folder)
    try:
        scenario(stage)
    except Exception as error:  # the table names it, and the other scenarios go on
        failure = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        for server in stage.servers:
            if server.process.poll() is not None:
                server.relaunch()
            server.wait_until_ready()
    outcome = stage.ground.compare(stage.folder)
    return Result(name=name, stage=stage, outcome=outcome, failure=failure, seconds=time.monotonic() - started)


def undisturbed(ground: Ground, folder: Path, url: str, window: int) -> tuple[Ground, float]:
    """A run in which nothing happens, as the truth."""
    started = time.monotonic()
    ClientRun(ground.copy_to(folder), [url], window=window).finish()
    return with_truth(ground, folder), time.monotonic() - started


def table(results: Sequence[Result]) -> str:
    """The runs, then everything that was injected, by kind."""
    head = "| run | rows | client kills | server kills | starts | wire faults | rejected | missing | doubled | altered"
    lines = [f"{head} | lengths | seconds |", "|---" + "|--:" * 9 + "|---|--:|"]
    for result in results:
        stage, outcome = result.stage, result.outcome
        counts = (stage.rows, stage.client_kills, stage.server_kills, stage.starts, stage.wire.total())
        found = (outcome.rejected, outcome.missing, outcome.doubled, outcome.altered)
        lengths = "equal" if outcome.lengths_equal else "CHANGED"
        cells = [result.name, *map(str, (*counts, *found)), lengths, f"{result.seconds:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    sums = [
        sum(result.stage.rows for result in results),
        *(sum(getattr(result.stage, name) for result in results) for name in ("client_kills", "server_kills")),
        sum(result.stage.starts for result in results),
        sum(result.stage.wire.total() for result in results),
        *(sum(getattr(r.outcome, name) for r in results) for name in ("rejected", "missing", "doubled", "altered")),
    ]
    equal = "equal" if all(result.outcome.lengths_equal for result in results) else "CHANGED"
    seconds = f"{sum(result.seconds for result in results):.0f}"
    lines.append(f"| **all** | {' | '.join(map(str, sums))} | {equal} | {seconds} |")
    injected = sum((result.stage.wire + result.stage.events for result in results), Counter[str]())
    lines += ["", "| injected | times |", "|---|--:|"]
    lines += [f"| {kind} | {count} |" for kind, count in sorted(injected.items())]
    lines += [
        "",
        *(f"FAILED: {result.name}: {result.failure or 'see the table'}" for result in results if not result.good),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a run did not come out whole."""
    parser = argparse.ArgumentParser(prog="python tests/chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=200, help="prompts of a run")
    parser.add_argument("--only", action="append", choices=SCENARIOS, metavar="NAME", help="; ".join(SCENARIOS))
    parser.add_argument("--table", type=Path, metavar="FILE", help="where the table is written too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, ExitStack() as stack:
        place = Path(name)
        write_demo_model(place / "model")
        servers: list[DemoServer] = []
        for number in range(2):
            log, port = place / f"server-{number}.log", FIRST_PORT + 10 * number
            server = start_demo_server(place / "model", log_path=log, port=port, extra_arguments=FLOAT32)
            servers.append(stack.enter_context(server))
        ground = make_ground(place / "ground", place / "model", options.rows)
        text, good = _all_runs(options, place, ground, servers)
    print(text)
    return 0 if good else 1


def _all_runs(options: argparse.Namespace, place: Path, ground: Ground, servers: list[DemoServer]) -> tuple[str, bool]:
    ground, seconds = undisturbed(ground, place / "undisturbed", servers[0].url, 64)
    again, _ = undisturbed(ground, place / "undisturbed-again", servers[1].url, 24)
    differing = sum(ground.output_ids(key) != again.output_ids(key) for key in ground.lines)
    lengths = sorted(len(ground.output_ids(key)) for key in ground.lines)
    capped = sum(length == MAX_NEW_TOKENS for length in lengths)
    told = "none differs, so any difference below is a fault" if not differing else f"{differing} DIFFER"
    intro = [
        f"`python tests/chaos --seed {options.seed} --rows {options.rows}` on {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}: two real SGLang servers on the CPU with the demo's "
        "model, float32, temperature 0.",
        "",
        f"Undisturbed: {len(lengths)} rows in {seconds:.0f} s at 64 in flight; outputs of {lengths[0]} to "
        f"{lengths[-1]} ids, median {lengths[len(lengths) // 2]}, {capped} of them cut at {MAX_NEW_TOKENS}. Of the "
        f"rows of a second undisturbed run, on the other server at 24 in flight, {told}.",
        "",
    ]
    print("\n".join(intro), flush=True)
    results: list[Result] = []
    mounts = storage.may_mount(place)
    for number, (name, scenario) in enumerate(SCENARIOS.items()):
        if options.only and name not in options.only:
            continue
        if name in NEED_MOUNTS and not mounts:
            intro += [f"Not run, for this user may not mount: {name}.", ""]
            continue
        seed = options.seed * 1000 + number
        stage = Stage(
            folder=place / "runs" / str(number),
            ground=ground,
            servers=servers,
            model=place / "model",
            chooser=random.Random(seed),
            seed=seed,
            calm_seconds=seconds,
        )
        results.append(play(name, scenario, stage))
        print(f"{name}: {results[-1].outcome} {results[-1].failure} {results[-1].seconds:.0f} s", flush=True)
        if options.table:  # after every run, so that an hour is not lost with the last one
            options.table.write_text("\n".join([*intro, table(results)]))
    return "\n".join([*intro, table(results)]), differing == 0 and all(result.good for result in results)


if __name__ == "__main__":
    sys.exit(main())
