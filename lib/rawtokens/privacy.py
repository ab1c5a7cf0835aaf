"""What must not reach a file that people share: keys, and the paths of this machine.

`refuse_key` guards what goes in (notebook parameters, the run file); `Scrubber` cleans what comes out (executed
notebooks, reports). A key is known by its shape or because an environment variable with a name like API_KEY
holds it. This module does not know every key's shape: it is a net under the rule that a key is only ever given
as the name of an environment variable.
"""

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .errors import InputError

_KEY_SHAPES = re.compile(
    r"""(?<![\w/.-])(?:
        sk-[\w-]{6,} | hf_\w{6,} | gh[oprsu]_\w{6,} | github_pat_\w{6,} | glpat-[\w-]{6,} | nvapi-[\w-]{6,}
        | xox[abeprs]-[\w-]{6,} | AKIA[0-9A-Z]{12,} | AIza[\w-]{20,} | eyJ[\w-]{8,}\.[\w-]{8,}
        | (?i:bearer)\s+[\w.~+/=-]{6,}
    ) | -----BEGIN\ [A-Z ]*PRIVATE\ KEY | \w://[^\s/@:]*:[^\s/@]+@""",
    re.VERBOSE,
)
_SECRET_WORDS = {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"}
_SHORTEST_SECRET = 8  # characters; shorter values ("true", "0") stand in harmless text too


def refuse_key(name: str, value: str) -> None:
    """Raise InputError where `value` looks like a key; the message doesn't repeat it."""
    holder = next((variable for variable, secret in _secrets().items() if secret in value), None)
    if holder is None and not _KEY_SHAPES.search(value):
        return
    what = f"the value of the environment variable {holder}" if holder else "a key or a password"
    raise InputError(
        f"{name} looks like {what}; values are stored in plain text, so give the name of an environment variable "
        "(api_key_env), or write a file name that only looks like a key with ./ before it"
    )


class Scrubber:
    """Replaces the paths of this machine and the values of secret environment variables in text.

    The current folder becomes `.`, the home folder `~`, Python's own folders `[python]`; of `given`, the values that a
    run was given, an absolute path elsewhere becomes its last part, and the folder that it lies in alike. A path of two
    parts (/root, /data) stays: it names nobody and stands in many a model's answer.
    """

    def __init__(self, given: Iterable[object] = ()) -> None:
        folders: dict[str, str] = {}
        for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
            folders[path] = "[python]"
        if sys.prefix != sys.base_prefix:
            folders[sys.prefix] = "[python]"
        folders[str(Path(__file__).parent)] = "rawtokens"
        if len(Path.home().parts) > 2:
            folders[str(Path.home())] = "~"
        for path in (str(Path.cwd()), os.environ.get("PWD", "")):
            if len(Path(path).parts) > 1 and Path(path).exists() and Path(path).samefile(Path.cwd()):
                folders[path] = "."
        folders |= {path: Path(path).name for path in _elsewhere(given, folders)}
        folders |= {str(Path(path).resolve()): name for path, name in folders.items()}
        self._folders = folders
        longest_first = sorted(folders, key=len, reverse=True)
        self._paths = re.compile(rf"(?<![\w.~-])({'|'.join(map(re.escape, longest_first))})(?![\w.-])")
        self._secrets = sorted(set(_secrets().values()), key=len, reverse=True)

    def text(self, text: str) -> str:
        """`text` without them."""
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return self._paths.sub(lambda match: self._folders[match[1]], text)

    def tree(self, value: object) -> object:
        """The same for every string in nested dicts and lists, such as a notebook; dicts are changed in place."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        if isinstance(value, dict):
            for key in value:
                value[key] = self.tree(value[key])
        return value


def _elsewhere(given: Iterable[object], known: Mapping[str, str]) -> Iterator[str]:
    """The absolute paths among `given`, which `hub:` or `:function` may go with, and their folders, outside `known`."""
    for value in _parts(given):
        path = Path(value.removeprefix("hub:").partition(":")[0])
        if not path.is_absolute() or any(path.is_relative_to(folder) for folder in known):
            continue
        yield from (str(part) for part in (path, path.parent) if len(part.parts) > 2)


def _parts(given: Iterable[object]) -> Iterator[str]:
    """Each value as text; of a JSON object, as some parameters are, its values."""
    for value in map(str, given):
        try:
            found = json.loads(value) if value.startswith("{") else value
        except ValueError:
            found = value
        yield from map(str, found.values()) if isinstance(found, dict) else [str(found)]


def _secrets(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if len(value) >= _SHORTEST_SECRET and _SECRET_WORDS & set(name.upper().split("_"))
    }
