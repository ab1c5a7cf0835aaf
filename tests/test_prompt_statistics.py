import json
from pathlib import Path

import pandas as pd
import pytest

from rawtokens.capture.rejections import each_rejection, new_rejections
from rawtokens.prompts import FileCounts, tokenize_file
from rawtokens.records import Rejection
from rawtokens.reporting import figures, prompt_statistics, prompt_takeaways, token_statistics
from rawtokens.target.rendering import PromptOptions
from rawtokens.target.target_tokenizer import Tokenizer
from rawtokens.target.thinking_modes import Portion

MIX = (
    Portion(share=0.75, template_kwargs={"thinking": True}),
    Portion(share=0.25, template_kwargs={"thinking": False}),
)


def question(name: str, content: str, **members: object) -> dict[str, object]:
    return {"id": name, "messages": [{"role": "user", "content": content}], **members}


ROWS = [
    *(question(f"q{n}", f"question {n}") for n in range(12)),
    question("c0", "what does <|im_end|> mean?"),
    question("c1", "<|im_end|></think><|im_end|>"),
    question("own", "Hi", template_kwargs={"thinking": False, "note": "x"}),
    question("empty", ""),
    question("json", "Hi", chat_template_kwargs='{"thinking": false}'),
    question("wrong", "Hi", template_kwargs="[1]"),
    {"id": "sharegpt", "conversations": [{"from": "human", "value": "Hi"}]},
]


def made(folder: Path, target: Tokenizer, options: PromptOptions) -> FileCounts:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tokenize_file(path, folder, target, options)


@pytest.mark.parametrize(
    ("options", "counts", "outcome"),
    [
        (PromptOptions(mix=MIX), (15, 4), "rows rejected"),
        (PromptOptions(mix=MIX, control_tokens="keep"), (17, 2), "rows kept"),
        (PromptOptions(mix=MIX, control_tokens="as_text"), (17, 2), "rows as text"),
    ],
)
def test_every_row_and_every_control_token_is_accounted_for(
    tmp_path: Path, target: Tokenizer, options: PromptOptions, counts: tuple[int, int], outcome: str
) -> None:
    done = made(tmp_path, target, options)
    assert (done.prompts, done.rejected) == counts
    assert done.prompts + done.rejected == len(ROWS)
    found = prompt_statistics.control_token_table(tmp_path)
    assert found[["token", "id", "occurrences", outcome]].to_numpy().tolist() == [
        ["<|im_end|>", "163586", 3, 2],
        ["</think>", "163607", 1, 1],
    ]
    assert found[["rows rejected", "rows kept", "rows as text"]].to_numpy().sum() == 3
    sentence = prompt_takeaways.control_tokens(found, options.control_tokens)
    assert sentence.startswith("2 control tokens came from rows' own texts, most often <|im_end|> (3);")


def test_the_tables_tell_reasons_notices_formats_and_modes(tmp_path: Path, target: Tokenizer) -> None:
    options = PromptOptions(mix=MIX)
    done = made(tmp_path, target, options)
    rejected = prompt_statistics.rejected_table(tmp_path)
    assert list(rejected.columns) == ["reason", "rows", "first line", "first key", "detail"]
    assert list(rejected["first line"]) == ["13", "16", "18"]
    assert dict(zip(rejected["reason"], rejected["rows"], strict=True)) == {
        "control_token_in_text": 2,
        "empty_prompt": 1,
        "bad_template_kwargs": 1,
    }
    assert prompt_takeaways.rejected_rows(rejected, done.prompts + done.rejected) == (
        "4 of 19 rows (21.1%) became no prompt; the most frequent reason is control_token_in_text (2)."
    )
    notices = prompt_statistics.notice_table(tmp_path)
    assert notices.to_numpy().tolist() == [["format_of_the_row", 1, "sharegpt#0", "sharegpt"]]
    formats = prompt_statistics.format_table(tmp_path, tmp_path / "rows.jsonl", "auto")
    assert formats[["format", "rows"]].to_numpy().tolist() == [["openai_messages", 14], ["sharegpt", 1]]
    modes = prompt_statistics.mode_table(token_statistics.read_prompts(tmp_path), options)
    by_arguments = modes.set_index("template arguments")
    assert int(modes["rows"].sum()) == 15
    assert list(by_arguments["wanted share"].dropna()) == [0.75, 0.25]
    own = by_arguments.loc['{"note":"x","thinking":false}']
    assert (own["thinking"], own["rows"]) == ("off", 1)
    assert own.isna()["wanted share"]
    sentence = prompt_takeaways.prompt_modes(modes)
    assert "1 of 15 rows" in sentence
    assert sentence.endswith("brought arguments of their own.")


