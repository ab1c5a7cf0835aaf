"""Over a whole run: the index page of its reports, the guide to them, and the table that a run ends with.

Both are made from each data set's summary.json and from the reports that lie there; before there is one, from what the
files of earlier stages tell, with dashes for what is not known. What the run asked for is kept beside the index, so
that a report that comes later can be put into it. This module does not know how a count was made.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
import nbformat
from markupsafe import Markup

from ..atomic_files import write_atomically
from ..errors import InputError
from ..notebook_stages.stages import read_stage_record
from ..privacy import Scrubber
from .data_card import CARD_PAGE
from .display import table_html
from .known_counts import known_counts
from .reading_guide import GUIDE_PAGE, guide_html
from .reports import HTML_LIMIT, PAGE_LIMIT, write_page
from .safe_html import clean_html

INDEX_LOCK = ".index.lock"
INDEX_FACTS = ".index.json"
_FULL = Markup("<p>Its figures stand on its page 04; this page is full.</p>")
_COLUMNS = {  # of the index and of the closing table: key of summary.json
    "rows": "rows",
    "without a prompt": "rejected_before_generation",
    "responses": "generated",
    "failed": "rejected_at_generation",
    "accepted": "accepted",
    "flagged": "flagged",
    "rejected": "rejected",
    "median reasoning": "median_reasoning_tokens",
    "thinking ended": "share_closed",
}
_LEGEND = (
    "rows and those without a prompt: of the prompt file; responses = accepted + flagged + rejected; failed: asked for "
    "and never given; thinking ended: of the responses that think"
)
_FORMATS = {"median reasoning": "{:,.0f} ids", "thinking ended": "{:.1%}"}


class _Facts(msgspec.Struct):
    """What `write_index` was called with, settings as they are shown."""

    datasets: list[str]
    settings: dict[str, str]
    older: dict[str, str]


def write_index(
    run_folder: Path,
    *,
    datasets: Sequence[str],
    settings: Mapping[str, object],
    older: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Write index.html over the reports of a run's data sets, with their summary table and main figures.

    `settings` are shown without the paths of this machine; `older` are data sets whose figures are not of the files as
    they are, with why. The page stays under 1 MB: figures past that are left to the data sets' own pages. Returns the
    path of the index. Raises RunStopped where it can't be written.
    """
    import pandas as pd

    scrubber = Scrubber()
    shown = {name: _setting(value, scrubber) for name, value in settings.items()}
    rows = [{"data set": _label(name, older)} | _summary_row(run_folder / name) for name in datasets]
    captions = [f"Rows in and responses out, by data set: {_LEGEND}", *_older_lines(datasets, older)]
    facts = {
        "title": f"rawtokens run {run_folder.name}",
        "guide": GUIDE_PAGE,
        "run_reports": _links(run_folder, run_folder),
        "summary": Markup(
            table_html(
                pd.DataFrame(rows),
                caption="; ".join(captions),
                formats=_FORMATS,
            )
        ),
        "datasets": [
            {
                "name": name,
                "id": f"dataset-{number}",
                "reports": _links(run_folder / name, run_folder),
                "card": f"{name}/{CARD_PAGE}" if (run_folder / name / CARD_PAGE).exists() else "",
                "figures": figures,
            }
            for number, (name, figures) in enumerate(_figures_within(run_folder, datasets, PAGE_LIMIT), start=1)
        ],
        "settings": list(shown.items()),
    }
    index = run_folder / "index.html"
    write_page(index, "index.jinja", facts)
    write_page(run_folder / GUIDE_PAGE, "page.jinja", {"title": "Reading the report", "body": guide_html()})
    kept = _Facts(datasets=list(datasets), settings=shown, older=dict(older))
    write_atomically(run_folder / INDEX_FACTS, msgspec.json.encode(kept))
    return index


def rewrite_index(run_folder: Path) -> None:
    """Write the index anew as its run asked for it, with the reports that lie there now.

    Nothing happens where no run of these sources has written one: the next one does. Raises as `write_index` does.
    """
    try:
        kept = msgspec.json.decode((run_folder / INDEX_FACTS).read_bytes(), type=_Facts)
    except (OSError, msgspec.MsgspecError):
        return
    write_index(run_folder, datasets=kept.datasets, settings=kept.settings, older=kept.older)


def run_table(run_folder: Path, *, datasets: Sequence[str], older: Mapping[str, str] = MappingProxyType({})) -> str:
    """The table that a run ends with, as plain text, what its columns count, and which figures are `older`."""
    lines = [["data set", *_COLUMNS]]
    for name in datasets:
        facts = _summary_row(run_folder / name)
        cells = (
            "-" if value is None else _FORMATS.get(column, "{:,}").format(value) for column, value in facts.items()
        )
        lines.append([_label(name, older), *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in lines
    )
    return "\n".join([*map("  ".join, rows), f"({_LEGEND})", *_older_lines(datasets, older)])


def _label(name: str, older: Mapping[str, str]) -> str:
    return f"{name} (older)" if name in older else name


def _older_lines(datasets: Sequence[str], older: Mapping[str, str]) -> list[str]:
    return [f"{name}: older figures, {older[name]}" for name in datasets if name in older]


def _setting(value: object, scrubber: Scrubber) -> str:
    return scrubber.text(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _links(folder: Path, run_folder: Path) -> list[dict[str, str]]:
    links = []
    for report in sorted((folder / "reports").glob("*.html")):
        finished = read_stage_record(folder / "notebooks" / f"{report.stem}.ipynb")
        text = report.stem.replace("_", " ") + ("" if finished else " (not finished)")
        links.append({"href": Path(os.path.relpath(report, run_folder)).as_posix(), "text": text})
    return links


def _figures_within(run_folder: Path, datasets: Sequence[str], limit: int) -> Iterator[tuple[str, Markup]]:
    """Each data set with its main figures, as long as all of them together have `limit` characters at most."""
    room = limit
    for name in datasets:
        figures = _main_figures(run_folder / name)
        fits = len(figures) <= room
        room -= len(figures) * fits
        yield name, figures if fits else _FULL


def _main_figures(folder: Path) -> Markup:
    """The first two figures of the statistics notebook: they show what people ask first."""
    figures: list[str] = []
    for executed in sorted((folder / "notebooks").glob("04_*.ipynb")):
        if executed.stem.endswith(".running"):  # of a run that was killed, and may be half a notebook
            continue
        try:
            notebook = nbformat.read(executed, as_version=4)
        except ValueError as error:
            raise InputError(f"{executed} is damaged; run stage 04 again") from error
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                html = output.get("data", {}).get("text/html", "")
                if html.startswith("<figure><img") and len(html) <= HTML_LIMIT:
                    figures.append(html)
    return clean_html("".join(figures[:2]))


def _summary(folder: Path) -> dict[str, int | float | None]:
    try:
        facts = msgspec.json.decode((folder / "summary.json").read_bytes(), type=dict[str, object])
    except OSError:
        return {}
    except msgspec.DecodeError as error:
        raise InputError(f"{folder / 'summary.json'} is damaged ({error}); run stage 04 again") from error
    return {name: value for name, value in facts.items() if value is None or isinstance(value, (int, float))}


def _summary_row(folder: Path) -> dict[str, int | float | None]:
    facts = _summary(folder) or known_counts(folder)
    return {column: facts.get(key) for column, key in _COLUMNS.items()}
