"""Hub data sets through `datasets`, on folders that it reads the same way, hold the rows that our own readers give."""

import json
from datetime import datetime
from pathlib import Path

import datasets  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from prompt_rows import Outcome, only, read_rows, reasons, said

from rawtokens.conversations import detect_format, prompt_files, read_conversations
from rawtokens.conversations.hub import HubDataset, hub_dataset
from rawtokens.errors import InputError
from rawtokens.records import Conversation

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {name: {"type": "string"}}}}}
    for name in "fg"
]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Tromsø"}'}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "When? \u2028\n"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "12", "tool_call_id": "c1"},
]
ROWS = [
    {"id": "a", "messages": MESSAGES[:2], "tools": TOOLS[:1]},
    {"id": "b", "messages": MESSAGES, "tools": TOOLS},
    {"id": "b", "messages": MESSAGES[:2], "tools": []},
    {"id": None, "messages": [{"role": "user", "content": " "}], "tools": TOOLS[1:]},
    *({"id": f"n{number}", "messages": MESSAGES[:2], "tools": None} for number in range(150)),
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def without_padding(outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes without the one notice that the reader of another container may have."""
    kept = []
    for row in outcomes:
        if isinstance(row, Conversation):
            row = replace(row, notices=tuple(notice for notice in row.notices if notice != "null_padding"))
        kept.append(row)
    return kept


def write(folder: Path, container: str) -> Path:
    folder.mkdir()
    if container == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), folder / "train.parquet", row_group_size=40)
        return folder / "train.parquet"
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder / "train.jsonl"


@pytest.mark.parametrize("container", ["jsonl", "parquet"])
def test_rows_of_datasets_are_those_of_our_own_readers(tmp_path: Path, container: str) -> None:
    own = list(read_conversations(write(tmp_path / "set", container)))
    streamed = list(read_conversations(f"hub:{tmp_path / 'set'}"))
    assert reasons(streamed)[:4] == ["", "", "duplicate_id", "empty_prompt"]
    assert without_padding(streamed) == without_padding(own)
    if container == "parquet":
        assert streamed == own
    assert detect_format(f"hub:{tmp_path / 'set'}") == "openai_messages"
    assert len(list(read_conversations(f"hub:{tmp_path / 'set'}", limit=2))) == 2


@pytest.mark.parametrize("container", ["jsonl", "parquet"])
def test_a_folder_of_datasets_reads_as_its_file_does(tmp_path: Path, container: str) -> None:
    file = write(tmp_path / "set", container)
    builder = "json" if container == "jsonl" else "parquet"
    rows = datasets.load_dataset(builder, data_files=str(file), split="train", streaming=True)
    texts = [row["messages"][-1]["content"] for row in rows]
    found = list(read_conversations(f"hub:{tmp_path / 'set'}"))
    assert len(found) == len(texts) == len(ROWS)
    read = [row.messages[-1]["content"] if isinstance(row, Conversation) else None for row in found]
    assert [text for text, made in zip(texts, read, strict=True) if made is not None] == [t for t in read if t]


def test_a_data_set_saved_to_the_disk_is_read_as_arrow_files(tmp_path: Path) -> None:
    own = list(read_conversations(write(tmp_path / "set", "parquet")))
    made = datasets.Dataset.from_list(ROWS)
    made.save_to_disk(tmp_path / "saved", num_shards=2)
    found = list(read_conversations(tmp_path / "saved" / "data-*.arrow"))
    assert [replace(row, line=0) for row in found if isinstance(row, Conversation)] == [
        replace(row, line=0) for row in own if isinstance(row, Conversation)
    ]
    assert reasons(found) == reasons(own)
    with pytest.raises(InputError, match=r"load_from_disk|data-\*\.arrow"):
        read_conversations(f"hub:{tmp_path / 'saved'}")


def test_splits_and_configs_are_named_behind_the_sign(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    for config, split in (("one", "train"), ("one", "test"), ("two", "train")):
        (folder / config).mkdir(parents=True, exist_ok=True)
        (folder / config / f"{split}.jsonl").write_text(json.dumps({"prompt": f"{config} {split}"}) + "\n")
    names = "".join(f"- config_name: {name}\n  data_dir: {name}\n" for name in ("one", "two"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{names}---\n")
    for part, text in (("one/test", "one test"), ("two/train", "two train"), ("one/", "one train")):
        assert said(only(list(read_conversations(f"hub:{folder}#{part}")))) == [("user", text)]
    with pytest.raises(InputError, match=r"can't be read .*one.*two.*config/split") as caught:
        read_conversations(f"hub:{folder}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hub:o/n", ("o/n", "", "", "train")),
        ("hub:o/n#test", ("o/n", "", "", "test")),
        ("hub:o/n@refs/convert/parquet#all/test", ("o/n", "refs/convert/parquet", "all", "test")),
        ("hub:n@v1", ("n", "v1", "", "train")),
    ],
)
def test_a_hub_name_has_a_revision_a_config_and_a_split(text: str, parts: tuple[str, str, str, str]) -> None:
    name, revision, config, split = parts
    assert hub_dataset(text) == HubDataset(name=name, revision=revision, config=config, split=split)
    assert prompt_files(text) == prompt_files(Path(text)) == []


@pytest.mark.parametrize(("text", "pinned"), [("o/n", False), ("o/n@main", False), ("o/n@" + "a" * 40, True)])
def test_a_revision_that_may_move_is_said_in_every_row(
    monkeypatch: pytest.MonkeyPatch, text: str, pinned: bool
) -> None:
    asked: list[object] = []

    def load(*arguments: object, **named: object) -> datasets.IterableDataset:
        asked.append((arguments, named.get("revision")))
        return datasets.Dataset.from_list([{"prompt": "a"}, {"prompt": "b"}]).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    found = list(read_conversations(f"hub:{text}"))
    notices = () if pinned else ("revision_not_pinned",)
    assert [row.notices for row in found if isinstance(row, Conversation)] == [notices, notices]
    assert asked == [(("o/n", None), text.partition("@")[2] or None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hub:", "names no data set; expected hub:OWNER/NAME@REVISION#SPLIT"),
        ("hub:@main", "names no data set"),
        ("hub:nobody/nothing@main", r"nothing@main can't be read .*check the name.*HF_TOKEN"),
        ("hub:./nowhere", r"can't be read"),
    ],
)
def test_a_data_set_that_can_not_be_had_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=message) as caught:
        read_conversations(text)
    assert "\n" not in str(caught.value)


def test_a_split_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    write(tmp_path / "set", "jsonl")
    with pytest.raises(InputError, match=r"Bad split: test. Available splits: \['train'\]"):
        read_conversations(f"hub:{tmp_path / 'set'}#test")


def test_an_error_on_the_way_comes_after_the_rows_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        features = None

        def decode(self, _: bool) -> object:
            yield from ({"prompt": str(number)} for number in range(150))
            raise ConnectionError("connection reset\nby peer")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: Broken())
    found: list[Outcome] = []
    with pytest.raises(InputError, match=r"can't be read after row 150 .connection reset."):
        found.extend(read_conversations("hub:o/n"))
    assert len(found) == 150


def test_texts_that_datasets_reads_as_dates_cost_their_rows_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    rows = [{"id": f"2024-01-0{day}", "prompt": "Hi"} for day in (1, 2)]
    (tmp_path / "set" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert reasons(read_rows(tmp_path, rows)) == ["", ""]
    assert reasons(list(read_conversations(f"hub:{tmp_path / 'set'}"))) == ["bad_id", "bad_id"]


def test_dates_of_parquet_in_arguments_cost_their_row_alone(tmp_path: Path) -> None:
    calls = [{"function": {"name": "f", "arguments": {"day": datetime(2024, 1, 1)}}}]
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": calls}]
    row = {"id": 1, "messages": [*turns, {"role": "tool", "content": "1"}]}
    pq.write_table(pa.Table.from_pylist([row, {"id": 2, "messages": turns[:1]}]), tmp_path / "rows.parquet")
    assert reasons(list(read_conversations(tmp_path / "rows.parquet"))) == ["bad_arguments", ""]
