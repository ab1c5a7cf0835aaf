"""Exports read back by plain means, id by id, and every way in which one must not come about."""

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import training_data
from small_dataset import CLOSER, END, OPENER
from training_data import KIMI, MASKS, ROWS, Row

from rawtokens.errors import InputError, LockedError, RunStopped
from rawtokens.locking import lock
from rawtokens.training import export as export_module
from rawtokens.training.checksums import IdTexts
from rawtokens.training.export import BY_NAME, export
from rawtokens.training.formats import ReadBack
from rawtokens.training.manifest import read_exports
from rawtokens.training.policies import longer_prompts
from rawtokens.training.settings import FORMATS, TrainingSettings
from rawtokens.training.torch_archive import read_archive

KEPT = [row for row in ROWS if row[0] not in ("g#0/0", "h#0/0")]


def run(folder: Path, **asked: object) -> list[Any]:
    settings = TrainingSettings(**{"formats": FORMATS, "held_out": 0.0, **asked})  # type: ignore[arg-type]
    return export(folder, markers=KIMI, settings=settings, on_line=lambda _: None)


def expected(row: Row, place: int = 0) -> tuple[str, list[int], list[int]]:
    key, prompt, output, _ = row
    return key, [*prompt, *output], [0] * len(prompt) + [int(one) for one in MASKS[key][place]]


def rows_of(path: Path) -> list[tuple[str, list[int], list[int]]]:
    """Key, ids and mask of every row of an exported file, by the plainest reader that there is."""
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [(line.get("key", line.get("id")), line["input_ids"], line["loss_mask"]) for line in lines]
    if path.suffix == ".pt":
        return [(row["data_id"], row["input_ids"][0].tolist(), unpack(row)) for row in read_archive(path)]  # type: ignore
    table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_stream(path.read_bytes()).read_all()
    return [(row["key"], row["input_ids"], row["loss_mask"]) for row in table.to_pylist()]


