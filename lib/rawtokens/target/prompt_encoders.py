"""A model's own Python in place of a chat template: for models that have none (DeepSeek-V4 ships such a function).

A run file names it as `module:function`, or `path/to/file.py:function`; it is called with messages, tools and template
arguments, and returns the rendered prompt as text, or the prompt's ids. It is the user's code and is run as it is;
this module does not know whether it renders what the model was trained on.
"""

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

import msgspec

from ..errors import InputError, TokenizerError, one_line
from ..records import Json

PromptFunction = Callable[[list[dict[str, Json]], list[dict[str, Json]], dict[str, Json]], str | Sequence[int]]


class PromptEncoder(msgspec.Struct, frozen=True, kw_only=True):
    """A function and where it comes from: `name` without folders, `sha256` of its module's source."""

    function: PromptFunction
    name: str
    sha256: str

    def make(
        self,
        messages: Sequence[Mapping[str, Json]],
        tools: Sequence[Mapping[str, Json]],
        template_kwargs: Mapping[str, Json],
        continue_final: bool,
    ) -> str | list[int]:
        """The prompt's text or ids. Raises what the function raises, and ValueError with `continue_final`."""
        if continue_final:
            raise ValueError(f"{self.name} can't leave the last message open (continue_final_message)")
        given = [dict(message) for message in messages], [dict(tool) for tool in tools], dict(template_kwargs)
        made = self.function(*given)
        return made if isinstance(made, str) else [int(item) for item in made]


def load_prompt_encoder(name: str) -> PromptEncoder:
    """The function that `name` stands for. Raises TokenizerError where there is none, or it can't be imported."""
    try:
        function, short_name, sha256 = load_function(name, "prompt_encoder")
    except InputError as error:
        raise TokenizerError(str(error)) from error
    return PromptEncoder(function=cast("PromptFunction", function), name=short_name, sha256=sha256)


def load_function(name: str, setting: str) -> tuple[Callable[..., Json], str, str]:
    """A user's own function, its name without folders, and the sha256 of its module's source.

    `name` is `module:function` or `path/to/file.py:function`, `setting` what a message calls it. Raises InputError
    where there is none, or it can't be imported.
    """
    place, colon, function_name = name.rpartition(":")
    if not colon or not place or not function_name:
        raise InputError(f"{setting} is {name!r}; expected `module:function` or `path/to/file.py:function`")
    try:
        module = _from_file(Path(place).expanduser()) if place.endswith(".py") else importlib.import_module(place)
        source = Path(module.__file__ or "").read_bytes()
    except Exception as error:  # the module's own code can raise anything
        raise InputError(f"{setting} {name!r} can't be imported: {one_line(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(f"{setting} {name!r}: {place} has no function {function_name!r}")
    return function, f"{Path(place).name}:{function_name}", hashlib.sha256(source).hexdigest()


def _from_file(path: Path) -> ModuleType:
    description = importlib.util.spec_from_file_location(path.stem, path.resolve(strict=True))
    if description is None or description.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module
