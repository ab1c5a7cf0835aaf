"""Containers: packed files, CSV, several files as one data set; and what is said where one of them breaks."""

import csv
import gzip
import io
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prompt_rows import Outcome, only, read, reasons, said

from rawtokens.conversations import detect_format, prompt_files, read_conversations
from rawtokens.errors import InputError
from rawtokens.records import Conversation, Rejection

ROWS = [{"id": str(number), "prompt": f"Ask {number}, please"} for number in range(300)]


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def lines() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def as_csv() -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["id", "prompt"])
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def as_parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), buffer)
    return buffer.getvalue()


def prompts(outcomes: list[Outcome]) -> list[object]:
    return [row.messages[0]["content"] for row in outcomes if isinstance(row, Conversation)]


# gzip and zstd


@pytest.mark.parametrize("pack", [gzip.compress, zstd, lambda data: data])
@pytest.mark.parametrize("content", [lines, as_csv, as_parquet, lambda: json.dumps(ROWS).encode()])
def test_a_packed_file_reads_as_the_file_whatever_its_name(
    tmp_path: Path, pack: Callable[[bytes], bytes], content: Callable[[], bytes]
) -> None:
    found = read(tmp_path / "rows.txt", pack(content()))
    assert prompts(found) == [row["prompt"] for row in ROWS]
    assert [row.source_id for row in found if isinstance(row, Conversation)] == [row["id"] for row in ROWS]
    assert detect_format(tmp_path / "rows.txt") == "plain"


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_packed_parts_one_after_another_are_one_file(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    data = lines()
    assert len(read(tmp_path / "rows", pack(data[:5000]) + pack(data[5000:]))) == 300


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_packed_file_that_breaks_off_names_the_line_after_the_rows_that_could_be_read(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    noise = random.Random(1)
    many = [json.dumps({"id": number, "prompt": noise.randbytes(400).hex()}) + "\n" for number in range(2000)]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(pack("".join(many).encode())[:-1000])
    found: list[Outcome] = []
    with pytest.raises(InputError, match=r"rows\.jsonl can't be read after line \d+ .*get the file again") as caught:
        found.extend(read_conversations(path))  # extend keeps what came before the error
    reached = int(str(caught.value).split("after line ")[1].split()[0])
    assert reached == len(found) > 1000
    assert set(reasons(found)) == {""}


def test_a_damaged_gzip_and_a_file_packed_twice_are_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(lines()))
    data[20:40] = bytes(20)
    with pytest.raises(InputError, match="can't be read"):
        read(tmp_path / "rows", bytes(data))
    with pytest.raises(InputError, match="compressed twice; unpack it once"):
        read(tmp_path / "rows", gzip.compress(zstd(lines())))


@pytest.mark.parametrize(
    ("kind", "pack"),
    [("jsonl", gzip.compress), ("jsonl", zstd), ("csv", gzip.compress), ("text", zstd), ("parquet", gzip.compress)],
)
def test_memory_stays_flat_however_long_the_packed_file_is(
    tmp_path: Path, kind: str, pack: Callable[[bytes], bytes]
) -> None:
    words = "word " * 200
    rows = [{"id": str(number), "prompt": f"{number} {words}"} for number in range(4000)]
    path = tmp_path / ("rows.txt.zst" if kind == "text" else "rows")
    if kind == "parquet":
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), buffer, compression="none", row_group_size=500)
        path.write_bytes(pack(buffer.getvalue()))
    else:
        header = "id,prompt\n" if kind == "csv" else ""
        text = {
            "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
            "csv": "".join(f"{row['id']},{row['prompt']}\n" for row in rows),
            "text": "".join(row["prompt"] + "\n" for row in rows),
        }
        path.write_bytes(pack((header + text[kind]).encode()))
        del text
    del rows
    tracemalloc.start()
    try:
        count = sum(isinstance(row, Conversation) for row in read_conversations(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 4000
    assert peak < 2_000_000  # the file holds 4 MB


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"BZh91AY&SY", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
    ],
)
def test_a_container_that_is_not_read_is_named_with_the_way_out(tmp_path: Path, start: bytes, what: str) -> None:
    with pytest.raises(InputError, match=rf"{what}.*; unpack it"):
        read(tmp_path / "rows.jsonl", start + b"\0")


# CSV


def test_csv_keeps_its_texts_and_its_lines(tmp_path: Path) -> None:
    found = read(tmp_path / "rows", '\ufeffid,prompt\r\n1,"Hi, ""you""\r\nthere"\r\n\r\n2,plain\n3,\n')
    assert prompts(found) == ['Hi, "you"\r\nthere', "plain"]
    assert [row.line for row in found] == [2, 5, 6]
    assert reasons(found) == ["", "", "empty_prompt"]


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_the_header_tells_the_delimiter(tmp_path: Path, delimiter: str) -> None:
    text = "\n".join(delimiter.join(cells) for cells in [("id", "instruction", "input"), ("1", "Add.", "1")])
    assert said(only(read(tmp_path / "rows", text))) == [("user", "Add.\n\n1")]


def test_one_column_under_a_known_name_is_csv_and_json_in_cells_is_read(tmp_path: Path) -> None:
    assert prompts(read(tmp_path / "rows", "prompt\nHi\n")) == ["Hi"]
    assert prompts(read(tmp_path / "rows", 'id,messages\n1,"[{""role"": ""user"", ""content"": ""Hi""}]"\n')) == ["Hi"]


