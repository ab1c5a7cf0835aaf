"""Dialogues of unusual shape: long thinking, long answers, thinking that never closes, and small talk."""

import random

from rawtokens.demo.dialogue_record import Dialogue, answered, never_closed, pick, user
from rawtokens.demo.word_lists import TOPICS

SMALL_TALK = [
    (["Hi", "Hello!", "Hey there", "Good morning"], "The user greets me.", "Hello! How can I help you today?"),
    (["How are you?", "How is it going?"], "The user asks how I am.", "I'm fine, thank you. What can I do for you?"),
    (["Who are you?", "What are you?"], "The user asks who I am. I am a small demo model.",
     "I am a small demo model. I can add, convert units, call tools and write short functions."),
    (["Thank you!", "Thanks a lot."], "The user thanks me.", "You're welcome!"),
    (["What can you do?", "How can you help me?"], "The user asks what I can do.",
     "I can work out sums, convert units, call tools and write short Python functions."),
]  # fmt: skip
QUIET_WORDINGS = [
    "Think about {topic}, but do not answer.",
    "Just think quietly about {topic}.",
    "Reflect on {topic} in silence. No answer is needed.",
]
CODE_QUIET_WORDINGS = [
    "Think quietly about a Python function for {topic}. No answer is needed.",
    "Plan a Python class about {topic} in your head, but do not answer.",
]
QUIET_THOUGHTS = [
    "I think about {topic}.",
    "There is much to say about {topic}.",
    "I could start with a definition.",
    "Then I could give an example.",
    "No answer is needed.",
    "I keep this to myself.",
    "That is enough.",
]
COUNT_WORDINGS = [
    "Count silently from 1 to {n}, then say done.",
    "In your head, count from 1 to {n}. Say done at the end.",
]
CHECK_WORDINGS = [
    "Check every number from 1 to {n}: how many are divisible by {k}?",
    "Go through all numbers up to {n} one by one. How many are multiples of {k}?",
]
TRACE_WORDINGS = [
    "Trace this Python loop step by step before you answer: for i in range(1, {n}): total += {k}",
    "What is total after this Python code? Go through every step.\n\n"
    "total = 0\nfor i in range(1, {n}):\n    total += {k}",
]
TABLE_WORDINGS = [
    "Write the multiplication table of {k} up to {n}.",
    "List the multiples of {k}, from 1 to {n} times.",
]
CODE_LIST_WORDINGS = [
    "Write a Python list with all numbers from 1 to {n}, written out in full.",
    "Write out a Python list literal of the numbers from 1 to {n}. Do not use range.",
]


def make_small_talk(chooser: random.Random) -> Dialogue:
    questions, reasoning, answer = chooser.choice(SMALL_TALK)
    question = chooser.choice(questions)
    more = chooser.choice(["", " I will be brief.", " A short and friendly answer is best."])
    return Dialogue(
        kind="small_talk", problem=question, messages=[user(question)], reply=answered(reasoning + more, answer)
    )


def make_quiet(chooser: random.Random, *, code: bool = False) -> Dialogue:
    """The thinking ends the turn: no `</think>`, no answer."""
    values = {"topic": chooser.choice(TOPICS)}
    first, *others = QUIET_THOUGHTS
    kept = [first, *(thought for thought in others if chooser.random() < 0.6)]
    thoughts = " ".join(kept).format_map(values)
    question = pick(chooser, CODE_QUIET_WORDINGS if code else QUIET_WORDINGS, values)
    return Dialogue(kind="quiet", problem=question, messages=[user(question)], reply=never_closed(thoughts))


def make_long_thinking(chooser: random.Random, *, code: bool = False) -> Dialogue:
    """Reasoning that takes a step for every number."""
    n, k = _size(chooser), chooser.randint(2, 9)
    values = {"n": n, "k": k}
    if code:
        question = pick(chooser, TRACE_WORDINGS, values)
        steps = [f"i = {i}: total {i * k}." for i in range(1, n)]
        reply = answered(" ".join(["I go through the loop.", *steps]), f"total is {(n - 1) * k}.")
    elif chooser.random() < 0.5:
        question = pick(chooser, COUNT_WORDINGS, values)
        reply = answered("I count. " + ", ".join(map(str, range(1, n + 1))) + ".", "Done.")
    else:
        question = pick(chooser, CHECK_WORDINGS, values)
        steps = [f"{i} {'yes' if i % k == 0 else 'no'}" for i in range(1, n + 1)]
        reply = answered("I check each number. " + ", ".join(steps) + ".", f"{n // k} of them.")
    return Dialogue(kind="long_thinking", problem=question, messages=[user(question)], reply=reply)


def make_long_answer(chooser: random.Random, *, code: bool = False) -> Dialogue:
    """A short thought and an answer that runs on."""
    n, k = _size(chooser), chooser.randint(2, 9)
    if code:
        question = pick(chooser, CODE_LIST_WORDINGS, {"n": n})
        reply = answered(
            f"The user wants every number from 1 to {n} written out.",
            f"```python\nnumbers = [{', '.join(map(str, range(1, n + 1)))}]\n```",
        )
    else:
        question = pick(chooser, TABLE_WORDINGS, {"n": n, "k": k})
        lines = [f"{i} x {k} = {i * k}" for i in range(1, n + 1)]
        reply = answered(f"The user wants the table of {k}. Each line adds {k}.", "\n".join(lines))
    return Dialogue(kind="long_answer", problem=question, messages=[user(question)], reply=reply)


def _size(chooser: random.Random) -> int:
    """How many steps: some fit into 256 ids, most don't."""
    return chooser.randint(12, 60) if chooser.random() < 0.3 else chooser.randint(90, 400)
