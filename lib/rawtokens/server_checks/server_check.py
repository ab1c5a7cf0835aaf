"""Is this server faithful? One check after another, each with what was seen and what to do.

Asks a running server a few short questions; nothing here is stored as data. A `fail` is a contradiction that
would spoil a capture; what can't be proved is a `warn`. This module does not know how to mend a server, and a
passing table is no proof for the rows that come later: those are checked one by one.
"""

from collections.abc import Mapping, Sequence

import httpx

from ..capture import server_facts
from ..errors import ServerError
from ..records import Json
from ..target.target_tokenizer import Tokenizer
from .answer_checks import answer_checks, first_difference, not_asked, tokenizer_check
from .check_table import (
    Check,
    checks_table,
    checks_takeaway,
    checks_text,
    require_no_failure,
    without_secret,
    write_checks,
)
from .fact_checks import fact_checks
from .server_questions import GOLDEN_QUESTION, Connection

__all__ = [
    "GOLDEN_QUESTION",
    "Check",
    "check_server",
    "check_servers",
    "checks_table",
    "checks_takeaway",
    "checks_text",
    "require_no_failure",
    "write_checks",
]

_ALIKE_IDS = 8  # greedy answers of two replicas part later than that, where they run the same model


async def check_server(
    url: str,
    tokenizer: Tokenizer,
    *,
    template_kwargs: Mapping[str, Json] | None = None,
    api_key: str = "",
    transport: httpx.AsyncBaseTransport | None = None,
) -> list[Check]:
    """All checks in order; one `fail` alone where nothing answers at `url`, or refuses the key."""
    found = await check_servers([url], tokenizer, template_kwargs=template_kwargs, api_key=api_key, transport=transport)
    return found[url]


async def check_servers(
    urls: Sequence[str],
    tokenizer: Tokenizer,
    *,
    template_kwargs: Mapping[str, Json] | None = None,
    api_key: str = "",
    transport: httpx.AsyncBaseTransport | None = None,
) -> dict[str, list[Check]]:
    """The checks of every server by its URL; each one after the first is held against the first as well."""
    found: dict[str, list[Check]] = {}
    first_ids: list[int] = []
    for url in urls:
        checks, ids = await _check_one(url, tokenizer, template_kwargs or {}, api_key, transport)
        if found and all(rows[0].status == "pass" for rows in (found[urls[0]], checks)):  # both answer
            checks.append(await _alike(urls[0], first_ids, url, ids, api_key, transport))
        first_ids = first_ids if found else ids
        found[url] = without_secret(checks, api_key)
    return found


async def _check_one(
    url: str,
    tokenizer: Tokenizer,
    template_kwargs: Mapping[str, Json],
    api_key: str,
    transport: httpx.AsyncBaseTransport | None,
) -> tuple[list[Check], list[int]]:
    """A server's checks, and the ids of its greedy answer."""
    messages: list[dict[str, Json]] = [{"role": "user", "content": GOLDEN_QUESTION}]
    prompt_ids = tokenizer.prompt_ids(messages, template_kwargs=template_kwargs)
    try:
        facts = await server_facts.facts_of([url], api_key=api_key, transport=transport)
    except ServerError as error:
        return [Check(check="reachable", status="fail", seen=str(error))], []
    async with server_facts.control_client(api_key=api_key, transport=transport) as client:
        server = Connection(url=url, client=client, tokenizer=tokenizer, facts=facts, api_key=api_key)
        text = tokenizer.render(messages, template_kwargs=template_kwargs)
        same = await tokenizer_check(server, prompt_ids, text)
        asked, ids = [not_asked("generates from ids")], list[int]()
        told = [*fact_checks(facts, tokenizer), same]
        if all(check.status != "fail" for check in told):
            asked, ids = await answer_checks(server, prompt_ids)
    return [*told, *asked], ids


async def _alike(
    first: str,
    first_ids: Sequence[int],
    url: str,
    ids: Sequence[int],
    api_key: str,
    transport: httpx.AsyncBaseTransport | None,
) -> Check:
    """Whether a server is what the first one is: what they tell, and how their greedy answers begin."""
    name = "like the first server"
    try:
        await server_facts.all_facts([first, url], api_key=api_key, transport=transport)
    except ServerError as error:
        return Check(check=name, status="fail", seen=str(error), to_do="give one run servers of one model")
    if not first_ids or not ids:
        return Check(check=name, status="warn", seen="they tell the same of themselves; no answers to compare")
    if list(first_ids) == list(ids):
        return Check(check=name, status="pass", seen=f"they tell the same, and answer with the same {len(ids)} ids")
    place = first_difference(first_ids, ids)
    seen = f"they tell the same; their greedy answers part at position {place}, which nothing forbids"
    early = "so early it may be another model or other weights" if place < _ALIKE_IDS else ""
    return Check(check=name, status="warn" if early else "pass", seen=seen, to_do=early)
