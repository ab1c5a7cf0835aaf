"""Files of lines beside the journal: what a full disk cut short is no line, and spoils none."""

import subprocess
import sys
from pathlib import Path

from rawtokens.records import Ending
from rawtokens.turns.side_files import read_lines

CUT_SHORT = """
import resource, sys
from pathlib import Path
from rawtokens.errors import RunStopped
from rawtokens.records import Ending
from rawtokens.shards import WHOLE
from rawtokens.turns.side_files import SideFile

def ending(number):
    return Ending(key=f"{number}#0/0", turns=1, reason="complete", detail="", script="s")

folder = Path(sys.argv[1])
file = SideFile(folder, "ended.jsonl", WHOLE)
file.append(ending(0))
size, (soft, hard) = (folder / "ended.jsonl").stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
try:
    file.append(ending(1), sync=True)
except RunStopped as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
file.append(ending(2))
"""


def test_a_line_that_was_cut_short_stops_the_run_and_spoils_no_line_behind_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CUT_SHORT, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "the write was cut short" in done.stdout
    assert [ending.key for ending in read_lines(tmp_path, "ended.jsonl", Ending)] == ["0#0/0", "2#0/0"]
