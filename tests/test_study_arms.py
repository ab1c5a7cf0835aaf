"""What each arm makes of the same answers, exact ids under the real Kimi vocabulary; the data sets that heads read."""

import json
import shutil
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_dataset import response, write_lines

from rawtokens.demo.dialogue_record import CALLS_BEGIN, IM_END, THINK_END, Dialogue
from rawtokens.errors import InputError
from rawtokens.fidelity.replies import Unread
from rawtokens.records import PROMPTS_SCHEMA, Json, Prompt
from rawtokens.study.arms import Arm, ArmRow, Source, as_read, cut_to, make_arm, read_rows_of
from rawtokens.study.datasets import export_rows, vocabulary_files, write_arms, write_evaluation, write_vocabulary
from rawtokens.study.forms import ARMS, MAX_NEW_TOKENS, form_of
from rawtokens.study.other_author import other_reply
from rawtokens.study.questions import evaluation_dialogues, training_dialogues, write_questions
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.verification import verify_journal

Message = dict[str, Json]
ROWS = 6
THOUGHT, ANSWER = " Two and two. ", "\n4"


def answers(target: Tokenizer, dialogues: list[Dialogue]) -> list[list[int]]:
    """Row 0: white space around thought and answer; row 1: ids that their text does not encode to; then the corpus'."""

    def encode(text: str) -> list[int]:
        return target.encode([text])[0]

    made = [
        [*encode(THOUGHT), THINK_END, *encode(ANSWER), IM_END],
        [*encode("so"), *encode("m"), *encode("e"), THINK_END, *encode("4"), IM_END],
    ]
    for dialogue in dialogues[2:]:
        made.append(
            [each for piece in dialogue.reply for each in ([piece] if isinstance(piece, int) else encode(piece))]
        )
    return made


@pytest.fixture(scope="module")
def source(target: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Six rows, captured, verified and exported by the kit's own code."""
    folder = tmp_path_factory.mktemp("captured")
    dialogues = training_dialogues(ROWS)
    prompts, responses = [], []
    for number, (dialogue, output) in enumerate(zip(dialogues, answers(target, dialogues), strict=True)):
        ids = target.prompt_ids(cast("list[Message]", dialogue.messages), tools=cast("list[Message]", dialogue.tools))
        prompts.append(
            Prompt(
                key=f"{number}#0",
                source_id=str(number),
                turn=0,
                prompt_ids=ids,
                prompt_tokens=len(ids),
                thinking="opened",
                messages=json.dumps(dialogue.messages),
                tools=json.dumps(dialogue.tools),
                template_kwargs="{}",
                notices=[],
            )
        )
        made = response(f"{number}#0/0", output, start=number, seconds=1.0)
        responses.append(msgspec.structs.replace(made, prompt_ids=ids, prompt_tokens=len(ids)))
    rows = [msgspec.structs.asdict(prompt) for prompt in prompts]
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA), folder / "prompts.parquet")
    write_lines(folder / "raw_responses.jsonl", responses)
    verify_journal(folder, markers=target.markers, vocabulary_size=target.vocabulary_size)
    exported = export_rows(folder, target, lambda line: None)
    return Source(folder=folder, exported=exported, tokenizer=target, dialogues=dialogues)


def outputs(arm: Arm, source: Source) -> dict[str, list[int]]:
    """The ids behind each prompt, which every arm keeps."""
    prompts = {row.id: row.loss_mask.index(1) for row in source.exported}
    captured = {row.id: row.input_ids for row in source.exported}
    for row in arm.rows:
        assert row.input_ids[: prompts[row.id]] == captured[row.id][: prompts[row.id]]
    return {row.id: row.input_ids[prompts[row.id] :] for row in arm.rows}


def test_the_verbatim_arm_is_the_export_and_the_export_is_the_capture(source: Source, target: Tokenizer) -> None:
    found = outputs(make_arm("verbatim", source), source)
    assert list(found.values()) == answers(target, list(source.dialogues))


def test_the_late_mask_lacks_the_first_sampled_id_of_a_row(source: Source) -> None:
    for row, late in zip(make_arm("verbatim", source).rows, make_arm("late_mask", source).rows, strict=True):
        assert late.input_ids == row.input_ids
        begin = row.loss_mask.index(1)
        assert late.loss_mask == [*row.loss_mask[:begin], 0, *row.loss_mask[begin + 1 :]]


