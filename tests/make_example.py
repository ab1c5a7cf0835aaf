"""`make example`: outputs/example/ anew from the demo's run, with README's pictures where there is a Chromium.

Kept are the index, the guide, the data card and page 04 of one data set: half a megabyte, which git can carry.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from browser import Tab, Visit, open_tab

from rawtokens.notebook_stages.stage_parameters import shown_settings
from rawtokens.reporting.run_index import write_index
from rawtokens.run_file import load_run_file

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "outputs" / "example"
DATASET, PAGE = "B1_glaive", "04_report_token_statistics"
KEPT = (f"{DATASET}/reports/{PAGE}.html", f"{DATASET}/data_card.html", f"{DATASET}/data_card.md")
NEEDED = (f"{DATASET}/summary.json", f"{DATASET}/notebooks/{PAGE}.ipynb", f"{DATASET}/notebooks/{PAGE}.stage.json")
PICTURES = {  # file: the page of the run, the heading that it begins with, its height in pixels
    "report.png": (f"{DATASET}/reports/03_verify_responses.html", "One response of each shape and of each reason", 840),
    "statistics.png": (f"{DATASET}/reports/{PAGE}.html", "How long it thinks", 900),
}
WIDTH = 1000  # pixels
_PLACE = """[...document.querySelectorAll("h2")].find(e => e.textContent == {heading!r}).getBoundingClientRect().top"""


def main(run: Path) -> int:
    """Write the example from a run's folder; returns an exit code."""
    missing = [name for name in (*KEPT, *NEEDED) if not (run / name).is_file()]
    if missing:
        print(f"make example: {run} has no {missing[0]}; run make demo first", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        place = Path(folder) / run.name
        for name in (*KEPT, *NEEDED):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run / name, place / name)
        settings = shown_settings(load_run_file(ROOT / "notebooks" / "demo.yaml"))
        write_index(place, datasets=[DATASET], settings=settings)
        for name in (*KEPT, "index.html", "reading_the_report.html"):
            (EXAMPLE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(place / name, EXAMPLE / name)
    try:
        with open_tab() as tab:
            for file, (page, heading, height) in PICTURES.items():
                (EXAMPLE / file).write_bytes(_picture(tab, run / page, heading, height))
    except FileNotFoundError:
        print("make example: no chromium here, so the pictures stay as they are")
    return 0


def _picture(tab: Tab, page: Path, heading: str, height: int) -> bytes:
    Visit(tab, page.as_uri(), WIDTH)
    top = float(str(tab.value(_PLACE.format(heading=heading))))
    return tab.picture({"x": 0, "y": top - 10, "width": WIDTH, "height": height, "scale": 1})


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "outputs" / "demo"))
