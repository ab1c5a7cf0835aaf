"""What is wrong with a run file, in its own words: the key as it is written, what stands there, what is expected.

msgspec tells it by types and by a path in which a data set has no name. This module does not know which values fit
together (run_file does).
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
from msgspec import inspect

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_WRONG = re.compile(r"Expected `|Invalid ")
_TOP = "the top level"
_KEY = "key` in `$"
_SHOWN = 60  # characters of a wrong value
_WORDS: dict[type[inspect.Type], str] = {
    inspect.FloatType: "a number",
    inspect.IntType: "a whole number",
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
    inspect.DateType: "a date such as 2026-01-31",
    inspect.NoneType: "null",
    inspect.VarTupleType: "a list",
    inspect.DictType: "keys with values",
    inspect.StructType: "keys with values",
}


def in_words(error: msgspec.ValidationError, content: object, struct: type[msgspec.Struct]) -> str:
    """One sentence on what msgspec found when it converted `content` to `struct`."""
    message, _, path = str(error).partition(" - at `")
    of_a_key = path.startswith(_KEY)
    place, value, kind = _walk(content, inspect.type_info(struct), path.removeprefix(_KEY).strip("`$"))
    if of_a_key:
        key = next(key for key in cast("Mapping[object, object]", value) if not isinstance(key, str))
        return f"{place} has the key {key!r}, which YAML does not read as text; put it in quotes"
    if found := _UNKNOWN.fullmatch(message):
        keys = [field.encode_name for field in cast("inspect.StructType", _given(kind)).fields]
        near = difflib.get_close_matches(found[1], keys, n=1)
        hint = f"did you mean {near[0]}? Its keys" if near else "its keys"
        return f"{place} has no key {found[1]!r}; {hint}: {', '.join(keys)}"
    if found := _MISSING.fullmatch(message):
        return f"{place} needs the key {found[1]!r}"
    if _WRONG.match(message):
        return f"{place} is {_shown(place, value)}; expected {expected_of(kind)}"
    return message if place == _TOP or message.startswith(place) else f"{place}: {message}"


def expected_of(kind: inspect.Type) -> str:
    """What a key takes, in words."""
    if isinstance(kind, inspect.UnionType):
        return " or ".join(map(expected_of, kind.types))
    if isinstance(kind, inspect.LiteralType):
        return f"one of {', '.join(map(str, kind.values))}"
    return _WORDS[type(kind)]


def _walk(content: object, kind: inspect.Type, path: str) -> tuple[str, object, inspect.Type]:
    """Name, value and type of what a path leads to, such as `.datasets[...].mix[0]`."""
    place = ""
    for step in re.findall(r"\.(\w+)|\[([^]]*)\]", path):
        kind = _given(kind)
        name, index = step
        if isinstance(kind, inspect.StructType):
            content = cast("Mapping[str, object]", content)[name]
            kind = next(field.type for field in kind.fields if field.encode_name == name)
        elif isinstance(kind, inspect.DictType):
            name, content = _misfit(cast("Mapping[str, object]", content), kind.value_type)
            kind = kind.value_type
        else:
            content = cast("Sequence[object]", content)[int(index)]
            kind = cast("inspect.VarTupleType", kind).item_type
            place += f"[{index}]"
            continue
        place = f"{place}.{name}" if place else name
    return place or _TOP, content, kind


def _given(kind: inspect.Type) -> inspect.Type:
    """The type of a key that may be null, where it is not."""
    types = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next(one for one in types if not isinstance(one, inspect.NoneType))


def _misfit(entries: Mapping[str, object], kind: inspect.Type) -> tuple[str, object]:
    """The first entry that is not of a mapping's type: msgspec writes `[...]` in place of its name."""

    def fits(value: object) -> bool:
        if isinstance(kind, inspect.LiteralType):
            return value in kind.values
        try:
            msgspec.convert(value, cast("inspect.StructType", kind).cls)
        except msgspec.ValidationError:
            return False
        return True

    return next(((name, value) for name, value in entries.items() if not fits(value)), ("...", None))


def _shown(place: str, value: object) -> str:
    """A wrong value; nothing under `servers`, where a key may have been put."""
    if place.startswith("servers"):
        return f"a value of type {type(value).__name__} (not shown)"
    text = "null" if value is None else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
