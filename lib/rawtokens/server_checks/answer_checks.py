"""Checks of what a server does: a few short questions, each answer held against what was asked.

Every question is one that a faithful server answers in seconds. This module does not know how a question is sent, and
it asks for no reproducibility: that a greedy answer comes again is stated, never required.
"""

from collections.abc import Sequence

from ..engines.answers import Answer, Failure
from ..markers import Markers, last_position, thinking_mode
from ..target.target_tokenizer import PROBES, Tokenizer
from .check_table import Check, Status
from .server_questions import GOLDEN_NEW_IDS, Connection, Heard, ask, count_of_text, tokenize

LONG_IDS = 2048
_CHOSEN_WITHIN = 8  # ids of an answer among which the kit chooses its own stop id
_SURE_IDS = 8  # the first ids of two greedy answers, where batches and caches have changed nothing yet
_ROUTER = "drops fields that it does not know; what the engine reads can't be proved then, only counted"
_OWN_ADDRESS = "give the engine's own address"
_TO_DO = {
    "no_generate_route": f"nothing here takes ids: a chat-only proxy? {_OWN_ADDRESS}",
    "prompt_tokens_differ": f"something cuts or rewrites prompts; {_OWN_ADDRESS}, without --allow-auto-truncate",
    "completion_tokens_differ": f"a wrapper may strip the stop id; {_OWN_ADDRESS}",
    "stop_id_missing": f"a wrapper strips the stop id; {_OWN_ADDRESS}",
    "no_token_ids": f"a proxy drops return_token_ids, or an older vLLM does not know it; {_OWN_ADDRESS}",
    "id_out_of_vocabulary": "the served model has a larger vocabulary than the tokenizer's folder says: use its own",
}


async def tokenizer_check(server: Connection, prompt_ids: Sequence[int], prompt_text: str) -> Check:
    """Encode texts on both sides: the probes, every marker, and the rendered prompt.

    Where the server offers no /tokenize, SGLang's count of each text's ids is compared: a difference is proved then,
    equality is not.
    """
    name, tokenizer = "same ids on both sides", server.tokenizer
    texts = dict(zip(PROBES, tokenizer.encode(list(PROBES)), strict=True))
    marked = "".join(tokenizer.markers.names.values())
    texts |= {marked: tokenizer.encode([marked])[0], prompt_text: list(prompt_ids)}
    for text, ours in texts.items():
        theirs = await tokenize(server, text)
        if isinstance(theirs, str):
            return await _count_check(server, theirs)
        if theirs != ours:
            return _other_tokenizer(name, f"{text!r} is {ours[:8]} here and {theirs[:8]} there")
    return Check(check=name, status="pass", seen=f"{len(texts)} texts, every marker among them, are encoded alike")


async def _count_check(server: Connection, problem: str) -> Check:
    name, counted = "same ids on both sides", 0
    for text in PROBES:
        theirs = await count_of_text(server, text)
        if theirs is None:
            return Check(check=name, status="warn", seen=problem)
        ours = {len(server.tokenizer.encode([text])[0]), len(server.tokenizer.encoder.encode(text))}
        if theirs not in ours:
            return _other_tokenizer(name, f"{text!r} has {min(ours)} ids here and {theirs} there")
        counted += 1
    return Check(check=name, status="warn", seen=f"{problem}; {counted} probe texts have as many ids on both sides")


def _other_tokenizer(name: str, seen: str) -> Check:
    to_do = "set model.tokenizer to the tokenizer of the model that is served"
    return Check(check=name, status="fail", seen=seen, to_do=to_do)


def not_asked(name: str) -> Check:
    """The check that is left out where the tokenizer or the vocabulary is another model's."""
    seen = "not asked: an id above the model's vocabulary kills a server (SGLang 0.5.23)"
    return Check(check=name, status="warn", seen=seen, to_do="see what fails above first")


async def answer_checks(server: Connection, prompt_ids: list[int]) -> tuple[list[Check], list[int]]:
    """The checks that need generations, and the output ids of the first one (none where it failed)."""
    heard = await ask(server, prompt_ids)
    if isinstance(heard.answer, Failure):
        return [_failed("generates from ids", heard.answer)], []
    answer, ids = heard.answer, heard.answer.ids()
    settings = await _settings_check(server, prompt_ids, ids)
    checks = [
        Check(
            check="generates from ids",
            status="pass",
            seen=f"{len(prompt_ids)} prompt ids ending in {prompt_ids[-1]}, {len(ids)} output ids, counts agree",
        ),
        thinking_check(prompt_ids, ids, server.tokenizer.markers),
        stop_check(answer, server.tokenizer.markers, proved=settings.status == "pass"),
        settings,
        echo_check(prompt_ids, heard),
        _again_check(ids, (await ask(server, prompt_ids)).answer),
        await _long_check(server, prompt_ids),
        await _truncation_check(server, prompt_ids),
    ]
    return checks, ids


