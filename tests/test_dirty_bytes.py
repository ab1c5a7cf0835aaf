"""Dirty bytes, each in every container where it can occur: what it costs, and what is said."""

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prompt_rows import Outcome, only, read, reasons, said

from rawtokens.conversations import detect_format, read_conversations
from rawtokens.errors import InputError
from rawtokens.records import Conversation

Rows = list[dict[str, object]]


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def as_lines(rows: Rows) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n" for row in rows)


def as_array(rows: Rows) -> bytes:
    return json.dumps(rows, ensure_ascii=False, indent=1).encode("utf-8", "surrogateescape")


def as_csv(rows: Rows) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def as_parquet(rows: Rows) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def as_arrow(rows: Rows) -> bytes:
    table, buffer = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


def as_arrow_file(rows: Rows) -> bytes:
    table, buffer = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_file(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


Container = Callable[[Rows], bytes]
Packing = Callable[[bytes], bytes]

PACKINGS: list[Packing] = [bytes, gzip.compress, zstd]
TEXTUAL = [as_lines, as_array, as_csv]
CONTAINERS = [*TEXTUAL, as_parquet, as_arrow, as_arrow_file]

in_each_container = pytest.mark.parametrize("container", CONTAINERS)
in_each_text = pytest.mark.parametrize("container", TEXTUAL)
in_each_packing = pytest.mark.parametrize("pack", PACKINGS)


def asked(*prompts: str) -> Rows:
    return [{"id": f"r{place}", "prompt": prompt} for place, prompt in enumerate(prompts)]


def contents(outcomes: list[Outcome]) -> list[object]:
    return [row.messages[0]["content"] for row in outcomes if isinstance(row, Conversation)]


ODD = ["a\0b", "a\u2028b\u0085c\x0b\x0c\x1c", "a\r\nb\n\nc", " \t a ", "\ufeffa", "😀é\u200d", "a" * 1_000_000]
ODD += ['"""', "\\"]


@in_each_container
@in_each_packing
def test_odd_texts_come_out_to_the_letter(tmp_path: Path, container: Container, pack: Packing) -> None:
    found = read(tmp_path / "rows", pack(container(asked(*ODD))))
    assert contents(found) == ODD
    notices = [row.notices for row in found if isinstance(row, Conversation)]
    assert notices == [("nul_character",), *[()] * (len(ODD) - 1)]


@in_each_container
def test_empty_texts_cost_their_rows_alone(tmp_path: Path, container: Container) -> None:
    found = read(tmp_path / "rows", container(asked("a", "", " \n\u2028\t", "b")))
    assert reasons(found) == ["", "empty_prompt", "empty_prompt", ""]


@in_each_text
def test_a_mark_at_the_start_and_lines_of_windows_change_nothing(tmp_path: Path, container: Container) -> None:
    data = container(asked("a", "b"))
    plain = read(tmp_path / "rows", data)
    assert read(tmp_path / "rows", b"\xef\xbb\xbf" + data) == plain
    windows = b"\xef\xbb\xbf" + data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") + b"\r\n \r\n"
    if container is as_csv:
        windows = windows.removesuffix(b" \r\n")
    assert read(tmp_path / "rows", windows) == plain


@in_each_text
@in_each_packing
def test_bytes_that_are_no_utf8_cost_their_rows_alone(tmp_path: Path, container: Container, pack: Packing) -> None:
    latin = "Gr\udcfc\udcdfe"  # how surrogateescape spells Latin-1's bytes
    found = read(tmp_path / "rows", pack(container(asked("Grüße", latin, "a\udcff", "b"))))
    assert reasons(found) == ["", "lone_surrogate", "lone_surrogate", ""]


@in_each_text
def test_bytes_that_are_no_utf8_in_an_id_or_an_unread_column(tmp_path: Path, container: Container) -> None:
    rows: Rows = [
        {"id": own, "prompt": "Hi", "note": note} for own, note in (("a", "\udcff"), ("\udcff", ""), ("b", ""))
    ]
    assert reasons(read(tmp_path / "rows", container(rows))) == ["", "lone_surrogate", ""]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@in_each_text
@in_each_packing
def test_utf16_is_refused_with_the_way_out(tmp_path: Path, container: Container, encoding: str, pack: Packing) -> None:
    data = pack(container(asked("a", "b")).decode().encode(encoding))
    with pytest.raises(InputError, match=r"is UTF-16.*convert it to UTF-8 with iconv"):
        read(tmp_path / "rows.jsonl", data)


@in_each_container
@pytest.mark.parametrize("name", ["r.jsonl", "r.json", "r.csv", "r.parquet", "r.txt", "r.gz", "r.zst", "r.arrow", "r"])
def test_a_wrong_name_misleads_nobody(tmp_path: Path, container: Container, name: str) -> None:
    for pack in PACKINGS:
        assert contents(read(tmp_path / name, pack(container(asked("a", "b"))))) == ["a", "b"]


@in_each_container
@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_packed_file_that_breaks_off_is_one_clear_error_after_its_rows(
    tmp_path: Path, container: Container, pack: Packing
) -> None:
    noise = random.Random(1)
    many = asked(*(noise.randbytes(400).hex() for _ in range(1500)))
    path = tmp_path / "rows"
    path.write_bytes(pack(container(many))[:-3000])
    found: list[Outcome] = []
    with pytest.raises(InputError) as caught:
        found.extend(read_conversations(path))
    assert "get the file again" in str(caught.value)
    assert str(path) in str(caught.value)
    assert contents(found) == [row["prompt"] for row in many[: len(found)]]
    if container in TEXTUAL:
        assert len(found) > 1000


@in_each_text
@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_packed_parts_one_after_another_are_one_file(tmp_path: Path, container: Container, pack: Packing) -> None:
    data = container(asked(*ODD))
    assert contents(read(tmp_path / "rows", pack(data[:40]) + pack(b"") + pack(data[40:]))) == ODD


def test_zeros_after_a_gzip_are_padding_and_other_bytes_are_an_error(tmp_path: Path) -> None:
    data = gzip.compress(as_lines(asked("a", "b")))
    assert contents(read(tmp_path / "rows", data + bytes(512))) == ["a", "b"]
    with pytest.raises(InputError, match="can't be read after line 2"):
        read(tmp_path / "rows", data + b"junk")


@pytest.mark.parametrize("container", [as_lines, as_array])
@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ('"a", "prompt": "b"', "bad_json"),
        ('"a", "id": 1, "id": 2', "bad_json"),
        ("NaN", "missing_field"),
        ("Infinity", "missing_field"),
        ("1e999", "missing_field"),
        ('[{"role": "user", "content": "Hi", "weight": NaN}]', "bad_value"),
        ('[{"role": "user", "content": "Hi", "weight": -1e999}]', "bad_value"),
        ('"a", "score": NaN, "other": Infinity', ""),
        ('"a", "n": ' + "9" * 5000, "bad_json"),
        ('"a", "n": ' + "9" * 4000, ""),
        ('"a", "deep": ' + "[" * 50_000 + "]" * 50_000, "bad_json"),
        ('"\\ud83d"', "lone_surrogate"),
        ('"\\ud83d\\ude00"', ""),
        ('"\\u0000"', ""),
    ],
)
def test_odd_json_costs_its_row_alone(tmp_path: Path, container: Container, written: str, reason: str) -> None:
    data = container([{"prompt": "first"}, {"prompt": "@@"}, {"prompt": "last"}])
    found = read(tmp_path / "rows", data.replace(b'"@@"', written.encode()))
    assert reasons(found) == ["", reason, ""]


