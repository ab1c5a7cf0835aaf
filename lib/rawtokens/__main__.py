"""The command `rawtokens`: one line on standard error and exit code 1 or 2 for everything a user can cause."""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .errors import InputError, RawTokensError, RunStopped

if TYPE_CHECKING:
    from .notebook_stages.pipeline import Plan

ROOT = Path(__file__).parents[2]
DEMO_MODEL = ROOT / ".demo-model"
_AGAIN = "run the same command to go on"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 0 done, 1 stopped and can be resumed, 2 bad input."""
    signal.signal(signal.SIGTERM, _stop)
    given = list(sys.argv[1:] if arguments is None else arguments)
    is_run = given[:1] == ["run"]
    again = f"go on with: {shlex.join(['rawtokens', *given])}" if is_run else _AGAIN
    try:
        options = _parser().parse_args(given)
        code: int = options.command(options)
        sys.stdout.flush()
    except RawTokensError as error:
        resumable = is_run and error.exit_code == 1
        said = f"{str(error).removesuffix(f'; {_AGAIN}')}; {again}" if resumable else str(error)
        return _say(said, error.exit_code)
    except BrokenPipeError:  # whoever read standard output has gone, `rawtokens status RUN | head` for one
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at exit
        return _say("standard output was closed; what was done stays", 1)
    except OSError as error:
        return _say(f"{error}; mend that, then {again}", 1)
    except KeyboardInterrupt:
        return _say(f"stopped; {again}", 1)
    return code


def _say(message: str, code: int) -> int:
    print(f"rawtokens: {' '.join(message.split())}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; {self.prog} --help tells more")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="rawtokens", description="Capture what a reasoning model said, as token ids.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    of_run, some = _Parser(add_help=False), _Parser(add_help=False)
    of_run.add_argument("run_file", type=Path, metavar="RUN.yaml")
    of_run.add_argument("--outputs", type=Path, default=ROOT / "outputs", metavar="DIR", help="instead of outputs/")
    some.add_argument("--dataset", action="append", metavar="NAME", help="this data set alone (may be repeated)")

    run = commands.add_parser(
        "run", parents=[of_run, some], help="execute a run file's notebooks, from prompts to report"
    )
    run.add_argument("--stage", metavar="NN", help="this stage alone: 00, 01, 02, 03, 04 or 05")
    run.add_argument("--shard", default="", metavar="I/N", help="with --stage 02: this part of each data set alone")
    run.add_argument("--demo-server", action="store_true", help="start the demo's server where one is needed")
    run.set_defaults(command=_run)

    status = commands.add_parser("status", parents=[of_run, some], help="what of a run is there, and what is missing")
    status.set_defaults(command=_status)

    retry = commands.add_parser(
        "retry", parents=[of_run], help="have the next run generate rejected rows again, or rows with a reason"
    )
    retry.add_argument("--dataset", required=True, metavar="NAME", help="the data set")
    retry.add_argument(
        "--where",
        metavar="reason=CODE",
        help="rows with that reason; or `foreign`: journal lines that are no records, or not of this run's settings",
    )
    retry.set_defaults(command=_retry)

    compare = commands.add_parser("compare", help="two runs side by side, or the data sets of one, in a report")
    compare.add_argument("run_a", type=Path, metavar="RUN_A", help="folder of a run (outputs/RUN), or of a data set")
    compare.add_argument("run_b", type=Path, nargs="?", metavar="RUN_B", help="another; the report is put beside it")
    compare.set_defaults(command=_compare)

    export = commands.add_parser(
        "export", parents=[of_run, some], help="write training data for drafter trainers, or publish it"
    )
    export.add_argument("--format", action="append", metavar="NAME", help="instead of training.formats (repeatable)")
    export.add_argument("--to", default="", metavar="PLACE", help="publish: hub:OWNER/NAME, or a new folder")
    export.add_argument("--public", action="store_true", help="with --to hub:..: a public data set, not a private one")
    export.set_defaults(command=_export)

    check = commands.add_parser("check-server", help="is this server faithful?")
    check.add_argument("url", metavar="URL")
    check.add_argument("--tokenizer", default=str(DEMO_MODEL), help="folder or hub id (default: the demo's)")
    check.add_argument("--revision", default="", help="hub revision of the tokenizer")
    check.add_argument("--trust-remote-code", action="store_true", help="run the hub repository's own Python")
    check.add_argument("--prompt-encoder", default="", metavar="FILE.py:NAME", help="in place of a chat template")
    check.add_argument("--markers", default="", metavar="JSON", help="of a model of no known family, turn_end at least")
    check.add_argument("--api-key-env", default="", metavar="NAME", help="environment variable that holds the key")
    check.add_argument("--template-kwargs", default="{}", metavar="JSON", help="arguments of the chat template")
    check.add_argument(
        "--golden", action="store_true", help="ask the golden question too: 15 ids, the closer, the split"
    )
    check.set_defaults(command=_check_server)

    serve = commands.add_parser("serve-demo", help="the demo's model on a real SGLang server, on the CPU")
    serve.add_argument("--port", type=_port, default=30000)
    serve.add_argument("--model", type=Path, default=DEMO_MODEL, metavar="DIR", help="a model folder (default: demo's)")
    serve.set_defaults(command=_serve_demo)

    lab = commands.add_parser("lab", help="JupyterLab on the notebooks, with the demo's server running")
    lab.set_defaults(command=_lab)

    model = commands.add_parser("demo-model", help="write the demo's model and the real Kimi tokenizer")
    model.add_argument("directory", type=Path, metavar="DIR")
    model.set_defaults(command=_demo_model)
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; expected a number from 1 to 65535")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    from .notebook_stages.pipeline import NOTEBOOKS, run_stages

    if options.stage is not None and options.stage not in NOTEBOOKS:
        raise InputError(f"there is no stage {options.stage!r}; stages are {', '.join(NOTEBOOKS)}")
    if options.shard and options.stage != "02":
        raise InputError(
            f"--shard {options.shard} goes with --stage 02 alone: stage 01 runs once before, later stages once after"
        )
    plan = _plan(options, options.dataset, stage=options.stage, shard=options.shard)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)  # a log file shows a stage when it starts, not when a buffer is full

    index = run_stages(plan, start_server=_demo_server if options.demo_server else None, on_line=say)
    from .reporting.closing import older_figures, retry_command, retry_lines, warnings_among
    from .reporting.run_index import run_table

    older, retried = older_figures(plan, plan.datasets), retry_command(options.run_file, _elsewhere(options))
    print(f"\n{run_table(plan.run_folder, datasets=plan.datasets, older=older)}")
    for line in (*retry_lines(plan, retried), *warnings_among(lines)):
        print(line)
    print(f"\nreport: {index}")
    return 0


def _elsewhere(options: argparse.Namespace) -> list[str]:
    return [] if options.outputs == ROOT / "outputs" else ["--outputs", str(options.outputs)]


def _plan(
    options: argparse.Namespace, names: Sequence[str] | None, *, stage: str | None = None, shard: str = ""
) -> "Plan":
    from .notebook_stages.plans import plan_of

    return plan_of(options.run_file, outputs=options.outputs, datasets=names, stage=stage, shard=shard)


@contextmanager
def _demo_server() -> Iterator[Callable[[], str]]:
    """Launch the demo's server; what is given waits until it answers and returns its URL."""
    from .demo.server import launch_demo_server

    with launch_demo_server(DEMO_MODEL, log_path=ROOT / "outputs" / "demo-server.log") as server:
        print(f"demo server: starting on port {server.port}", flush=True)
        yield lambda: server.wait_until_ready().url