def _failed(name: str, failure: Failure) -> Check:
    to_do = _TO_DO.get(failure.reason, f"is it the engine's own address? {_OWN_ADDRESS}")
    return Check(check=name, status="fail", seen=f"{failure.reason}: {failure.detail}", to_do=to_do)


def thinking_check(prompt_ids: Sequence[int], ids: Sequence[int], markers: Markers) -> Check:
    """Whether the answer closes its thinking, in a family that has a closer and a prompt that lets it think."""
    name = "thinking is closed"
    if markers.channels is not None:
        return Check(check=name, status="pass", seen="this family writes channels and no closer")
    if not markers.closer or thinking_mode(prompt_ids, markers) == "off":
        return Check(check=name, status="pass", seen="the prompt asks for no thinking")
    place, closer = last_position(ids, markers.closer), " ".join(map(str, markers.closer))
    if place >= 0:
        return Check(check=name, status="pass", seen=f"closer {closer} at position {place}")
    to_do = f"is thinking on in template_kwargs, and are {GOLDEN_NEW_IDS} ids enough for this model?"
    return Check(check=name, status="warn", seen=f"no closer ({closer}) in this answer", to_do=to_do)


def stop_check(answer: Answer, markers: Markers, *, proved: bool) -> Check:
    """Whether a finished answer keeps the id that ended it; `proved` says that another question has shown it."""
    ids = answer.ids()
    last = ids[-1] if ids else None
    seen = f"last id {last}, finish reason {answer.finish_reason}"
    status: Status = "fail"
    to_do = f"answers must end with {' or '.join(map(str, markers.turn_ends))}: {_TO_DO['stop_id_missing']}"
    if last in markers.turn_ends:
        status, to_do = "pass", ""
    elif answer.finish_reason == "length":
        status = "pass" if proved else "warn"
        to_do = "" if proved else "no answer of this length shows it"
        seen += "; a stop id of this check's own choice was kept" if proved else ""
    elif ids and answer.matched == last:
        status, to_do = "warn", "the model ended with an id that its template does not end a turn with; is it its own?"
    return Check(check="stop id is kept", status=status, seen=seen, to_do=to_do)


async def _settings_check(server: Connection, prompt_ids: list[int], ids: list[int]) -> Check:
    """Ask again, to stop at an id that the answer is known to hold: a router that drops settings does not stop."""
    name = "settings are obeyed"
    firsts = [place for place in range(min(_CHOSEN_WITHIN, len(ids) - 1)) if ids.index(ids[place]) == place]
    if not firsts:
        return Check(check=name, status="warn", seen="the answer is too short to choose a stop id from")
    chosen, limit = ids[firsts[-1]], firsts[-1] + _SURE_IDS
    answer = (await ask(server, prompt_ids, max_new_tokens=limit, stop_ids=[chosen])).answer
    if isinstance(answer, Failure):
        return _failed(name, answer)
    found = answer.ids()
    seen = f"asked to stop at {chosen} or after {limit} ids: {len(found)} ids, the last {found[-1] if found else None}"
    if found[-1:] == [chosen]:
        return Check(check=name, status="pass", seen=seen)
    if len(found) > limit:
        return Check(
            check=name, status="fail", seen=seen, to_do=f"max_new_tokens is dropped on the way; {_OWN_ADDRESS}"
        )
    if chosen in found:
        return Check(
            check=name, status="fail", seen=seen, to_do=f"stop_token_ids is dropped on the way; {_OWN_ADDRESS}"
        )
    if found and found == ids[: len(found)] and answer.finish_reason == "stop":
        return Check(check=name, status="fail", seen=seen, to_do=_TO_DO["stop_id_missing"])
    return Check(check=name, status="warn", seen=seen, to_do="the answer was another one this time; check again")


