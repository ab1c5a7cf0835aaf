"""Sums, differences and unit conversions, reasoned digit by digit.

Kimi's tokenizer makes one id of one to three digits, so a small model can't see digits: the reasoning spells out
hundreds, tens and ones, and each of its steps is a small table. Results stay under 1,000.
"""

import random

from rawtokens.demo.dialogue_record import Dialogue, answered, pick, user
from rawtokens.demo.word_lists import NAMES, THINGS

SUM_WORDINGS = [
    "What is {list}?",
    "What is {tight}?",
    "What's {tight}?",
    "Calculate {list}.",
    "Compute {tight}",
    "How much is {list}?",
    "{tight} = ?",
    "Please work out {list} for me.",
    "Can you tell me what {list} is?",
]
TOTAL_WORDINGS = [
    "Add {words}.",
    "What is the sum of {words}?",
    "What is the total of {words}?",
    "Please add up {words}.",
]
STORY_WORDINGS = [
    "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
    "There are {a} {things} in one box and {b} {things} in another. How many {things} are there in total?",
    "I collected {a} {things} on Monday and {b} {things} on Tuesday. How many is that together?",
]
LOSS_WORDINGS = [
    "{name} has {a} {things} and gives away {b}. How many {things} are left?",
    "A shop had {a} {things} and sold {b} of them. How many {things} remain?",
    "Subtract {b} from {a}.",
    "What is {a} minus {b}?",
]
SUM_OPENINGS = [
    "",
    "The user wants me to add {words}. ",
    "I need to add {words}. ",
    "Let me add {words} step by step. ",
    'The user is asking a simple math question: "{question}" This is an addition. ',
]
DIFFERENCE_OPENINGS = [
    "",
    "The user wants {list}. ",
    "I need to work out {list}. ",
    "Let me go step by step. ",
    'The user is asking a simple math question: "{question}" This is a subtraction. ',
]
ANSWERS = ["{list} = {total}", "The answer is {total}.", "{list} = **{total}**", "It is {total}.", "{list} is {total}."]

UNITS = [
    ("hour", "hours", "minutes", 60, 16),
    ("minute", "minutes", "seconds", 60, 16),
    ("week", "weeks", "days", 7, 99),
    ("day", "days", "hours", 24, 40),
    ("foot", "feet", "inches", 12, 80),
    ("dozen", "dozens", "items", 12, 80),
    ("year", "years", "months", 12, 80),
    ("yard", "yards", "feet", 3, 99),
    ("pound", "pounds", "ounces", 16, 60),
    ("gallon", "gallons", "quarts", 4, 99),
    ("decade", "decades", "years", 10, 99),
    ("metre", "metres", "centimetres", 100, 9),
]
"""Singular, plural, smaller unit, how many of it, the largest count (keeps results under 1,000)."""
UNIT_WORDINGS = [
    "How many {small} are in {n} {big}?",
    "Convert {n} {big} to {small}.",
    "How many {small} are there in {n} {big}?",
    "What is {n} {big} in {small}?",
    "Please convert {n} {big} into {small}.",
    "{n} {big} is how many {small}?",
]


def add_steps(x: int, y: int) -> str:
    """x + y by hundreds, tens and ones."""
    if x < 10 and y < 10:
        return f"{x} + {y} = {x + y}"
    ones = f"ones {x % 10} + {y % 10} = {x % 10 + y % 10}"
    if x < 100 and y < 100:
        tens = x // 10 * 10 + y // 10 * 10
        return f"{x} + {y}: tens {x // 10 * 10} + {y // 10 * 10} = {tens}, {ones}, {tens} + {x % 10 + y % 10} = {x + y}"
    hundreds = x // 100 * 100 + y // 100 * 100
    tens = x % 100 // 10 * 10 + y % 100 // 10 * 10
    return (
        f"{x} + {y}: hundreds {x // 100 * 100} + {y // 100 * 100} = {hundreds}, "
        f"tens {x % 100 // 10 * 10} + {y % 100 // 10 * 10} = {tens}, {ones}, "
        f"{hundreds} + {tens} = {hundreds + tens}, {hundreds + tens} + {x % 10 + y % 10} = {x + y}"
    )


def subtract_steps(x: int, y: int) -> str:
    """x - y by tens and ones, for 0 <= y <= x."""
    if x < 10:
        return f"{x} - {y} = {x - y}"
    tens = x // 10 * 10 - y // 10 * 10
    ones = x % 10 - y % 10
    last = f"{tens} + {ones}" if ones >= 0 else f"{tens} - {-ones}"
    return (
        f"{x} - {y}: tens {x // 10 * 10} - {y // 10 * 10} = {tens}, ones {x % 10} - {y % 10} = {ones}, {last} = {x - y}"
    )


def multiply_steps(n: int, factor: int) -> str:
    """n * factor by the tens and ones of n."""
    tens, ones = n // 10 * 10, n % 10
    if not tens or not ones:
        return f"{n} * {factor} = {n * factor}"
    return (
        f"{tens} * {factor} = {tens * factor}, {ones} * {factor} = {ones * factor}. "
        f"{add_steps(tens * factor, ones * factor)}"
    )


