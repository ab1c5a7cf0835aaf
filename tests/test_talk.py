"""The next turn's prompt, held to apply_chat_template, with the real tokenizers of three families and more."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest
from msgspec.structs import replace
from turn_rows import WEATHER, Chat, called, user

from rawtokens.records import Json
from rawtokens.target.prompt_encoders import PromptEncoder
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.turns.history import Ended
from rawtokens.turns.talk import turn_after

OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'
COLD, WARM = '{"degrees": 3}', '{"degrees": 25}'
QUESTION = "How warm is it in Oslo?"
NEXT = "And what is 2+2?"


class Family(NamedTuple):
    """How a family's model writes what its template renders: openings, a call, what ends a turn."""

    opens: str
    closes: str
    call: str
    join: str
    calls_end: str
    turn_end: str

    def thought(self, text: str) -> str:
        return f"{self.opens}{text}{self.closes}"

    def calling(self, *arguments: str) -> str:
        made = [self.call % ({"a": text, "i": i} if "%(" in self.call else text) for i, text in enumerate(arguments)]
        return self.join.join(made) + self.calls_end


KIMI_CALL = "<|tool_call_begin|>functions.get_weather:%(i)d<|tool_call_argument_begin|>%(a)s<|tool_call_end|>"
KIMI_BEGIN, KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|><|im_end|>"
QWEN_CALL = '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>'
GLM_CALL = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>"
FAMILIES = {
    "kimi": Family("", "</think>", KIMI_CALL, "", KIMI_END, "<|im_end|>"),
    "qwen3": Family("<think>\n", "\n</think>\n\n", QWEN_CALL, "\n", "<|im_end|>", "<|im_end|>"),
    "qwen3_thinking": Family("", "\n</think>\n\n", QWEN_CALL, "\n", "<|im_end|>", "<|im_end|>"),
    "glm45": Family("\n<think>", "</think>\n", GLM_CALL, "\n", "<|observation|>", "<|user|>"),
}


@pytest.fixture(scope="session")
def chat_of(target: Tokenizer, family_target: Callable[[str], Tokenizer]) -> Callable[[str], Chat]:
    made: dict[str, Chat] = {}

    def chat(name: str) -> Chat:
        if name not in made:
            made[name] = Chat(target if name == "kimi" else family_target(name))
        return made[name]

    return chat


def calling(name: str, *cities: str) -> str:
    """The text of an answer that calls the tool for each city."""
    family = FAMILIES[name]
    arguments = cities if name == "glm45" else [f'{{"city": "{city}"}}' for city in cities]
    begin = KIMI_BEGIN if name == "kimi" else ""
    return family.thought("I look.") + begin + family.calling(*arguments)


def message(name: str, *cities: str) -> dict[str, Json]:
    """The message that such an answer is."""
    calls: list[Json] = []
    for place, city in enumerate(cities):
        function: Json = {"name": "get_weather", "arguments": {"city": city}}
        if name == "kimi":
            function = {"name": "get_weather", "arguments": f'{{"city": "{city}"}}'}
        calls.append({"id": f"functions.get_weather:{place}", "type": "function", "function": function})
    return {"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": calls}


def result(text: str, place: int = 0) -> dict[str, Json]:
    return {"role": "tool", "content": text, "tool_call_id": f"functions.get_weather:{place}"}


@pytest.mark.parametrize("name", FAMILIES)
def test_in_a_cycle_the_prompt_is_what_was_sampled_and_what_the_template_puts_behind_it(
    name: str, chat_of: Callable[[str], Chat]
) -> None:
    chat = chat_of(name)
    first = chat.prompt(user(QUESTION))
    output = calling(name, "Oslo")
    found = chat.follow(chat.talk(QUESTION, *called((OSLO, COLD))), first, output)
    assert found.made == "cycle"
    assert found.prompt_ids[: len(first) + len(chat.ids(output))] == [*first, *chat.ids(output)]
    assert found.prompt_ids == chat.prompt(user(QUESTION), message(name, "Oslo"), result(COLD))
    assert found.differs_at is None


