"""Executed notebooks -> HTML that can be shared: one page a stage.

A page is one file without script and without anything to fetch. What a notebook's outputs hold is cleaned by an
allow-list (`safe_html`) before it goes in, and everything else is escaped by the template, so text that a model
wrote can't run, load or reorder anything. This module does not know what a figure means, nor how a notebook ran.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import jinja2
import nbformat
import papermill
from markupsafe import Markup
from nbconvert.filters import strip_ansi
from nbformat import NotebookNode

from ..errors import InputError
from .display import printable, shortened, visible
from .reading_guide import explanations, with_links
from .safe_html import clean_html, prose_html

PAGE_LIMIT = 900_000  # bytes of outputs; a report stays under 1 MB
HTML_LIMIT = 400_000  # bytes of one output; ten figures of a run take 20 to 100 kB each
TEXT_LIMIT = 20_000  # characters of one printed text
_MEND = "Mend what it names, then run the same command (rawtokens run RUN.yaml) again: what is complete is kept."
_GO_ON = "It was interrupted and nothing is lost. Run the same command again: it goes on where it was."
_PARAMETERS = {"parameters", "injected-parameters"}  # tags


def render_report(executed: Path, report: Path, *, title: str) -> None:
    """Render an executed notebook into one self-contained HTML page; a failed cell is shown as such.

    Raises InputError where `executed` is no notebook.
    """
    try:
        notebook = nbformat.read(executed, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise InputError(f"{executed} can't be read as an executed notebook: {error}") from error
    contents: list[dict[str, object]] = []
    blocks: list[dict[str, object]] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            blocks.append({"kind": "prose", "html": _with_anchors(prose_html(cell.source), contents)})
        if cell.cell_type == "code":
            if not _PARAMETERS & set(cell.metadata.get("tags", [])):  # the table of settings says it
                blocks.append({"kind": "code", "text": cell.source})
            blocks += [_block(output) for output in cell.outputs]
    failure = next((block for block in reversed(blocks) if block["kind"] == "error"), None)
    if failure:
        failure["id"] = "failed-cell"
        before = blocks[: blocks.index(failure)]
        code = next((block for block in reversed(before) if block["kind"] == "code"), None)
        if code is not None:
            code["open"] = True
    codes: list[str] = []
    for block in blocks:
        if block["kind"] == "html":
            block["html"], found = with_links(Markup(block["html"]))
            codes += found
    facts = {
        "title": title,
        "introduction": blocks.pop(0)["html"] if blocks and blocks[0]["kind"] == "prose" else "",
        "blocks": _within(blocks, PAGE_LIMIT),
        "contents": [entry for entry in contents if entry["level"] in (2, 3)],
        "has_heading": any(entry["level"] == 1 for entry in contents),
        "settings": _settings(executed, notebook),
        "failure": failure["text"] if failure else "",
        "next_step": _GO_ON if failure and "was interrupted" in str(failure["text"]) else _MEND,
        "explanations": explanations(codes),
    }
    write_page(report, "report.jinja", facts)


def _with_anchors(html: Markup, contents: list[dict[str, object]]) -> Markup:
    """The prose with an id on each heading, which is added to `contents`."""

    def anchored(match: re.Match[str]) -> str:
        level, inner = int(match[1]), match[2]
        entry = {"level": level, "id": f"section-{len(contents) + 1}", "text": Markup(inner).striptags()}
        contents.append(entry)
        return f'<h{level} id="{entry["id"]}">{inner}</h{level}>'

    return Markup(re.sub(r"<h([1-6])>(.*?)</h\1>", anchored, str(html), flags=re.DOTALL))


def _block(output: NotebookNode) -> dict[str, object]:
    """One output as the template shows it: the richest form that is allowed, plain text in the end."""
    if output.output_type == "stream":
        text = _plain(output.text)
        return {"kind": "said" if _is_prose(text) else "text", "text": text.strip()}
    if output.output_type == "error":
        detail = _plain("\n".join(output.traceback))
        text = _plain(f"{output.ename}: {output.evalue}" if output.evalue else output.ename)
        return {"kind": "error", "text": text, "detail": "" if detail in text else detail}
    data = output.data
    if "text/html" in data:
        size = len(data["text/html"])
        if size <= HTML_LIMIT:
            return {"kind": "html", "html": clean_html(data["text/html"])}
        return {"kind": "text", "text": f"[an output of {size:,} characters is too large for a report]"}
    if "text/markdown" in data:
        return {"kind": "html", "html": prose_html(shortened(data["text/markdown"], TEXT_LIMIT))}
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            alt = output.get("metadata", {}).get("alt", "a figure without a description")
            picture = re.sub(r"\s", "", data[kind])
            return {
                "kind": "html",
                "html": clean_html(f'<img src="data:{kind};base64,{picture}" alt="{Markup.escape(alt)}">'),
            }
    return {"kind": "text", "text": _plain(str(data.get("text/plain", "")))}


def _is_prose(text: str) -> bool:
    """Whether each printed line is a sentence; anything else may be laid out in columns."""
    lines = [line for line in text.splitlines() if line]
    return bool(lines) and all(line.endswith(".") and not line[0].isspace() for line in lines)


def _plain(text: str) -> str:
    return printable(strip_ansi(shortened(text, 2 * TEXT_LIMIT)), limit=TEXT_LIMIT)


def _within(blocks: Iterable[dict[str, object]], limit: int) -> list[dict[str, object]]:
    """The blocks, outputs past `limit` bytes in all replaced by a note; prose and errors always stay."""
    kept: list[dict[str, object]] = []
    used = 0
    for block in blocks:
        size = len(Markup.escape(block.get("html") or block.get("text")).encode())  # as the template writes it
        if block["kind"] in ("html", "text", "said") and used + size > limit:
            kept.append(
                {"kind": "text", "text": "[left out: the report is full; the executed notebook has this output]"}
            )
            continue
        used += size
        kept.append(block)
    return kept


def _settings(executed: Path, notebook: NotebookNode) -> list[dict[str, str]]:
    """The notebook's parameters with the values that they had: the defaults, then what was injected."""
    try:
        known = papermill.inspect_notebook(str(executed.resolve()).replace("{", "{{").replace("}", "}}"))
    except Exception:  # papermill raises many kinds where there is no kernelspec; the page goes without the table
        return []
    values = {name: facts["default"] for name, facts in known.items()}
    for cell in notebook.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            for line in ast.parse(cell.source).body:
                if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                    values[line.targets[0].id] = ast.unparse(line.value)
    return [
        {"name": name, "value": printable(value), "help": known[name]["help"] if name in known else ""}
        for name, value in values.items()
    ]


def write_page(path: Path, template: str, facts: Mapping[str, object]) -> None:
    """Fill a template of the package with facts and write the page, whole or not at all."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rawtokens.reporting", "report_template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    css = (Path(__file__).parent / "report_template" / "report.css").read_text(encoding="utf-8")
    # `visible` once more over the whole page: titles and settings go through nothing else.
    page = visible(environment.get_template(template).render(css=Markup(css), **facts))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(page, encoding="utf-8")
    unfinished.replace(path)
