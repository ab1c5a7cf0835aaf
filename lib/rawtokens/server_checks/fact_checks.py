"""Checks of what a server tells of itself, and of what the tokenizer's folder says about stopping.

Nothing is asked here. What a server (or a router before it) does not tell is a doubt where it could spoil a capture,
and no more than said where it could not.
"""

import json
from pathlib import Path

from transformers import PretrainedConfig
from transformers.utils import cached_file

from ..engines.answers import ServerFacts
from ..run_file import looks_like_path
from ..target.target_tokenizer import Tokenizer
from .check_table import Check

_VOCABULARY_TO_DO = {
    False: "use the tokenizer folder of the model that is served",
    None: "SGLang and vLLM do not tell it; see to it that the tokenizer folder's config.json is the served model's",
}
_SAME_IDS = "ids of /generate were the same with none, kimi_k2, qwen3 and deepseek-r1 (measured on SGLang 0.5.23)"


def fact_checks(facts: ServerFacts, tokenizer: Tokenizer) -> list[Check]:
    """The checks that need no generation."""
    parsers = [name for name in (facts.reasoning_parser, facts.tool_call_parser) if name]
    size, bound = facts.vocabulary_size, tokenizer.vocabulary_size
    hidden = facts.skip_tokenizer_init is None
    return [
        Check(check="reachable", status="pass", seen=f"{facts.engine} {facts.version or '(version not told)'}"),
        Check(
            check="model",
            status="pass" if facts.model else "warn",
            seen=f"{facts.model or 'not told'}, weights {facts.weight_version or 'not told'}",
            to_do="" if facts.model else "a router hides it; make sure that every worker runs the same model",
        ),
        Check(
            check="context",
            status="pass" if facts.context_length else "warn",
            seen=f"{facts.context_length or 'not told'}",
            to_do="" if facts.context_length else "prompts that are too long are rejected one by one",
        ),
        Check(
            check="vocabulary",
            status="pass" if size == bound else ("fail" if size else "warn"),
            seen=f"{size or 'not told'} on the server, {bound} from the tokenizer's folder",
            to_do=_VOCABULARY_TO_DO.get(size == bound if size else None, ""),
        ),
        Check(
            check="parsers",
            status="pass",
            seen=f"{', '.join(parsers) or ('not told' if hidden else 'none set')}; harmless to a capture: {_SAME_IDS}",
        ),
        Check(
            check="tokenizer on the server",
            status="pass" if facts.skip_tokenizer_init is False else "warn",
            seen={True: "none: its stop ids don't stop", False: "loaded", None: "not told"}[facts.skip_tokenizer_init],
            to_do="" if facts.skip_tokenizer_init is False else "stop ids are sent with every request: ids stay right",
        ),
        stop_id_check(tokenizer),
    ]


def stop_id_check(tokenizer: Tokenizer) -> Check:
    """Where the model's own files would have an engine stop, beside the ids that end the template's turns.

    An engine stops at all of config.json's, generation_config.json's and the tokenizer's (SGLang 0.5.23), and at the
    turn ends, which are sent with every request: an id that is missing in the files does no harm. One that stands
    within a turn does: no answer could get past it.
    """
    turn_ends, own = tokenizer.markers.turn_ends, model_stop_ids(tokenizer)
    files = ", ".join(f"{name} {_listed(ids, tokenizer)}" for name, ids in own.items())
    seen = f"a turn ends with {_listed(turn_ends, tokenizer)}; the model's files stop at: {files}"
    everywhere = {item for ids in own.values() for item in ids}
    within = sorted(everywhere & {item for ids in tokenizer.markers.sequences() for item in ids} - set(turn_ends))
    if within:
        to_do = f"no answer can get past {_listed(tuple(within), tokenizer)}: correct the served model's config"
        return Check(check="stop ids", status="warn", seen=seen, to_do=to_do)
    sent = "harmless: every request sends the turn ends as stop_token_ids"
    return Check(check="stop ids", status="pass", seen=seen, to_do="" if set(turn_ends) == everywhere else sent)


def model_stop_ids(tokenizer: Tokenizer) -> dict[str, tuple[int, ...]]:
    """The stop ids in config.json (of the language model inside it, where there is one), generation_config.json and
    the tokenizer; empty where a file or its entry is missing."""
    config = _file(tokenizer, "config.json")
    content = PretrainedConfig.get_config_dict(str(config.parent))[0] if config else {}
    generation = _file(tokenizer, "generation_config.json")
    return {
        "config.json": _eos(content) or next((ids for inner in content.values() if (ids := _eos(inner))), ()),
        "generation_config.json": _eos(json.loads(generation.read_text("utf-8"))) if generation else (),
        "tokenizer": _eos({"eos_token_id": tokenizer.encoder.eos_token_id}),
    }


def _eos(content: object) -> tuple[int, ...]:
    found = content.get("eos_token_id") if isinstance(content, dict) else None
    several = found if isinstance(found, list) else [found]
    return tuple(item for item in several if isinstance(item, int))


def _file(tokenizer: Tokenizer, name: str) -> Path | None:
    source = tokenizer.source
    where = str(Path(source.name).expanduser()) if looks_like_path(source.name) else source.name
    found = cached_file(where, name, revision=source.revision or None, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


def _listed(ids: tuple[int, ...], tokenizer: Tokenizer) -> str:
    return ", ".join(f"{item} {tokenizer.decode([item])}" for item in ids) or "none"