def test_retokenising_changes_the_ids_whose_text_encodes_otherwise_and_no_others(source: Source) -> None:
    captured, found = (outputs(make_arm(name, source), source) for name in ("verbatim", "retokenised"))
    changed = [key for key in found if found[key] != captured[key]]
    assert changed == ["1#0/0"]
    assert found["1#0/0"] == [*source.tokenizer.encode(["some"])[0], *captured["1#0/0"][3:]]


def test_rerendering_with_reasoning_loses_the_white_space_at_the_ends_of_its_texts(source: Source) -> None:
    found = outputs(make_arm("reasoning_kept", source), source)
    thought, answer = source.tokenizer.encode([THOUGHT.strip(), ANSWER.strip()])
    assert found["0#0/0"] == [*thought, THINK_END, *answer, IM_END]


def test_the_template_leaves_an_empty_thinking_in_finished_turns_alone(source: Source) -> None:
    captured, found = (outputs(make_arm(name, source), source) for name in ("verbatim", "template"))
    assert found["0#0/0"] == [THINK_END, *source.tokenizer.encode(["4"])[0], IM_END]
    for key, ids in found.items():
        if CALLS_BEGIN not in captured[key]:
            assert ids[0] == THINK_END
            assert ids.count(THINK_END) == 1


def test_the_corpus_arm_has_the_dialogues_own_replies(source: Source, target: Tokenizer) -> None:
    found = outputs(make_arm("corpus", source), source)
    assert list(found.values())[2:] == answers(target, list(source.dialogues))[2:]


def test_a_reply_longer_than_the_target_may_answer_is_left_out_with_a_reason(source: Source) -> None:
    long = msgspec.structs.replace(source.dialogues[3], reply=["one two " * MAX_NEW_TOKENS, THINK_END, "3", IM_END])
    dialogues = [*source.dialogues[:3], long, *source.dialogues[4:]]
    arm = make_arm("corpus", msgspec.structs.replace(source, dialogues=dialogues))
    assert arm.left_out == {f"longer than {MAX_NEW_TOKENS} ids": 1}
    assert "3#0/0" not in {row.id for row in arm.rows}


def test_another_author_keeps_calls_and_results_and_shares_no_thought() -> None:
    for dialogue in training_dialogues(200):
        made = other_reply(dialogue)
        assert made == other_reply(dialogue)
        assert made[-1] == IM_END
        assert made[0] != dialogue.reply[0]
        if CALLS_BEGIN in dialogue.reply:
            assert made[made.index(CALLS_BEGIN) :] == dialogue.reply[dialogue.reply.index(CALLS_BEGIN) :]
        elif dialogue.last_number:
            assert dialogue.last_number in str(made[-2])


def test_arguments_become_objects_and_texts_lose_their_ends() -> None:
    call: Json = {"type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    message = as_read({"role": "assistant", "content": " x\n", "reasoning_content": "\ny ", "tool_calls": [call]})
    assert message == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "y",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    }


def test_a_call_whose_arguments_are_no_json_is_left_out_with_a_reason() -> None:
    call: Json = {"type": "function", "function": {"name": "f", "arguments": "{"}}
    with pytest.raises(Unread, match="no JSON"):
        as_read({"role": "assistant", "content": "", "tool_calls": [call]})


def row(key: str, *ones: int) -> ArmRow:
    return ArmRow(id=key, input_ids=list(range(len(ones))), loss_mask=list(ones))


def test_arms_are_cut_to_the_same_number_of_supervised_ids_without_losing_an_id_of_a_row() -> None:
    arm = Arm(rows=[row("0#0/0", 0, 1, 1), row("1#0/0", 0, 1, 1, 1), row("2#0/0", 0, 1)])
    assert cut_to(arm, 4) == [row("0#0/0", 0, 1, 1), row("1#0/0", 0, 1, 1, 0)]
    assert cut_to(arm, 5) == [row("0#0/0", 0, 1, 1), row("1#0/0", 0, 1, 1, 1)]
    with pytest.raises(InputError, match="lacks 1 of 7"):
        cut_to(arm, 7)


