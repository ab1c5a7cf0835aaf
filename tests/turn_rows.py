"""Made-up conversations for tests of turns: a tokenizer with the answers that a model could have given."""

from collections.abc import Sequence
from functools import cached_property

from rawtokens.markers import thinking_mode
from rawtokens.records import Conversation, Json, Response
from rawtokens.target.id_bytes import IdBytes
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.turns.history import Ended
from rawtokens.turns.reading import Call
from rawtokens.turns.talk import NextTurn, Reader, Talk, next_turn

WEATHER: dict[str, Json] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def user(text: str) -> dict[str, Json]:
    return {"role": "user", "content": text}


def called(*calls: tuple[str, str], first: int = 0) -> list[dict[str, Json]]:
    """A recorded assistant's turn that calls get_weather with (arguments, result), and the results behind it."""
    ids = [f"functions.get_weather:{first + place}" for place in range(len(calls))]
    made: list[Json] = [
        {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        for call_id, (arguments, _) in zip(ids, calls, strict=True)
    ]
    results: list[dict[str, Json]] = [
        {"role": "tool", "content": result, "tool_call_id": call_id}
        for call_id, (_, result) in zip(ids, calls, strict=True)
    ]
    return [{"role": "assistant", "tool_calls": made}, *results]


def no_hook(key: str, place: int, call: Call, messages: Sequence[object]) -> str | Ended | None:
    """Leave every call to the file."""
    return None


class Chat:
    """One tokenizer; answers are given as text and become the ids that their text encodes to."""

    def __init__(self, tokenizer: Tokenizer, **template_kwargs: Json) -> None:
        self.tokenizer, self.template_kwargs = tokenizer, template_kwargs

    @cached_property
    def reader(self) -> Reader:
        return Reader.of(IdBytes.of(self.tokenizer), PromptOptions())

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode([text])[0]

    def prompt(self, *messages: dict[str, Json]) -> list[int]:
        """What apply_chat_template gives."""
        return self.tokenizer.prompt_ids(messages, tools=[WEATHER], template_kwargs=self.template_kwargs)

    def talk(self, question: str, *later: dict[str, Json]) -> Talk:
        return Talk.begin(
            Conversation(
                source_id="a",
                line=1,
                messages=(user(question),),
                tools=(WEATHER,),
                template_kwargs=self.template_kwargs,
                later=later,
            )
        )

    def answer(self, prompt_ids: Sequence[int], text: str, *, turn: int = 0, finish_reason: str = "stop") -> Response:
        output = self.ids(text)
        return Response(
            key=f"a#{turn}/0",
            prompt_ids=list(prompt_ids),
            output_ids=output,
            finish_reason=finish_reason,  # type: ignore[arg-type]
            matched=output[-1] if finish_reason == "stop" else None,
            prompt_tokens=len(prompt_ids),
            completion_tokens=len(output),
            cached_tokens=0,
            weight_version="",
            fingerprint="f",
            server="http://one",
            rid="r",
            attempt=1,
            started_at="2026-11-30T00:00:00+00:00",
            latency_s=1.0,
        )

    def thinking(self, prompt_ids: Sequence[int]) -> str:
        return thinking_mode(prompt_ids, self.tokenizer.markers)

    def next(self, talk: Talk, response: Response) -> NextTurn | Ended:
        return next_turn(talk, response, self.reader, no_hook)

    def follow(self, talk: Talk, prompt_ids: Sequence[int], text: str) -> NextTurn:
        """The next turn, which must be one."""
        found = self.next(talk, self.answer(prompt_ids, text))
        assert isinstance(found, NextTurn), found
        return found
