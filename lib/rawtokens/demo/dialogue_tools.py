"""Dialogues with declared tools: calls, results, and questions that no tool serves.

The arguments are copied from the user's words. A call sometimes comes straight out of the thinking, with no
`</think>`, as Kimi does.
"""

import json
import random
from collections.abc import Sequence

from msgspec.structs import replace

from rawtokens.demo.dialogue_record import (
    ARGUMENT_BEGIN,
    CALL_BEGIN,
    CALL_END,
    CALLS_BEGIN,
    CALLS_END,
    IM_END,
    THINK_END,
    Call,
    Dialogue,
    Message,
    Piece,
    Tool,
    answered,
    assistant,
    pick,
    user,
)
from rawtokens.demo.tool_catalogue import CATALOGUE, ToolKind

STRAIGHT_OUT_OF_THINKING = 0.4
EARLIER_ROUND = 0.15
"""Share of questions that follow a whole round of call, result and answer."""
UNSERVED = [
    ("book a flight to {city}", "book flights"),
    ("order a pizza", "order food"),
    ("draw a picture of {things}", "draw pictures"),
    ("call {name} on the phone", "make phone calls"),
    ("reserve a hotel room in {city}", "reserve hotel rooms"),
    ("pay my electricity bill", "pay bills"),
    ("write a song about {topic}", "write songs"),
    ("buy two tickets for the concert", "buy tickets"),
]
UNSERVED_WORDINGS = ["Can you {wish}?", "Please {wish}.", "I want you to {wish}.", "Could you {wish} for me?"]
CALL_OPENINGS = ["The user wants {goal}. ", "The question is about {goal}. ", "The task: {goal}. "]
CALL_REASONS = [
    "I can use {tool} for this.",
    "The {tool} function fits. The arguments are {arguments}.",
    "I will call {tool} with {arguments}.",
    "I have {count} to choose from, and {tool} is the right one. I need {arguments}. The user gave everything.",
]
TOO = ["", "", "Sure. ", "Let me look. "]


def make_call(chooser: random.Random) -> Dialogue:
    """A question that one call answers."""
    kind = chooser.choice(CATALOGUE)
    if not kind.answers or chooser.random() > EARLIER_ROUND:
        return _calling(chooser, kind, [kind.arguments(chooser)], first_index=0)
    earlier = _round(chooser, kind)
    later = _calling(chooser, kind, [kind.arguments(chooser)], first_index=1)
    return replace(later, messages=[*earlier.messages, assistant(str(earlier.reply[-2])), *later.messages])


def make_parallel_calls(chooser: random.Random) -> Dialogue:
    """A question that needs the same tool twice."""
    kind = chooser.choice([kind for kind in CATALOGUE if kind.pair_wordings])
    first, second = kind.arguments(chooser), kind.arguments(chooser)
    while second == first:
        second = kind.arguments(chooser)
    return _calling(chooser, kind, [first, second], first_index=0)


def make_result_answer(chooser: random.Random) -> Dialogue:
    """The call and its result are in the history; the reply says what came out."""
    return _round(chooser, chooser.choice([kind for kind in CATALOGUE if kind.answers]))


def _round(chooser: random.Random, kind: ToolKind) -> Dialogue:
    arguments = kind.arguments(chooser)
    result = kind.result(chooser, arguments)
    values = {**arguments, **result}
    facts = arguments.values() if result == {"status": "ok"} else result.values()
    call = {"type": "function", "function": {"name": kind.name, "arguments": dict(arguments)}}
    history: list[Message] = [
        user(pick(chooser, kind.wordings, arguments)),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": json.dumps(result)},
    ]
    answer = pick(chooser, kind.answers, values)
    found = ", ".join(f"{name} {value}" for name, value in result.items())
    reasoning = chooser.choice([
        f"The function returned {found}. I can tell the user.",
        f"The result says {found}. The user asked for {kind.goal(arguments)}. So I can answer now.",
        f"The result is here: {found}.",
    ])  # fmt: skip
    return Dialogue(
        kind="tool_result",
        problem=f"{kind.name} {json.dumps(values)}",
        messages=history,
        tools=_declared(chooser, kind),
        reply=answered(reasoning, answer),
        contains=[str(value) for value in facts if str(value) in answer],
    )


