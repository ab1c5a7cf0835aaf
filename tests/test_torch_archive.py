"""Files of torch.save's kind, written and read without torch; torch itself reads them in test_training_loaders."""

import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawtokens.training.torch_archive import Value, list_archive, read_archive, write_archive

SIMPLE = st.none() | st.integers(-(2**70), 2**70) | st.text()
VALUES = st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner))


@given(VALUES)
def test_a_value_comes_back(tmp_path_factory: pytest.TempPathFactory, value: Value) -> None:
    path = tmp_path_factory.mktemp("archive") / "value.pt"
    write_archive(path, value)
    assert read_archive(path) == value


@pytest.mark.parametrize("array", [np.arange(6).reshape(1, 6), np.array([True, False]), np.zeros((0,), dtype=np.int64)])
def test_an_array_comes_back_with_its_shape_and_type(tmp_path: Path, array: np.ndarray) -> None:
    write_archive(tmp_path / "a.pt", {"x": array, "y": [array]})
    found = read_archive(tmp_path / "a.pt")
    assert isinstance(found, dict)
    for one in (found["x"], found["y"][0]):
        assert isinstance(one, np.ndarray)
        assert one.dtype == array.dtype
        assert one.shape == array.shape
        assert one.tolist() == array.tolist()


def test_a_list_is_written_item_by_item_and_each_tensor_has_its_own_bytes(tmp_path: Path) -> None:
    with list_archive(tmp_path / "list.pt") as append:
        for number in range(3):
            append({"n": number, "ids": np.arange(number + 1)[None, :]})
    found = read_archive(tmp_path / "list.pt")
    assert isinstance(found, list)
    assert [row["ids"].tolist() for row in found] == [[[0]], [[0, 1]], [[0, 1, 2]]]
    names = zipfile.ZipFile(tmp_path / "list.pt").namelist()
    assert names == [
        *(f"archive/data/{n}" for n in range(3)),
        "archive/data.pkl",
        "archive/byteorder",
        "archive/version",
    ]


def test_a_large_file_is_not_read_into_memory(tmp_path: Path) -> None:
    tensor = np.arange(1 << 20)
    with list_archive(tmp_path / "large.pt") as append:
        for _ in range(4):
            append({"ids": tensor})
    tracemalloc.start()
    try:
        found = read_archive(tmp_path / "large.pt")
        assert tracemalloc.get_traced_memory()[1] < tensor.nbytes
    finally:
        tracemalloc.stop()
    assert isinstance(found, list)
    for row in found:
        np.testing.assert_array_equal(row["ids"], tensor)


def test_a_packed_tensor_is_refused(tmp_path: Path) -> None:
    write_archive(tmp_path / "stored.pt", np.arange(3))
    with zipfile.ZipFile(tmp_path / "stored.pt") as stored, zipfile.ZipFile(tmp_path / "a.pt", "w", 8) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    with pytest.raises(pickle.UnpicklingError, match="archive/data/0 is packed"):
        read_archive(tmp_path / "a.pt")


def test_nothing_of_a_file_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return eval, ("1 + 1",)

    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Evil()))
    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.eval does not belong into such a file"):
        read_archive(tmp_path / "evil.pt")
