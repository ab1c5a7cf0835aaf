"""The command as a user meets it: exit codes, one line on standard error, no traceback."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_dataset

from rawtokens import __main__ as command
from rawtokens import journal
from rawtokens.__main__ import main
from rawtokens.errors import RunStopped
from rawtokens.notebook_stages.pipeline import Plan

RUN = "run: tiny\nmodel: {tokenizer: TOKENIZER}\nservers: {urls: [URL]}\ndatasets: {A: {prompts: a.jsonl}}\n"
ROW = '{"id": "a", "messages": [{"role": "user", "content": "What is 2+2?"}]}\n'


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def run_file(tmp_path: Path, kimi_folder: Path, closed_port: int) -> Path:
    """A run file with one prompt and a server that is not there."""
    (tmp_path / "a.jsonl").write_text(ROW)
    text = RUN.replace("TOKENIZER", str(kimi_folder)).replace("URL", f"http://127.0.0.1:{closed_port}")
    (tmp_path / "run.yaml").write_text(text)
    return tmp_path / "run.yaml"


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """The exit code and what went to standard error, which is one line that begins with the command's name."""
    code = main([str(argument) for argument in arguments])
    error = capsys.readouterr().err
    assert error.startswith("rawtokens: ")
    assert error.count("\n") == 1
    return code, error