def make_unserved(chooser: random.Random, filler: dict[str, object]) -> Dialogue:
    """A wish that no declared tool serves."""
    wish, verb = chooser.choice(UNSERVED)
    wish = wish.format_map(filler)
    kinds = chooser.sample(CATALOGUE, chooser.randint(1, 3))
    names = " and ".join(kind.name for kind in kinds)
    reasoning = chooser.choice([
        f"The user wants me to {wish}. I only have {names}. None of them can {verb}.",
        f"To {wish} I would need another function. I have {names}, so I can't do it.",
    ])  # fmt: skip
    answer = chooser.choice([f"I'm sorry, but I can't {verb}. ", f"Sorry, I have no tool to {verb}. "])
    answer += chooser.choice(["Is there anything else I can do?", f"I can help you with {kinds[0].helps_with}."])
    return Dialogue(
        kind="unserved",
        problem=f"{wish} {names}",
        messages=[user(pick(chooser, UNSERVED_WORDINGS, {"wish": wish}))],
        tools=[kind.declaration() for kind in kinds],
        reply=answered(reasoning, answer),
    )


def call_pieces(calls: Sequence[Call], *, first_index: int) -> list[Piece]:
    """The tool section of a reply in Kimi's format."""
    pieces: list[Piece] = [CALLS_BEGIN]
    for index, call in enumerate(calls, first_index):
        pieces += [CALL_BEGIN, f"functions.{call.name}:{index}", ARGUMENT_BEGIN, json.dumps(call.arguments), CALL_END]
    return [*pieces, CALLS_END]


def _calling(
    chooser: random.Random, kind: ToolKind, wanted: list[dict[str, str | int]], *, first_index: int
) -> Dialogue:
    tools = _declared(chooser, kind)
    calls = [Call(name=kind.name, arguments=arguments) for arguments in wanted]
    if len(wanted) == 2:
        second = {f"{name}2": value for name, value in wanted[1].items()}
        question = pick(chooser, kind.pair_wordings, {**wanted[0], **second})
    else:
        question = pick(chooser, kind.wordings, wanted[0])
    goal = " and ".join(kind.goal(arguments) for arguments in wanted)
    arguments = " and ".join(", ".join(f"{n} {v}" for n, v in each.items()) for each in wanted)
    count = "one function" if len(tools) == 1 else f"{len(tools)} functions"
    values = {"goal": goal, "tool": kind.name, "arguments": arguments, "count": count}
    reasoning = pick(chooser, CALL_OPENINGS, values) + pick(chooser, CALL_REASONS, values)
    section = call_pieces(calls, first_index=first_index)
    if chooser.random() < STRAIGHT_OUT_OF_THINKING:
        reply: list[Piece] = [reasoning, *section, IM_END]
    else:
        before = chooser.choice(TOO)
        reply = [reasoning, THINK_END, *([before] if before else []), *section, IM_END]
    return Dialogue(
        kind="call" if len(wanted) == 1 else "parallel_calls",
        problem=f"{kind.name} {json.dumps(wanted)}",
        messages=[user(question)],
        tools=tools,
        reply=reply,
        calls=calls,
    )


def _declared(chooser: random.Random, kind: ToolKind) -> list[Tool]:
    """The tool among up to two others, in any order."""
    others = chooser.sample([other for other in CATALOGUE if other != kind], chooser.choice([0, 0, 1, 1, 2]))
    kinds = [kind, *others]
    chooser.shuffle(kinds)
    return [kind.declaration() for kind in kinds]
