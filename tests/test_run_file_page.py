"""docs/run_file.md has every key of a run file with its default, and every format; the README leads there."""

import re
from pathlib import Path

import pytest
import yaml
from msgspec import NODEFAULT, Struct, inspect

from rawtokens.conversations import FORMATS
from rawtokens.markers import GivenMarkers
from rawtokens.run_file import (
    AuditSettings,
    DatasetSettings,
    ModelSettings,
    RunFile,
    SamplingSettings,
    ServerSettings,
)
from rawtokens.target.thinking_modes import Portion
from rawtokens.training.settings import TrainingSettings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "run_file.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[Struct]] = {
    "The top level": RunFile,
    "`model`": ModelSettings,
    "`model.markers`": GivenMarkers,
    "`datasets.NAME`": DatasetSettings,
    "`datasets.NAME.mix[]`": Portion,
    "`servers`": ServerSettings,
    "`sampling`": SamplingSettings,
    "`audit`": AuditSettings,
    "`training`": TrainingSettings,
}


def section(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    (text,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines[1:]]


def structs(kind: inspect.Type) -> set[type[Struct]]:
    """A struct, and all that its keys lead to."""
    if isinstance(kind, inspect.StructType):
        return {kind.cls}.union(*(structs(field.type) for field in kind.fields))
    if isinstance(kind, inspect.UnionType):
        return set().union(*map(structs, kind.types))
    if isinstance(kind, inspect.VarTupleType):
        return structs(kind.item_type)
    return structs(kind.value_type) if isinstance(kind, inspect.DictType) else set()


def default_of(field: inspect.Field) -> object:
    if field.required:
        return "needed"
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    return "all defaults" if isinstance(value, Struct) else list(value) if isinstance(value, tuple) else value


def test_every_struct_of_a_run_file_has_a_section() -> None:
    assert structs(inspect.type_info(RunFile)) == set(SECTIONS.values())


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_section_has_every_key_with_its_default_in_order(heading: str) -> None:
    kind = inspect.type_info(SECTIONS[heading])
    assert isinstance(kind, inspect.StructType)
    found = [(key.strip("`"), yaml.safe_load(default.strip("`"))) for key, default, _ in section(heading)]
    assert found == [(field.encode_name, default_of(field)) for field in kind.fields]


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_closed_choice_is_told_in_full(heading: str) -> None:
    kind = inspect.type_info(SECTIONS[heading])
    assert isinstance(kind, inspect.StructType)
    words = {key.strip("`"): text for key, _, text in section(heading)}
    for field in kind.fields:
        if isinstance(field.type, inspect.LiteralType) and field.name != "truncated_in_answer":  # "the same"
            assert [value for value in field.type.values if f"`{value}`" not in words[field.encode_name]] == []


def test_every_format_stands_there_with_the_columns_that_it_needs() -> None:
    found = {name.strip("`"): columns for name, columns, _ in section("Formats")}
    assert list(found) == list(FORMATS)
    for name, module in FORMATS.items():
        if name != "text_lines":
            assert re.findall("`(.*?)`", found[name]) == list(module.COLUMNS)


def test_the_readme_leads_to_the_page() -> None:
    assert "(docs/run_file.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