def unpack(row: dict[str, Any]) -> list[int]:
    lengths = [int(length) for length in row["packed_loss_mask"].split(",")]
    return [place % 2 for place, length in enumerate(lengths) for _ in range(length)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = training_data.write(tmp_path_factory.mktemp("export"))
    run(folder)
    return folder / "training"


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_holds_the_captured_ids_and_the_masks_by_hand(exported: Path, name: str) -> None:
    (path,) = (exported / name).iterdir()
    assert path.name == f"train-00000-of-00001.{BY_NAME[name].suffix}"
    assert rows_of(path) == [expected(row) for row in KEPT]


def test_the_manifest_tells_where_every_row_went(exported: Path) -> None:
    found = read_exports(exported.parent)
    assert [entry.format for entry in found] == list(FORMATS)
    for entry in found:
        assert entry.counts == {"rows": 9, "train": 7, "held_out": 0, "left_out": 2}
        assert entry.left_out == {"flagged: never_closed": 1, "rejected: stop_in_middle": 1}
        assert entry.checked_rows == 7
        assert entry.repeated_prompts == 1
        assert entry.mask_convention.startswith("unshifted: loss_mask[i] is 1 where the target sampled input_ids[i]")
        prompts, outputs = sum(len(row[1]) for row in KEPT), sum(len(row[2]) for row in KEPT)
        assert entry.ids["prompt"] == prompts
        assert sum(entry.ids.values()) == prompts + outputs == sum(file.ids for file in entry.files)
        assert sum(file.supervised_ids for file in entry.files) == outputs
        assert [file.bytes for file in entry.files] == [(exported / file.name).stat().st_size for file in entry.files]


@pytest.mark.parametrize(("place", "mask"), list(enumerate(training_data.NAMES)))
def test_rows_without_an_id_to_train_on_are_left_out_by_name(tmp_path: Path, place: int, mask: str) -> None:
    folder = training_data.write(tmp_path)
    entries = run(folder, mask=mask)
    wanted = [row for row in KEPT if "1" in MASKS[row[0]][place]]
    for entry in entries:
        assert rows_of(folder / "training" / entry.files[0].name) == [expected(row, place) for row in wanted]
        assert entry.left_out.get("nothing_supervised", 0) == len(KEPT) - len(wanted)
        assert sum(entry.left_out.values()) == entry.counts["left_out"] == len(ROWS) - len(wanted)


@pytest.mark.parametrize(
    ("asked", "gone"),
    [
        ({"truncated_in_thinking": "drop"}, {"d#0/0": "truncated_in_thinking"}),
        ({"truncated_in_answer": "drop"}, {"e#0/0": "truncated_in_answer"}),
        ({"truncated_in_thinking": "generate_longer"}, {"d#0/0": "truncated_in_thinking"}),
        ({"duplicates": "first"}, {"a#0/1": "duplicate_prompt"}),
        ({"max_length": 11}, {"a#0/0": "", "b#0/0": "too_long", "c#0/0": "too_long"}),
        ({"flagged": "keep"}, {"g#0/0": "back"}),
    ],
)
def test_a_policy_decides_row_by_row_and_says_why(
    tmp_path: Path, asked: dict[str, object], gone: dict[str, str]
) -> None:
    folder = training_data.write(tmp_path)
    (entry,) = run(folder, formats=("parquet",), **asked)
    keys = [key for key, _, _ in rows_of(folder / "training" / entry.files[0].name)]
    left = {key for key, reason in gone.items() if reason not in ("", "back")}
    back = {key for key, reason in gone.items() if reason == "back"}
    assert keys == [row[0] for row in ROWS if row[0] not in {"g#0/0", "h#0/0"} - back | left]
    for reason in set(gone.values()) - {"", "back"}:
        assert entry.left_out[reason] == list(gone.values()).count(reason)
    assert entry.counts["rows"] == entry.counts["train"] + entry.counts["left_out"]


def test_prompts_to_generate_longer_are_a_prompt_file(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path)
    run(folder, formats=("parquet",), truncated_in_thinking="generate_longer", truncated_in_answer="generate_longer")
    path = folder / "training" / "generate_longer.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["id"] for line in lines] == ["d", "e"]
    assert lines[0]["messages"] == [{"role": "user", "content": "say d#0"}]
    run(folder, formats=("parquet",))
    assert not path.exists()


def test_a_conversation_to_generate_longer_is_whole(tmp_path: Path) -> None:
    rows: list[Row] = [
        ("s#0/0", training_data.prompt_of(100), [1, CLOSER, 4, END], "stop"),
        ("s#1/0", [*training_data.prompt_of(100), 1, CLOSER, 4, END, 163588, OPENER], [1, 2], "length"),
        ("s#1/1", [*training_data.prompt_of(100), 1, CLOSER, 4, END, 163588, OPENER], [1, 3], "length"),
    ]
    folder = training_data.write(tmp_path, rows)
    table = pq.read_table(folder / "prompts.parquet").slice(0, 1)
    later = pa.array(['[{"role":"assistant","content":"once"},{"role":"user","content":"again"}]'])
    place = table.schema.get_field_index("later")
    pq.write_table(table.set_column(place, table.schema.field(place), later), folder / "prompts.parquet")
    keys = ("s#1/0", "s#1/1")
    (line,) = longer_prompts(folder, keys).splitlines()
    assert [message["content"] for message in json.loads(line)["messages"]] == ["say s#0", "once", "again"]
    with pytest.raises(InputError, match=r"has no prompt of 't', whose truncated row is to be generated longer"):
        longer_prompts(folder, ("t#0/0",))


@pytest.mark.parametrize("name", FORMATS)
def test_shards_are_cut_by_ram_and_hold_every_row_once_in_order(tmp_path: Path, name: str) -> None:
    folder = training_data.write(tmp_path)
    (entry,) = run(folder, formats=(name,), shard_gb=25.5 * BY_NAME[name].ram_bytes / 1e9)
    assert [file.name.rpartition("/")[2] for file in entry.files] == [
        f"train-{place:05}-of-{len(entry.files):05}.{BY_NAME[name].suffix}" for place in range(len(entry.files))
    ]
    assert [file.ids for file in entry.files] == [27, 24, 27]
    found = [row for file in entry.files for row in rows_of(folder / "training" / file.name)]
    assert found == [expected(row) for row in KEPT]


def test_more_shards_than_files_may_be_open_are_refused_by_name(tmp_path: Path) -> None:
    folder = training_data.write(
        tmp_path,
        [(f"k{number}#0/0", training_data.prompt_of(number), [1, CLOSER, 4, END], "stop") for number in range(150)],
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with pytest.raises(InputError, match=r"training.shard_gb cuts the export into 300 files, and 256 may be open"):
            run(folder, formats=("specforge", "torchspec"), shard_gb=1e-9)
        assert not (folder / "training").exists()
        assert [len(entry.files) for entry in run(folder, formats=("specforge",), shard_gb=2e-9)] == [150]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("name", FORMATS)
def test_equal_data_gives_equal_files(tmp_path: Path, name: str) -> None:
    first, second = (training_data.write(tmp_path / half) for half in "ab")
    for folder in (first, second):
        run(folder, formats=(name,), held_out=0.5)
    assert len(list((first / "training" / name).iterdir())) == 2
    for path in (first / "training" / name).iterdir():
        assert path.read_bytes() == (second / "training" / name / path.name).read_bytes()


def test_held_out_rows_are_files_of_their_own(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path)
    (entry,) = run(folder, formats=("specforge",), held_out=0.5)
    train, out = (rows_of(folder / "training" / file.name) for file in entry.files)
    assert [file.split for file in entry.files] == ["train", "held_out"]
    assert sorted([*train, *out]) == sorted(expected(row) for row in KEPT)
    assert entry.counts == {"rows": 9, "train": len(train), "held_out": len(out), "left_out": 2}
    assert {"a#0/0", "a#0/1"} <= {row[0] for row in train} or {"a#0/0", "a#0/1"} <= {row[0] for row in out}


def test_datasets_reads_parquet_arrow_and_both_kinds_of_jsonl(exported: Path, tmp_path: Path) -> None:
    kinds = {"parquet": "parquet", "arrow": "arrow", "specforge": "json", "speculators": "json"}
    for name, kind in kinds.items():
        files = [str(path) for path in (exported / name).iterdir()]
        found = datasets.load_dataset(kind, data_files={"train": files}, split="train", cache_dir=str(tmp_path))
        key = "id" if name == "speculators" else "key"
        assert [(row[key], row["input_ids"], row["loss_mask"]) for row in found] == [expected(row) for row in KEPT]
    mapped = datasets.Dataset.from_file(next(str(path) for path in (exported / "arrow").iterdir()))
    assert mapped[2]["input_ids"] == expected(KEPT[2])[1]
    assert mapped.features["input_ids"].feature.dtype == "int32"


def test_datasets_reads_a_file_of_many_blocks_with_both_finish_reasons(tmp_path: Path) -> None:
    """`datasets` guesses types from the first 10 MB; the first rows all stopped, later ones ran into the limit."""
    random = np.random.default_rng(3)
    many: list[Row] = []
    for number in range(700):
        body = random.integers(10, 160_000, 3_000).tolist()
        thought = [*body[:2000], CLOSER, *body[2000:]]
        cut = number >= 500
        many.append(
            (
                f"r{number}#0/0",
                training_data.prompt_of(number),
                thought if cut else [*thought, END],
                "length" if cut else "stop",
            )
        )
    folder = training_data.write(tmp_path / "many", many)
    entries = run(folder, formats=("specforge", "speculators"))
    for entry in entries:
        path = folder / "training" / entry.files[0].name
        assert path.stat().st_size > 15_000_000
        found = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        assert found.num_rows == 700
        for number in (0, 499, 500, 699):
            assert found[number]["input_ids"] == [*many[number][1], *many[number][2]]
            assert found[number]["finish_reason"] == many[number][3]


def test_a_journal_that_says_something_else_stops_the_export(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path)
    run(folder, formats=("parquet",))
    before = (folder / "training" / "manifest.json").read_bytes()
    journal = folder / "raw_responses.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"[5,6,7,8]", b"[5,6,7,9]"))
    with pytest.raises(InputError, match=r"parquet: the ids of row 3 of verified.parquet came back from train-00000"):
        run(folder, formats=("parquet",))
    assert (folder / "training" / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in (folder / "training").iterdir()) == [".export.lock", "manifest.json", "parquet"]


def test_a_journal_that_grew_asks_for_verification(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path)
    with (folder / "raw_responses.jsonl").open("ab") as file:
        row = ("z#0/0", training_data.prompt_of(1), [1, END], "stop")
        file.write(msgspec.json.encode(training_data.response(row, 99)) + b"\n")
    with pytest.raises(InputError, match=r"holds 9 rows and the journal 10; run notebook 03"):
        run(folder)
    assert not (folder / "training").exists()


@pytest.mark.parametrize("what", ["ids", "mask", "rows"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_comes_back_altered_takes_no_ones_place(
    tmp_path: Path, name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = training_data.write(tmp_path)
    form = BY_NAME[name]

    def altered(path: Path, texts: IdTexts) -> Iterator[ReadBack]:
        for found in form.read(path, texts):
            rows, masks = found.rows.copy(), found.masks.copy()
            if what == "rows":
                yield ReadBack(rows[:-1], masks[:-1])
                continue
            (rows if what == "ids" else masks)[1] = b"another"
            yield ReadBack(rows, masks)

    monkeypatch.setitem(export_module.BY_NAME, name, msgspec.structs.replace(form, read=altered))
    message = "came back with 6 rows of 7" if what == "rows" else f"the {what} of row 1 of verified.parquet came back"
    with pytest.raises(InputError, match=message):
        run(folder, formats=(name,))
    assert [path.name for path in (folder / "training").iterdir()] == [".export.lock"]


def test_a_second_export_of_one_data_set_names_the_first(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path)
    with lock(folder / "training" / ".export.lock"), pytest.raises(LockedError, match="being written by process"):
        run(folder)


def test_a_folder_that_cannot_be_written_stops_and_can_go_on(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path)
    (folder / "training").mkdir()
    (folder / "training" / ".parquet.tmp").write_text("in the way")
    with pytest.raises(RunStopped, match="can't write"):
        run(folder, formats=("parquet",))


def test_another_format_later_leaves_the_first_in_the_manifest(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path)
    run(folder, formats=("parquet",))
    run(folder, formats=("specforge",), mask="answer")
    found = {entry.format: entry.mask for entry in read_exports(folder)}
    assert found == {"parquet": "sampled", "specforge": "answer"}


KILLED = """
import os, sys
from pathlib import Path
import training_data
from rawtokens.training import export
from rawtokens.training.settings import FORMATS, TrainingSettings
setattr(*{"check": (export, "_check"), "swap": (Path, "rename")}[sys.argv[2]], lambda *_: os.kill(os.getpid(), 9))
export.export(Path(sys.argv[1]), markers=training_data.KIMI, settings=TrainingSettings(formats=FORMATS, mask="answer"))
"""


@pytest.mark.parametrize("moment", ["check", "swap"])
def test_what_a_killed_export_left_is_gone_with_the_next_of_any_format(tmp_path: Path, moment: str) -> None:
    folder = training_data.write(tmp_path)
    run(folder, formats=("parquet",))
    before = rows_of(folder / "training" / read_exports(folder)[0].files[0].name)
    command = [sys.executable, "-c", KILLED, str(folder), moment]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (folder / "training" / ".torchspec.tmp").exists()
    (path,) = (folder / "training" / "parquet").iterdir()
    assert rows_of(path) == before
    assert [entry.format for entry in read_exports(folder)] == (["parquet"] if moment == "check" else [])
    run(folder, formats=("arrow",))
    assert sorted(path.name for path in (folder / "training").iterdir()) == [
        ".export.lock",
        "arrow",
        "manifest.json",
        "parquet",
    ]


@pytest.mark.parametrize("what", ["a link", "a link to nothing", "a file"])
def test_what_stands_in_a_formats_place_is_replaced_every_time(tmp_path: Path, what: str) -> None:
    folder, elsewhere = training_data.write(tmp_path / "A"), tmp_path / "elsewhere"
    place = folder / "training" / "parquet"
    place.parent.mkdir()
    elsewhere.mkdir()
    (elsewhere / "own").write_text("kept")
    if what == "a file":
        place.write_text("in the way")
    else:
        place.symlink_to(elsewhere if what == "a link" else tmp_path / "nothing")
    for _ in range(2):
        (entry,) = run(folder, formats=("parquet",))
        assert rows_of(folder / "training" / entry.files[0].name) == [expected(row) for row in KEPT]
        assert not (folder / "training" / ".parquet.old").exists()
    assert (elsewhere / "own").read_text() == "kept"


@pytest.mark.parametrize(
    ("rows", "asked", "said"),
    [
        (ROWS, {}, ""),
        (ROWS, {"mask": "answer"}, "parquet was exported with other settings (mask was sampled, is answer), so what"),
        (
            [*ROWS, ("z#0/0", training_data.prompt_of(200), [1, CLOSER, 2, END], "stop")],
            {},
            "(9 rows, now 10)",
        ),
        (
            [*ROWS[:-1], ("a#0/1", ROWS[0][1], [3, CLOSER, 2, 2, END], "stop")],
            {},
            "(9 rows, now 9)",
        ),
    ],
    ids=["equal", "other settings", "more rows", "another row"],
)
def test_an_earlier_format_of_other_settings_or_rows_is_told(
    tmp_path: Path, rows: list[Row], asked: dict[str, object], said: str
) -> None:
    run(training_data.write(tmp_path), formats=("parquet",))
    training_data.write(tmp_path, rows)
    lines: list[str] = []
    settings = TrainingSettings(**{"formats": ("specforge",), "held_out": 0.0, **asked})  # type: ignore[arg-type]
    export(tmp_path, markers=KIMI, settings=settings, on_line=lines.append)
    told = [line for line in lines if line.startswith("parquet was exported")]
    assert len(told) == bool(said)
    assert said in "".join(told)


def test_lists_with_spaces_and_shards_are_checked_too(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path)
    lines = (folder / "raw_responses.jsonl").read_bytes().splitlines(keepends=True)
    lines[0] = lines[0].replace(b"[1,2,3,", b"[1, 2, 3, ")
    (folder / "raw_responses.1-of-2.jsonl").write_bytes(b"".join(lines[:4]))
    (folder / "raw_responses.2-of-2.jsonl").write_bytes(b"".join(lines[4:]))
    (folder / "raw_responses.jsonl").unlink()
    (entry,) = run(folder, formats=("specforge",))
    assert entry.checked_rows == 7
    assert rows_of(folder / "training" / entry.files[0].name) == [expected(row) for row in KEPT]


def test_a_data_set_without_rows_gives_one_empty_file(tmp_path: Path) -> None:
    folder = training_data.write(tmp_path, [ROWS[7]])
    for entry in run(folder):
        assert entry.counts == {"rows": 1, "train": 0, "held_out": 0, "left_out": 1}
        assert rows_of(folder / "training" / entry.files[0].name) == []
