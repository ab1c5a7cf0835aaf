"""Code prompts in the manner of OpenCodeInstruct: one small Python function each, checked by running it."""

import json
import random
from collections.abc import Callable

import msgspec

from rawtokens.demo.dialogue_record import Dialogue, answered, pick, user
from rawtokens.demo.word_lists import NOUNS, VERBS

NUMBER_CASES: list[object] = [0, 1, 5, 12, 40]
LIST_CASES: list[object] = [[], [1, 2, 3], [4, 30, 8, 30], [12, 7, 50]]
TEXT_CASES: list[object] = ["", "banana", "Hello there", "abc"]
WORDS_CASES: list[object] = [[], ["one"], ["red", "green", "blue"]]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A function's argument, what it does in words, its body, and inputs to try it on.

    `{k}` in words and body is a small number, `{c}` a letter; `{x}` is the argument's name.
    """

    arguments: list[str]
    does: str
    body: str
    cases: list[object]


NUMBER = ["number", "value", "n", "x"]
LIST = ["numbers", "items", "values", "data"]
TEXT = ["text", "word", "line"]
WORDS = ["words", "lines", "names"]
TASKS = [
    Task(arguments=NUMBER, does="returns {x} plus {k}", body="return {x} + {k}", cases=NUMBER_CASES),
    Task(arguments=NUMBER, does="returns {x} minus {k}", body="return {x} - {k}", cases=NUMBER_CASES),
    Task(arguments=NUMBER, does="returns {x} times {k}", body="return {x} * {k}", cases=NUMBER_CASES),
    Task(arguments=NUMBER, does="checks if {x} is divisible by {k}", body="return {x} % {k} == 0", cases=NUMBER_CASES),
    Task(arguments=NUMBER, does="checks if {x} is greater than {k}", body="return {x} > {k}", cases=NUMBER_CASES),
    Task(arguments=NUMBER, does="returns the larger of {x} and {k}", body="return max({x}, {k})", cases=NUMBER_CASES),
    Task(arguments=NUMBER, does="returns the smaller of {x} and {k}", body="return min({x}, {k})", cases=NUMBER_CASES),
    Task(
        arguments=NUMBER,
        does='returns "yes" if {x} is greater than {k} and "no" otherwise',
        body='if {x} > {k}:\n        return "yes"\n    return "no"',
        cases=NUMBER_CASES,
    ),
    Task(
        arguments=LIST,
        does="returns the sum of {x} plus {k}",
        body="total = {k}\n    for item in {x}:\n        total += item\n    return total",
        cases=LIST_CASES,
    ),
    Task(
        arguments=LIST,
        does="counts how many of {x} are greater than {k}",
        body="count = 0\n    for item in {x}:\n        if item > {k}:\n            count += 1\n    return count",
        cases=LIST_CASES,
    ),
    Task(
        arguments=LIST,
        does="returns all of {x} that are greater than {k}",
        body="return [item for item in {x} if item > {k}]",
        cases=LIST_CASES,
    ),
    Task(
        arguments=LIST,
        does="returns a list with each of {x} multiplied by {k}",
        body="return [item * {k} for item in {x}]",
        cases=LIST_CASES,
    ),
    Task(arguments=LIST, does="returns the first {k} of {x}", body="return {x}[:{k}]", cases=LIST_CASES),
    Task(arguments=LIST, does="returns {x} in sorted order", body="return sorted({x})", cases=LIST_CASES),
    Task(arguments=LIST, does="returns {x} in reverse order", body="return {x}[::-1]", cases=LIST_CASES),
    Task(arguments=TEXT, does="repeats {x} {k} times", body="return {x} * {k}", cases=TEXT_CASES),
    Task(arguments=TEXT, does="returns the first {k} characters of {x}", body="return {x}[:{k}]", cases=TEXT_CASES),
    Task(arguments=TEXT, does="converts {x} to upper case", body="return {x}.upper()", cases=TEXT_CASES),
    Task(arguments=TEXT, does="converts {x} to lower case", body="return {x}.lower()", cases=TEXT_CASES),
    Task(arguments=TEXT, does='counts the letter "{c}" in {x}', body='return {x}.count("{c}")', cases=TEXT_CASES),
    Task(arguments=TEXT, does="reverses {x}", body="return {x}[::-1]", cases=TEXT_CASES),
    Task(arguments=WORDS, does="joins {x} with a comma", body='return ",".join({x})', cases=WORDS_CASES),
    Task(
        arguments=WORDS,
        does="returns the length of each of {x}",
        body="return [len(item) for item in {x}]",
        cases=WORDS_CASES,
    ),
]
WORDINGS = [
    "Write a Python function `{name}({x})` that {does}.",
    "Write a Python function named {name} that takes {x} and {does}.",
    "Implement a function called `{name}` in Python. It takes one argument, {x}, and {does}.",
    "Create a Python function {name}({x}) which {does}. Keep it short.",
    "Write a function in Python.\n\n**Name:** {name}\n**Input:** {x}\n**Task:** The function {does}.\n",
    "You are given {x}. Write a Python function `{name}` that {does}. Return the result, do not print it.",
]
REASONS = [
    "I need a function {name} that {does}.",
    "The user wants a Python function {name}. It takes {x} and {does}.",
    "The function is called {name} and takes {x}. It {does}. {plan}",
    "The user wants {name}. It {does}. {try} {plan}",
    "Let me think about {name}. The input is {x}. The function {does}. {try} {plan} I return the result and do not "
    "print it. That is all I need, so I can write the code.",
    "First, what is asked: a function {name} that {does}. Second, the input: {x}. Third, the code: {body} "
    "Let me try it. {try} {plan} I think this is right.",
]
PLANS = {"return": "One line is enough.", "if": "I need a condition.", "total": "I need a loop with a total.",
         "count": "I need a loop with a counter."}  # fmt: skip
ANSWERS = ["{code}", "Here is the function:\n\n{code}", "{code}\n\nThe function {name} {does}."]


def make_code(chooser: random.Random) -> Dialogue:
    """A prompt for one small function, and the function."""
    task = chooser.choice(TASKS)
    values: dict[str, object] = {
        "x": chooser.choice(task.arguments),
        "k": chooser.randint(2, 50) if task.cases in (NUMBER_CASES, LIST_CASES) else chooser.randint(2, 9),
        "c": chooser.choice("abcehlno"),
        "name": f"{chooser.choice(VERBS)}_{chooser.choice(NOUNS)}",
    }
    body = task.body.format_map(values)
    values["body"] = " ".join(body.split())
    values["does"] = task.does.format_map(values)
    values["code"] = f"```python\ndef {values['name']}({values['x']}):\n    {body}\n```"
    values["plan"] = PLANS[body.split()[0]]
    function = _run(str(values["x"]), body)
    tried = chooser.choice(task.cases)
    values["try"] = f"For example, {values['name']}({json.dumps(tried)}) gives {function(tried)!r}."
    return Dialogue(
        kind="code",
        problem=f"{values['name']} {values['does']}",
        messages=[user(pick(chooser, WORDINGS, values))],
        reply=answered(pick(chooser, REASONS, values), pick(chooser, ANSWERS, values)),
        function=str(values["name"]),
        cases=[(case, function(case)) for case in task.cases],
    )


def _run(argument: str, body: str) -> Callable[[object], object]:
    """The task's own function, to say what a right one returns."""
    namespace: dict[str, Callable[[object], object]] = {}
    exec(f"def function({argument}):\n    {body}", namespace)
    return namespace["function"]
