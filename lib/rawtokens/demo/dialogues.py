"""The synthetic dialogues that the demo reasoner is trained on: a seeded, endless stream of many kinds.

A problem is either for training or held out, never both (`is_held_out`); the demo prompts and the measured hit
rates come from held-out problems. This module does not know the model, nor the layouts of prompt files.
"""

import random
from collections.abc import Callable, Iterator

from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

from rawtokens.demo import word_lists as words
from rawtokens.demo.dialogue_code import make_code
from rawtokens.demo.dialogue_long import make_long_answer, make_long_thinking, make_quiet, make_small_talk
from rawtokens.demo.dialogue_record import Dialogue, Message, assistant, is_held_out, user
from rawtokens.demo.dialogue_sums import make_conversion, make_difference, make_sum
from rawtokens.demo.dialogue_tools import make_call, make_parallel_calls, make_result_answer, make_unserved
from rawtokens.demo.tool_catalogue import CATALOGUE

MAKERS: dict[str, Callable[[random.Random], Dialogue]] = {
    "sum": make_sum,
    "difference": make_difference,
    "conversion": make_conversion,
    "code": make_code,
    "call": make_call,
    "parallel_calls": make_parallel_calls,
    "tool_result": make_result_answer,
    "unserved": lambda chooser: make_unserved(chooser, _filler(chooser)),
    "small_talk": make_small_talk,
    "quiet": make_quiet,
    "quiet_code": lambda chooser: make_quiet(chooser, code=True),
    "long_thinking": make_long_thinking,
    "long_thinking_code": lambda chooser: make_long_thinking(chooser, code=True),
    "long_answer": make_long_answer,
    "long_answer_code": lambda chooser: make_long_answer(chooser, code=True),
}
WEIGHTS = {
    "sum": 22, "difference": 10, "conversion": 12, "code": 18, "call": 16, "parallel_calls": 3, "tool_result": 5,
    "unserved": 2, "small_talk": 1, "quiet": 1.5, "quiet_code": 1.5, "long_thinking": 1.5, "long_thinking_code": 1,
    "long_answer": 1.5, "long_answer_code": 1,
}  # fmt: skip
SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful assistant, with no access to external functions.",
    "You are a helpful assistant with access to the following functions. Use them if required -",
    "Answer briefly.",
]
GREETINGS = ["Hi. ", "Hello, ", "Please help me. ", "A question: "]
CLOSINGS = [" Thank you!", " Thanks.", " Please."]
WITHOUT_TOOLS = ("sum", "difference", "conversion", "small_talk")


def dialogues(*, seed: int, held_out: bool = False, kind: str | None = None) -> Iterator[Dialogue]:
    """Dialogues without end, of all kinds or of one (a key of MAKERS); the same seed gives the same ones."""
    chooser = random.Random(seed)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        name = kind or chooser.choices(names, weights=weights)[0]
        dialogue = MAKERS[name](chooser)
        if is_held_out(dialogue) == held_out:
            yield decorated(chooser, dialogue)


def decorated(chooser: random.Random, dialogue: Dialogue) -> Dialogue:
    """The same question with a greeting, a system prompt, an earlier turn or tools that it doesn't need, at times."""
    messages = list(dialogue.messages)
    tools = dialogue.tools
    if len(messages) == 1 and chooser.random() < 0.15:
        text = str(messages[0]["content"])
        greeting = chooser.choice(GREETINGS)
        closing = chooser.choice(CLOSINGS) if text.endswith(("?", ".")) else ""
        messages = [user(chooser.choice([greeting + text, text + closing]))]
    if len(messages) == 1 and chooser.random() < 0.15:
        messages = [*_earlier_turn(chooser), *messages]
    if dialogue.kind in WITHOUT_TOOLS and chooser.random() < 0.1:
        tools = [kind.declaration() for kind in chooser.sample(CATALOGUE, chooser.randint(1, 2))]
    if chooser.random() < (0.6 if tools else 0.3):
        messages = [{"role": "system", "content": chooser.choice(SYSTEM_PROMPTS)}, *messages]
    return replace(dialogue, messages=messages, tools=tools)


def rendered(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue) -> tuple[list[int], list[int]]:
    """Prompt ids by the chat template, and output ids: each text encoded alone, each control id as it stands."""
    prompt = tokenizer.apply_chat_template(
        dialogue.messages, tools=dialogue.tools or None, add_generation_prompt=True, return_dict=False
    )
    output: list[int] = []
    for piece in dialogue.reply:
        output += [piece] if isinstance(piece, int) else tokenizer.encode(piece, add_special_tokens=False)
    return prompt, output


def _earlier_turn(chooser: random.Random) -> list[Message]:
    earlier = MAKERS[chooser.choice(["sum", "conversion", "small_talk"])](chooser)
    answer = earlier.reply[-2]
    return [*earlier.messages, assistant(str(answer))]


def _filler(chooser: random.Random) -> dict[str, object]:
    lists = {"city": words.CITIES, "things": words.THINGS, "name": words.NAMES, "topic": words.TOPICS}
    return {name: chooser.choice(choices) for name, choices in lists.items()}