@pytest.mark.parametrize("name", FAMILIES)
def test_parallel_calls_are_answered_in_the_model_s_order(name: str, chat_of: Callable[[str], Chat]) -> None:
    chat = chat_of(name)
    first = chat.prompt(user(QUESTION))
    talk = chat.talk(QUESTION, *called((OSLO, COLD), (ROME, WARM)))
    found = chat.follow(talk, first, calling(name, "Rome", "Oslo"))
    results = (result(WARM), result(COLD, 1))
    assert found.prompt_ids == chat.prompt(user(QUESTION), message(name, "Rome", "Oslo"), *results)
    assert found.differs_at is None


@pytest.mark.parametrize("name", FAMILIES)
def test_behind_a_cycle_a_new_question_is_rendered_by_the_template_and_drops_what_it_drops(
    name: str, chat_of: Callable[[str], Chat]
) -> None:
    chat, family = chat_of(name), FAMILIES[name]
    first = chat.prompt(user(QUESTION))
    talk = chat.talk(QUESTION, *called((OSLO, COLD)), {"role": "assistant"}, user(NEXT))
    cycle = chat.follow(talk, first, calling(name, "Oslo"))
    answer = family.thought("It says 3.") + "It is 3 degrees." + family.turn_end
    found = chat.follow(cycle.talk, cycle.prompt_ids, answer)
    assert found.made == "question"
    said: dict[str, Json] = {"role": "assistant", "content": "It is 3 degrees.", "reasoning_content": "It says 3."}
    assert found.prompt_ids == chat.prompt(user(QUESTION), message(name, "Oslo"), result(COLD), said, user(NEXT))
    text = chat.tokenizer.decode(found.prompt_ids)
    assert "It is 3 degrees." in text
    assert "I look." not in text
    assert "It says 3." not in text
    assert "I look." in chat.tokenizer.decode(cycle.prompt_ids)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_conversation_is_complete_where_the_file_asks_nothing_more(
    name: str, chat_of: Callable[[str], Chat]
) -> None:
    chat, family = chat_of(name), FAMILIES[name]
    answer = chat.answer(chat.prompt(user(QUESTION)), family.thought("Hm.") + "3." + family.turn_end)
    assert chat.next(chat.talk(QUESTION), answer) == Ended("complete")


def test_ids_stay_as_sampled_where_the_template_would_spell_them_otherwise(chat_of: Callable[[str], Chat]) -> None:
    """The call opens with no closer, which the template would write."""
    chat = chat_of("kimi")
    first = chat.prompt(user(QUESTION))
    straight = "I look." + KIMI_BEGIN + KIMI_CALL % {"a": OSLO, "i": 0} + KIMI_END
    found = chat.follow(chat.talk(QUESTION, *called((OSLO, COLD))), first, straight)
    sampled = [*first, *chat.ids(straight)]
    assert found.prompt_ids[: len(sampled)] == sampled
    rendered = chat.prompt(user(QUESTION), message("kimi", "Oslo"), result(COLD))
    suffix = found.prompt_ids[len(sampled) :]
    assert rendered[-len(suffix) :] == suffix
    assert rendered != found.prompt_ids
    assert found.differs_at == len(first) + len(chat.ids("I look."))
    assert found.template_ids == rendered[found.differs_at : found.differs_at + 8]
    assert found.template_ids[0] == chat.ids("</think>")[0]


def test_an_answer_spelt_by_other_ids_is_kept_and_the_difference_told(chat_of: Callable[[str], Chat]) -> None:
    chat = chat_of("kimi")
    first = chat.prompt(user(QUESTION))
    response = chat.answer(first, calling("kimi", "Oslo"))
    look = chat.ids(" look")
    assert len(look) == 1
    place = response.output_ids.index(look[0])
    spelt = [chat.reader.table.pieces.index(bytes([byte])) for byte in b" look"]
    output = [*response.output_ids[:place], *spelt, *response.output_ids[place + 1 :]]
    odd = type(response)(**{**{f: getattr(response, f) for f in response.__struct_fields__}, "output_ids": output})
    found = chat.next(chat.talk(QUESTION, *called((OSLO, COLD))), odd)
    assert not isinstance(found, Ended)
    assert found.prompt_ids[: len(first) + len(output)] == [*first, *output]
    assert found.differs_at == len(first) + place


