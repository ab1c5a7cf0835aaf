"""Connections to servers: the client for /generate, the control routes, and what a server tells of itself.

httpx is the interface; under it an aiohttp transport, since httpx's own collapses above a few dozen requests in
flight (15 requests/s at 256, against 2,714 with this one). This module does not know what a run is.
"""

import asyncio
import os
from collections.abc import Sequence

import httpx
import msgspec
from httpx_aiohttp import AiohttpTransport

from .engines.sglang import ServerFacts, error_text, server_facts
from .errors import InputError, ServerError
from .records import Json


def api_key_from(variable: str) -> str:
    """The key in an environment variable, or "" where no variable is named. Raises InputError where it is unset."""
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise InputError(f"the environment variable {variable} (servers.api_key_env) is not set; export it first")
    return key


def generate_client(
    window: int, *, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """A client that keeps `window` requests in flight; the key goes out as a bearer token."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    limits = httpx.Limits(max_connections=window + 8)
    return httpx.AsyncClient(transport=transport or AiohttpTransport(limits=limits), headers=headers)


async def facts_of(
    urls: Sequence[str], *, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
) -> ServerFacts:
    """The facts of the servers at `urls`, which must agree on model and weight version.

    Raises ServerError where one can't be reached, refuses the key, or differs from the first.
    """
    async with generate_client(len(urls), api_key=api_key, transport=transport) as client:
        answers = await asyncio.gather(*[_facts(client, url) for url in urls])
    first = answers[0]
    for url, facts in zip(urls, answers, strict=True):
        for name in ("engine", "version", "model", "weight_version", "dtype", "quantization"):
            ours, theirs = getattr(first, name), getattr(facts, name)
            if ours is not None and theirs is not None and ours != theirs:
                raise ServerError(
                    f"{name} is {theirs!r} at {url} but {ours!r} at {urls[0]}; servers of one run must be alike"
                )
    return first


async def _facts(client: httpx.AsyncClient, url: str) -> ServerFacts:
    model_info = await _get(client, url, "/model_info") or await _get(client, url, "/get_model_info")
    server_info = await _get(client, url, "/server_info") or await _get(client, url, "/get_server_info")
    models = await _get(client, url, "/v1/models")
    return server_facts(model_info, server_info, models)


async def _get(client: httpx.AsyncClient, url: str, route: str) -> dict[str, Json] | None:
    """A control route's JSON object, or None where the server (or a router before it) has no such route."""
    try:
        reply = await client.get(f"{url}{route}", timeout=30.0)
    except httpx.HTTPError as error:
        raise ServerError(
            f"no server answers at {url} ({type(error).__name__}); start it (`rawtokens serve-demo` starts the "
            "demo's) or correct servers.urls"
        ) from error
    except (httpx.InvalidURL, ValueError) as error:
        raise InputError(
            f"server URL {url!r} is not valid ({error}); expected something like http://HOST:30000"
        ) from error
    if reply.status_code in (401, 403):
        raise ServerError(f"{url} refuses the key ({error_text(reply.content)}); set servers.api_key_env")
    if reply.status_code != 200:
        return None
    try:
        content: dict[str, Json] = msgspec.json.decode(reply.content, type=dict)
    except msgspec.MsgspecError:
        return None
    return content