BAD: dict[str, tuple[list[str], str]] = {
    "no command": ([], "required: COMMAND; rawtokens --help tells more"),
    "unknown command": (["frob"], "invalid choice: 'frob'"),
    "unknown option": (["run", "RUN", "--datset", "A"], "unrecognized arguments: --datset A"),
    "no run file": (["run", "none.yaml"], "run file none.yaml does not exist"),
    "unknown data set": (["run", "RUN", "--dataset", "Z"], "has no data set 'Z'; it has A"),
    "unknown stage": (["run", "RUN", "--stage", "9"], "no stage '9'; stages are 00, 01, 02, 03, 04"),
    "no prompts yet": (["run", "RUN", "--outputs", "OUT", "--stage", "03"], "run stage 01 for A first"),
    "no URL": (["check-server", "localhost:30000"], "server URL 'localhost:30000' is not valid"),
    "no tokenizer": (["check-server", "http://a:1", "--tokenizer", "/none"], "tokenizer '/none': no such folder"),
    "no markers": (
        ["check-server", "http://a:1", "--tokenizer", str(Path(__file__).parent), "--markers", "{}"],
        "markers is '{}': Object missing required field `turn_end`",
    ),
    "no key": (["check-server", "http://a:1", "--api-key-env", "SERVER_AUTH"], "variable SERVER_AUTH"),
    "port too high": (["serve-demo", "--port", "65536"], "'65536' is no port; expected a number from 1 to 65535"),
    "port below": (["serve-demo", "--port", "-1"], "'-1' is no port"),
    "no model": (["serve-demo", "--model", "/none"], "/none holds no model"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, run_file: Path, name: str
) -> None:
    monkeypatch.delenv("SERVER_AUTH", raising=False)
    monkeypatch.setenv("RAWTOKENS_ENGINE_PYTHON", sys.executable)
    arguments, words = BAD[name]
    places = {"RUN": str(run_file), "OUT": str(run_file.parent / "outputs")}
    code, error = told(capsys, *[places.get(argument, argument) for argument in arguments])
    assert code == 2
    assert words in error


def test_a_machine_without_the_engine_is_told_both_ways_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAWTOKENS_ENGINE_PYTHON", "/none/python")
    code, error = told(capsys, "serve-demo")
    assert code == 2
    assert "/none/python" in error
    assert "make engine" in error
    assert "servers.urls" in error


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_outputs_that_cant_be_written_are_exit_code_1(
    capsys: pytest.CaptureFixture[str], run_file: Path, place: str
) -> None:
    (run_file.parent / "file").write_text("")
    code, error = told(capsys, "run", run_file, "--outputs", run_file.parent / place)
    assert code == 1
    assert "choose another folder with --outputs DIR" in error
    assert (run_file.parent / "file").read_text() == ""


def test_a_second_run_names_the_first(capsys: pytest.CaptureFixture[str], run_file: Path) -> None:
    outputs = run_file.parent / "outputs"
    with journal.lock(outputs / "tiny" / "A" / ".stages.lock"):
        code, error = told(capsys, "run", run_file, "--outputs", outputs)
    assert code == 1
    assert f"is being written by process {os.getpid()}" in error


def test_a_data_set_named_twice_runs_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    ran: list[tuple[str, ...]] = []

    def run_stages(plan: Plan, *, start_server: object, on_line: object) -> Path:
        ran.append(plan.datasets)
        return plan.run_folder / "index.html"

    monkeypatch.setattr("rawtokens.notebook_stages.pipeline.run_stages", run_stages)
    outputs = run_file.parent / "outputs"
    assert main(["run", str(run_file), "--outputs", str(outputs), "--dataset", "A", "--dataset", "A"]) == 0
    assert ran == [("A",)]
    assert capsys.readouterr().out.endswith(f"report: {outputs / 'tiny' / 'index.html'}\n")


def test_a_server_that_is_not_there_is_a_failed_check(
    capsys: pytest.CaptureFixture[str], kimi_folder: Path, closed_port: int
) -> None:
    url = f"http://127.0.0.1:{closed_port}"
    assert main(["check-server", f"{url}/", "--tokenizer", str(kimi_folder)]) == 1
    said = capsys.readouterr()
    assert " ".join(said.out.split()).startswith(f"fail reachable no server answers at {url} (")
    assert "start it" in said.out
    assert said.err == f"rawtokens: {url} fails the check 'reachable'; the table tells why\n"


def test_status_counts_what_is_there(capsys: pytest.CaptureFixture[str], run_file: Path) -> None:
    outputs = run_file.parent / "outputs"
    assert main(["status", str(run_file), "--outputs", str(outputs)]) == 0
    assert capsys.readouterr().out == "A: no prompts yet; not run: stage 01 makes them\n"
    small_dataset.write(outputs / "tiny" / "A")
    assert main(["status", str(run_file), "--outputs", str(outputs)]) == 0
    assert capsys.readouterr().out.startswith("A: 10 planned, 8 generated, 1 missing, 2 rejected\n")


DAMAGES = {
    "rejected.jsonl": (b"junk\n", "rejected.jsonl: line 1 is no record"),
    "prompts.parquet": (b"PAR1", "run stage 01 again"),
    "raw_responses.jsonl": (b'{"id":1}\n', "line 1 is no record of this kit"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_named_by_status(capsys: pytest.CaptureFixture[str], run_file: Path, name: str) -> None:
    content, words = DAMAGES[name]
    folder = small_dataset.write(run_file.parent / "outputs" / "tiny" / "A")
    (folder / name).write_bytes(content)
    code, error = told(capsys, "status", run_file, "--outputs", run_file.parent / "outputs")
    assert code == 2
    assert words in error
    assert (folder / name).read_bytes() == content


ENDS: dict[str, tuple[BaseException, str]] = {
    "interrupt": (KeyboardInterrupt(), "stopped; run the same command to go on"),
    "full disk": (OSError(28, "No space left on device", "x.jsonl"), "No space left on device: 'x.jsonl'; mend that"),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_stops_a_command_from_outside_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, run_file: Path, name: str
) -> None:
    error, words = ENDS[name]

    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(command, "_status", fail)
    code, line = told(capsys, "status", run_file)
    assert code == 1
    assert words in line


def test_sigterm_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, run_file: Path
) -> None:
    def be_stopped(_: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(command, "_status", be_stopped)
    code, line = told(capsys, "status", run_file)
    assert code == 1
    assert "stopped by SIGTERM; run the same command to go on" in line


@pytest.mark.parametrize("end", [KeyboardInterrupt(), "SIGTERM", OSError(28, "No space left"), RunStopped("no server")])
def test_how_a_run_goes_on_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, run_file: Path, end: BaseException | str
) -> None:
    def be_stopped(_: object) -> int:
        if isinstance(end, BaseException):
            raise end
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(command, "_run", be_stopped)
    code, line = told(capsys, "run", run_file)
    assert code == 1
    assert line.endswith(f" go on with: rawtokens run {run_file}\n")
    assert line.count("go on") == 1
    assert "run the same" not in line


def test_a_reader_that_goes_away_is_no_traceback(run_file: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    arguments = [sys.executable, "-m", "rawtokens", "status", str(run_file), "--outputs", str(run_file.parent)]
    done = subprocess.run(arguments, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == "rawtokens: standard output was closed; what was done stays\n"


def test_prompts_come_without_a_server_and_responses_need_one(
    capfd: pytest.CaptureFixture[str], run_file: Path, closed_port: int
) -> None:
    outputs = run_file.parent / "outputs"
    run_file.write_text(run_file.read_text().replace("}\nservers", ", template_kwargs: {thinkng: true}}\nservers"))
    assert main(["run", str(run_file), "--outputs", str(outputs), "--stage", "01"]) == 0
    said = capfd.readouterr()
    assert said.err == ""
    assert "A: 1 row in = 1 prompt + 0 rejected" in said.out
    table, last = said.out.split("\ndata set ")[1].split("thinking ended)")[0], said.out.splitlines()[-3]
    assert table.splitlines()[1].split() == ["A", "1", "0", *["-"] * 7]
    assert last == (
        "A 01_tokenize_prompts: warning: the chat template never reads 'thinkng'; giving it changes nothing"
    )
    assert main(["status", str(run_file), "--outputs", str(outputs)]) == 0
    assert capfd.readouterr().out.startswith("A: 1 planned, 0 generated, 1 missing, 0 rejected\n")
    code, error = told(capfd, "run", run_file, "--outputs", outputs)
    assert code == 1
    assert f"no server answers at http://127.0.0.1:{closed_port}" in error
    assert error.endswith(f"; go on with: rawtokens run {run_file} --outputs {outputs}\n")
    assert not (outputs / "tiny" / "A" / "raw_responses.jsonl").exists()