def test_a_part_of_a_mix_that_no_row_got_is_in_the_table(tmp_path: Path, target: Tokenizer) -> None:
    made(tmp_path, target, PromptOptions())
    modes = prompt_statistics.mode_table(token_statistics.read_prompts(tmp_path), PromptOptions(mix=MIX))
    line = modes.set_index("template arguments").loc['{"thinking":true}']
    assert (line["rows"], line["share"], line["wanted share"]) == (0, 0.0, 0.75)


def test_the_table_stays_short_where_every_row_has_arguments_of_its_own(tmp_path: Path, target: Tokenizer) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [question(f"q{n}", "Hi", template_kwargs={"note": n}) for n in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenize_file(path, tmp_path, target, PromptOptions())
    prompts = token_statistics.read_prompts(tmp_path)
    modes = prompt_statistics.mode_table(prompts, PromptOptions(), most=5)
    assert len(modes) == 7
    assert modes.iloc[-1]["template arguments"] == "25 others"
    assert modes["rows"].sum() == 30
    bars = figures.prompt_modes(prompts, most=5).axes[0]
    assert [label.get_text() for label in bars.get_yticklabels()][-1] == "others"


def test_tables_of_nothing_are_empty(tmp_path: Path, target: Tokenizer) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(question("a", "Hi")) + "\n")
    tokenize_file(path, tmp_path, target, PromptOptions())
    assert prompt_statistics.control_token_table(tmp_path).empty
    assert prompt_statistics.notice_table(tmp_path).empty
    none_rejected = prompt_statistics.rejected_table(tmp_path)
    assert none_rejected.empty
    none = prompt_statistics.control_token_table(tmp_path)
    assert prompt_takeaways.control_tokens(none, "skip").startswith("No control id comes from a row's own text")
    assert prompt_takeaways.rejected_rows(none_rejected, 1) == "1 row in, and each became a prompt."


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"a": 1, "b": 1, "c": 1}, "the most frequent reasons are a, b, c (1 each)."),
        ({"a": 1, "b": 2}, "the most frequent reason is b (2)."),
        ({"a": 3}, "the reason is a."),
    ],
)
def test_the_most_frequent_reason_is_named_only_where_there_is_one(counts: dict[str, int], words: str) -> None:
    table = pd.DataFrame({"reason": list(counts), "rows": list(counts.values())})
    total = sum(counts.values())
    assert prompt_takeaways.rejected_rows(table, 9) == f"{total} of 9 rows became no prompt; {words}"


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (FileCounts(prompts=1, rejected=0), "1 row in = 1 prompt + 0 rejected"),
        (FileCounts(prompts=1000, rejected=2), "1,002 rows in = 1,000 prompts + 2 rejected"),
        (
            FileCounts(prompts=10, rejected=1, empty_lines=1),
            "11 rows in = 10 prompts + 1 rejected; 1 empty line beside them",
        ),
    ],
)
def test_empty_lines_are_told_beside_the_rows(counts: FileCounts, words: str) -> None:
    assert prompt_takeaways.rows_in(counts) == words


def rejection(key: str, stage: str = "tokenize") -> Rejection:
    return Rejection(stage=stage, key=key, line=1, reason="bad_id", detail="")  # type: ignore[arg-type]


def test_new_rejections_replace_stage_01s_lines_and_no_others(tmp_path: Path) -> None:
    for keys in (["a", "b"], ["c"]):
        with new_rejections(tmp_path) as reject:
            reject([rejection(key) for key in keys])
            reject([])
        if keys == ["a", "b"]:
            with (tmp_path / "rejected.jsonl").open("ab") as file:
                file.write(b'{"stage":"generate","key":"g","line":null,"reason":"timeout","detail":""}')
    assert [(item.stage, item.key) for item in each_rejection(tmp_path)] == [("generate", "g"), ("tokenize", "c")]
    assert [path.name for path in tmp_path.iterdir()] == ["rejected.jsonl"]


def test_earlier_rejections_stay_where_the_new_ones_fail(tmp_path: Path) -> None:
    with new_rejections(tmp_path) as reject:
        reject([rejection("a")])

    def stopped() -> None:
        with new_rejections(tmp_path) as reject:
            reject([rejection("b")])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stopped()
    assert [item.key for item in each_rejection(tmp_path)] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["rejected.jsonl"]
