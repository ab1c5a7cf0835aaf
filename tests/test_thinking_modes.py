import hashlib
import json
from collections import Counter

import pytest

from rawtokens.errors import InputError
from rawtokens.records import Conversation, Json, Prompt
from rawtokens.target.rendering import PromptOptions, tokenize_conversations
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.target.thinking_modes import (
    Portion,
    arguments_of,
    check_mix,
    encoded,
    mix_from,
    unread_arguments,
    wanted_shares,
)

MIX = (
    Portion(share=0.8, template_kwargs={"thinking": True}),
    Portion(share=0.2, template_kwargs={"thinking": False}),
)


def rows(count: int, **template_kwargs: Json) -> list[Conversation]:
    messages: tuple[dict[str, Json], ...] = ({"role": "user", "content": "Hi"},)
    return [
        Conversation(source_id=f"row {n}", line=n + 1, messages=messages, template_kwargs=dict(template_kwargs))
        for n in range(count)
    ]


def modes(target: Tokenizer, conversations: list[Conversation], options: PromptOptions) -> dict[str, tuple[str, str]]:
    made = tokenize_conversations(conversations, target, options)
    return {row.source_id: (row.template_kwargs, row.thinking) for row in made if isinstance(row, Prompt)}


def test_which_part_a_row_gets_is_pinned_to_its_id() -> None:
    chosen = [arguments_of(f"row {n}", {}, MIX, {})["thinking"] for n in range(12)]
    places = [int(hashlib.sha256(f"mix:row {n}".encode()).hexdigest()[:16], 16) / 2**64 for n in range(12)]
    assert chosen == [place < 0.8 for place in places]
    assert chosen == [False, True, True, False, True, True, True, True, True, False, True, True]


def test_the_shares_come_out_near_those_wanted() -> None:
    counts = Counter(arguments_of(f"{n}", {}, MIX, {})["thinking"] for n in range(20_000))
    assert 0.79 < counts[True] / 20_000 < 0.81


def test_the_order_of_rows_changes_no_choice_and_the_prompt_says_what_was_chosen(target: Tokenizer) -> None:
    options = PromptOptions(template_kwargs={"extra": 1}, mix=MIX)
    forwards, backwards = modes(target, rows(40), options), modes(target, rows(40)[::-1], options)
    assert forwards == backwards
    assert set(forwards.values()) == {
        ('{"extra":1,"thinking":true}', "opened"),
        ('{"extra":1,"thinking":false}', "off"),
    }


def test_a_rows_own_arguments_win_over_the_mix_and_the_mix_over_the_data_sets(target: Tokenizer) -> None:
    own = modes(target, rows(20, thinking=False), PromptOptions(mix=MIX[:1], template_kwargs={"thinking": True}))
    assert set(own.values()) == {('{"thinking":false}', "off")}
    only = (Portion(share=1.0, template_kwargs={"thinking": False}),)
    mixed = modes(target, rows(20), PromptOptions(mix=only, template_kwargs={"thinking": True}))
    assert set(mixed.values()) == {('{"thinking":false}', "off")}


def test_wanted_shares_stand_under_the_arguments_that_rows_carry() -> None:
    assert wanted_shares({"extra": 1}, MIX) == {
        '{"extra":1,"thinking":true}': 0.8,
        '{"extra":1,"thinking":false}': 0.2,
    }
    assert wanted_shares({"thinking": True}, ()) == {'{"thinking":true}': 1.0}
    assert encoded({"b": 1, "a": {"d": 2, "c": 3}}) == '{"a":{"c":3,"d":2},"b":1}'


@pytest.mark.parametrize("shares", [(0.5, 0.4), (1.2, -0.2), (0.0, 1.0), (float("nan"), 1.0), (0.6, 0.6)])
def test_shares_that_do_not_add_up_are_refused(shares: tuple[float, ...]) -> None:
    mix = [Portion(share=share, template_kwargs={"thinking": n}) for n, share in enumerate(shares)]
    with pytest.raises(InputError, match="positive numbers that add up to 1"):
        check_mix(mix)


def test_three_thirds_add_up() -> None:
    check_mix([Portion(share=share, template_kwargs={"n": n}) for n, share in enumerate((1 / 3, 1 / 3, 1 / 3))])


def test_two_parts_that_are_one_are_refused() -> None:
    with pytest.raises(InputError, match="put their shares together"):
        check_mix([Portion(share=0.5, template_kwargs={"a": 1}), Portion(share=0.5, template_kwargs={"a": 1})])


def test_a_notebooks_mix_is_json() -> None:
    text = json.dumps([{"share": 0.8, "template_kwargs": {"thinking": True}}, {"share": 0.2}])
    assert mix_from(text) == (MIX[0], Portion(share=0.2))
    assert mix_from("[]") == ()
    for wrong in ("{", "{}", '[{"share": "much"}]', '[{"share": 1, "kwargs": {}}]'):
        with pytest.raises(InputError, match="expected JSON like"):
            mix_from(wrong)
    with pytest.raises(InputError, match="add up to 1"):
        mix_from('[{"share": 0.5}]')


def test_arguments_that_the_template_never_reads_are_named(target: Tokenizer) -> None:
    assert unread_arguments(target, {"thinking": True, "enable_thinking": True, "reasoning": 1}) == [
        "enable_thinking",
        "reasoning",
    ]
    assert unread_arguments(target, {}, [Portion(share=1.0, template_kwargs={"effort": "high"})]) == ["effort"]