def test_a_line_without_an_end_does_not_read_the_rest_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rawtokens.conversations.containers.ROW_LIMIT", 2**20)
    data = as_lines(asked("a")) + b'{"prompt": "' + b"b" * 2**21 + b'"}\n'
    with pytest.raises(InputError, match="has a line of more than 1 MiB, line 2"):
        read(tmp_path / "rows", data)
    assert len(read(tmp_path / "rows", as_lines(asked("b" * (2**20 - 40))))) == 1


# What is no prompt file


@pytest.mark.parametrize("name", ["rows", "rows.jsonl", "rows.py", "rows.csv", "rows.md"])
@pytest.mark.parametrize(
    "text",
    [
        "import os\n\nprint(os.name)\n",
        "<!DOCTYPE html>\n<html><body>Hi</body></html>\n",
        "prompts:\n  - Hi\n  - there\n",
        "# Prompts\n\nHello, how are you?\n",
        "id|prompt\n1|Hi\n",
        "'id','prompt'\n'1','Hi'\n",
        "Hello there\n",
        "[Verse 1]\nla la\n",
        '"a text"\n"another"\n',
    ],
)
def test_a_file_that_is_none_of_those_that_are_read_is_refused_in_words(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(InputError, match=r"is none of the files that are read.*to text_lines") as caught:
        read(tmp_path / name, text)
    assert text.split("\n")[0][:10] in str(caught.value)
    assert len(read(tmp_path / name, text, format="text_lines")) == sum(bool(line) for line in text.split("\n"))


@pytest.mark.parametrize("name", ["rows.txt", "ROWS.TXT", "rows.txt.gz", "rows.txt.zst"])
@pytest.mark.parametrize(
    "text", ["Hello, how are you?", "Hello,world\nHi", "[1] says\nno", "{a} stands\nhere", "[Verse]\nla", "prompt: Hi"]
)
def test_lines_of_a_text_file_are_prompts(tmp_path: Path, name: str, text: str) -> None:
    assert contents(read(tmp_path / name, text)) == text.split("\n")
    assert detect_format(tmp_path / name) == "text_lines"


def test_a_packed_text_file_is_known_by_its_name(tmp_path: Path) -> None:
    assert said(only(read(tmp_path / "rows.txt.gz", gzip.compress(b"Hi")))) == [("user", "Hi")]
    with pytest.raises(InputError, match="is none of the files"):
        read(tmp_path / "rows.gz", gzip.compress(b"Hi"))


# Wild bytes

_starts = st.sampled_from(
    [b"", b"prompt\n", b'{"prompt": "a"}\n', b'[{"prompt": "a"},', b"PAR1", b"ARROW1", b"\xff" * 4]
)
_names = st.sampled_from(["r", "r.txt"])
_changes = st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=4)), min_size=1, max_size=8)


def rows_or_error(path: Path, data: bytes) -> str | list[Outcome]:
    """What comes out, or the message of an InputError; any other error fails the test."""
    try:
        return read(path, data)
    except InputError as error:
        return str(error)


@given(data=st.binary(max_size=300), start=_starts, pack=st.sampled_from(PACKINGS), name=_names)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_rows_rejections_or_one_input_error(
    tmp_path: Path, data: bytes, start: bytes, pack: Packing, name: str
) -> None:
    found = rows_or_error(tmp_path / name, pack(start + data))
    if isinstance(found, str):
        assert str(tmp_path / name) in found
        return
    assert [row.line for row in found] == sorted({row.line for row in found if row.line})
    for row in found:
        str(row).encode()


@given(container=st.sampled_from(CONTAINERS), pack=st.sampled_from(PACKINGS), changes=_changes)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_never_ends_in_anything_but_an_input_error(
    tmp_path: Path, container: Container, pack: Packing, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(pack(container(asked("Hi", "there", "😀"))))
    for where, piece in changes:
        place = where % len(data)
        data[place : place + len(piece)] = piece
    found = rows_or_error(tmp_path / "rows", bytes(data))
    assert "\n" not in found if isinstance(found, str) else all(row.line for row in found)