def reasoning_ids(line: dict[str, list[int]]) -> int:
    """Trained ids up to the closer."""
    end = line["input_ids"].index(THINK_END, line["loss_mask"].index(1)) + 1
    return sum(line["loss_mask"][:end])


def test_every_arm_is_written_with_equal_ids_and_its_own_digest(source: Source, tmp_path: Path) -> None:
    form = msgspec.structs.replace(form_of("full"), prompts=ROWS, draft_vocabulary=64)
    place = tmp_path / "arms"
    facts = write_arms(place, source.folder, source.tokenizer, form, lambda line: None)
    assert [arm.arm for arm in facts] == list(ARMS)
    assert len({arm.supervised_ids for arm in facts}) == 1
    assert len({arm.digest for arm in facts}) == len(facts)
    for arm in facts:
        lines = [json.loads(line) for line in (place / arm.arm / "rows.jsonl").read_text().splitlines()]
        assert len(lines) == arm.rows
        assert sum(sum(line["loss_mask"]) for line in lines) == arm.supervised_ids
        assert sum(len(line["input_ids"]) for line in lines) == arm.positions
        assert arm.reasoning_ids == sum(map(reasoning_ids, lines))
    assert facts == write_arms(place, source.folder, source.tokenizer, form, lambda line: None)


def test_the_program_of_the_page_for_people_with_gpus_writes_the_arms_of_an_export(
    source: Source, kimi_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "NAME"
    shutil.copytree(source.folder, folder)
    page = (Path(__file__).parents[1] / "docs" / "train_a_drafter.md").read_text("utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    for place, own in (("outputs/RUN/NAME", folder), ("MODEL", kimi_folder)):
        assert place in program
        program = program.replace(place, str(own))
    exec(compile(program, "page", "exec"), {})
    rows = {
        name: read_rows_of(folder / "training" / f"{name}.jsonl") for name in ("verbatim", "retokenised", "template")
    }
    assert len({sum(row.supervised for row in each) for each in rows.values()}) == 1
    assert rows["verbatim"][0] == make_arm("verbatim", source).rows[0]


def test_the_draft_vocabulary_is_the_exports(source: Source) -> None:
    kept = write_vocabulary(source.folder, source.tokenizer, 64)
    files = vocabulary_files(source.folder, 64)
    d2t, t2d = (np.load(files[name]) for name in ("d2t", "t2d"))
    assert kept.tolist() == t2d.tolist()
    assert (d2t + np.arange(64)).tolist() == np.flatnonzero(t2d).tolist()


def test_the_evaluation_has_each_output_id_in_one_part(source: Source, tmp_path: Path) -> None:
    assert write_evaluation(tmp_path / "evaluation.jsonl", source.folder, source.tokenizer) == ROWS
    lines = [json.loads(line) for line in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    captured = {row.id: row for row in source.exported}
    for line in lines:
        assert line["ids"] == captured[line["key"]].input_ids
        assert len(line["parts"]) == len(line["ids"]) - line["prompt"]
    thought, answer = (len(ids) for ids in source.tokenizer.encode([THOUGHT, ANSWER]))
    assert lines[0]["parts"] == [0] * (thought + 1) + [1] * (answer + 1)


def test_training_and_evaluation_share_no_prompt(tmp_path: Path) -> None:
    form = form_of("full")
    training = training_dialogues(form.prompts)
    evaluation = evaluation_dialogues(form.evaluation_prompts, apart_from=training)
    assert len({json.dumps([each.messages, each.tools]) for each in training}) == form.prompts
    assert len({(each.kind, each.problem) for each in evaluation}) == form.evaluation_prompts
    said = [str(message["content"]) for each in training for message in each.messages if message["role"] == "user"]
    for dialogue in evaluation:
        for message in dialogue.messages:
            assert message["role"] != "user" or message["content"] not in said
    assert training_dialogues(40) == training[:40]
    write_questions(tmp_path / "questions.jsonl", training[:3])
    lines = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["0", "1", "2"]
    assert [line["messages"] for line in lines] == [each.messages for each in training[:3]]
