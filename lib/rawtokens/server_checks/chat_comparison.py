"""The same question asked as ids and as chat: what the chat endpoint's text leaves of what the model said.

Shown live in notebook 00, on whatever server is checked. This module judges nothing: it counts which markers that
stand in the ids can still be found in the text.
"""

from collections.abc import Mapping, Sequence

import httpx
import msgspec
import pandas as pd

from ..capture.server_facts import UNANSWERED, control_client, facts_of
from ..engines.answers import Answer, Failure, error_text
from ..errors import ServerError
from ..markers import last_position
from ..records import Json
from ..target.target_tokenizer import Tokenizer
from .answer_checks import first_difference, tokenizer_check
from .server_questions import GOLDEN_NEW_IDS, GOLDEN_QUESTION, Connection, ask

TOOL_QUESTION = "What is the weather in Oslo?"
TOOL: Mapping[str, Json] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
"""A question that takes a tool, and the tool: the answer holds tool markers where the model calls it."""


class TwoVoices(msgspec.Struct, frozen=True, kw_only=True):
    """The same question asked as ids and as chat: what /generate gives, and what the chat endpoint leaves of it.

    `ids_problem` and `chat_problem` say why one of the two gave nothing, and are empty where it answered.
    `chat_calls` is the JSON of the tool calls that a tool parser made, `chat_prompt_tokens` how many ids the chat
    endpoint made of the messages (None: not told).
    """

    prompt_ids: list[int]
    output_ids: list[int] = []
    ids_problem: str = ""
    chat_content: str = ""
    chat_reasoning: str | None = None
    chat_calls: str = ""
    chat_prompt_tokens: int | None = None
    chat_problem: str = ""


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None  # SGLang
    reasoning: str | None = None  # vLLM
    tool_calls: list[dict[str, object]] | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None


class _Completion(msgspec.Struct, frozen=True):
    choices: tuple[_Choice]
    usage: _Usage = _Usage()


async def ask_both_ways(
    url: str,
    tokenizer: Tokenizer,
    *,
    question: str = GOLDEN_QUESTION,
    tools: Sequence[Mapping[str, Json]] = (),
    max_new_tokens: int = GOLDEN_NEW_IDS,
    template_kwargs: Mapping[str, Json] | None = None,
    api_key: str = "",
    transport: httpx.AsyncBaseTransport | None = None,
) -> TwoVoices:
    """Ask one question at temperature 0 through the engine's own route and through /v1/chat/completions.

    Raises nothing where one of them fails: the answer says so. Nothing is asked with the ids of another model's
    tokenizer, which can kill a server. A chat endpoint that fails is no fault of a server
    that is to capture ids; one that takes no ids is told by the table of checks.
    """
    messages: list[dict[str, Json]] = [{"role": "user", "content": question}]
    prompt_ids = tokenizer.prompt_ids(messages, tools=tools, template_kwargs=template_kwargs)
    body: dict[str, Json] = {
        "messages": list(messages),
        "temperature": 0.0,
        "max_tokens": max_new_tokens,
        "chat_template_kwargs": dict(template_kwargs or {}),
    }
    if tools:
        body["tools"] = [dict(tool) for tool in tools]
    try:
        facts = await facts_of([url], api_key=api_key, transport=transport)
    except ServerError as error:
        problem = _clean(str(error), api_key)
        return TwoVoices(prompt_ids=prompt_ids, ids_problem=problem, chat_problem=problem)
    async with control_client(api_key=api_key, transport=transport) as client:
        server = Connection(url=url, client=client, tokenizer=tokenizer, facts=facts, api_key=api_key)
        text = tokenizer.render(messages, tools=tools, template_kwargs=template_kwargs)
        same = await tokenizer_check(server, prompt_ids, text)
        answer: Answer | Failure = Failure(
            reason="another tokenizer, so nothing was asked", detail=same.seen, next="stop"
        )
        if same.status != "fail":
            answer = (await ask(server, prompt_ids, max_new_tokens=max_new_tokens)).answer
        said, chat_problem = await _chat(server, {"model": facts.served_name or "default", **body})
    message = said.choices[0].message
    ids, problem = ([], f"{answer.reason}: {answer.detail}") if isinstance(answer, Failure) else (answer.ids(), "")
    return TwoVoices(
        prompt_ids=prompt_ids,
        output_ids=ids,
        ids_problem=_clean(problem, api_key),
        chat_content=_clean(message.content or "", api_key),
        chat_reasoning=_clean(message.reasoning_content or message.reasoning or "", api_key) or None,
        chat_calls=_clean(msgspec.json.encode(message.tool_calls).decode() if message.tool_calls else "", api_key),
        chat_prompt_tokens=said.usage.prompt_tokens,
        chat_problem=chat_problem,
    )