def test_calls_made_one_after_the_other_are_served_though_recorded_as_parallel(
    chat_of: Callable[[str], Chat],
) -> None:
    chat = chat_of("kimi")
    talk = chat.talk(QUESTION, *called((OSLO, COLD), (ROME, WARM)))
    one = chat.follow(talk, chat.prompt(user(QUESTION)), calling("kimi", "Rome"))
    two = chat.follow(one.talk, one.prompt_ids, calling("kimi", "Oslo"))
    assert chat.tokenizer.decode(two.prompt_ids).count("## Return of") == 2
    again = chat.next(two.talk, chat.answer(two.prompt_ids, calling("kimi", "Oslo")))
    assert isinstance(again, Ended)
    assert again.reason == "call_not_recorded"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I look.", "truncated_in_thinking"),
        ("I look.</think>It is", "truncated_in_answer"),
        ("I look.<|im_end|>", "never_closed"),
        ("I look.</think>" + KIMI_BEGIN + "<|im_end|>", "open_tool_section"),
        ("I look.</think></think>It is 3.<|im_end|>", "closer_repeated"),
        ("I look.</think><think>It is 3.<|im_end|>", "opener_in_output"),
        ("I look.</think><|im_end|>", "empty_answer"),
        ("<|im_end|>", "empty"),
        ("I look.</think>" + KIMI_BEGIN + KIMI_CALL % {"a": '{"city": ', "i": 0} + KIMI_END, "unreadable_call"),
        ("I look.</think>" + KIMI_BEGIN + KIMI_CALL % {"a": "[1]", "i": 0} + KIMI_END, "unreadable_call"),
        ("Hm.</think>" + KIMI_BEGIN + KIMI_CALL % {"a": OSLO, "i": 0} + KIMI_END.replace("<|im", "So<|im"),
         "text_behind_calls"),
        (calling("kimi", "Paris"), "call_not_recorded"),
        (calling("kimi", "Oslo", "Paris"), "call_not_recorded"),
        (calling("kimi", "Rome"), "no_recorded_result"),
        ("Hm.</think>I write <think> so.<|im_end|>", "opener_in_output"),
    ],
)  # fmt: skip
def test_a_doubtful_answer_ends_its_conversation_with_the_reason(
    text: str, reason: str, chat_of: Callable[[str], Chat]
) -> None:
    chat = chat_of("kimi")
    unanswered = called((OSLO, COLD), (ROME, WARM))[:-1]
    talk = chat.talk(QUESTION, *unanswered, {"role": "assistant"}, user(NEXT))
    cut = "length" if reason.startswith("truncated") else "stop"
    found = chat.next(talk, chat.answer(chat.prompt(user(QUESTION)), text, finish_reason=cut))
    assert isinstance(found, Ended)
    assert found.reason == reason


@pytest.mark.parametrize("name", ["kimi", "qwen3", "glm45"])
@pytest.mark.parametrize("odd", ["twice", "surrogate", "nan"])
def test_a_call_that_json_readers_do_not_agree_on_ends_the_conversation(
    name: str, odd: str, chat_of: Callable[[str], Chat]
) -> None:
    """Of two arguments of one name Python takes the last; NaN and a lone surrogate could not be written again."""
    chat = chat_of(name)
    arguments = {
        "twice": '{"city": "Rome", "city": "Oslo"}',
        "surrogate": '{"city": "Oslo\\ud800"}',
        "nan": '{"city": "Oslo", "days": NaN}',
    }[odd]
    text = calling(name, "Oslo").replace(OSLO, arguments)
    if name == "glm45" and odd == "twice":
        pair = "<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        text = text.replace(pair, pair.replace("Oslo", "Rome") + pair)
    found = chat.next(chat.talk(QUESTION, *called((OSLO, COLD))), chat.answer(chat.prompt(user(QUESTION)), text))
    if name == "glm45" and odd != "twice":  # its values are bare text
        assert not isinstance(found, Ended)
        return
    assert isinstance(found, Ended)
    assert found.reason == "unreadable_call"
    assert found.detail.encode()


def test_a_name_that_holds_a_lone_surrogate_is_no_recorded_one(chat_of: Callable[[str], Chat]) -> None:
    chat = chat_of("qwen3")
    text = calling("qwen3", "Oslo").replace('"get_weather"', '"get_weather\\udc80"')
    found = chat.next(chat.talk(QUESTION, *called((OSLO, COLD))), chat.answer(chat.prompt(user(QUESTION)), text))
    assert isinstance(found, Ended)
    assert found.reason == "unreadable_call"


