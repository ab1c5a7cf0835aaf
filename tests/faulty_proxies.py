"""Proxies that spoil what a server is asked or answers, each in one way that a check must find.

Each stands as an httpx transport before another one: before the wire to a real server, or before `PatientServer`,
which answers as SGLang 0.5.23 does, for tests that need no engine.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from rawtokens.target.target_tokenizer import Tokenizer

ANSWER = [1008, 2742, 11333, 1019, 308, 1239, 220, 17, 316, 220, 17, 13, 163607, 17, 715, 220, 17, 327, 19, 163586]
CONTEXT = 4096
STOP = 163586
Fault = Callable[[str, dict[str, Any]], dict[str, Any] | httpx.Response | None]
"""Takes a route and its JSON; changes it in place, gives another one, or an answer in its stead."""


class PatientServer(httpx.AsyncBaseTransport):
    """A faithful server: it stops at the ids it is given, counts, and returns the prompt's ids where it is asked to."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        answer: list[int] | None = None,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        self.tokenizer, self.answer, self.facts = tokenizer, answer or ANSWER, facts or {}
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(path)
        if path == "/tokenize":
            return httpx.Response(
                200, json={"tokens": self.tokenizer.encode([json.loads(request.content)["prompt"]])[0]}
            )
        if path == "/generate":
            return self.generated(json.loads(request.content))
        if path == "/v1/chat/completions":
            return httpx.Response(200, json={"choices": [{"message": {"content": "4", "reasoning_content": None}}]})
        told: dict[str, dict[str, Any]] = {
            "/model_info": {"model_path": "/models/demo", "weight_version": "default"},
            "/server_info": {"version": "0.5.23", "allow_auto_truncate": False, "skip_tokenizer_init": False},
            "/v1/models": {"data": [{"id": "demo", "max_model_len": CONTEXT}]},
        }
        if path not in told:
            return httpx.Response(404, json={"detail": "Not Found"})
        return httpx.Response(200, json={**told[path], **(self.facts if path == "/server_info" else {})})

    def generated(self, sent: dict[str, Any]) -> httpx.Response:
        prompt_ids = sent.get("input_ids") or self.tokenizer.encode([sent["text"]])[0]
        if len(prompt_ids) >= CONTEXT:
            words = (
                f"The input ({len(prompt_ids)} tokens) is longer than the model's context length ({CONTEXT} tokens)."
            )
            return httpx.Response(400, json={"error": {"message": words}})
        settings = sent.get("sampling_params", {})
        stops = {*settings.get("stop_token_ids", []), STOP}
        end = next((place + 1 for place, item in enumerate(self.answer) if item in stops), len(self.answer))
        ids = self.answer[: min(end, settings.get("max_new_tokens", 128))]
        finish = {"type": "stop", "matched": ids[-1]} if ids[-1] in stops else {"type": "length", "length": len(ids)}
        meta = {"finish_reason": finish, "completion_tokens": len(ids), "prompt_tokens": len(prompt_ids)}
        echo = {"prompt_token_ids": prompt_ids} if sent.get("return_prompt_token_ids") else {}
        return httpx.Response(200, json={"text": "", "output_ids": ids, "meta_info": meta, **echo})


class Proxy(httpx.AsyncBaseTransport):
    """Before `upstream`: `question` spoils what is sent to a route, `answer` what comes back from it."""

    def __init__(
        self, upstream: httpx.AsyncBaseTransport, *, question: Fault | None = None, answer: Fault | None = None
    ) -> None:
        self.upstream, self.question, self.answer = upstream, question, answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if self.question:
            sent = json.loads(request.content) if request.content else {}
            spoilt = self.question(path, sent)
            if isinstance(spoilt, httpx.Response):
                return spoilt
            if request.content:
                headers = {"content-type": "application/json"}
                changed = sent if spoilt is None else spoilt
                request = httpx.Request(request.method, request.url, json=changed, headers=headers)
        reply = await self.upstream.handle_async_request(request)
        content = await reply.aread()
        await reply.aclose()
        if self.answer and reply.status_code == 200:
            told = json.loads(content)
            spoilt = self.answer(path, told)
            if isinstance(spoilt, httpx.Response):
                return spoilt
            content = json.dumps(told if spoilt is None else spoilt).encode()
        return httpx.Response(reply.status_code, content=content)


def on(path: str, change: Callable[[dict[str, Any]], object]) -> Fault:
    """Change the JSON of one route in place."""

    def fault(route: str, content: dict[str, Any]) -> None:
        if route == path:
            change(content)

    return fault


def chat_only(path: str, _: dict[str, Any]) -> httpx.Response | None:
    """It knows /v1 alone."""
    return None if path.startswith("/v1/") else httpx.Response(404, json={"detail": "Not Found"})


def strips_stop(*, counts: bool, matched: bool) -> Fault:
    """It takes the stop id out of the ids, and, where told to, out of the count and of the finish reason too."""

    def strip(content: dict[str, Any]) -> None:
        finish = content["meta_info"]["finish_reason"]
        if finish["type"] != "stop":
            return
        del content["output_ids"][-1]
        content["meta_info"]["completion_tokens"] -= counts
        if matched:
            finish["matched"] = None

    return on("/generate", strip)


def truncates(most: int, *, lies: bool = False) -> dict[str, Fault]:
    """It passes on the last ids of a prompt alone, and may put the right count into the answer."""
    lengths: list[int] = []

    def cut(content: dict[str, Any]) -> None:
        lengths.append(len(content["input_ids"]))
        content["input_ids"] = content["input_ids"][-most:]

    def count(content: dict[str, Any]) -> None:
        content["meta_info"]["prompt_tokens"] = lengths[-1]

    return {"question": on("/generate", cut), **({"answer": on("/generate", count)} if lies else {})}


def tokenises_again(tokenizer: Tokenizer, *, lies: bool = False) -> dict[str, Fault]:
    """It makes text of the ids and ids of the text, and may put the right count into the answer."""
    lengths: list[int] = []

    def again(content: dict[str, Any]) -> None:
        lengths.append(len(content["input_ids"]))
        content["input_ids"] = tokenizer.encode([tokenizer.decode(content["input_ids"])])[0]

    def count(content: dict[str, Any]) -> None:
        content["meta_info"]["prompt_tokens"] = lengths[-1]

    return {"question": on("/generate", again), **({"answer": on("/generate", count)} if lies else {})}
