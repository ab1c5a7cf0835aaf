"""Conversations end to end over a fake server: every turn one record, exact to the id, and resumed at any point."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import httpx
import msgspec
import pyarrow.parquet as pq
import pytest
from turn_rows import WEATHER, called, user

from rawtokens import runs
from rawtokens.capture.planned import count_missing
from rawtokens.capture.retrying import retry
from rawtokens.capture.run_status import status_lines
from rawtokens.errors import InputError, RunStopped
from rawtokens.generation import Progress, Target, generate
from rawtokens.journal import JOURNAL, append_rejections, journal_paths, read_rejections, read_responses
from rawtokens.notebook_stages.pipeline import Plan
from rawtokens.notebook_stages.stage_parameters import stage_parameters
from rawtokens.prompts import tokenize_file
from rawtokens.records import Ending, Json, Rejection, Response, Sampling
from rawtokens.run_file import load_run_file
from rawtokens.shards import shard_of
from rawtokens.target.id_bytes import IdBytes
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.turns import tool_results
from rawtokens.turns.derived import TURNS, derive_turns
from rawtokens.turns.endings import ENDED, has_turns, read_endings
from rawtokens.turns.following import Following
from rawtokens.turns.keys import split_key
from rawtokens.turns.setup import following_for, reader_for, unit_of
from rawtokens.turns.talk import Reader
from rawtokens.turns.tool_results import TOOL_RESULTS
from rawtokens.verification import verify_journal

URL = "http://one:30000"
OPTIONS = PromptOptions(turns="each")
CITIES = {"Oslo": "3", "Rome": "25"}
ASSISTANT: dict[str, Json] = {"role": "assistant", "content": "The file's own words"}
Speak = Callable[[str], str]


def call_text(city: str, index: int) -> str:
    begin = f"<|tool_call_begin|>functions.get_weather:{index}<|tool_call_argument_begin|>"
    return f'{begin}{{"city": "{city}"}}<|tool_call_end|>'


def speak(prompt: str) -> str:
    """A model that looks the weather up, one call a city, and tells what came back."""
    last = prompt.rpartition("<|im_user|>")[2]
    results = re.findall(r"## Return of [^\n]*\n(\d+)<", last)
    if results:
        return f"I have it.</think>It is {' and '.join(results)}.<|im_end|>"
    cities = [city for city in re.findall(r"[A-Z]\w+", last) if city in CITIES]
    if cities:
        done = prompt.count("## Return of")
        calls = "".join(call_text(city, done + place) for place, city in enumerate(cities))
        return f"I look.</think><|tool_calls_section_begin|>{calls}<|tool_calls_section_end|><|im_end|>"
    return "Hm.</think>You are welcome.<|im_end|>"


def weather(source_id: str, *rounds: tuple[str, ...], closing: str = "Thanks!") -> dict[str, Json]:
    """A conversation in OpenAI's layout: a cycle a round, and a closing question."""
    messages: list[dict[str, Json]] = []
    first = 0
    for cities in rounds:
        calls = called(*((json.dumps({"city": city}), CITIES.get(city, "9")) for city in cities), first=first)
        messages += [user(f"How warm is it in {' and '.join(cities)}?"), *calls, ASSISTANT]
        first += len(cities)
    return {"id": source_id, "messages": [*messages, user(closing), ASSISTANT], "tools": [WEATHER]}


ROWS = [weather("a#1/x", ("Oslo",), ("Rome", "Oslo")), weather("b", ("Rome",)), weather("c"), weather("d", ("Paris",))]
KEYS = [
    *("a#1/x#0/0", "a#1/x#1/0", "a#1/x#2/0", "a#1/x#3/0", "a#1/x#4/0"),
    *("b#0/0", "b#1/0", "b#2/0", "c#0/0", "d#0/0", "d#1/0"),
]


