"""Files as torch.save writes them, without torch: a zip archive with a pickle and the tensors' bytes beside it.

Strings, ints, None, lists, dicts, and numpy arrays of int64 and bool, which torch.load (any mode, `weights_only` too)
gives back as tensors. torch is 200 MB and more, and nothing else of it is needed here. This module does not know what
the values mean.
"""

import mmap
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

Value = None | int | str | NDArray[np.int64] | NDArray[np.bool_] | Sequence["Value"] | Mapping[str | int, "Value"]

_STORAGES = {"int64": b"LongStorage", "bool": b"BoolStorage"}
_ROOT = "archive"


def write_archive(path: Path, value: Value) -> None:
    """Write one value as torch.save does."""
    with _archive(path) as (storage, finish):
        finish(_pickled(value, storage))


@contextmanager
def list_archive(path: Path) -> Iterator[Callable[[Value], None]]:
    """Write a list item by item; its tensors are on the disk at once, the rest is kept in memory."""
    with _archive(path) as (storage, finish):
        content = bytearray(pickle.EMPTY_LIST)

        def append(value: Value) -> None:
            content.extend(_pickled(value, storage) + pickle.APPEND)

        yield append
        finish(bytes(content))


def read_archive(path: Path) -> Value:
    """What `write_archive` or torch.save wrote, arrays for tensors: read-only views of the file, mapped into memory.

    Raises pickle.UnpicklingError for others.
    """
    with path.open("rb") as whole:
        content = mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ)
    with zipfile.ZipFile(path) as archive, archive.open(f"{_ROOT}/data.pkl") as file:
        value: Value = _Reader(file, archive, content).load()
    return value


@contextmanager
def _archive(path: Path) -> Iterator[tuple[Callable[[bytes], int], Callable[[bytes], None]]]:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        count = 0

        def put(name: str, content: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(f"{_ROOT}/{name}"), content)  # no date: equal values give equal files

        def storage(content: bytes) -> int:
            nonlocal count
            put(f"data/{count}", content)
            count += 1
            return count - 1

        yield storage, lambda content: put("data.pkl", pickle.PROTO + b"\x02" + content + pickle.STOP)
        put("byteorder", b"little")
        put("version", b"3\n")


def _pickled(value: Value, storage: Callable[[bytes], int]) -> bytes:
    if value is None:
        return pickle.NONE
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return pickle.BINUNICODE + struct.pack("<I", len(text)) + text
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, np.ndarray):
        return _tensor(value, storage)
    if isinstance(value, Mapping):
        pairs = b"".join(_pickled(key, storage) + _pickled(item, storage) for key, item in value.items())
        return pickle.EMPTY_DICT + pickle.MARK + pairs + pickle.SETITEMS
    return pickle.EMPTY_LIST + pickle.MARK + b"".join(_pickled(item, storage) for item in value) + pickle.APPENDS


def _integer(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return pickle.BININT + struct.pack("<i", value)
    encoded = pickle.encode_long(value)
    return pickle.LONG1 + bytes([len(encoded)]) + encoded


def _tensor(array: NDArray[np.int64] | NDArray[np.bool_], storage: Callable[[bytes], int]) -> bytes:
    """_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks), as torch.save asks for it."""
    content = np.ascontiguousarray(array)
    number = str(storage(content.astype(content.dtype.newbyteorder("<")).tobytes())).encode()
    described = [b"storage", None, number, b"cpu"]
    kind = pickle.GLOBAL + b"torch\n" + _STORAGES[content.dtype.name] + b"\n"
    parts = b"".join(kind if part is None else _pickled(part.decode(), storage) for part in described)
    persistent = pickle.MARK + parts + _integer(content.size) + pickle.TUPLE + pickle.BINPERSID
    strides = tuple(stride // content.itemsize for stride in content.strides)
    shape = b"".join(pickle.MARK + b"".join(map(_integer, sizes)) + pickle.TUPLE for sizes in (content.shape, strides))
    hooks = pickle.GLOBAL + b"collections\nOrderedDict\n" + pickle.EMPTY_TUPLE + pickle.REDUCE
    arguments = pickle.MARK + persistent + _integer(0) + shape + pickle.NEWFALSE + hooks + pickle.TUPLE
    return pickle.GLOBAL + b"torch._utils\n_rebuild_tensor_v2\n" + arguments + pickle.REDUCE


class _Reader(pickle.Unpickler):
    """Knows the three names that such a file holds and no other: nothing of it is run."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile, content: mmap.mmap) -> None:
        super().__init__(file)
        self._archive, self._content = archive, content

    def find_class(self, module: str, name: str) -> object:
        known = {
            ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
            ("torch", "LongStorage"): np.int64,
            ("torch", "BoolStorage"): np.bool_,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong into such a file")
        return known[module, name]

    def persistent_load(self, pid: tuple[str, type, str, str, int]) -> np.ndarray:
        """A view of the file: read whole, a shard of 16 GB would take as much of memory."""
        entry = self._archive.getinfo(f"{_ROOT}/data/{pid[2]}")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise pickle.UnpicklingError(f"{entry.filename} is packed; torch.save packs nothing")
        name, extra = struct.unpack_from("<HH", self._content, entry.header_offset + 26)
        start = entry.header_offset + 30 + name + extra  # behind the entry's own header
        return np.frombuffer(self._content, pid[1], entry.file_size // np.dtype(pid[1]).itemsize, start)


def _rebuilt(storage: np.ndarray, offset: int, size: tuple[int, ...], *_: object) -> np.ndarray:
    return storage[offset : offset + int(np.prod(size))].reshape(size)
