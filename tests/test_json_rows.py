"""JSON arrays are read element by element, and give what the same rows give as JSON Lines."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prompt_rows import Outcome, chat, only, read, reasons, said

from rawtokens.conversations import json_rows, read_conversations
from rawtokens.conversations.rows import Row
from rawtokens.errors import InputError
from rawtokens.records import Conversation, Json

GOOD = b'{"id": 1, "prompt": "Hi"}'
LAST = b'{"id": 2, "prompt": "Bye"}'


def both(folder: Path, elements: list[bytes]) -> list[Outcome]:
    """What comes out of the rows as JSON Lines, which must be what comes out of them as an array."""
    lines = read(folder / "lines", b"".join(element + b"\n" for element in elements))
    for spaced in (b",", b" ,\r\n\t"):
        assert read(folder / "array", b"[ " + spaced.join(elements) + b"\n]\n") == lines
    return lines


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_turn = st.fixed_dictionaries({"from": st.sampled_from(["human", "gpt"]), "value": st.text(st.characters())})
_row = st.fixed_dictionaries({"conversations": st.lists(_turn, max_size=3)}, optional={"id": _json, "x": _json})


@given(
    rows=st.lists(_json | _row, max_size=6),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
    piece=st.sampled_from([1, 2, 7, 2**20]),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_come_out_of_an_array_as_out_of_lines_none_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[object],
    ascii_only: bool,
    indent: int | None,
    piece: int,
) -> None:
    monkeypatch.setattr(json_rows, "_PIECE", piece)
    everything = [chat(("human", "Hi"), id="first"), *rows]
    lines = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in everything)
    array = json.dumps(everything, ensure_ascii=ascii_only, indent=indent)
    found = read(tmp_path / "lines", lines.encode("utf-8", "surrogatepass"))
    assert [row.line for row in found] == list(range(1, len(everything) + 1))
    assert read(tmp_path / "array", array.encode("utf-8", "surrogatepass")) == found


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (b'{"prompt": "a", "prompt": "b"}', "bad_json"),
        (b'{"prompt": "a", "x": {"y": [1], "y": "]}"}}', "bad_json"),
        (b'{"prompt": "a \t raw tab, [{ and \\" too"}', "bad_json"),
        (b'{"prompt": "nul \0 byte"}', "bad_json"),
        (b'{"prompt": "a \\q escape, ]"}', "bad_json"),
        (b'{"prompt": "a", "n": ' + b"7" * 5000 + b"}", "bad_json"),
        (b"7" * 5000, "bad_json"),
        (b'{"a":' * 100_000 + b'"]"' + b"}" * 100_000, "bad_json"),
        (b"[" * 100_000 + b"]" * 100_000, "bad_json"),
        (b'["text", {"in": "a list"}]', "not_an_object"),
        (b"12", "not_an_object"),
        (b"-1.5e+3", "not_an_object"),
        (b"null", "not_an_object"),
        (b"NaN", "not_an_object"),
        (b"-Infinity", "not_an_object"),
        (b'{"prompt": "\xff"}', "lone_surrogate"),
        (b'{"prompt": "\\ud83d"}', "lone_surrogate"),
        (b'{"prompt": ["a", NaN]}', "bad_turn"),
    ],
)
@pytest.mark.parametrize("piece", [5, 2**20])
def test_an_element_that_is_no_row_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, element: bytes, reason: str, piece: int
) -> None:
    monkeypatch.setattr(json_rows, "_PIECE", piece)
    found = both(tmp_path, [GOOD, element, LAST])
    assert reasons(found) == ["", reason, ""]


def test_a_key_that_stands_twice_is_named(tmp_path: Path) -> None:
    found = both(tmp_path, [GOOD, b'{"prompt": "a", "x": 1, "x": 2}'])
    assert "the key 'x' stands twice" in str(found[1])


def test_pieces_cut_characters_numbers_and_escapes_apart_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"a": "é😀\u2028\ud83d", "n": -12.5e-7}, 123456, {"b": [True, None, float("inf")]}, "x" * 50]
    written = json.dumps(rows, ensure_ascii=False).replace("\ud83d", "\\ud83d")
    data = b"\xef\xbb\xbf" + written.encode() + b"\n "
    for piece in range(1, 40):
        monkeypatch.setattr(json_rows, "_PIECE", piece)
        found = [row.value for row in json_rows.array_rows(io.BufferedReader(io.BytesIO(data)))]
        assert found == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'[{"prompt": "a"}, {"prompt": "b"', r"broken at element 2 \(Expecting ',' delimiter\)"),
        (b'[{"prompt": "a"}, {"prompt": "b}]', r"broken at element 2 \(Unterminated string"),
        (b'[{"prompt": "a"}, ]', "broken at element 2"),
        (b'[{"prompt": "a"}, ', "broken at element 2"),
        (b'[{"prompt": "a"}', "broken at element 1 .expected , or ] after it, found the end of the file"),
        (b'[{"prompt": "a"} {"prompt": "b"}]', "broken at element 1 .expected , or ] after it, found '{'"),
        (b'[{"prompt": "a"}, {"prompt": tru}]', "broken at element 2"),
        (b'[{"prompt": "a"},\n{"prompt": "b"}]\n[]', "more follows after its end"),
        (b'[{"prompt": "a"}, {"a": ' + b"9" * 5000, "broken at element 2 .its brackets don't close"),
    ],
)
def test_an_array_that_breaks_gives_the_rows_before_and_names_the_element(
    tmp_path: Path, text: bytes, message: str
) -> None:
    start = b"[" + b",".join([b'{"prompt": "%d"}' % number for number in range(200)])
    with pytest.raises(InputError, match=message):
        read(tmp_path / "rows.json", text)
    (tmp_path / "rows.json").write_bytes(start + b"," + text[1:])
    found: list[Outcome] = []
    with pytest.raises(InputError, match=r"JSON array that is broken at element 20\d"):
        found.extend(read_conversations(tmp_path / "rows.json"))  # extend keeps what came before the error
    assert len(found) >= 201


def test_an_element_without_an_end_does_not_read_the_rest_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rows, "ROW_LIMIT", 2**20)
    monkeypatch.setattr(json_rows, "_PIECE", 2**16)
    text = b'[{"prompt": "a"}, {"prompt": "' + b"b" * 5_000_000 + b'"}]'
    with pytest.raises(InputError, match=r"element 2 .it is longer than 1 MiB, or a quote or a bracket is left open"):
        read(tmp_path / "rows", text)


def test_a_megabyte_in_one_row_is_no_trouble(tmp_path: Path) -> None:
    prompt = "word é 😀\u2028 " * 100_000
    row = json.dumps({"id": 3, "prompt": prompt}, ensure_ascii=False).encode()
    found = both(tmp_path, [GOOD, row, LAST])
    assert isinstance(found[1], Conversation)
    assert said(found[1]) == [("user", prompt)]


def test_rows_of_a_file_whose_first_line_is_an_array_are_lines(tmp_path: Path) -> None:
    found = read(tmp_path / "rows", b"[1, 2]\n" + GOOD + b"\n[]\n")
    assert reasons(found) == ["not_an_object", "", "not_an_object"]
    assert said(only(read(tmp_path / "one", b"[" + GOOD + b"]\n\n"))) == [("user", "Hi")]


@pytest.mark.parametrize("start", [b"[null, ", b"[true,\n", b"[\n\n  12, ", b'[ "text", ', b"[NaN, "])
def test_an_array_is_known_whatever_its_first_element(tmp_path: Path, start: bytes) -> None:
    assert reasons(read(tmp_path / "rows", start + GOOD + b"]")) == ["not_an_object", ""]


def test_values_of_rows_are_those_of_the_json_reader() -> None:
    rows: list[Json] = [{"a": 1.0, "b": [10**30, -0.0], "c": {"d": ""}}, {}]
    data = json.dumps(rows).encode()
    found = list(json_rows.array_rows(io.BufferedReader(io.BytesIO(data))))
    assert found == [Row(line=line, value=row) for line, row in enumerate(rows, start=1)]
