"""The golden question: "What is 2+2?" at temperature 0 with 150 new ids, as Kimi-K2.5 was first validated.

Its 15 prompt ids are published and must come out exactly; where thinking ended, and after how many ids, was the real
model's answer on one day, and is informative only. This module does not know what another model should answer.
"""

from collections.abc import Mapping

import httpx
import msgspec
import numpy as np

from ..capture.server_facts import control_client, facts_of
from ..engines.answers import Answer, Failure
from ..errors import ServerError
from ..markers import thinking_mode
from ..records import Json
from ..reporting.decoded import Segment
from ..reporting.display import printable
from ..reporting.samples import Sample, split_output
from ..reporting.wording import counted
from ..response_checks.channel_segments import segment_outputs
from ..response_checks.response_columns import NO_ID, IdLists
from ..target.target_tokenizer import Tokenizer
from .answer_checks import first_difference, thinking_check, tokenizer_check
from .check_table import Check, without_secret
from .server_questions import GOLDEN_NEW_IDS, GOLDEN_QUESTION, Connection, ask

GOLDEN_PROMPT = [163587, 2482, 163601, 5376, 387, 220, 17, 10, 17, 30, 163586, 163588, 69702, 163601, 163606]
"""Kimi-K2.5's ids of the question, generation prompt and <think> included."""
_REAL = "the real Kimi-K2.5 once gave 71, the closer at 61: informative only"


class Golden(msgspec.Struct, frozen=True, kw_only=True):
    """The checks of the golden question, and the answer's segments (none where there was no answer)."""

    checks: list[Check]
    segments: list[Segment]


async def ask_golden(
    url: str,
    tokenizer: Tokenizer,
    *,
    template_kwargs: Mapping[str, Json] | None = None,
    api_key: str = "",
    transport: httpx.AsyncBaseTransport | None = None,
) -> Golden:
    """Ask it: prompt ids exact for Kimi-K2.5's tokenizer, the closer present, the split told.

    Raises nothing for a server that fails: its check says so.
    """
    messages: list[dict[str, Json]] = [{"role": "user", "content": GOLDEN_QUESTION}]
    prompt_ids = tokenizer.prompt_ids(messages, template_kwargs=template_kwargs)
    checks = [_prompt_check(prompt_ids, tokenizer)]
    try:
        facts = await facts_of([url], api_key=api_key, transport=transport)
        async with control_client(api_key=api_key, transport=transport) as client:
            server = Connection(url=url, client=client, tokenizer=tokenizer, facts=facts, api_key=api_key)
            same = await tokenizer_check(
                server, prompt_ids, tokenizer.render(messages, template_kwargs=template_kwargs)
            )
            answer = await _answer(server, prompt_ids, same)
    except ServerError as error:
        answer = Failure(reason="unreachable", detail=str(error), next="stop")
    if isinstance(answer, Failure):
        checks.append(Check(check="golden answer", status="fail", seen=f"{answer.reason}: {answer.detail}"))
        return Golden(checks=without_secret(checks, api_key), segments=[])
    ids = answer.ids()
    thinking = thinking_check(prompt_ids, ids, tokenizer.markers)
    if thinking.status == "warn":
        thinking = msgspec.structs.replace(thinking, status="fail")
    segments = _split(prompt_ids, answer, tokenizer)
    split = ", ".join(f"{segment.label} {len(segment.ids)}" for segment in segments)
    real = f"; {_REAL}" if _is_k25(prompt_ids, tokenizer) else ""
    checks += [
        msgspec.structs.replace(thinking, check="golden closer"),
        Check(check="golden split", status="pass", seen=f"{counted(len(ids), 'id')}: {split}{real}"),
    ]
    return Golden(checks=without_secret(checks, api_key), segments=segments)


async def _answer(server: Connection, prompt_ids: list[int], same: Check) -> Answer | Failure:
    """The answer; nothing is asked where the tokenizer is another model's, whose ids can kill a server."""
    if same.status == "fail":
        return Failure(reason="another_tokenizer", detail=same.seen, next="stop")
    return (await ask(server, prompt_ids, max_new_tokens=GOLDEN_NEW_IDS)).answer


def segment_lines(golden: Golden, tokenizer: Tokenizer, *, api_key: str = "") -> list[str]:
    """One line a segment, decoded to look at."""
    lines = [f"{label} ({counted(len(ids), 'id')}): {tokenizer.decode(ids)}" for label, ids in golden.segments]
    return [printable(line.replace(api_key, "[secret]") if api_key else line) for line in lines]


def _is_k25(prompt_ids: list[int], tokenizer: Tokenizer) -> bool:
    """Kimi's markers under a template that opens thinking; K2-Thinking's leaves that to the model."""
    return tokenizer.markers.family == "kimi" and thinking_mode(prompt_ids, tokenizer.markers) == "opened"


def _prompt_check(prompt_ids: list[int], tokenizer: Tokenizer) -> Check:
    name = "golden prompt"
    if not _is_k25(prompt_ids, tokenizer):
        seen = f"not Kimi-K2.5 with its thinking on: no published ids; its own {len(prompt_ids)} are {prompt_ids}"
        return Check(check=name, status="pass", seen=seen)
    if prompt_ids == GOLDEN_PROMPT:
        return Check(check=name, status="pass", seen=f"the {len(GOLDEN_PROMPT)} published ids exactly")
    seen = f"{prompt_ids}; other than {GOLDEN_PROMPT} from position {first_difference(prompt_ids, GOLDEN_PROMPT)} on"
    to_do = "is it Kimi-K2.5's own tokenizer and chat template, and transformers' version the right one?"
    return Check(check=name, status="fail", seen=seen, to_do=to_do)


def _split(prompt_ids: list[int], answer: Answer, tokenizer: Tokenizer) -> list[Segment]:
    """The answer cut as verification cuts it."""
    ids = answer.ids()
    mode = thinking_mode(prompt_ids, tokenizer.markers)
    matched = answer.matched if isinstance(answer.matched, int) else NO_ID
    cut = segment_outputs(
        IdLists.from_lists([ids]), markers=tokenizer.markers, thinking=[mode], matched_ids=np.array([matched])
    )
    sample = Sample(
        key="golden",
        shape="",
        rows=1,
        verdict="",
        reasons=[],
        finish_reason=answer.finish_reason,
        prompt_ids=prompt_ids,
        output_ids=ids,
        reasoning_tokens=int(cut.reasoning_tokens[0]),
        ends_with_stop=bool(cut.ends_with_stop[0]),
    )
    return split_output(sample, tokenizer.markers)