async def _chat(server: Connection, body: Mapping[str, Json]) -> tuple[_Completion, str]:
    """The chat endpoint's answer, an empty one where there is none, and what is wrong with it."""
    nothing = _Completion(choices=(_Choice(message=_Message()),))
    try:
        reply = await server.client.post(f"{server.url}/v1/chat/completions", json=body, timeout=300.0)
        if reply.status_code != 200:
            return nothing, error_text(reply.content, secret=server.api_key)
        return msgspec.json.decode(reply.content, type=_Completion), ""
    except (*UNANSWERED, msgspec.MsgspecError) as error:
        return nothing, f"no chat answer ({type(error).__name__})"


def _clean(text: str, secret: str) -> str:
    return text.replace(secret, "[secret]") if secret else text


def voices_table(voices: TwoVoices, tokenizer: Tokenizer) -> pd.DataFrame:
    """What each way gives, as text to look at; an empty field is said to be empty."""
    none = f"(none: {voices.chat_problem})" if voices.chat_problem else "(empty)"
    ids = tokenizer.decode(voices.output_ids) if voices.output_ids else f"(none: {voices.ids_problem or 'no ids'})"
    chat_tokens = "not told" if voices.chat_prompt_tokens is None else f"{voices.chat_prompt_tokens} ids"
    rows = {
        "ids: the prompt": f"{len(voices.prompt_ids)} ids, the last {_named(voices.prompt_ids[-1], tokenizer)}",
        "ids: the output, decoded": ids,
        "chat: the prompt": chat_tokens,
        "chat: reasoning_content": voices.chat_reasoning or "(null)",
        "chat: content": voices.chat_content or none,
        **({"chat: tool_calls": voices.chat_calls} if voices.chat_calls else {}),
    }
    return pd.DataFrame({"field": list(rows), "what is in it": list(rows.values())})


def lost_markers(voices: TwoVoices, tokenizer: Tokenizer) -> list[str]:
    """The markers that stand in the prompt's last id or the output ids, but nowhere in the chat endpoint's text."""
    text = f"{voices.chat_reasoning or ''}{voices.chat_content}"
    names = tokenizer.markers.names
    found = dict.fromkeys(item for item in [voices.prompt_ids[-1], *voices.output_ids] if item in names)
    return [_named(item, tokenizer) for item in found if names[item] not in text]


def voices_takeaway(voices: TwoVoices, tokenizer: Tokenizer) -> str:
    """What the chat text lost here, and where the opener is, in a few sentences."""
    if voices.ids_problem:
        return f"No ids to compare with: {voices.ids_problem}."
    told = [_opener_told(voices, tokenizer)]
    lost = lost_markers(voices, tokenizer)
    if voices.chat_problem:
        told.append(f"The chat endpoint gave no text to compare with: {voices.chat_problem}.")
    elif lost:
        told.append(f"What stands in the ids and not in the chat text: {', '.join(lost)}.")
    else:
        told.append("In this answer the chat text kept the spelling of every marker, yet as text and not as ids.")
    muddled = voices.chat_reasoning is None and last_position(voices.output_ids, tokenizer.markers.closer) >= 0
    if muddled and not voices.chat_problem:
        told.append("reasoning_content is null: thinking and answer stand in one text.")
    if voices.chat_prompt_tokens not in (None, len(voices.prompt_ids)):
        told.append(
            f"The chat endpoint even asked another question: it made {voices.chat_prompt_tokens} ids of the messages, "
            f"the model's own template makes {len(voices.prompt_ids)}."
        )
    return " ".join(told)


def _opener_told(voices: TwoVoices, tokenizer: Tokenizer) -> str:
    """Where the opener stands: in the prompt, in the output, or nowhere."""
    opener = tokenizer.markers.opener
    times = sum(tuple(voices.output_ids[i : i + len(opener)]) == opener for i in range(len(voices.output_ids)))
    last = _named(voices.prompt_ids[-1], tokenizer)
    if not opener:
        return f"The prompt's last id is {last}; this family has no opener."
    if last_position(voices.prompt_ids, opener) >= 0 and not times:
        return f"The prompt's last id is {last}: the template wrote it, and the output ids hold no opener."
    return f"The prompt's last id is {last}; the output ids hold the opener {times} times."


def parser_takeaway(plain: TwoVoices, parsed: TwoVoices) -> str:
    """Whether a second server, which has parsers, gave the same ids as the first."""
    if plain.ids_problem or parsed.ids_problem:
        return f"No ids to compare: {plain.ids_problem or parsed.ids_problem}."
    if plain.output_ids == parsed.output_ids:
        return f"Both servers gave the same {len(plain.output_ids)} ids: the parsers changed the chat text and no id."
    place = first_difference(plain.output_ids, parsed.output_ids)
    return f"The ids part at position {place}: greedy answers of two servers may, where the next ids are nearly tied."


def _named(item: int, tokenizer: Tokenizer) -> str:
    return f"{tokenizer.markers.names.get(item) or tokenizer.decode([item])} ({item})"
