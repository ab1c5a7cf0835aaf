"""What a server tells of itself before a run, and the httpx client that control routes are asked with.

A few requests at a time go out here: httpx's own transport collapses above a few dozen. This module does not know
what a run is, nor how /generate is asked (`transport`).
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from functools import partial

import httpx
import msgspec

from ..engines import sglang, vllm
from ..engines.answers import ServerFacts, error_text
from ..errors import ServerError, one_line
from ..records import Json
from .connections import CONNECT_SECONDS

UNANSWERED = (httpx.HTTPError, OSError)
"""What a request without a usable answer raises."""

_ALIKE = (
    *("engine", "version", "model", "served_name", "tokens_route"),
    *("weight_version", "dtype", "quantization", "vocabulary_size", "context_length"),
)


class AbsentError(ServerError):
    """Nothing answers at a server's address."""


def control_client(*, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """An httpx client that goes through no proxy and trusts whom the system trusts; the key is a bearer token."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    transport = transport or httpx.AsyncHTTPTransport(verify=ssl.create_default_context())
    return httpx.AsyncClient(transport=transport, headers=headers)


async def facts_of(
    urls: Sequence[str], *, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
) -> ServerFacts:
    """The facts of the first of `urls`, with which all the others agree. Raises as `all_facts` does."""
    return (await all_facts(urls, api_key=api_key, transport=transport))[urls[0]]


async def all_facts(
    urls: Sequence[str], *, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
) -> dict[str, ServerFacts]:
    """The facts of every server, by URL; they must agree on model, weights and context.

    Raises AbsentError where one can't be reached, ServerError where one refuses the key, or differs from the first.
    """
    async with control_client(api_key=api_key, transport=transport) as client:
        answers = await asyncio.gather(*[_facts(client, url, api_key) for url in urls])
    return _alike(dict(zip(urls, answers, strict=True)))


async def facts_of_those_there(
    urls: Sequence[str], *, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None
) -> dict[str, ServerFacts]:
    """As `all_facts`, without the servers that can't be reached; raises AbsentError where none can."""
    async with control_client(api_key=api_key, transport=transport) as client:
        answers = await asyncio.gather(*[_facts(client, url, api_key) for url in urls], return_exceptions=True)
    found: dict[str, ServerFacts] = {}
    for url, answer in zip(urls, answers, strict=True):
        if isinstance(answer, ServerFacts):
            found[url] = answer
        elif not isinstance(answer, AbsentError):
            raise answer
    if not found:
        raise next(answer for answer in answers if isinstance(answer, AbsentError))
    return _alike(found)


def there_in_words(urls: Sequence[str], found: Mapping[str, ServerFacts]) -> str:
    """Which servers a run begins with."""
    absent = [url for url in urls if url not in found]
    text = f"Servers that answer: {len(found)} of {len(urls)}."
    return f"{text} Not there, and taken up once they are: {', '.join(absent)}." if absent else text


def difference(ours: ServerFacts, theirs: ServerFacts) -> str:
    """The name of the first fact in which two servers of a run may not differ and do; "" where there is none.

    What one of them does not tell is no difference.
    """
    told = ((name, getattr(ours, name), getattr(theirs, name)) for name in _ALIKE)
    return next((name for name, here, there in told if None not in (here, there) and here != there), "")


def _alike(found: dict[str, ServerFacts]) -> dict[str, ServerFacts]:
    url, first = next(iter(found.items()))
    for other, facts in found.items():
        if name := difference(first, facts):
            raise ServerError(
                f"{name} is {getattr(facts, name)!r} at {other} but {getattr(first, name)!r} at {url}; servers of one "
                "run must be alike"
            )
    return found


async def _facts(client: httpx.AsyncClient, url: str, api_key: str) -> ServerFacts:
    """What a server tells, and by that which engine it is; one that tells nothing is taken for SGLang behind a router.

    vLLM names itself as the owner of its model; where a router hides that, /version is vLLM's alone.
    """
    get = partial(_get, client, url, api_key=api_key)
    models = await get("/v1/models")
    if vllm.owns(models):
        version, offered = await get("/version"), await _offers(client, f"{url}{vllm.TOKENS_ROUTE}")
        return vllm.server_facts(models, version, tokens_route=offered, secret=api_key)
    model_info = await get("/model_info") or await get("/get_model_info")
    server_info = await get("/server_info") or await get("/get_server_info")
    if not model_info and not server_info and (version := await get("/version")):
        return vllm.server_facts(models, version, secret=api_key)
    return sglang.server_facts(model_info, server_info, models, secret=api_key)


async def _offers(client: httpx.AsyncClient, url: str) -> bool | None:
    """Whether a route is there: one that is off refuses even what is malformed (vLLM: 403). None without an answer."""
    try:
        reply = await client.post(url, json={}, timeout=CONNECT_SECONDS)
    except UNANSWERED:
        return None
    return reply.status_code in (400, 422)


async def _get(client: httpx.AsyncClient, url: str, route: str, *, api_key: str) -> dict[str, Json] | None:
    """A control route's JSON object, or None where the server (or a router before it) has no such route."""
    try:
        reply = await client.get(f"{url}{route}", timeout=CONNECT_SECONDS)
    except UNANSWERED as error:
        raise AbsentError(
            f"no server answers at {url} ({one_line(error)}); start it (`rawtokens serve-demo` starts the "
            "demo's) or correct servers.urls"
        ) from error
    if reply.status_code in (401, 403):
        said = error_text(reply.content, secret=api_key)
        raise ServerError(f"{url} refuses the key ({said}); set servers.api_key_env to the variable that holds it")
    if reply.status_code != 200:
        return None
    try:
        content: dict[str, Json] = msgspec.json.decode(reply.content, type=dict)
    except msgspec.MsgspecError:
        return None
    return content
