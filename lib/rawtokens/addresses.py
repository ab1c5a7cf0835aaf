"""Where servers are and which variable holds their key, checked as the user wrote them.

Every address is brought to one spelling, so that the same server named twice is one server. This module sends
nothing: it does not know whether anything listens there, nor whether the key opens it.
"""

import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from .errors import InputError
from .privacy import refuse_key

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def server_urls(urls: Sequence[str]) -> tuple[str, ...]:
    """The addresses without trailing slashes, each once, in order.

    Raises InputError for an empty list and for what is no `http://HOST:PORT`; a password in it is not repeated.
    """
    if not urls:
        raise InputError("servers.urls is empty; name one server at least, like http://127.0.0.1:30000")
    return tuple(dict.fromkeys(_checked(url) for url in urls))


def urls_from(text: str) -> tuple[str, ...]:
    """The same for a notebook's parameter: a JSON list of addresses, or one address as it is."""
    if not text.lstrip().startswith(("[", '"')):
        return server_urls([text])
    try:
        return server_urls(msgspec.json.decode(text, type=list[str]))
    except msgspec.MsgspecError as error:
        raise InputError(f'urls is {text!r}: {error}; expected a JSON list like ["http://127.0.0.1:30000"]') from error


def check_variable_name(variable: str) -> None:
    """Raise InputError where `api_key_env` is no name of an environment variable; a key is not repeated."""
    refuse_key("servers.api_key_env", variable)
    if variable and not _VARIABLE.fullmatch(variable):
        raise InputError("servers.api_key_env is no name of an environment variable; give the name, never the key")


def api_key_from(variable: str) -> str:
    """The key in an environment variable, or "" where no variable is named.

    Raises InputError where it is unset, or holds what no HTTP header can carry; the key is not repeated.
    """
    check_variable_name(variable)
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(f"the environment variable {variable} (servers.api_key_env) is not set; export it first")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"the environment variable {variable} holds no key: expected printable ASCII without spaces")
    return key


def _checked(url: str) -> str:
    expected = "expected something like http://HOST:30000"
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no number up to 65535
    except ValueError as error:
        raise InputError(f"server URL {url!r} is not valid ({error}); {expected}") from error
    if parts.username is not None or parts.password is not None:
        raise InputError(f"the server URL of {parts.hostname} holds a name or password; use servers.api_key_env")
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[^!-~]", url):
        raise InputError(f"server URL {url!r} is not valid; {expected}")
    if parts.query or parts.fragment:
        raise InputError(f"server URL {url!r} has more than an address; {expected}")
    if parts.path.rstrip("/").endswith(("/v1", "/generate")):
        raise InputError(f"server URL {url!r} names a route; give the server's own address, {expected}")
    return url.rstrip("/")
