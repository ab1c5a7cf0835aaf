"""The demo reasoner as a folder that any engine loads: Kimi-K2.5's whole vocabulary under a small Llama.

The committed weights hold the embedding rows of the ids that the dialogues use, and one shared row that stands for
all the others. Written out for every unused id, that row has each of them the probability that the shared row had
in training, divided by their number: no probability changes. This module does not know how the weights were
trained, and needs no torch.
"""

import hashlib
import json
import os
import shutil
import struct
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors

from rawtokens.demo import vocabulary
from rawtokens.demo.dialogue_record import IM_END, VOCABULARY_SIZE
from rawtokens.errors import InputError

WEIGHTS = Path(__file__).with_name("reasoner.safetensors")
STAMP = "demo_model.json"
"""Says from what the folder was made; a folder whose stamp differs is written anew."""
EMBEDDING = "embed_tokens.weight"
Bits = npt.NDArray[np.uint16]
"""A bfloat16 tensor as its bits; numpy has no bfloat16."""


class CompactWeights(msgspec.Struct, frozen=True, kw_only=True):
    """What training saves: the Llama's shape, its tensors, and used_ids int32 [n] for the rows of the embedding.

    The embedding is [n + 1, hidden]; its last row is that of every unused id.
    """

    shape: dict[str, object]
    tensors: dict[str, Bits]
    used_ids: npt.NDArray[np.int32]


def read_weights(path: Path = WEIGHTS) -> CompactWeights:
    """The committed weights. Raises InputError for a file that is none."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            shape = json.loads((file.metadata() or {})["shape"])
        found = dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
        used_ids = np.frombuffer(found.pop("used_ids")["data"], np.int32)
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise InputError(
            f"{path} is no demo weights file ({error}); expected what train.py saves: install anew"
        ) from error
    tensors = {name: np.frombuffer(each["data"], np.uint16).reshape(each["shape"]) for name, each in found.items()}
    return CompactWeights(shape=shape, tensors=tensors, used_ids=used_ids)


def expanded(rows: Bits, used_ids: npt.NDArray[np.int32]) -> Bits:
    """Embedding rows [n + 1, hidden] as [163840, hidden]: the last row for every id that is not in `used_ids`."""
    full = np.repeat(rows[-1:], VOCABULARY_SIZE, axis=0)
    full[used_ids] = rows[:-1]
    return full


def write_demo_model(directory: Path, *, weights: Path = WEIGHTS) -> bool:
    """Write the demo model and the Kimi tokenizer into `directory`, all or nothing.

    Returns False, having written nothing, where it stands there already and is current. Raises InputError where
    `directory` holds something else, and TokenizerError where splintr-rs has another vocabulary than Moonshot's.
    """
    stamp = _stamp(weights)
    if is_current(directory, stamp):
        return False
    if directory.exists() and (not directory.is_dir() or (any(directory.iterdir()) and not _has_stamp(directory))):
        raise InputError(f"{directory} holds something else than a demo model; name a new or empty folder.")
    partial = directory.with_name(f".{directory.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        vocabulary.build_tokenizer(partial)
        _write_model(partial, read_weights(weights))
        sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        (partial / STAMP).write_text(json.dumps({"made_from": stamp, "sizes": sizes}, indent=2) + "\n", "utf-8")
        return _put_in_place(partial, directory, stamp)
    except OSError as error:
        raise InputError(
            f"The demo model can't be written to {directory} ({error}); free or name another place."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def is_current(directory: Path, stamp: str) -> bool:
    """Whether `directory` holds every file of a demo model made from these inputs."""
    try:
        found = json.loads((directory / STAMP).read_text("utf-8"))
        return bool(found["made_from"] == stamp) and all(
            (directory / name).stat().st_size == size for name, size in found["sizes"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _put_in_place(partial: Path, directory: Path, stamp: str) -> bool:
    """Exchange the folders by renaming; another process may have been first."""
    old = directory.with_name(f".{directory.name}.old-{os.getpid()}")
    if directory.exists():
        directory.rename(old)
    try:
        partial.rename(directory)
    except OSError:
        if not is_current(directory, stamp):
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
    return True


def _has_stamp(directory: Path) -> bool:
    return (directory / STAMP).is_file()


def _stamp(weights: Path) -> str:
    """A hash of all that the folder is made from: weights, template, and the modules that write it."""
    digest = hashlib.sha256()
    for part in (weights, Path(__file__), Path(vocabulary.__file__), Path(__file__).with_name("chat_template.jinja")):
        try:
            digest.update(part.read_bytes())
        except OSError as error:
            raise InputError(f"{part} can't be read ({error}); the installation is not whole: install anew.") from error
    return digest.hexdigest()


def _write_model(directory: Path, weights: CompactWeights) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in weights.tensors.items()}
    tensors[f"model.{EMBEDDING}"] = expanded(weights.tensors[EMBEDDING], weights.used_ids)
    _save_bfloat16(tensors, directory / "model.safetensors")
    ids = {"bos_token_id": 163584, "eos_token_id": IM_END, "pad_token_id": 163839}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY_SIZE,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "transformers_version": "5.19.0",  # a config without one has transformers warn of a wrong split pattern
        **weights.shape,
        **ids,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    (directory / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n", "utf-8")


def _save_bfloat16(tensors: dict[str, Bits], path: Path) -> None:
    """A safetensors file of bfloat16 tensors: header length, JSON header, data.

    Written by hand because safetensors' numpy side has no bfloat16 and its raw side takes addresses.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).tobytes())
