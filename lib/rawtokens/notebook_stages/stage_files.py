"""The files that each stage reads and writes, by path.

They decide whether a stage has to run again (`stages`), whether one that is asked for alone can, and whether a run can
come through. This module does not know what is in them.
"""

from collections.abc import Container, Iterable
from pathlib import Path

from ..conversations import prompt_files
from ..errors import InputError, TokenizerError
from ..journal import JOURNAL, journal_paths, rejection_paths
from ..prompts import PROMPTS
from ..run_file import RunFile, looks_like_path
from ..runs import MANIFEST
from ..shards import WHOLE, Shard
from ..turns.endings import ended_files

VERIFIED = "verified.parquet"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx", ".md")


def stage_files(
    settings: RunFile, stage: str, name: str, *, folder: Path, shard: Shard
) -> tuple[list[Path], list[Path]]:
    """What a stage reads and what it writes, by path; stage 02's reading is guarded by run.json, not by a digest.

    `name` is the data set's, and `folder` its folder; for stage 00 the run's.
    """
    journals = journal_paths(folder)
    if stage == "00":
        return [], [folder / "server_check.json"]
    if stage == "01":
        return [*prompt_files(settings.datasets[name].prompts), *_tokenizer_files(settings)], [folder / PROMPTS]
    if stage == "02":
        own = [folder / shard.file_name(JOURNAL)]
        return [folder / PROMPTS], own if shard != WHOLE else journals or own
    if stage == "03":
        turns = ["turns.parquet"] if settings.datasets[name].turns == "each" else []
        made = [folder / name for name in ("verified.parquet", "audits.parquet", "audits.json", *turns)]
        return [folder / PROMPTS, *journals, *ended_files(folder), *_tokenizer_files(settings)], made
    if stage == "05":
        compared = [path for file in settings.training.evaluation_prompts for path in prompt_files(file)]
        training = folder / "training"
        made = [path for path in training.rglob("*") if path.is_file() and not path.name.startswith(".")]
        read = [folder / PROMPTS, folder / VERIFIED, *journals, *_tokenizer_files(settings), *compared]
        return read, [training / "manifest.json", *sorted(made)]
    read = [folder / name for name in (PROMPTS, VERIFIED, "completion.json", "audits.json", MANIFEST)]
    cards = [path for path in (folder / "data_card.md", folder / "data_card.html") if path.exists()]
    return [*read, *rejection_paths(folder), *journals], [folder / "summary.json", *cards]


def _tokenizer_files(settings: RunFile) -> list[Path]:
    """Every file of a tokenizer's folder but weights, and a prompt encoder's: each may decide an id.

    A hub id is told by its revision.
    """
    folder = Path(settings.model.tokenizer)
    function = Path((settings.model.prompt_encoder or "").rpartition(":")[0])
    found = [*(folder.iterdir() if folder.is_dir() else []), function]
    return sorted(path for path in found if path.is_file() and path.suffix not in _WEIGHTS)


def check_named(settings: RunFile, names: Iterable[str], stages: Container[str]) -> None:
    """Refuse what a run file names for these stages of these data sets and is not there.

    Raises InputError, TokenizerError for a tokenizer's folder. A hub id and the function of a module are not looked
    for.
    """
    tokenizer = settings.model.tokenizer
    if looks_like_path(tokenizer) and not Path(tokenizer).is_dir():
        raise TokenizerError(
            f"tokenizer {tokenizer}: no such folder; correct model.tokenizer "
            "(`rawtokens demo-model DIR` makes the demo's)"
        )
    _require_source(settings.model.prompt_encoder, "model.prompt_encoder")
    for name in names:
        dataset = settings.datasets[name]
        if "01" in stages:
            _require_files(dataset.prompts, f"datasets.{name}.prompts")
        if "02" in stages:
            _require_source(dataset.tool_function, f"datasets.{name}.tool_function")
    for prompts in settings.training.evaluation_prompts if "05" in stages else ():
        _require_files(prompts, "training.evaluation_prompts")


def _require_files(prompts: str, key: str) -> None:
    for path in prompt_files(prompts):
        if not path.exists():
            raise InputError(f"prompt file {path} does not exist; correct {key}")
        if not path.is_file():
            raise InputError(f"{path} is no file; give {key} a file, or a pattern such as {path}/*")


def _require_source(function: str | None, key: str) -> None:
    place = (function or "").rpartition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise InputError(f"{place} does not exist; correct {key}, expected `path/to/file.py:function`")


def check_made(folder: Path, stage: str, name: str) -> None:
    """Raise InputError for a stage that is asked for alone where those before it have not made what it reads."""
    made = {"01": (folder / PROMPTS).exists(), "02": bool(journal_paths(folder)), "03": (folder / VERIFIED).exists()}
    files = {"01": PROMPTS, "02": JOURNAL, "03": VERIFIED}
    for earlier in sorted(made):
        if earlier < stage and not made[earlier]:
            raise InputError(f"{folder / files[earlier]} is missing; run stage {earlier} for {name} first")
