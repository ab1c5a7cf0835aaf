"""The synthetic dialogues: seeded, right by their own grading, in Kimi's format, and split into two worlds."""

from itertools import islice

import msgspec
import pytest
from transformers import PreTrainedTokenizerBase

from rawtokens.demo.dialogue_record import CALLS_BEGIN, IM_END, THINK_END, Dialogue, is_held_out
from rawtokens.demo.dialogue_sums import add_steps, multiply_steps, subtract_steps
from rawtokens.demo.dialogues import MAKERS, WEIGHTS, dialogues, rendered
from rawtokens.demo.hit_rate import KINDS, is_right

CONTROLS = range(163_584, 163_840)


def take(count: int, *, seed: int = 1, held_out: bool = False, kind: str | None = None) -> list[Dialogue]:
    return list(islice(dialogues(seed=seed, held_out=held_out, kind=kind), count))


def test_the_same_seed_gives_the_same_dialogues() -> None:
    assert msgspec.json.encode(take(200, seed=4)) == msgspec.json.encode(take(200, seed=4))
    assert take(200, seed=4) != take(200, seed=5)


def test_every_kind_occurs_and_has_a_maker() -> None:
    assert set(WEIGHTS) == set(MAKERS)
    kinds = {dialogue.kind for dialogue in take(1500)}
    assert kinds == {name.removesuffix("_code") for name in MAKERS}


def test_no_problem_is_both_trained_on_and_held_out() -> None:
    trained = {(d.kind, d.problem) for d in take(3000, seed=1)}
    held_out = {(d.kind, d.problem) for d in take(1000, seed=2, held_out=True)}
    assert not trained & held_out
    assert not any(is_held_out(d) for d in take(300))
    assert all(is_held_out(d) for d in take(300, held_out=True))


def test_steps_end_in_the_result() -> None:
    for x in range(1, 300, 7):
        for y in range(1, 300, 11):
            assert add_steps(x, y).split()[-1] == str(x + y)
            assert multiply_steps(y, 12).split()[-1] == str(y * 12)
            if x < 200 and y <= x:
                assert subtract_steps(x, y).split()[-1] == str(x - y)


def test_steps_are_written_digit_by_digit() -> None:
    assert add_steps(24, 37) == "24 + 37: tens 20 + 30 = 50, ones 4 + 7 = 11, 50 + 11 = 61"
    assert subtract_steps(83, 47) == "83 - 47: tens 80 - 40 = 40, ones 3 - 7 = -4, 40 - 4 = 36"
    assert multiply_steps(14, 60) == "10 * 60 = 600, 4 * 60 = 240. " + add_steps(600, 240)


@pytest.mark.parametrize("kind", KINDS)
def test_the_dialogues_own_replies_are_right(kimi: PreTrainedTokenizerBase, kind: str) -> None:
    for dialogue in take(10 if kind == "code" else 60, kind=kind):
        _, output = rendered(kimi, dialogue)
        assert is_right(kimi, dialogue, output), kimi.decode(output)
        assert not is_right(kimi, dialogue, output[:-1]), "a reply that was cut is not right"


def test_a_wrong_number_or_argument_is_not_right(kimi: PreTrainedTokenizerBase) -> None:
    dialogue = take(1, kind="sum")[0]
    wrong = kimi.encode(f"So it is {int(dialogue.last_number) + 1}.")
    assert not is_right(kimi, dialogue, [*kimi.encode("Hm."), THINK_END, *wrong, IM_END])
    calling, other = take(2, kind="call")
    assert not is_right(kimi, calling, rendered(kimi, other)[1])


def test_prompts_end_in_think_and_replies_end_the_turn(kimi: PreTrainedTokenizerBase) -> None:
    for dialogue in take(200):
        prompt, output = rendered(kimi, dialogue)
        assert prompt[-5:] == [163586, 163588, 69702, 163601, 163606]
        assert output.index(IM_END) == len(output) - 1


def test_no_text_holds_a_control_token(kimi: PreTrainedTokenizerBase) -> None:
    for dialogue in take(400):
        texts = [piece for piece in dialogue.reply if isinstance(piece, str)]
        texts += [str(message.get("content", "")) for message in dialogue.messages]
        for text in texts:
            assert not [i for i in kimi.encode(text, add_special_tokens=False) if i in CONTROLS], text


def test_quiet_dialogues_never_close_and_calls_sometimes_skip_the_closer(kimi: PreTrainedTokenizerBase) -> None:
    assert all(THINK_END not in d.reply for d in take(30, kind="quiet") + take(30, kind="quiet_code"))
    calls = take(200, kind="call")
    assert all(CALLS_BEGIN in d.reply for d in calls)
    straight = sum(THINK_END not in d.reply for d in calls)
    assert 50 < straight < 110
