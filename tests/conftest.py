"""Fixtures that several test files share."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rawtokens.demo.vocabulary import build_tokenizer
from rawtokens.target_tokenizer import Tokenizer, load_tokenizer


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
