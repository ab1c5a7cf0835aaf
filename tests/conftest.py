"""Fixtures that several test files share."""

import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import real_tokenizers
from chaos.client_runs import ClientRun
from chaos.ground import Ground, make_ground, with_truth
from hypothesis import settings
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rawtokens.demo.model import write_demo_model
from rawtokens.demo.server import DemoServer, start_demo_server
from rawtokens.demo.vocabulary import build_tokenizer
from rawtokens.target.target_tokenizer import Tokenizer, load_tokenizer

# A shell's background job ignores SIGINT, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Whatever else the machine does, a test fails for what it finds and never for its time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def kimi_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real Kimi-K2.5 tokenizer and the demo chat template; don't write into it."""
    folder = tmp_path_factory.mktemp("kimi")
    build_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def kimi(kimi_folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of `kimi_folder`, loaded as a user would."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(kimi_folder)
    return tokenizer


@pytest.fixture(scope="session")
def target(kimi_folder: Path) -> Tokenizer:
    """The real Kimi-K2.5 tokenizer as the kit loads it."""
    return load_tokenizer(str(kimi_folder))


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder of a real tokenizer by its name in real_tokenizers.NAMES; don't write into it."""

    @cache
    def folder(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        real_tokenizers.write_tokenizer(name, path)
        return path

    return folder


@pytest.fixture(scope="session")
def family_target(family_folder: Callable[[str], Path]) -> Callable[[str], Tokenizer]:
    """Gives the tokenizer of `family_folder` by its name, as the kit loads it."""

    @cache
    def tokenizer(name: str) -> Tokenizer:
        return load_tokenizer(str(family_folder(name)))

    return tokenizer


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo reasoner's model folder, as `rawtokens demo-model` writes it; don't write into it."""
    folder = tmp_path_factory.mktemp("demo") / "model"
    write_demo_model(folder)
    return folder


@pytest.fixture(scope="session")
def demo_target(demo_folder: Path) -> Tokenizer:
    """The demo model's tokenizer as the kit loads it, with the vocabulary that its config gives."""
    return load_tokenizer(str(demo_folder))


@pytest.fixture(scope="session")
def demo_server(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoServer]:
    """The real SGLang on the CPU with the demo's model, one a session; a test that kills it launches it again.

    In float32, where greedy ids did not depend on what else was in the batch: 0 of 300 rows differed between 8, 24 and
    64 in flight.
    """
    log = tmp_path_factory.mktemp("server") / "log"
    with start_demo_server(demo_folder, log_path=log, extra_arguments=["--dtype", "float32"]) as server:
        yield server


@pytest.fixture(scope="session")
def parsing_server(
    demo_server: DemoServer, demo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DemoServer]:
    """A second real server, beside `demo_server`, with Kimi's reasoning and tool-call parsers."""
    parsers = ["--dtype", "float32", "--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"]
    log = tmp_path_factory.mktemp("parsing") / "log"
    with start_demo_server(demo_folder, log_path=log, port=demo_server.port + 1, extra_arguments=parsers) as server:
        yield server


@pytest.fixture(scope="session")
def undisturbed(demo_server: DemoServer, demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Some thirty prompts with the greedy answers of a run in which nothing happened."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ground = make_ground(folder / "ground", demo_folder, 30)
    ClientRun(ground.copy_to(folder / "run"), [demo_server.url]).finish()
    return with_truth(ground, folder / "run")