@pytest.mark.parametrize("text", ["Hm look so</think>It is 3.<|im_end|>", "Hm.</think>I look so.<|im_end|>"])
def test_bytes_that_are_no_text_are_no_history(text: str, chat_of: Callable[[str], Chat]) -> None:
    """They would stand in the next prompt as U+FFFD, which the model never said."""
    chat = chat_of("kimi")
    response = chat.answer(chat.prompt(user(QUESTION)), text)
    word, torn = (chat.reader.table.pieces.index(piece) for piece in (b" look", b"\xe2"))
    odd = replace(response, output_ids=[torn if number == word else number for number in response.output_ids])
    assert odd != response
    for later in ([{"role": "assistant"}, user(NEXT)], called((OSLO, COLD))):
        found = chat.next(chat.talk(QUESTION, *later), odd)
        assert isinstance(found, Ended)
        assert found.reason == "broken_text"


def test_arguments_are_the_recorded_ones_as_json_values_not_as_text(chat_of: Callable[[str], Chat]) -> None:
    chat = chat_of("kimi")
    talk = chat.talk(QUESTION, *called(('{"city":"Oslo","days":2}', COLD)))
    spaced = "Hm.</think>" + KIMI_BEGIN + KIMI_CALL % {"a": '{"days": 2, "city": "Osl\\u006f"}', "i": 0} + KIMI_END
    assert chat.follow(talk, chat.prompt(user(QUESTION)), spaced).made == "cycle"
    text = "Hm.</think>" + KIMI_BEGIN + KIMI_CALL % {"a": '{"days": "2", "city": "Oslo"}', "i": 0} + KIMI_END
    ended = chat.next(talk, chat.answer(chat.prompt(user(QUESTION)), text))
    assert isinstance(ended, Ended)
    assert ended.reason == "call_not_recorded"


def test_glm_s_bare_values_are_read_by_the_declared_types(chat_of: Callable[[str], Chat]) -> None:
    chat = chat_of("glm45")
    call = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n"
    call += "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call><|observation|>"
    talk = chat.talk(QUESTION, *called(('{"city": "12", "days": 2}', COLD)))
    found = chat.follow(talk, chat.prompt(user(QUESTION)), "\n<think>Hm.</think>\n" + call)
    assert found.differs_at is None


@pytest.mark.parametrize("parameters", [{"properties": {"city": "string"}}, {"properties": ["city"]}, ["city"], "city"])
def test_a_declaration_that_is_no_schema_declares_no_text(parameters: Json, chat_of: Callable[[str], Chat]) -> None:
    """No prompt file's row may stop a run."""
    chat = chat_of("glm45")
    talk = chat.talk(QUESTION, *called((OSLO, COLD)))
    tool: dict[str, Json] = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    odd = replace(talk, conversation=replace(talk.conversation, tools=(tool,)))
    assert chat.follow(odd, chat.prompt(user(QUESTION)), calling("glm45", "Oslo")).made == "cycle"


def test_a_call_that_ends_by_another_role_than_the_template_s_next_ends_the_conversation(
    chat_of: Callable[[str], Chat],
) -> None:
    chat = chat_of("glm45")
    text = calling("glm45", "Oslo").replace("<|observation|>", "<|user|>")
    found = chat.next(chat.talk(QUESTION, *called((OSLO, COLD))), chat.answer(chat.prompt(user(QUESTION)), text))
    assert isinstance(found, Ended)
    assert found.reason == "stop_differs"


