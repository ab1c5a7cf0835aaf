"""Another author's reply to a dialogue: as right as the demo's own, in other words.

Calls and code stay what they are, for there is one right way to write them; everything around them is said otherwise.
It stands for training data that another model or a person wrote. This module does not know the demo's own wordings.
"""

import random
import re

from ..demo.dialogue_record import CALLS_BEGIN, IM_END, THINK_END, Dialogue, Piece

THOUGHTS = [
    "Okay, so what do we have here?",
    "Hmm, this one looks easy enough at first glance.",
    "Let's slow down and be careful, though.",
    "I've seen something like it before, and the same trick should work again.",
    "One way would be to guess, but it's better to do it properly.",
    "Right, nothing strange is hidden in the wording.",
    "My first idea seems good, so I'll stay with it.",
    "Just to be safe I went over the whole thing twice.",
    "Both times I arrive at the same place, which is a good sign.",
    "There might be a shorter way, but this one is clear.",
    "Whoever asked probably wants something brief and useful.",
    "Alright, time to write it down.",
]
NUMBERS = ["That makes {0}, if I'm not mistaken.", "You end up with {0}.", "{0}, all in all.", "Got it: {0}!"]
FACTS = ["Here's what came back: {0}.", "So, in short: {0}.", "Looks like {0} is what you're after."]
CODE = ["Sure thing, try this one:\n\n{0}\n\nHope that helps!", "This ought to do the job:\n\n{0}"]
OTHERS = ["Well, what can I say? That's about as far as I get here.", "Happy to talk it over whenever you like!"]


def other_reply(dialogue: Dialogue) -> list[Piece]:
    """The reply as texts and control ids; the same dialogue always gets the same one."""
    chooser = random.Random(f"{dialogue.kind} {dialogue.problem}")
    first = chooser.randrange(len(THOUGHTS) - 4)
    thoughts = THOUGHTS[first : first + chooser.randint(3, 7)]
    reasoning = " ".join(thoughts)
    if CALLS_BEGIN in dialogue.reply:
        return [reasoning, THINK_END, *dialogue.reply[dialogue.reply.index(CALLS_BEGIN) :]]
    return [reasoning, THINK_END, _answer(dialogue, chooser), IM_END]


def _answer(dialogue: Dialogue, chooser: random.Random) -> str:
    code = re.search(r"```python\n.*?```", " ".join(map(str, dialogue.reply)), re.DOTALL)
    if code:
        return chooser.choice(CODE).format(code[0])
    if dialogue.last_number:
        return chooser.choice(NUMBERS).format(dialogue.last_number)
    if dialogue.contains:
        return chooser.choice(FACTS).format(", ".join(dialogue.contains))
    return chooser.choice(OTHERS)