def prepare(folder: Path, target: Tokenizer, rows: list[dict[str, Json]], options: PromptOptions = OPTIONS) -> Path:
    """Stage 01 over these rows."""
    folder.mkdir(exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    runs.guard_tokenizing(folder, target, options)
    tokenize_file(path, folder, target, options)
    runs.record_tokenizing(folder, target, options)
    return folder


_READERS: dict[int, Reader] = {}  # by identity of the tokenizer: reading the vocabulary takes half a second


def reader_of(target: Tokenizer) -> Reader:
    return _READERS.setdefault(id(target), _READERS.get(id(target)) or Reader.of(IdBytes.of(target), OPTIONS))


class Model:
    """A server whose model says what `speak` makes of the prompt's text; counts requests, and dies at one."""

    def __init__(self, target: Tokenizer, speak: Speak = speak, *, dies_at: int = -1) -> None:
        self.target, self.speak, self.dies_at, self.asked, self.flying, self.most = target, speak, dies_at, 0, 0, 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/generate":
            return httpx.Response(200)
        self.asked += 1
        if self.asked == self.dies_at:
            return httpx.Response(401, json={"error": "Unauthorized"})
        sent = json.loads(request.content)
        self.flying += 1
        self.most = max(self.most, self.flying)
        await asyncio.sleep(0.01)
        self.flying -= 1
        text = self.speak(self.target.decode(sent["input_ids"]))
        ids = self.target.encode([text])[0]
        if text.startswith("REJECT"):
            return httpx.Response(400, json={"error": {"message": "no"}})
        meta = {
            "id": sent["rid"],
            "finish_reason": {"type": "stop", "matched": 163586},
            "prompt_tokens": len(sent["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": "default",
        }
        return httpx.Response(200, json={"text": "", "output_ids": ids, "meta_info": meta})


def run(
    folder: Path,
    target: Tokenizer,
    model: Model | None = None,
    *,
    window: int = 2,
    samples: int = 1,
    shard: str = "",
    tool_function: str = "",
) -> Progress:
    part = shard_of(shard)
    asked = Target(
        urls=(URL,),
        sampling=Sampling(max_new_tokens=64, samples_per_prompt=samples),
        stop_ids=(163586,),
        vocabulary_size=163840,
        fingerprint="f" * 16,
        patience_seconds=0.0,
        shard=part,
    )
    following = Following(folder, reader_of(target), tool_function=tool_function, shard=part)
    transport = httpx.MockTransport(model or Model(target))
    return asyncio.run(generate(folder, asked, window=window, transport=transport, following=following))


def records(folder: Path) -> dict[str, Response]:
    found = [item for path in journal_paths(folder) for item in read_responses(path)]
    assert len({item.key for item in found}) == len(found)
    return {item.key: item for item in found}


def said(folder: Path) -> dict[str, tuple[list[int], list[int]]]:
    return {key: (item.prompt_ids, item.output_ids) for key, item in sorted(records(folder).items())}


def reasons(folder: Path) -> dict[str, tuple[str, int]]:
    return {key.source_id: (ending.reason, ending.turns) for key, ending in read_endings(folder).items()}


@pytest.fixture(scope="module")
def whole(target: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run over ROWS in which nothing happened."""
    folder = prepare(tmp_path_factory.mktemp("whole"), target, ROWS)
    progress = run(folder, target)
    assert (progress.planned, progress.done, progress.rejected) == (11, 11, 0)
    return folder


def test_every_turn_is_one_record_and_every_conversation_has_an_end(whole: Path) -> None:
    assert sorted(records(whole)) == sorted(KEYS)
    assert reasons(whole) == {
        "a#1/x": ("complete", 5),
        "b": ("complete", 3),
        "c": ("complete", 1),
        "d": ("complete", 2),
    }
    assert count_missing(whole, 1) == 0


def test_later_prompts_are_those_of_the_template_or_what_was_sampled_and_its_suffix(
    whole: Path, target: Tokenizer
) -> None:
    found = records(whole)
    first, second, third = (found[f"a#1/x#{turn}/0"] for turn in range(3))
    sampled = [*first.prompt_ids, *first.output_ids]
    suffix = target.encode(["<|im_system|>tool<|im_middle|>## Return of functions.get_weather:0\n3<|im_end|>"])[0]
    opening = target.encode(["<|im_assistant|>assistant<|im_middle|><think>"])[0]
    assert second.prompt_ids == [*sampled, *suffix, *opening]
    call: Json = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    history: list[dict[str, Json]] = [
        user("How warm is it in Oslo?"),
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I look.",
            "tool_calls": [{"id": "functions.get_weather:0", "type": "function", "function": call}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "functions.get_weather:0"},
        {"role": "assistant", "content": "It is 3.", "reasoning_content": "I have it."},
        user("How warm is it in Rome and Oslo?"),
    ]
    assert third.prompt_ids == target.prompt_ids(history, tools=[WEATHER])
    assert "I look." not in target.decode(third.prompt_ids)


def test_a_city_that_the_model_did_not_ask_for_is_left_out(whole: Path, target: Tokenizer) -> None:
    """The model knows nothing of Paris, so it makes no call; its answer goes on to the next question."""
    assert "Return of" not in target.decode(records(whole)["d#1/0"].prompt_ids)


@pytest.mark.parametrize("kept", range(0, 11, 2))
@pytest.mark.parametrize("endings", ["kept", "lost", "torn"])
def test_a_killed_run_goes_on_at_each_conversation_s_next_turn(
    kept: int, endings: str, whole: Path, target: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare(tmp_path / "killed", target, ROWS)
    lines = (whole / JOURNAL).read_bytes().splitlines(keepends=True)
    torn = lines[kept][: len(lines[kept]) // 2]
    (folder / JOURNAL).write_bytes(b"".join(lines[:kept]) + torn)
    there = {split_key(json.loads(line)["key"]) for line in lines[:kept]}
    if endings != "lost":
        ended = [
            line
            for line in (whole / ENDED).read_bytes().splitlines(keepends=True)
            if split_key(msgspec.json.decode(line, type=Ending).key) in there
        ]
        tail = ended[-1][:-9] if ended and endings == "torn" else b""
        (folder / ENDED).write_bytes(b"".join(ended[:-1] if tail else ended) + tail)
    model = Model(target)
    progress = run(folder, target, model)
    assert said(folder) == said(whole)
    assert reasons(folder) == reasons(whole)
    assert model.asked == 11 - kept
    assert (progress.planned, progress.present, progress.done) == (11, kept, 11 - kept)
    assert count_missing(folder, 1) == 0


@pytest.mark.parametrize("dies_at", [1, 2, 5, 8, 11])
def test_a_run_that_is_stopped_counts_what_goes_on(
    dies_at: int, whole: Path, target: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare(tmp_path / "stopped", target, ROWS)
    with pytest.raises(RunStopped):
        run(folder, target, Model(target, dies_at=dies_at))
    over = len(read_endings(folder))
    assert count_missing(folder, 1) == 4 - over > 0
    run(folder, target)
    assert said(folder) == said(whole)


def test_the_window_stays_full_across_conversations(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "window", target, [weather(str(n), ("Oslo",), ("Rome",)) for n in range(8)])
    model = Model(target)
    progress = run(folder, target, model, window=4)
    assert (model.asked, model.most, progress.done) == (40, 4, 40)


def test_samples_are_conversations_of_their_own(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "samples", target, ROWS[1:2])
    run(folder, target, samples=2)
    assert sorted(records(folder)) == ["b#0/0", "b#0/1", "b#1/0", "b#1/1", "b#2/0", "b#2/1"]
    assert len(read_endings(folder)) == 2


def test_shards_keep_conversations_together_and_make_the_same_records(
    whole: Path, target: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare(tmp_path / "shards", target, ROWS)
    for shard in ("1/2", "2/2"):
        run(folder, target, shard=shard)
    assert said(folder) == said(whole)
    assert reasons(folder) == reasons(whole)
    made = [{split_key(item.key).source_id for item in read_responses(path)} for path in journal_paths(folder)]
    assert made[0] | made[1] == {"a#1/x", "b", "c", "d"}
    assert not made[0] & made[1]
    assert count_missing(folder, 1) == 0


def test_endings_of_a_run_in_other_shards_before_are_replaced_by_later_ones(target: Tokenizer, tmp_path: Path) -> None:
    """The file has grown between the runs; ended.jsonl comes behind ended.1-of-2.jsonl by name."""
    folder = prepare(tmp_path / "A", target, [weather(name, ("Rome",)) for name in "abcd"])
    run(folder, target)
    rows = [weather(name, ("Rome",)) for name in "abcd"]
    prepare(folder, target, [{**row, "messages": [*row["messages"], user("Bye!")]} for row in rows])  # type: ignore[misc]
    assert count_missing(folder, 1) == 4
    for shard in ("1/2", "2/2"):
        run(folder, target, shard=shard)
    assert count_missing(folder, 1) == 0
    assert reasons(folder) == dict.fromkeys("abcd", ("complete", 4))
    model = Model(target)
    for shard in ("1/2", "2/2"):
        run(folder, target, model, shard=shard)
    assert model.asked == 0


def test_a_rejected_turn_ends_its_conversation_and_a_retry_goes_on_there(
    whole: Path, target: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rawtokens.capture.tries.RETRY_SECONDS", 0.0)
    folder = prepare(tmp_path / "rejected", target, ROWS)
    progress = run(folder, target, Model(target, lambda text: "REJECT" if "Return of" in text else speak(text)))
    rejected = {item.key for item in read_rejections(folder)}
    assert rejected == {"a#1/x#1/0", "b#1/0"}
    assert (progress.planned, progress.done, progress.rejected) == (7, 5, 2)
    assert count_missing(folder, 1) == 0
    (folder / "rejected.jsonl").unlink()
    assert count_missing(folder, 1) == 2
    run(folder, target)
    assert said(folder) == said(whole)


def test_an_ending_counts_no_more_where_the_file_asks_further(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "longer", target, [weather("b", ("Rome",))])
    run(folder, target)
    before = said(folder)
    prepare(folder, target, [weather("b", ("Rome",), closing="And in Oslo?")])
    assert count_missing(folder, 1) == 1
    longer = weather("b", ("Rome",))
    messages = longer["messages"]
    assert isinstance(messages, list)
    prepare(folder, target, [{**longer, "messages": [*messages, user("Bye!")]}])
    assert count_missing(folder, 1) == 1
    run(folder, target)
    assert list(said(folder).items())[:3] == list(before.items())
    assert reasons(folder) == {"b": ("complete", 4)}


def test_answers_by_another_prompt_than_there_is_now_end_their_conversation(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "changed", target, [weather("b", ("Rome",))])
    run(folder, target)
    prepare(folder, target, [weather("b", ("Rome",), closing="Good!")])
    run(folder, target)
    assert reasons(folder) == {"b": ("prompt_changed", 3)}
    assert count_missing(folder, 1) == 0
    digests = derive_turns(folder, target)
    assert set(digests) == {"b#1/0", "b#2/0"}


@pytest.mark.parametrize("city", ["Rome", "Paris"])
@pytest.mark.parametrize("asked", [2, 3, 4])
def test_an_answer_to_another_first_prompt_than_there_is_now_is_no_history(
    city: str, asked: int, target: Tokenizer, tmp_path: Path
) -> None:
    """With Rome the model calls a tool, with Paris it does not."""
    folder = prepare(tmp_path / "changed", target, [row := weather("b", (city,))])
    with suppress(RunStopped):
        run(folder, target, Model(target, dies_at=asked))
    before = records(folder)
    messages = row["messages"]
    assert isinstance(messages, list)
    finished = count_missing(folder, 1) == 0
    prepare(folder, target, [{**row, "messages": [user(f"How cold is it in {city}?"), *messages[1:]]}])
    run(folder, target)
    assert records(folder) == before
    if not finished:
        assert reasons(folder) == {"b": ("prompt_changed", len(before))}
    later = derive_turns(folder, target)
    assert later == {}
    verify_journal(folder, markers=target.markers, vocabulary_size=163840, later_prompts=later)
    assert set(pq.read_table(folder / "verified.parquet")["verdict"].to_pylist()) == {"reject"}


def test_a_line_that_is_no_record_behind_its_key_is_told_with_what_to_do(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "broken", target, [weather("b", ("Rome",))])
    with pytest.raises(RunStopped):
        run(folder, target, Model(target, dies_at=3))
    first, second = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (folder / JOURNAL).write_bytes(first + second[: len(second) // 2] + b"\n")
    for going_on in (run, derive_turns):
        with pytest.raises(InputError, match=r"'b#1/0' is no record of this kit.*--where foreign"):
            going_on(folder, target)


def hook(folder: Path, body: str) -> str:
    path = folder / "tools.py"
    path.write_text(f"def answer(name, arguments, messages):\n    {body}\n", "utf-8")
    return f"{path}:answer"


def test_a_function_of_the_user_s_answers_calls_and_is_asked_once(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "hook", target, [weather("a", ("Oslo",), ("Rome",))])
    function = hook(tmp_path, "return str(len(messages)) + '7'")
    run(folder, target, tool_function=function)
    found = records(folder)
    assert "## Return of functions.get_weather:0\n27<" in target.decode(found["a#1/0"].prompt_ids)
    assert "It is 27." in target.decode(found["a#2/0"].prompt_ids)
    lines = (folder / TOOL_RESULTS).read_bytes().splitlines()
    assert [json.loads(line)["content"] for line in lines] == ["27", "67"]
    # Another answer now: what was told before stands, so that the records that follow are the same.
    before, kept = said(folder), (folder / JOURNAL).read_bytes().splitlines(keepends=True)[:1]
    (folder / JOURNAL).write_bytes(b"".join(kept))
    run(folder, target, tool_function=hook(tmp_path, "return 'another'"))
    assert said(folder) == before
    digests = derive_turns(folder, target)
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise KeyError(name)", "tool_function_failed"),
        ("raise ValueError(chr(0xD800))", "tool_function_failed"),
        ("raise SystemExit(2)", "tool_function_failed"),
        ("return object()", "tool_function_failed"),
        ("return None", "call_not_answered"),
        ("return chr(0xD800)", "call_not_kept"),
        ("return {'a': chr(0xD800)}", "call_not_kept"),
        ("return '<|im_end|>'", "control_token_in_text"),
    ],
)
def test_a_function_without_an_answer_ends_the_conversation(
    body: str, reason: str, target: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare(tmp_path / "hook", target, [weather("a", ("Oslo",))])
    run(folder, target, tool_function=hook(tmp_path, body))
    assert reasons(folder) == {"a": (reason, 1)}


def test_conversations_that_want_a_tool_s_answer_go_on_with_a_mended_function(
    whole: Path, target: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare(tmp_path / "A", target, ROWS)
    run(folder, target, tool_function=hook(tmp_path, "raise KeyError(name)"))
    assert reasons(folder)["b"] == ("tool_function_failed", 1)
    found = retry(plan_of(tmp_path), "A", where="reason=tool_function_failed")
    assert (found.lines, found.again) == (2, 2)
    (aside,) = found.files
    assert {json.loads(line)["key"] for line in aside.read_bytes().splitlines()} == {"a#1/x#0/0", "b#0/0"}
    run(folder, target, tool_function=hook(tmp_path, f"return {CITIES}[arguments['city']]"))
    assert said(folder) == said(whole)
    assert reasons(folder) == reasons(whole)
    assert retry(plan_of(tmp_path), "A", where="reason=tool_function_failed").lines == 0


def test_a_function_that_is_new_answers_no_call_that_had_its_answer(target: Tokenizer, tmp_path: Path) -> None:
    """The first round was served by the file, before the run was stopped."""
    folder = prepare(tmp_path / "hook", target, ROWS[:1])
    with pytest.raises(RunStopped):
        run(folder, target, Model(target, dies_at=4))
    run(folder, target, tool_function=hook(tmp_path, "return '77'"))
    assert reasons(folder) == {"a#1/x": ("complete", 5)}
    lines = (folder / TOOL_RESULTS).read_bytes().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["a#1/x#2/0"] * 2
    verify_journal(folder, markers=target.markers, vocabulary_size=163840, later_prompts=derive_turns(folder, target))
    assert set(pq.read_table(folder / "verified.parquet")["verdict"].to_pylist()) == {"accept"}


def test_a_function_that_changes_what_it_is_given_changes_no_record(target: Tokenizer, tmp_path: Path) -> None:
    """It takes the calls of the messages to pieces, and its arguments too."""
    folder = prepare(tmp_path / "hook", target, ROWS[:1])
    body = "[message.get('tool_calls', [{}])[0].clear() for message in messages]; return len(arguments.popitem())"
    run(folder, target, tool_function=hook(tmp_path, body))
    assert reasons(folder) == {"a#1/x": ("complete", 5)}
    digests = derive_turns(folder, target)
    verify_journal(folder, markers=target.markers, vocabulary_size=163840, later_prompts=digests)
    assert set(pq.read_table(folder / "verified.parquet")["verdict"].to_pylist()) == {"accept"}
    lines = (folder / TOOL_RESULTS).read_bytes().splitlines()
    assert [json.loads(line)["arguments"] for line in lines] == [{"city": "Oslo"}, {"city": "Rome"}, {"city": "Oslo"}]


def test_a_function_that_is_not_there_is_refused_before_anything_starts(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "hook", target, ROWS[2:3])
    with pytest.raises(InputError, match="has no function 'missing'"):
        run(folder, target, tool_function=hook(tmp_path, "return ''").replace("answer", "missing"))


def test_one_turn_a_prompt_needs_no_tokenizer_in_stage_02(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "last", target, ROWS, PromptOptions(turns="last"))
    assert not has_turns(folder)
    assert following_for(folder, '{"tokenizer": "/nowhere"}') is None
    assert unit_of(folder) == "generation"
    assert unit_of(prepare(tmp_path / "each", target, ROWS)) == "conversation"
    assert derive_turns(folder, target) == {}
    assert not (folder / TURNS).exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{}", "conversations names no tokenizer"),
        ("[]", "expected JSON like"),
        ('{"tokeniser": "a"}', "tokeniser"),
        ('{"tokenizer": "/nowhere/at/all"}', "no such folder"),
    ],
)
def test_conversations_without_a_usable_tokenizer_are_refused(
    settings: str, words: str, target: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare(tmp_path / "each", target, ROWS[2:3])
    with pytest.raises(InputError, match=words):
        following_for(folder, settings)


def test_another_tokenizer_than_stage_01_s_is_refused(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "other", target, ROWS)
    identity: Mapping[str, str] = {**target.identity, "chat_template_sha256": "0" * 64}
    other = msgspec.structs.replace(target, identity=dict(identity))
    with pytest.raises(InputError, match="chat_template_sha256 is"):
        reader_for(folder, other)


def test_turns_parquet_says_how_every_prompt_was_made(whole: Path, target: Tokenizer) -> None:
    digests = derive_turns(whole, target)
    rows = {row["key"]: row for row in pq.read_table(whole / TURNS).to_pylist()}
    assert sorted(rows) == sorted(KEYS)
    assert set(digests) == {key for key in KEYS if split_key(key).turn}
    made = [rows[f"a#1/x#{turn}/0"]["made"] for turn in range(5)]
    assert made == ["first", "cycle", "question", "cycle", "question"]
    assert {row["differs_at"] for row in rows.values()} == {None}
    assert rows["a#1/x#4/0"]["prompt_tokens"] == len(records(whole)["a#1/x#4/0"].prompt_ids)


def test_verification_holds_every_turn_to_the_prompt_that_follows_from_the_turns_before_it(
    target: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare(tmp_path / "verified", target, ROWS[:2])
    run(folder, target)

    def reasons_by_key() -> dict[str, list[str]]:
        later = derive_turns(folder, target)
        verify_journal(folder, markers=target.markers, vocabulary_size=163840, later_prompts=later)
        rows = pq.read_table(folder / "verified.parquet", columns=["key", "reasons"]).to_pylist()
        return {row["key"]: row["reasons"] for row in rows if row["reasons"]}

    assert reasons_by_key() == {}
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    odd = [json.loads(line) for line in lines]
    for line in odd:
        if line["key"] == "b#0/0":  # another answer than the one that turns 1 and 2 were built on
            line["output_ids"] = target.encode([speak("<|im_user|>Oslo")])[0]
            line["completion_tokens"] = len(line["output_ids"])
        if line["key"] == "a#1/x#2/0":
            line["prompt_ids"][3] += 1
    (folder / JOURNAL).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in odd))
    found = reasons_by_key()
    assert found["a#1/x#2/0"] == ["prompt_changed"]
    assert found["b#1/0"] == ["prompt_unknown"]
    assert found["b#2/0"] == ["prompt_unknown"]
    assert "a#1/x#1/0" not in found


def test_status_counts_conversations_that_go_on(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "A", target, ROWS)
    (tmp_path / "run.yaml").write_text(
        "run: tiny\nmodel: {tokenizer: org/model}\n"
        "datasets: {A: {prompts: A/rows.jsonl, turns: each, tool_function: 'A/tools.py:answer'}}\n"
    )
    settings = load_run_file(tmp_path / "run.yaml")
    assert settings.datasets["A"].tool_function == f"{folder}/tools.py:answer"
    given = stage_parameters(settings, "02", "A", folder=folder)["conversations"]
    assert json.loads(str(given))["tokenizer"] == "org/model"
    assert json.loads(str(given))["tool_function"] == f"{folder}/tools.py:answer"
    plan = Plan(settings=settings, run_folder=tmp_path, notebooks=tmp_path, datasets=("A",))
    with pytest.raises(RunStopped):
        run(folder, target, Model(target, dies_at=4))
    line = next(status_lines(plan))
    made, going = len(records(folder)), count_missing(folder, 1)
    assert line == (f"A: 4 conversations planned, {made} turns generated, {going} to go on, 0 rejected")


def plan_of(base: Path) -> Plan:
    (base / "run.yaml").write_text(
        "run: tiny\nmodel: {tokenizer: org/model}\ndatasets: {A: {prompts: A/rows.jsonl, turns: each}}\n"
    )
    return Plan(settings=load_run_file(base / "run.yaml"), run_folder=base, notebooks=base, datasets=("A",))


@pytest.mark.parametrize("asked", [1, 2])
def test_an_ending_of_a_turn_that_was_set_aside_ends_no_conversation_once_the_turn_stands_again(
    asked: int, target: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that goes on is stopped behind the new turn: as many turns stand then as the old ending tells of."""
    monkeypatch.setattr("rawtokens.capture.retrying.stage_is_current", lambda *_: True)
    folder = prepare(tmp_path / "A", target, ROWS[1:2])
    run(folder, target, Model(target, lambda text: "Hm.<|im_end|>" if "Return of" in text else speak(text)))
    assert reasons(folder) == {"b": ("never_closed", 2)}
    later = derive_turns(folder, target)
    verify_journal(folder, markers=target.markers, vocabulary_size=163840, later_prompts=later)
    found = retry(plan_of(tmp_path), "A", where="reason=never_closed")
    assert (found.lines, found.again) == (1, 1)
    with pytest.raises(RunStopped):
        run(folder, target, Model(target, dies_at=asked))
    assert count_missing(folder, 1) == 1
    run(folder, target)
    assert reasons(folder) == {"b": ("complete", 3)}
    assert sorted(records(folder)) == ["b#0/0", "b#1/0", "b#2/0"]


@pytest.mark.parametrize("broken", ["a#1/x#0/0", "a#1/x#1/0", "a#1/x#4/0", "b#0/0", "c#0/0"])
def test_a_foreign_line_takes_the_turns_along_that_were_built_on_it(
    broken: str, whole: Path, target: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare(tmp_path / "A", target, ROWS)
    lines = (whole / JOURNAL).read_bytes().splitlines(keepends=True)
    place = next(place for place, line in enumerate(lines) if json.loads(line)["key"] == broken)
    (folder / JOURNAL).write_bytes(b"".join([*lines[:place], b"\xff junk\n", *lines[place + 1 :]]))
    (folder / ENDED).write_bytes((whole / ENDED).read_bytes())
    source, turn, _ = split_key(broken)
    gone = [key for key in KEYS if split_key(key).source_id == source and split_key(key).turn >= turn]
    beyond = Rejection(stage="generate", key=f"{source}#{turn + 1}/0", line=None, reason="timeout", detail="")
    append_rejections(folder, [beyond])  # of the same conversation, as it was before
    retry(plan_of(tmp_path), "A", where="foreign")
    assert sorted(records(folder)) == sorted(set(KEYS) - set(gone))
    assert read_rejections(folder) == []
    assert count_missing(folder, 1) == 1
    run(folder, target)
    assert said(folder) == said(whole)
    assert reasons(folder) == reasons(whole)


def test_prompts_that_cannot_be_read_are_told_by_who_reads_them(tmp_path: Path) -> None:
    (tmp_path / "prompts.parquet").write_bytes(b"PAR1 no more")
    assert not has_turns(tmp_path)
    assert not has_turns(tmp_path / "nowhere")
    with pytest.raises(InputError, match="run stage 01 again"):
        count_missing(tmp_path, 1)


def test_a_function_that_hangs_keeps_no_stopped_process(target: Tokenizer, tmp_path: Path) -> None:
    """Python waits at its end for threads that are no daemons."""
    folder = prepare(tmp_path / "hang", target, [weather("b", ("Rome",))])
    body = "import threading; return str(int(threading.current_thread().daemon))"
    run(folder, target, tool_function=hook(tmp_path, body))
    (line,) = (folder / TOOL_RESULTS).read_bytes().splitlines()
    assert json.loads(line)["content"] == "1"


def test_slow_functions_of_several_conversations_run_at_the_same_time(target: Tokenizer, tmp_path: Path) -> None:
    """Each waits until four of them run: one after the other, they would wait for ever."""
    folder = prepare(tmp_path / "slow", target, [weather(str(number), ("Oslo",)) for number in range(4)])
    body = "BARRIER.wait(60); return '1'"
    function = hook(tmp_path, body)
    path = tmp_path / "tools.py"
    path.write_text("from threading import Barrier\n\nBARRIER = Barrier(4)\n\n" + path.read_text())
    run(folder, target, window=4, tool_function=function)
    assert set(reasons(folder).values()) == {("complete", 3)}


def test_slow_functions_of_resumed_conversations_run_at_the_same_time(target: Tokenizer, tmp_path: Path) -> None:
    """All four had their first answer, and no call was answered when the run ended."""
    folder = prepare(tmp_path / "slow", target, [weather(str(number), ("Oslo",)) for number in range(4)])
    run(folder, target, tool_function=hook(tmp_path, "raise KeyError(name)"))
    (folder / ENDED).unlink()
    function = hook(tmp_path, "BARRIER.wait(60); return '1'")
    path = tmp_path / "tools.py"
    path.write_text("from threading import Barrier\n\nBARRIER = Barrier(4)\n\n" + path.read_text())
    progress = run(folder, target, window=4, tool_function=function)
    assert set(reasons(folder).values()) == {("complete", 3)}
    assert (progress.planned, progress.present, progress.done) == (12, 4, 8)


def test_a_resumed_run_of_conversations_that_all_end_counts_no_turn_more(target: Tokenizer, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "ended", target, [weather(str(number), ("Oslo",)) for number in range(4)])
    run(folder, target, tool_function=hook(tmp_path, "raise KeyError(name)"))
    (folder / ENDED).unlink()
    progress = run(folder, target, tool_function=hook(tmp_path, "raise KeyError(name)"))
    assert set(reasons(folder).values()) == {("tool_function_failed", 1)}
    assert (progress.planned, progress.present, progress.done) == (4, 4, 0)


HANGS = "import threading; threading.Event().wait() if arguments['city'] == 'Rome' else None; return '1'"


def test_a_function_that_never_returns_ends_its_conversation_alone(
    target: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_results, "FUNCTION_SECONDS", 0.2)
    folder = prepare(tmp_path / "A", target, [weather("a", ("Oslo",)), weather("b", ("Rome",))])
    run(folder, target, window=1, tool_function=hook(tmp_path, HANGS))
    assert reasons(folder) == {"a": ("complete", 3), "b": ("tool_function_timeout", 1)}
    assert retry(plan_of(tmp_path), "A", where="reason=tool_function_timeout").again == 1
    run(folder, target, tool_function=hook(tmp_path, "return '1'"))
    assert reasons(folder) == {"a": ("complete", 3), "b": ("complete", 3)}


def test_a_function_that_returns_from_no_call_stops_the_run(
    target: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that does not come back keeps a thread."""
    monkeypatch.setattr(tool_results, "FUNCTION_SECONDS", 0.1)
    monkeypatch.setattr(tool_results, "LEFT_RUNNING", 3)
    folder = prepare(tmp_path / "hang", target, [weather(str(number), ("Rome",)) for number in range(5)])
    with pytest.raises(RunStopped, match="has not come back from 3 calls"):
        run(folder, target, window=1, tool_function=hook(tmp_path, HANGS))
    assert list(reasons(folder).values()) == [("tool_function_timeout", 1)] * 2


MEETS = """
from pathlib import Path
from time import sleep

HERE = Path(__file__).parent

def answer(name, arguments, messages):
    mine, other = ("asked", "gate") if arguments["city"] == "Rome" else ("beside", "asked")
    (HERE / mine).touch()
    while not (HERE / other).exists():
        sleep(0.01)
    if mine == "asked":
        (HERE / "said").touch()
    return "1"
"""


def test_what_a_function_says_when_its_run_is_over_is_not_kept(target: Tokenizer, tmp_path: Path) -> None:
    """A notebook's kernel lives on, and the next run may have asked again meanwhile."""
    folder = prepare(tmp_path / "late", target, [weather("a", ("Oslo",)), weather("b", ("Rome",))])
    (tmp_path / "tools.py").write_text(MEETS)
    with pytest.raises(RunStopped, match="key_refused"):
        run(folder, target, Model(target, dies_at=3), tool_function=f"{tmp_path / 'tools.py'}:answer")
    before = (folder / TOOL_RESULTS).read_bytes()
    (tmp_path / "gate").touch()
    while not (tmp_path / "said").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    assert (folder / TOOL_RESULTS).read_bytes() == before
    assert [json.loads(line)["key"] for line in before.splitlines()] == ["a#0/0"]
