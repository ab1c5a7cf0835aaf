"""Over a whole run: the index page of its reports, and the table that it ends with.

Both are made from each data set's summary.json and from the reports that lie there; a data set that has none yet is
listed with dashes. This module does not know how a count was made.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import nbformat
from markupsafe import Markup

from ..errors import InputError
from ..notebook_stages.stages import read_stage_record
from ..privacy import Scrubber
from .display import table_html
from .reports import HTML_LIMIT, write_page
from .safe_html import clean_html

_SUMMARY = {  # column of the index: key of summary.json
    "rows": "rows",
    "prompts": "prompts",
    "rejected before generation": "rejected_before_generation",
    "rejected at generation": "rejected_at_generation",
    "generated": "generated",
    "accepted": "accepted",
    "flagged": "flagged",
    "rejected by verification": "rejected",
    "median reasoning (ids)": "median_reasoning_tokens",
    "share closed": "share_closed",
}


def write_index(run_folder: Path, *, datasets: Sequence[str], settings: Mapping[str, object]) -> Path:
    """Write index.html over the reports of a run's data sets, with their summary table and main figures.

    `settings` are shown without the paths of this machine. Returns the path of the index.
    """
    import pandas as pd

    scrubber = Scrubber()
    rows = [{"data set": name} | _summary_row(run_folder / name) for name in datasets]
    facts = {
        "title": f"rawtokens run {run_folder.name}",
        "run_reports": _links(run_folder, run_folder),
        "summary": Markup(
            table_html(
                pd.DataFrame(rows),
                caption="Rows in and out, by data set; lengths are in ids",
                formats={"share closed": "{:.1%}"},
            )
        ),
        "datasets": [
            {
                "name": name,
                "id": f"dataset-{number}",
                "reports": _links(run_folder / name, run_folder),
                "figures": _main_figures(run_folder / name),
            }
            for number, name in enumerate(datasets, start=1)
        ],
        "settings": [(name, _setting(value, scrubber)) for name, value in settings.items()],
    }
    index = run_folder / "index.html"
    write_page(index, "index.jinja", facts)
    return index


def run_table(run_folder: Path, *, datasets: Sequence[str]) -> str:
    """The table that a run ends with, as plain text.

    `rejected` counts every rejected row: before generation, at generation and by verification.
    """
    head = ["data set", "rows", "generated", "accepted", "flagged", "rejected", "median reasoning", "share closed"]
    lines = [head]
    for name in datasets:
        facts = _summary(run_folder / name)
        stages = ("rejected_before_generation", "rejected_at_generation", "rejected")
        rejected = sum(facts.get(stage) or 0 for stage in stages) if facts else None
        counts = [facts.get("rows"), facts.get("generated"), facts.get("accepted"), facts.get("flagged"), rejected]
        median, closed = facts.get("median_reasoning_tokens"), facts.get("share_closed")
        lines.append(
            [
                name,
                *("-" if count is None else f"{count:,.0f}" for count in counts),
                "-" if median is None else f"{median:,.0f} ids",
                "-" if closed is None else f"{closed:.1%}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in lines
    )


def _setting(value: object, scrubber: Scrubber) -> str:
    return scrubber.text(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _links(folder: Path, run_folder: Path) -> list[dict[str, str]]:
    links = []
    for report in sorted((folder / "reports").glob("*.html")):
        finished = read_stage_record(folder / "notebooks" / f"{report.stem}.ipynb")
        text = report.stem.replace("_", " ") + ("" if finished else " (not finished)")
        links.append({"href": Path(os.path.relpath(report, run_folder)).as_posix(), "text": text})
    return links


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
    facts = _summary(folder)
    return {column: facts.get(key) for column, key in _SUMMARY.items()}
