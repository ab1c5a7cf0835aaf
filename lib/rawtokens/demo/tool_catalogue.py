"""The tools that the synthetic dialogues declare, with wordings, arguments and results."""

import random
from collections.abc import Callable

import msgspec

from rawtokens.demo import word_lists as words
from rawtokens.demo.dialogue_record import Tool

Arguments = dict[str, str | int]


class ToolKind(msgspec.Struct, frozen=True, kw_only=True):
    """One tool: its declaration, how users ask for it, what its arguments and results are."""

    name: str
    description: str
    parameters: dict[str, str]
    helps_with: str
    aim: str
    wordings: list[str]
    arguments: Callable[[random.Random], Arguments]
    pair_wordings: list[str] = []
    result: Callable[[random.Random, Arguments], Arguments] = lambda chooser, arguments: {"status": "ok"}
    answers: list[str] = []

    def declaration(self) -> Tool:
        """The tool in OpenAI's format."""
        properties = {name: {"type": kind} for name, kind in self.parameters.items()}
        schema = {"type": "object", "properties": properties, "required": list(self.parameters)}
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}

    def goal(self, arguments: Arguments) -> str:
        return self.aim.format_map(arguments)


def _city(chooser: random.Random) -> Arguments:
    return {"city": chooser.choice(words.CITIES)}


def _currencies(chooser: random.Random) -> Arguments:
    source, target = chooser.sample(words.CURRENCIES, 2)
    return {"amount": chooser.randint(2, 999), "source": source, "target": target}


CATALOGUE = [
    ToolKind(
        name="get_weather",
        description="Get the current weather in a city",
        parameters={"city": "string"},
        helps_with="the weather",
        aim="the weather in {city}",
        wordings=["What is the weather in {city}?", "How is the weather in {city} today?", "Is it raining in {city}?",
                  "Tell me the current weather in {city}, please."],
        pair_wordings=["What is the weather in {city} and in {city2}?", "Compare the weather in {city} and {city2}."],
        arguments=_city,
        result=lambda chooser, _: {"temperature": chooser.randint(1, 35), "sky": chooser.choice(words.SKIES)},
        answers=["It is {temperature} degrees and {sky} in {city}.",
                 "The weather in {city} is {sky}, with {temperature} degrees."],
    ),
    ToolKind(
        name="get_time",
        description="Get the current local time in a city",
        parameters={"city": "string"},
        helps_with="the time",
        aim="the time in {city}",
        wordings=["What time is it in {city}?", "Tell me the time in {city}.", "What is the local time in {city} now?"],
        pair_wordings=["What time is it in {city} and in {city2}?", "Give me the time in {city} and {city2}."],
        arguments=_city,
        result=lambda chooser, _: {"time": f"{chooser.randint(10, 23)}:{chooser.randint(10, 59)}"},
        answers=["It is {time} in {city}.", "The time in {city} is {time}."],
    ),
    ToolKind(
        name="convert_currency",
        description="Convert an amount of money to another currency",
        parameters={"amount": "integer", "source": "string", "target": "string"},
        helps_with="currencies",
        aim="{amount} {source} in {target}",
        wordings=["Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?",
                  "I have {amount} {source}. What is that in {target}?"],
        arguments=_currencies,
        result=lambda chooser, _: {"result": chooser.randint(2, 999)},
        answers=["{amount} {source} is {result} {target}.", "That is {result} {target}."],
    ),
    ToolKind(
        name="calculate_tip",
        description="Calculate the tip for a bill",
        parameters={"bill": "integer", "percent": "integer"},
        helps_with="tips",
        aim="a tip of {percent} percent on {bill} dollars",
        wordings=["How much is a {percent} percent tip on {bill} dollars?",
                  "My bill is {bill} dollars. I want to tip {percent} percent.",
                  "Calculate the tip for a bill of {bill} dollars at {percent} percent."],
        arguments=lambda chooser: {"bill": chooser.randint(10, 400),
                                   "percent": chooser.choice([5, 8, 10, 12, 15, 18, 20])},
        result=lambda chooser, _: {"tip": chooser.randint(2, 80)},
        answers=["The tip is {tip} dollars.", "A tip of {percent} percent on {bill} dollars is {tip} dollars."],
    ),
    ToolKind(
        name="search_books",
        description="Search for books by an author",
        parameters={"author": "string"},
        helps_with="books",
        aim="books by {author}",
        wordings=["Find books by {author}.", "Which books did {author} write?", "I'm looking for books by {author}."],
        pair_wordings=["Find books by {author} and by {author2}."],
        arguments=lambda chooser: {"author": chooser.choice(words.AUTHORS)},
        result=lambda chooser, _: {"found": chooser.randint(2, 60)},
        answers=["I found {found} books by {author}.", "There are {found} books by {author}."],
    ),
    ToolKind(
        name="send_message",
        description="Send a text message to a contact",
        parameters={"recipient": "string", "text": "string"},
        helps_with="messages",
        aim="a message to {recipient}",
        wordings=["Send a message to {recipient}: {text}", "Tell {recipient} this: {text}", "Text {recipient}: {text}"],
        arguments=lambda chooser: {"recipient": chooser.choice(words.NAMES), "text": chooser.choice(words.TEXTS)},
        answers=["I sent your message to {recipient}.", "Done. {recipient} has your message."],
    ),
    ToolKind(
        name="translate_text",
        description="Translate a text into a language",
        parameters={"text": "string", "language": "string"},
        helps_with="translations",
        aim="a translation into {language}",
        wordings=["Translate this into {language}: {text}", "How do I say this in {language}: {text}",
                  "Please put this into {language}: {text}"],
        arguments=lambda chooser: {"text": chooser.choice(words.PHRASES), "language": chooser.choice(words.LANGUAGES)},
    ),
    ToolKind(
        name="get_stock_price",
        description="Get the current stock price of a company",
        parameters={"company": "string"},
        helps_with="stock prices",
        aim="the stock price of {company}",
        wordings=["What is the stock price of {company}?", "How much is a share of {company}?",
                  "Check the price of {company} shares."],
        pair_wordings=["What are the stock prices of {company} and {company2}?",
                       "Compare the shares of {company} and {company2}."],
        arguments=lambda chooser: {"company": chooser.choice(words.COMPANIES)},
        result=lambda chooser, _: {"price": chooser.randint(10, 900)},
        answers=["A share of {company} costs {price} dollars.", "{company} is at {price} dollars."],
    ),
    ToolKind(
        name="create_reminder",
        description="Create a reminder for a day",
        parameters={"task": "string", "day": "string"},
        helps_with="reminders",
        aim="a reminder for {day}",
        wordings=["Remind me on {day}: {task}", "Set a reminder for {day}: {task}", "On {day} I must do this: {task}"],
        arguments=lambda chooser: {"task": chooser.choice(words.TASKS), "day": chooser.choice(words.DAYS)},
        answers=["I will remind you on {day}.", "Your reminder for {day} is set."],
    ),
    ToolKind(
        name="roll_dice",
        description="Roll a number of dice",
        parameters={"count": "integer", "sides": "integer"},
        helps_with="dice",
        aim="a roll of {count} dice with {sides} sides",
        wordings=["Roll {count} dice with {sides} sides.", "Please roll {count} dice that have {sides} sides each."],
        arguments=lambda chooser: {"count": chooser.randint(2, 12), "sides": chooser.choice([4, 6, 8, 10, 12, 20])},
        result=lambda chooser, _: {"total": chooser.randint(2, 120)},
        answers=["The dice show {total} in total.", "You rolled {total}."],
    ),
]  # fmt: skip
