"""A seeded sample of rows, scored by the server that made them: as captured, re-tokenised and re-rendered.

Teacher forcing: a server is sent prompt and output as ids and answers the log-likelihood of each. The same is asked
of the output re-tokenised behind the same prompt, and of the conversation re-rendered, where these differ. One line a
sequence goes to replay.parquet, the rates into audits.json; no verdict changes. What the model would have said next is
not asked. This module does not know how ids change (drift, rerendering) nor what an engine is sent (engines.scores).
"""

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..addresses import api_key_from, urls_from
from ..capture.connections import NoReplyError
from ..capture.server_facts import all_facts
from ..capture.transport import Post, open_post
from ..engines.answers import Failure, ServerFacts
from ..engines.scores import Asked, Scores, Scoring, scoring_of
from ..errors import InputError, RunStopped, ServerError
from ..records import Json
from ..runs import read_manifest
from ..target.target_tokenizer import Tokenizer
from .audit_records import Audits, Replay, rate, read_audits, write_audits
from .replay_versions import Version, sampled_versions

REPLAY_TABLE = "replay.parquet"
TIE = 0.0625
"""Nats. In bf16 a model's own greedy ids lie this far below the likeliest at most, where not exactly level."""
SECONDS = 300.0
_IN_FLIGHT = 4
_IDS = pa.list_(pa.field("item", pa.int32(), nullable=False))
_FLOATS = pa.list_(pa.field("item", pa.float32(), nullable=False))
REPLAY_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in {
            "key": pa.string(),
            "drawn": pa.bool_(),  # False: added to the draw, since re-tokenising changes it
            "version": pa.string(),  # captured, retokenised, rerendered
            "ids": _IDS,  # those that were scored
            "logprobs": _FLOATS,  # nats, of each
            "best_logprobs": _FLOATS,  # nats, of the likeliest id in each place; of the captured version alone
            "places": _IDS,  # for each id of the captured output its place in `ids`, -1 where it is not there
            "echo_differs": pa.int32(),
            "masked": pa.int32(),
        }.items()
    ]
)


async def replay(
    folder: Path,
    tokenizer: Tokenizer,
    urls: Sequence[str],
    *,
    rows: int,
    seed: int = 1,
    api_key: str = "",
    transport: httpx.AsyncBaseTransport | None = None,
) -> Audits:
    """Score `rows` rows that are not rejected, drawn with `seed`; write replay.parquet and add to audits.json.

    Raises ServerError where no server answers, or it is another engine or serves another model than the capture's,
    InputError where the drift audit has not run, RunStopped where nothing can be written.
    """
    audits = read_audits(folder)
    facts = await all_facts(urls, api_key=api_key, transport=transport)
    _check_facts(folder, facts[urls[0]], tokenizer)
    scoring = scoring_of(facts[urls[0]])
    limit = min(known.context_length or 2**31 for known in facts.values()) - scoring.margin
    lines: list[dict[str, Json]] = []
    not_scored: Counter[str] = Counter()
    async with open_post(api_key=api_key, transport=transport) as post:
        asker = _Asker(post, facts, scoring, limit, tokenizer.vocabulary_size, api_key)
        wanted = list(sampled_versions(folder, tokenizer, rows, seed))
        for version, scores in zip(wanted, await asyncio.gather(*map(asker.score, wanted)), strict=True):
            if isinstance(scores, Failure):
                not_scored[scores.reason] += 1
            else:
                lines.append(_line(version, scores))
    table = pa.Table.from_pylist(lines, schema=REPLAY_SCHEMA)
    try:
        pq.write_table(table, folder / f"{REPLAY_TABLE}.tmp", compression="zstd")
        (folder / f"{REPLAY_TABLE}.tmp").replace(folder / REPLAY_TABLE)
    except OSError as error:
        raise RunStopped(f"can't write {folder / REPLAY_TABLE}: {error}; mend the folder, then run it again") from error
    found = summarise(
        table, seed=seed, not_scored=not_scored, temperature=_temperature(folder), model=facts[urls[0]].model
    )
    whole = msgspec.structs.replace(audits, replay=found)
    write_audits(folder, whole)
    return whole


async def replay_if_asked(
    folder: Path, tokenizer: Tokenizer, urls: str, *, rows: int, seed: int = 1, api_key_env: str = ""
) -> Audits:
    """As `replay`, from a notebook's parameters; without rows, or without the capture's server, the audits say so.

    `urls` is a JSON list of addresses. A replay changes no verdict, so that no server ends no stage.
    """
    if not rows:
        note = "not asked for; audit.replay in the run file (here replay_rows) is how many rows a server is to score"
    else:
        try:
            return await replay(
                folder, tokenizer, urls_from(urls), rows=rows, seed=seed, api_key=api_key_from(api_key_env)
            )
        except ServerError as error:
            note = f"not done: {error}; with the server there, `rawtokens run RUN.yaml --stage 03` does it"
    audits = msgspec.structs.replace(read_audits(folder), replay_note=note)
    write_audits(folder, audits)
    return audits


