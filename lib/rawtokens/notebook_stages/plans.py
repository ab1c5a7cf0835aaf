"""What a run file and a command's options ask for, as a plan. This module runs nothing."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from ..run_file import load_run_file
from ..shards import shard_of
from .pipeline import NOTEBOOKS, Plan, notebooks_folder


def plan_of(
    run_file: Path, *, outputs: Path, datasets: Sequence[str] | None = None, stage: str | None = None, shard: str = ""
) -> Plan:
    """The plan of a run below `outputs`; all data sets and stages where none are named.

    Raises InputError for a run file, a data set or a shard that is none.
    """
    part = shard_of(shard)
    settings = load_run_file(run_file)
    names = tuple(dict.fromkeys(datasets or settings.datasets))
    for name in names:
        if name not in settings.datasets:
            raise InputError(f"{run_file} has no data set {name!r}; it has {', '.join(settings.datasets)}")
    return Plan(
        settings=settings,
        run_folder=(outputs / settings.run).resolve(),
        notebooks=notebooks_folder(run_file),
        datasets=names,
        stages=(stage,) if stage else tuple(NOTEBOOKS),
        one_stage=stage is not None,
        shard=part,
    )