def test_a_row_of_another_length_than_the_header_costs_itself_alone(tmp_path: Path) -> None:
    assert reasons(read(tmp_path / "rows", "id,prompt\n1,a,b\n2\n3,c\n")) == ["bad_value", "bad_value", ""]


def test_bytes_that_are_no_text_cost_their_row_alone_in_csv(tmp_path: Path) -> None:
    assert reasons(read(tmp_path / "rows", b"id,prompt\n1,\xff\n2,b\n")) == ["lone_surrogate", ""]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('id,prompt\n1,a\n2,"open\n3,c\n4,d\n', r"broken in the row at line 3 .unexpected end of data"),
        ('id,prompt\n1,a\n2,"b" c\n3,d\n', "broken in the row at line 3"),
        ("id,prompt\n1,a\n2,b\rc\n", "broken in the row at line 3"),
        ("id,prompt,id\n1,a,2\n", "names 'id' twice"),
        ("id,utterance\n1,Hi\n", "no format that is known; found the columns id, utterance"),
    ],
)
def test_csv_that_leaves_rows_in_doubt_is_refused_at_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path / "rows.csv", text)
    assert str(tmp_path / "rows.csv") in str(caught.value)


_cells = st.text(st.characters(exclude_categories=["Cs"]))


@given(texts=st.lists(_cells.filter(str.strip), min_size=1, max_size=5), packed=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_comes_out_of_csv_unchanged(tmp_path: Path, texts: list[str], packed: bool) -> None:
    made = io.StringIO(newline="")
    writer = csv.writer(made, quoting=csv.QUOTE_ALL)
    writer.writerow(["id", "prompt"])
    writer.writerows(enumerate(texts))
    data = made.getvalue().encode()
    assert prompts(read(tmp_path / "rows", gzip.compress(data) if packed else data)) == texts


@given(data=st.binary(max_size=300), start=st.sampled_from([b"", b"prompt\n", b"{", b"[", b"[{", b"\x1f\x8b", b"PAR1"]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_wild_bytes_are_rows_rejections_or_one_clear_error(tmp_path: Path, data: bytes, start: bytes) -> None:
    try:
        found = read(tmp_path / "rows", start + data)
    except InputError as error:
        found, message = [], str(error)
        assert str(tmp_path / "rows") in message
    for row in found:
        if isinstance(row, Rejection):
            (row.key + row.detail).encode()


# Several files


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.txt"])
def test_every_line_is_a_row_or_is_told_as_empty(tmp_path: Path, name: str) -> None:
    texts = ["", "a", "", "  ", "b", "c", "", ""]
    if name == "rows.jsonl":
        texts = [json.dumps({"prompt": text}) if text.strip() else text for text in texts]
    if name == "rows.csv":
        texts = ["prompt,other", *(f'"{text}\n\n",x' if text.strip() else "" for text in texts)]
    for part in ("1", "2"):
        (tmp_path / f"{part}{name}").write_text("\n".join(texts) + "\n")
    empty: list[None] = []
    found = list(read_conversations(tmp_path / f"*{name}", on_empty_line=lambda: empty.append(None)))
    assert (len(found), len(empty)) == (6, 10)


def test_a_glob_is_one_data_set_whose_ids_stay_unique(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("id,prompt\n1,again\n3,c\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"id": 1, "prompt": "a"}\n\n{"id": 2, "prompt": "b"}\n'))
    (tmp_path / ".half.jsonl").write_text("{")
    (tmp_path / "folder.csv").mkdir()
    found = list(read_conversations(tmp_path / "*"))
    assert prompts(found) == ["a", "b", "c"]
    assert [row.line for row in found] == [1, 3, 2, 3]
    again = found[2]
    assert isinstance(again, Rejection)
    assert (again.reason, again.key) == ("duplicate_id", "1#row3")
    assert again.detail.startswith("b.csv: ")
    assert [path.name for path in prompt_files(tmp_path / "*")] == ["a.jsonl.gz", "b.csv"]
    assert len(list(read_conversations(str(tmp_path / "*"), limit=3))) == 3


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    assert prompts(read(tmp_path / "rows[1]*.txt", "Hi there")) == ["Hi there"]


def test_a_glob_that_finds_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\*\.jsonl finds no file"):
        read_conversations(tmp_path / "*.jsonl")


def test_a_later_file_that_breaks_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "b.jsonl").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"b\.jsonl can't be read"):
        list(read_conversations(tmp_path / "*.jsonl"))


# Padding


def test_padding_that_json_kept_from_arrow_is_taken_out_and_said(tmp_path: Path) -> None:
    def tool(name: str, **members: object) -> dict[str, object]:
        return {"name": name, "parameters": {"type": "object", "properties": members, "required": None}}

    text = {"type": "string", "default": None}
    row = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool("f", a=text, b=None)]}
    found = only(read(tmp_path / "rows", json.dumps(row)))
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert found.tools == ({"type": "function", "function": {"name": "f", "parameters": parameters}},)
    assert found.notices == ("null_padding",)


def test_a_null_that_a_schema_may_hold_stays(tmp_path: Path) -> None:
    properties = {"a": {"type": "string", "default": None, "enum": ["x", None]}}
    tool = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    row = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    found = only(read(tmp_path / "rows", json.dumps(row)))
    assert (found.tools, found.notices) == (({"type": "function", "function": tool},), ())