@pytest.mark.parametrize("name", ["qwen3", "kimi", "glm45"])
def test_thinking_that_was_off_keeps_a_cycle_exact(name: str, chat_of: Callable[[str], Chat]) -> None:
    """Qwen3's template renders an empty thinking in the last message alone, so one render does not begin the other."""
    argument = {"thinking": False} if name == "kimi" else {"enable_thinking": False}
    chat = Chat(chat_of(name).tokenizer, **argument)
    first = chat.prompt(user(QUESTION))
    assert chat.thinking(first) == "off"
    opening = KIMI_BEGIN if name == "kimi" else "\n" if name == "glm45" else ""
    text = opening + FAMILIES[name].calling("Oslo" if name == "glm45" else OSLO)
    found = chat.follow(chat.talk(QUESTION, *called((OSLO, COLD))), first, text)
    sampled = [*first, *chat.ids(text)]
    assert found.prompt_ids[: len(sampled)] == sampled
    silent = {key: value for key, value in message(name, "Oslo").items() if key != "reasoning_content"}
    rendered = chat.prompt(user(QUESTION), silent, result(COLD))
    suffix = found.prompt_ids[len(sampled) :]
    assert chat.tokenizer.decode(suffix).count(COLD) == 1
    assert rendered[-len(suffix) :] == suffix
    assert chat.thinking(found.prompt_ids) == "off"


def test_a_control_token_in_a_result_ends_the_conversation(chat_of: Callable[[str], Chat]) -> None:
    chat = chat_of("kimi")
    talk = chat.talk(QUESTION, *called((OSLO, "3<|im_end|>")))
    found = chat.next(talk, chat.answer(chat.prompt(user(QUESTION)), calling("kimi", "Oslo")))
    assert isinstance(found, Ended)
    assert found.reason == "control_token_in_text"
    assert "<|im_end|>" in found.detail


def test_an_answer_without_the_recorded_call_goes_on_to_the_next_question(chat_of: Callable[[str], Chat]) -> None:
    chat = chat_of("kimi")
    talk = chat.talk(QUESTION, *called((OSLO, COLD)), {"role": "assistant"}, user(NEXT))
    found = chat.follow(talk, chat.prompt(user(QUESTION)), "I know.</think>It is 3 degrees.<|im_end|>")
    said: dict[str, Json] = {"role": "assistant", "content": "It is 3 degrees.", "reasoning_content": "I know."}
    assert found.prompt_ids == chat.prompt(user(QUESTION), said, user(NEXT))


def test_harmony_and_deepseek_cycles_are_exact_too(family_target: Callable[[str], Tokenizer]) -> None:
    harmony = Chat(family_target("gpt_oss"))
    text = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant to=functions.get_weather<|channel|>"
    text += "commentary json<|message|>" + OSLO + "<|call|>"
    first = harmony.prompt(user(QUESTION))
    found = harmony.follow(harmony.talk(QUESTION, *called((OSLO, COLD))), first, text)
    assert found.prompt_ids == harmony.prompt(user(QUESTION), message("kimi", "Oslo"), result(COLD))
    assert found.differs_at is None
    deepseek = Chat(family_target("deepseek_v31"), thinking=False)
    text = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" + OSLO
    text += "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
    first = deepseek.prompt(user(QUESTION))
    found = deepseek.follow(deepseek.talk(QUESTION, *called((OSLO, COLD))), first, text)
    assert found.prompt_ids == deepseek.prompt(user(QUESTION), message("kimi", "Oslo"), result(COLD))


def test_the_turn_behind_a_key() -> None:
    assert turn_after("a#b/c#9/12") == "a#b/c#10/12"


def test_a_prompt_encoder_of_the_user_s_follows_questions_and_ends_at_a_cycle(target: Tokenizer) -> None:
    """Such a function has no render without a generation prompt, so there is no difference of two renders."""

    def encode(messages: list[dict[str, Json]], tools: list[dict[str, Json]], arguments: dict[str, Json]) -> str:
        return target.render(messages, tools=tools, template_kwargs=arguments)

    own = PromptEncoder(function=encode, name="own.py:encode", sha256="0")
    chat = Chat(msgspec.structs.replace(target, prompt_encoder=own))
    first = chat.prompt(user(QUESTION))
    talk = chat.talk(QUESTION, *called((OSLO, COLD)), {"role": "assistant"}, user(NEXT))
    question = chat.follow(talk, first, "Hm.</think>3.<|im_end|>")
    said: dict[str, Json] = {"role": "assistant", "content": "3.", "reasoning_content": "Hm."}
    assert question.prompt_ids == target.prompt_ids([user(QUESTION), said, user(NEXT)], tools=[WEATHER])
    ended = chat.next(talk, chat.answer(first, calling("kimi", "Oslo")))
    assert isinstance(ended, Ended)
    assert ended.reason == "suffix_not_proved"
