import signal

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from rawtokens.errors import RunStopped
from rawtokens.notebook_stages.kernel_runs import AFTER_STOP, LINE_LIMIT, KernelRun


def test_printed_pieces_become_whole_lines() -> None:
    lines: list[str] = []
    run = KernelRun(lines.append)
    for piece in ("one\ntw", "o\n\n", "10%\r20%\r", "\nlast"):
        run.write(piece)
    assert lines == ["one", "two", "10%", "20%"]
    assert run.unfinished_line == "last"


def test_an_endless_line_is_passed_on_short() -> None:
    lines: list[str] = []
    KernelRun(lines.append).write("x" * 10_000_000 + "\n")
    assert len(lines[0]) < LINE_LIMIT + 100
    assert "9,998,001 characters left out" in lines[0]


def test_a_signal_between_two_cells_stops_before_the_next() -> None:
    run = KernelRun(None)
    work, telling = new_code_cell("work()"), new_code_cell("tell()", metadata={"tags": [AFTER_STOP]})
    run._cell_starts(cell=work)
    run.signal_name = signal.Signals.SIGINT.name
    run._cell_starts(cell=new_markdown_cell("## What there is"))
    run._cell_starts(cell=telling)
    with pytest.raises(RunStopped, match="stopped by SIGINT"):
        run._cell_starts(cell=work)
