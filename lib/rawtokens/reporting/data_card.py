"""The card of a data set: data_card.md, fit to be the README.md of a hub data set, and the same as an HTML page.

Made from what the stages left (run.json, summary.json, audits.json, rejected.jsonl) and from the columns of counts in
the Parquet files; no id is read. This module does not know the license of the prompts: that is a field to fill.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import msgspec
import numpy as np
import pyarrow.parquet as pq
import yaml
from markupsafe import Markup

from ..atomic_files import write_atomically
from ..capture.rejections import each_rejection
from ..errors import InputError
from ..fidelity.audit_records import AUDITS, read_audits
from ..fidelity.audit_takeaways import drift, rerendering
from ..privacy import Scrubber
from ..records import Json, Stage
from ..runs import read_manifest
from .reports import write_page
from .safe_html import prose_html
from .wording import counted, either, in_short

CARD = "data_card.md"
CARD_PAGE = "data_card.html"
_SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M", 10_000_000: "1M<n<10M"}
"""The hub's size categories, by the least number of rows that is too large for one."""
_LENGTHS = {
    "prompt": ("prompts.parquet", "prompt_tokens"),
    "output": ("verified.parquet", "output_tokens"),
    "reasoning": ("verified.parquet", "reasoning_tokens"),
    "answer": ("verified.parquet", "answer_tokens"),
    "tool calls": ("verified.parquet", "tool_tokens"),
}
_WORDS = {"value", "reason"}  # columns that hold no numbers
_CAPTURED = {  # words: key of run.json
    "target model": "model",
    "weights": "weight_version",
    "dtype": "dtype",
    "quantization": "quantization",
    "engine": "engine",
    "engine version": "engine_version",
    "tokenizer": "tokenizer",
    "tokenizer revision": "tokenizer_revision",
    "tokenizer sha256": "tokenizer_sha256",
    "chat template sha256": "chat_template_sha256",
    "prompt encoder": "prompt_encoder",
    "date in the template": "template_date",
    "turns": "turns",
    "template arguments": "template_kwargs",
    "mix of template arguments": "mix",
    "control tokens in texts": "control_tokens",
    "stop ids": "stop_ids",
    "vocabulary size": "vocabulary_size",
    "versions": "versions",
}


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What a card says of training files in place of verified.parquet.

    `splits` are the data files by split, as patterns relative to the card; `rows` are those of all files; `lead` opens
    the card, and `columns` is a table of the files' columns, both Markdown.
    """

    splits: Mapping[str, str]
    rows: int
    lead: str
    columns: str


def write_data_card(folder: Path, dataset: str) -> str:
    """Write data_card.md and data_card.html into a data set's folder; returns what is left to do, in a sentence.

    Data that no stage 02 captured has no card, and the sentence says so. Raises InputError where a stage's file is
    missing, RunStopped where nothing can be written.
    """
    if "fingerprint" not in read_manifest(folder):
        return f"There is no {CARD}: run.json, which notebook 02 writes, does not say how this data was captured."
    card = data_card(folder, dataset)
    write_atomically(folder / CARD, card.encode())
    text = card.split("\n---\n", 1)[1]
    write_page(folder / CARD_PAGE, "page.jinja", {"title": f"{dataset}: data card", "body": _page(text)})
    return f"{CARD} and {CARD_PAGE} describe the data set; its license is for you to fill in before you share it."


def data_card(folder: Path, dataset: str, *, exported: Exported | None = None) -> str:
    """The card as Markdown with the hub's YAML front matter: of training files, or else of verified.parquet.

    Raises InputError where a stage's file is missing.
    """
    splits = exported.splits if exported else {"train": "verified.parquet"}
    numbers, manifest = _summary(folder), read_manifest(folder)
    if "fingerprint" not in manifest:
        raise InputError(f"{folder} has no run.json of a capture; run notebook 02_generate_responses for it first")
    shown = {words: manifest[key] for words, key in _CAPTURED.items() if manifest.get(key) not in (None, "", [], {})}
    rows = exported.rows if exported else int(str(numbers["generated"]))
    sampling = manifest["sampling"]
    assert isinstance(sampling, Mapping)
    rejected = Counter((item.stage, item.reason) for item in each_rejection(folder))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rawtokens.reporting", "report_template"),
        autoescape=False,  # Markdown; its page is cleaned by prose_html
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    card = environment.get_template("data_card.jinja").render(
        front_matter=_front_matter(dataset, rows, splits, manifest),
        name=dataset,
        model=manifest.get("model") or manifest.get("tokenizer"),
        responses=counted(int(str(numbers["generated"])), "response"),
        captured=_table(["what", "value"], [[words, _code(value)] for words, value in shown.items()]),
        fingerprint=manifest["fingerprint"],
        sampling=_table(["setting", "value"], [[name, _code(value)] for name, value in sampling.items()]),
        counts=_counts(numbers),
        reasons=_reasons(rejected, numbers),
        lengths=_table(["part", "rows", "min", "median", "p90", "p99", "max", "ids in all"], _lengths(folder)),
        thinking=_table(["thinking", "prompts"], _column_counts(folder / "prompts.parquet", "thinking")),
        shapes=_table(["shape", "responses"], _column_counts(folder / "verified.parquet", "shape")),
        drift=_drift(folder),
        completion=_completion(numbers),
        first_split=next(iter(splits)),
        exported=exported,
    )
    return Scrubber().text(card)


def _page(text: str) -> Markup:
    """The card as HTML, each table under the heading that it stands below, as its caption."""
    first, *rest = re.split(r"<h2>(.*?)</h2>", str(prose_html(text)))
    html = first
    for heading, section in zip(rest[::2], rest[1::2], strict=True):
        framed = section.replace("<table>", f'<div class="table"><table><caption>{heading}</caption>')
        framed = re.sub(r"<th(?=[ >])", '<th scope="col"', framed.replace("</table>", "</table></div>"))
        html += f"<h2>{heading}</h2>{framed}"
    return Markup(html)


def _front_matter(name: str, rows: int, splits: Mapping[str, str], manifest: Mapping[str, Json]) -> str:
    size = next((words for limit, words in _SIZES.items() if rows < limit), "10M<n<100M")
    tags = ["token-ids", "speculative-decoding", "eagle-3", "reasoning", "rawtokens", str(manifest.get("engine") or "")]
    facts = {
        "license": "unknown",
        "pretty_name": name,
        "task_categories": ["text-generation"],
        "tags": [tag for tag in tags if tag],
        "size_categories": [size],
        "configs": [
            {"config_name": "default", "data_files": [{"split": key, "path": path} for key, path in splits.items()]}
        ],
    }
    text: str = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)
    return text.replace("license: unknown\n", "license: unknown  # fill this in\n", 1)


def _summary(folder: Path) -> dict[str, Json]:
    path = folder / "summary.json"
    try:
        found: dict[str, Json] = msgspec.json.decode(path.read_bytes(), type=dict)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path} can't be read ({error}); run notebook 04_report_token_statistics again") from error
    return found


def _counts(numbers: Mapping[str, Json]) -> str:
    words = {
        "rows of the prompt file": "rows",
        "rows without a prompt": "rejected_before_generation",
        "prompts": "prompts",
        "responses": "generated",
        "responses asked for and not given": "rejected_at_generation",
        "prompts with neither yet": "not_generated",
        "responses accepted": "accepted",
        "responses flagged": "flagged",
        "responses rejected by verification": "rejected",
    }
    return _table(["what", "count"], [[what, f"{numbers[key]:,}"] for what, key in words.items()])


def _reasons(rejected: Mapping[tuple[Stage, str], int], numbers: Mapping[str, Json]) -> str:
    found = numbers["reasons"]
    assert isinstance(found, Mapping)
    where = {"tokenize": "row without a prompt", "generate": "response not given"}
    lines = [[where[stage], _code(reason), f"{count:,}"] for (stage, reason), count in sorted(rejected.items())]
    lines += [["verification, a row may have several", _code(reason), f"{count:,}"] for reason, count in found.items()]
    return _table(["where", "reason", "count"], lines) if lines else ""


def _lengths(folder: Path) -> list[list[str]]:
    lines = []
    for part, (file, column) in _LENGTHS.items():
        lengths = pq.read_table(folder / file, columns=[column])[column].to_numpy()
        if lengths.any():
            low, median, *high = np.quantile(lengths, [0, 0.5, 0.9, 0.99, 1])
            marks = [f"{low:,.0f}", in_short(median), *(f"{mark:,.0f}" for mark in high)]
            lines.append([part, f"{len(lengths):,}", *marks, f"{lengths.sum():,}"])
    return lines


def _column_counts(path: Path, column: str) -> list[list[str]]:
    counts = Counter(pq.read_table(path, columns=[column])[column].to_pylist())
    return [[_code(value), f"{count:,}"] for value, count in counts.most_common()]


def _drift(folder: Path) -> str:
    if not (folder / AUDITS).exists():
        return "It was not tried here."
    audits = read_audits(folder)
    return f"Tried on these rows, for looking alone. {drift(audits)} {rerendering(audits)}"


def _completion(numbers: Mapping[str, Json]) -> str:
    """Whether an early end took the long ones; "" where all that was planned is there."""
    found = numbers.get("completion")
    if not isinstance(found, Mapping) or found.get("planned") == numbers["generated"]:
        return ""
    shift = found.get("standardised_difference")
    there, planned = int(str(numbers["generated"])), int(str(found.get("planned")))
    are = either(there, "is", "are")
    text = f"{there:,} of {counted(planned, 'planned response')} {are} here. Long ones are lost first"
    if isinstance(shift, int | float):
        text += f"; the largest difference to the plan is in {found.get('largest_shift')}: {shift:.2f} deviations"
    return f"{text}."


def _code(value: Json) -> str:
    """A value as inline code that no pipe or backtick breaks out of."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return "`" + text.replace("`", "'").replace("|", "\\|").replace("\n", " ") + "`"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---" if name in _WORDS else "---:" for name in head[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *lines])
