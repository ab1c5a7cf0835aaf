"""Tool parameters as JSON Schema, out of the schemas of data sets that name Python's types.

`dict`, `float`, `tuple`, `list`, `str`, `int`, `bool`, `set` become JSON Schema's names; a type that has none (`any`,
`HashMap`, `Union[int, str]`) stays as the file spells it, with the notice parameter_type_of_the_file.
This module does not know what a template makes of a schema.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from ..records import Json
from .rows import BadRow, shown
from .tool_calls import Message

_STANDARD = ("string", "integer", "number", "boolean", "array", "object", "null")
_NAMES = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "list": "array",
    "set": "array",
    "str": "string",
    "int": "integer",
    "bool": "boolean",
}
_NOTICE = "parameter_type_of_the_file"
_GENERIC = re.compile(r"(\w+)\[(.*)\]", re.DOTALL)
_OPTIONAL = re.compile(r",\s*optional\s*\Z")

Convert = Callable[[Json, set[str]], Json]


def with_standard_types(tools: Iterable[Message]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Declarations whose parameters are a schema with types of either kind, and the notices."""
    return _converted(tools, _schema)


def from_flat(tools: Iterable[Message]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Declarations whose parameters are {NAME: {"type": "str, optional", ..}}, and the notices.

    A parameter is required unless its type says `optional` or it has a default. Raises BadRow("bad_tools").
    """
    return _converted(tools, _from_flat)


def _converted(tools: Iterable[Message], convert: Convert) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    notices: set[str] = set()
    made: list[Message] = []
    for tool in tools:
        function = tool["function"]
        assert isinstance(function, dict)  # tool_calls.declarations makes it so
        if function.get("parameters") is not None:
            tool = {**tool, "function": {**function, "parameters": convert(function["parameters"], notices)}}
        made.append(tool)
    return tuple(made), tuple(notices)


def _schema(node: Json, notices: set[str]) -> Json:
    if not isinstance(node, dict):
        return node
    made = dict(node)
    if isinstance(node.get("type"), str):
        made["type"] = _name(str(node["type"]), notices)
    for key in ("items", "additionalProperties"):
        if key in node:
            made[key] = _schema(node[key], notices)
    properties = node.get("properties")
    if isinstance(properties, dict):
        made["properties"] = {name: _schema(member, notices) for name, member in properties.items()}
    return made


def _name(written: str, notices: set[str]) -> str:
    found = written if written in _STANDARD else _NAMES.get(written)
    if found is None:
        notices.add(_NOTICE)
    return found or written


def _from_flat(parameters: Json, notices: set[str]) -> Json:
    if not isinstance(parameters, dict):
        raise BadRow("bad_tools", f"parameters must be an object, found {shown(parameters)}")
    if isinstance(parameters.get("type"), str):  # of a schema; a parameter of that name would be an object
        return _schema(parameters, notices)
    properties: dict[str, Json] = {}
    required: list[str] = []
    for name, member in parameters.items():
        if not isinstance(member, dict):
            raise BadRow("bad_tools", f"parameter {shown(name)} must be an object, found {shown(member)}")
        written = member.get("type")
        hint = written if isinstance(written, str) else ""
        made = {**member, **_hinted(_OPTIONAL.sub("", hint), notices)} if hint else dict(member)
        properties[name] = made
        if not (_OPTIONAL.search(hint) or hint.startswith("Optional[") or "default" in member):
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _hinted(hint: str, notices: set[str]) -> Mapping[str, Json]:
    """A Python type hint as members of a schema: `List[int]` is an array of integers."""
    generic = _GENERIC.fullmatch(hint.strip())
    if generic is None:
        name = hint.strip()
        return {"type": _name(name.lower() if name.lower() in _NAMES else name, notices)}
    outer, inner = generic[1].lower(), generic[2]
    if outer == "optional":
        return _hinted(inner, notices)
    if outer not in _NAMES:
        return {"type": _name(hint, notices)}
    return {"type": _NAMES[outer], "items": _hinted(inner, notices)} if outer == "list" else {"type": _NAMES[outer]}
