"""environment.yml, pyproject.toml and requirements.lock declare one environment."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()

LOCK_LINES = [
    r"[a-z0-9-]+==[0-9a-z.]+( ; ([\w '<>=!()]|\d\.\d)+)? \\",  # a marker's dots stand between digits
    r"    --hash=sha256:[0-9a-f]{64}( \\)?",
    r"    # via( [a-z0-9-]+)?",
    r"    #   [a-z0-9-]+",
    r"    (# via|#  ) rawtokens \(pyproject\.toml\)",
]


def pins() -> dict[str, list[Requirement]]:
    """The lock's pins by name; more than one where they depend on the Python version."""
    found: dict[str, list[Requirement]] = {}
    for line in LOCK.split("\n"):
        if line and line[0] not in " #":
            pin = Requirement(line.rstrip(" \\"))
            found.setdefault(canonicalize_name(pin.name), []).append(pin)
    return found


def test_conda_brings_python_and_pip_and_pip_the_rest() -> None:
    python, pip, rest = CONDA["dependencies"]
    assert CONDA["channels"] == ["conda-forge", "nodefaults"]
    assert pip == "pip"
    assert list(rest) == ["pip"]
    assert python.startswith("python ")
    assert SpecifierSet(python.removeprefix("python ")) == SpecifierSet(PROJECT["requires-python"])


def test_environment_yml_is_the_project_with_extra_gpu() -> None:
    *declared, last = CONDA["dependencies"][-1]["pip"]
    assert last == "-e ."
    assert [Requirement(text) for text in declared] == [
        Requirement(text) for text in [*PROJECT["dependencies"], *EXTRAS["gpu"]]
    ]


def test_make_help_tells_of_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    # Under `make test` an inner make announces its folder, unless told not to.
    command = ["make", "--no-print-directory", "help"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=2) for line in told.splitlines()]
    assert {line[0] for line in lines} == {"make"}
    assert sorted(line[1] for line in lines if line[2]) == sorted(phony[1].split())


def test_sglang_is_for_linux_alone() -> None:
    (sglang,) = (Requirement(text) for text in EXTRAS["gpu"])
    assert sglang.name == "sglang"
    assert sglang.marker is not None
    assert [sglang.marker.evaluate({"sys_platform": platform}) for platform in ("linux", "darwin")] == [True, False]


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *EXTRAS["dev"]])
@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0"])
def test_the_lock_pins_every_dependency_as_pyproject_allows(text: str, python: str) -> None:
    wanted = Requirement(text)
    environment = {"python_full_version": python, "python_version": python[:4], "sys_platform": "linux"}
    found = [
        pin
        for pin in pins().get(canonicalize_name(wanted.name), [])
        if pin.marker is None or pin.marker.evaluate(environment)
    ]
    assert len(found) == 1, f"requirements.lock pins {wanted.name} {len(found)} times for Python {python}"
    (version,) = found[0].specifier
    assert version.operator == "=="
    assert wanted.specifier.contains(version.version)


def test_the_lock_holds_pins_and_hashes_and_no_address() -> None:
    odd = [line for line in LOCK.split("\n") if line and not any(re.fullmatch(form, line) for form in LOCK_LINES)]
    assert odd == []
    assert "://" not in LOCK
    for name, found in pins().items():
        for pin in found:
            assert pin.url is None, name


def test_every_pin_has_a_hash() -> None:
    blocks = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)
    assert [block.split("\n")[0] for block in blocks if block.strip() and "--hash=sha256:" not in block] == []