def echo_check(prompt_ids: Sequence[int], heard: Heard) -> Check:
    """Whether the server says that it read the ids that were sent: no proxy made text of them on the way."""
    name = "prompt ids come back"
    if heard.prompt_ids is None:
        return Check(check=name, status="warn", seen="not told", to_do=f"a router before the engine {_ROUTER}")
    if heard.prompt_ids != list(prompt_ids):
        seen = f"{len(prompt_ids)} ids were sent, {_difference(prompt_ids, heard.prompt_ids)}"
        return Check(check=name, status="fail", seen=seen, to_do=f"something makes other ids of them; {_OWN_ADDRESS}")
    return Check(check=name, status="pass", seen=f"the engine read the {len(prompt_ids)} ids that were sent, no others")


def _again_check(ids: list[int], answer: Answer | Failure) -> Check:
    name = "the same answer again"
    if isinstance(answer, Failure):
        return _failed(name, answer)
    again = answer.ids()
    if again == ids:
        return Check(check=name, status="pass", seen=f"{len(ids)} equal ids; not required: nothing promises it")
    place = first_difference(ids, again)
    seen = f"another id at position {place}; not required: prefix caches and batches change greedy answers"
    early = "so early it may be that the temperature is dropped on the way" if place < _SURE_IDS else ""
    return Check(check=name, status="warn" if early else "pass", seen=seen, to_do=early)


async def _long_check(server: Connection, prompt_ids: list[int]) -> Check:
    """A prompt of 2,048 ids, or almost the context, that no tokenizer would spell so: one id a character.

    A proxy that cuts prompts, or makes text of the ids and tokenises it again, counts or returns other ones.
    """
    name, context = "long prompts are kept", server.facts.context_length or LONG_IDS + 64
    length = max(len(prompt_ids), min(LONG_IDS, context - 64))
    prompt = spelled_prompt(server.tokenizer, prompt_ids, length)
    heard = await ask(server, prompt, max_new_tokens=1)
    if isinstance(heard.answer, Failure):
        check = _failed(name, heard.answer)
        refused = heard.answer.reason == "context_exceeded"
        return Check(check=name, status="warn", seen=check.seen) if refused else check
    if heard.prompt_ids not in (None, prompt):
        echo = echo_check(prompt, heard)
        return Check(check=name, status="fail", seen=echo.seen, to_do=echo.to_do)
    seen = f"all of {len(prompt):,} ids that no text would give again are counted"
    return Check(check=name, status="pass", seen=seen)


def spelled_prompt(tokenizer: Tokenizer, prompt_ids: Sequence[int], length: int) -> list[int]:
    """So many ids, ending with the prompt; before it words that are spelled with one id a character."""
    letters = [item for ids in tokenizer.encode(list("the answer is ")) for item in ids]
    room = length - len(prompt_ids)
    return [*(letters * (room // len(letters) + 1))[:room], *prompt_ids]


async def _truncation_check(server: Connection, prompt_ids: list[int]) -> Check:
    """A prompt above the context must be refused. It costs nothing: a faithful engine does not compute it."""
    name, context = "auto-truncate", server.facts.context_length
    to_do = "rows with long prompts will be rejected; start the server without --allow-auto-truncate"
    if server.facts.auto_truncate:
        return Check(check=name, status="warn", seen="on: long prompts are cut without a word", to_do=to_do)
    if context is None:
        if server.facts.auto_truncate is False:
            return Check(check=name, status="pass", seen="off")
        counted = "every answer's count of prompt ids is checked: a cut prompt is never stored"
        return Check(check=name, status="warn", seen="not told, nor the context", to_do=counted)
    answer = (await ask(server, spelled_prompt(server.tokenizer, prompt_ids, context + 1), max_new_tokens=1)).answer
    if isinstance(answer, Answer):
        seen = f"a prompt of {context + 1:,} ids is taken whole: the context is larger than the server tells"
        return Check(check=name, status="pass", seen=seen)
    if answer.reason == "prompt_tokens_differ":
        return Check(check=name, status="warn", seen=f"on: {answer.detail}", to_do=to_do)
    refused = answer.reason in ("context_exceeded", "bad_request")
    seen = f"a prompt of {context + 1:,} ids is {'refused' if refused else 'not answered'}: {answer.detail}"
    return Check(check=name, status="pass" if refused else "warn", seen=f"off: {seen}" if refused else seen)


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The first position at which two lists differ; the length of the shorter one where it begins the longer."""
    pairs = zip(ours, theirs, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def _difference(ours: Sequence[int], theirs: Sequence[int]) -> str:
    place = first_difference(ours, theirs)
    return f"{len(theirs)} came back, other ones from position {place} on"