def read_replay(folder: Path) -> pa.Table:
    """replay.parquet. Raises InputError where it can't be read."""
    try:
        return pq.read_table(folder / REPLAY_TABLE)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{folder / REPLAY_TABLE} can't be read ({error}); ask for a replay again") from error


def summarise(
    table: pa.Table, *, seed: int, not_scored: dict[str, int], temperature: float | None, model: str | None
) -> Replay:
    """Rates over a table of REPLAY_SCHEMA."""
    captured = table.filter(pc.equal(table["version"], "captured"))
    added = pc.sum(pc.invert(captured["drawn"])).as_py() or 0
    captured = captured.filter(captured["drawn"])
    own, best = (captured[name].combine_chunks().flatten().to_numpy() for name in ("logprobs", "best_logprobs"))
    every = len(table["ids"].combine_chunks().flatten())
    near = int((best - own <= TIE).sum())
    return Replay(
        rows=len(captured),
        added_rows=added,
        seed=seed,
        temperature=temperature,
        model=model,
        ids=len(own),
        rates={
            "ids_echoed_differently": rate(
                int(np.sum(table["echo_differs"])), every, "scored ids in whose place the server names another one"
            ),
            "ids_masked_by_the_server": rate(
                int(np.sum(table["masked"])),
                every,
                "the vocabulary's last id, which SGLang 0.5.23 shows as 0 in scores",
            ),
            "ids_within_the_likeliest": rate(
                near, len(own), f"captured output ids at most {TIE} nats (ties in bf16) below the likeliest id"
            ),
            "ids_likeliest": rate(int((best == own).sum()), len(own), "captured output ids as likely as the likeliest"),
        },
        log_likelihood=float(own.mean()) if len(own) else None,
        versions=dict(Counter(table["version"].to_pylist())),
        not_scored=dict(not_scored),
    )


class _Asker:
    """Scores sequences on several servers in turn, few at a time: a score of every id takes a row of logits each."""

    def __init__(
        self, post: Post, facts: Mapping[str, ServerFacts], scoring: Scoring, limit: int, size: int, api_key: str
    ) -> None:
        self._post, self._facts, self._scoring, self._limit = post, facts, scoring, limit
        self._size, self._key = size, api_key
        self._urls = itertools.cycle(facts)
        self._room = asyncio.Semaphore(_IN_FLIGHT * len(facts))

    async def score(self, version: Version) -> Scores | Failure:
        if len(version.ids) >= self._limit:
            return Failure(reason="longer_than_the_context", detail=f"{len(version.ids)} ids", next="reject")
        if min(version.ids) < 0 or max(version.ids) >= self._size:
            return Failure(reason="id_out_of_vocabulary", detail=version.key, next="reject")
        async with self._room:
            url = next(self._urls)
            asked = Asked(
                ids=version.ids,
                first=version.first,
                rid=uuid.uuid4().hex,
                vocabulary_size=self._size,
                best=version.version == "captured",
                served_name=self._facts[url].served_name or "",
            )
            try:
                status, content = await self._post(f"{url}{self._scoring.route}", self._scoring.body(asked), SECONDS)
            except NoReplyError as error:
                raise ServerError(
                    f"{url} gave no score ({error}); see that it runs, then run stage 03 again"
                ) from error
        return self._scoring.parse(status, content, asked, self._key)


def _line(version: Version, scores: Scores) -> dict[str, Json]:
    return {
        "key": version.key,
        "drawn": version.drawn,
        "version": version.version,
        "ids": version.ids[version.first :],
        "logprobs": scores.logprobs.tolist(),
        "best_logprobs": scores.best.tolist(),
        "places": version.places,
        "echo_differs": len(scores.echo_differs),
        "masked": len(scores.masked),
    }


def _check_facts(folder: Path, facts: ServerFacts, tokenizer: Tokenizer) -> None:
    """Refuse to score with another engine, model or vocabulary; what is not told is no contradiction."""
    manifest = read_manifest(folder)
    told: dict[str, tuple[Json, Json]] = {
        "engine": (facts.engine, manifest.get("engine")),
        "model": (facts.model, manifest.get("model")),
        "weight_version": (facts.weight_version, manifest.get("weight_version")),
        "vocabulary_size": (facts.vocabulary_size, tokenizer.vocabulary_size),
    }
    for name, (found, expected) in told.items():
        if found is not None and expected is not None and found != expected:
            raise ServerError(f"replay needs the capture's own server: its {name} is {found!r}, not {expected!r}")


def _temperature(folder: Path) -> float | None:
    sampling = read_manifest(folder).get("sampling")
    found = sampling.get("temperature") if isinstance(sampling, dict) else None
    return float(found) if isinstance(found, int | float) else None