def _status(options: argparse.Namespace) -> int:
    from .capture.run_status import status_lines

    for line in status_lines(_plan(options, options.dataset)):
        print(line, flush=True)
    return 0


def _retry(options: argparse.Namespace) -> int:
    from .capture.retrying import retry

    name, plan = options.dataset, _plan(options, [options.dataset])
    sampling = plan.settings.sampling
    found = retry(plan, name, where=options.where)
    if not found.lines:
        print(f"{name}: nothing to retry")
        return 0
    command = shlex.join(["rawtokens", "run", str(options.run_file), "--dataset", name, *_elsewhere(options)])
    same = " (greedy or seeded: the same ids may come again)" if sampling.seed or not sampling.temperature else ""
    print(
        f"{name}: rows to generate again: {found.again}{same}; lines set aside: {found.lines}, in "
        f"{', '.join(str(path) for path in found.files)}; next: {command}"
    )
    return 0


def _compare(options: argparse.Namespace) -> int:
    from .notebook_stages.comparison import compare_runs

    say = partial(print, flush=True)
    report = compare_runs(options.run_a, options.run_b, notebooks=ROOT / "notebooks", on_line=say)
    print(f"\nreport: {report}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from .training.command import export_datasets

    plan = _plan(options, options.dataset)
    export_datasets(plan, formats=options.format, to=options.to, private=not options.public, on_line=print)
    return 0


def _check_server(options: argparse.Namespace) -> int:
    from .server_checks.command import check_and_print

    check_and_print(
        options.url,
        tokenizer=options.tokenizer,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        prompt_encoder=options.prompt_encoder,
        markers=options.markers,
        api_key_env=options.api_key_env,
        template_kwargs=options.template_kwargs,
        with_golden=options.golden,
    )
    return 0


def _serve_demo(options: argparse.Namespace) -> int:
    from .demo.server import serve_in_foreground

    return serve_in_foreground(options.model, port=options.port)


def _lab(_: argparse.Namespace) -> int:
    from .demo.lab import open_lab

    return open_lab(DEMO_MODEL, notebooks=ROOT / "notebooks", log_path=ROOT / "outputs" / "demo-server.log")


def _demo_model(options: argparse.Namespace) -> int:
    from .demo.model import write_demo_model

    write_demo_model(options.directory)
    print(f"demo model: {options.directory}")
    return 0


def _stop(number: int, _: object) -> None:
    raise RunStopped(f"stopped by {signal.Signals(number).name}; {_AGAIN}")


if __name__ == "__main__":
    sys.exit(main())