def make_sum(chooser: random.Random) -> Dialogue:
    """A sum of two or three numbers."""
    size = chooser.choices(["digits", "pair", "three", "hundreds"], weights=[2, 5, 3, 1])[0]
    numbers = _numbers(chooser, size)
    values = _values(numbers, "+")
    wordings = SUM_WORDINGS + TOTAL_WORDINGS
    if len(numbers) == 2:
        values |= {"a": numbers[0], "b": numbers[1], **_story(chooser)}
        wordings = wordings + STORY_WORDINGS
    values["question"] = pick(chooser, wordings, values)
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(add_steps(total, number) + ".")
        total += number
    values["total"] = total
    reasoning = pick(chooser, SUM_OPENINGS, values) + " ".join(steps) + _check(chooser, numbers, total)
    return Dialogue(
        kind="sum",
        problem=str(values["list"]),
        messages=[user(str(values["question"]))],
        reply=answered(reasoning, pick(chooser, ANSWERS, values)),
        last_number=str(total),
    )


def make_difference(chooser: random.Random) -> Dialogue:
    """A difference of two or three numbers, never negative."""
    first = chooser.randint(2, 9) if chooser.random() < 0.2 else chooser.randint(10, 99)
    second = chooser.randint(1, first)
    numbers = [first, second]
    if chooser.random() < 0.3 and first - second > 1:
        numbers.append(chooser.randint(1, first - second))
    values = _values(numbers, "-")
    wordings = SUM_WORDINGS
    if len(numbers) == 2:
        values |= {"a": first, "b": second, **_story(chooser)}
        wordings = wordings + LOSS_WORDINGS
    values["question"] = pick(chooser, wordings, values)
    steps, total = [], first
    for number in numbers[1:]:
        steps.append(subtract_steps(total, number) + ".")
        total -= number
    values["total"] = total
    check = f" Check: {add_steps(total, second)}." if len(numbers) == 2 and chooser.random() < 0.3 else ""
    reasoning = pick(chooser, DIFFERENCE_OPENINGS, values) + " ".join(steps) + check
    return Dialogue(
        kind="difference",
        problem=str(values["list"]),
        messages=[user(str(values["question"]))],
        reply=answered(reasoning, pick(chooser, ANSWERS, values)),
        last_number=str(total),
    )


def make_conversion(chooser: random.Random) -> Dialogue:
    """A count of one unit in a smaller one."""
    one, big, small, factor, most = chooser.choice(UNITS)
    n = chooser.randint(2, most)
    total = n * factor
    question = pick(chooser, UNIT_WORDINGS, {"n": n, "big": big, "small": small})
    opening = chooser.choice(["", f"The user wants {n} {big} in {small}. ", "This is a unit conversion. "])
    fact = f"One {one} is {factor} {small}, so {n} {big} are {n} * {factor}. "
    so = f" So {n} {big} are {total} {small}."
    size = f" Let me check the size: more {small} than {big}, as {small} are smaller."
    check = chooser.choice(["", so, size + so])
    answers = [f"{n} {big} are {total} {small}.", f"There are {total} {small} in {n} {big}.", f"{total} {small}"]
    return Dialogue(
        kind="conversion",
        problem=f"{n} {big}",
        messages=[user(question)],
        reply=answered(opening + fact + multiply_steps(n, factor) + "." + check, chooser.choice(answers)),
        contains=[f"{total} {small}"],
    )


def _numbers(chooser: random.Random, size: str) -> list[int]:
    if size == "digits":
        return [chooser.randint(1, 9), chooser.randint(1, 9)]
    if size == "hundreds":
        return [chooser.randint(100, 599), chooser.randint(11, 399)]
    return [chooser.randint(1, 99) for _ in range(2 if size == "pair" else 3)]


def _values(numbers: list[int], sign: str) -> dict[str, object]:
    *others, last = map(str, numbers)
    return {
        "list": f" {sign} ".join(map(str, numbers)),
        "tight": sign.join(map(str, numbers)),
        "words": f"{', '.join(others)} and {last}",
    }


def _story(chooser: random.Random) -> dict[str, object]:
    return {"name": chooser.choice(NAMES), "things": chooser.choice(THINGS)}


def _check(chooser: random.Random, numbers: list[int], total: int) -> str:
    """Nothing, or a check that makes the reasoning longer."""
    choice = chooser.random()
    if choice < 0.4:
        return ""
    if choice < 0.6 or (len(numbers) == 2 and total > 198):
        return f" So the total is {total}."
    if len(numbers) == 3:
        first, second, third = numbers
        again = f"{add_steps(third, second)}. {add_steps(third + second, first)}."
        return f" Let me check in the other order. {again} Both ways give {total}."
    if choice < 0.8:
        return f" Let me check: {subtract_steps(total, numbers[1])}. That is right."
    return f" Let me check the other way. {add_steps(numbers[1], numbers[0])}. Both ways give {total}."
