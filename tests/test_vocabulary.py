"""The rebuilt Kimi-K2.5 tokenizer: exact ids, and the same ids through every door."""

import json
import random
from pathlib import Path

import pytest
import splintr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rawtokens.demo import vocabulary
from rawtokens.errors import TokenizerError

PROBES = [
    "What is 2+2?",
    "  leading and trailing  ",
    "tabs\tand\r\nlines\n\n\n",
    "12345678 3.14159 1,000,000",
    "I'm, you're, WE'LL, it'S, don't",
    "def add(a, b):\n    return a + b\n",
    "中文和English混合，標點。",
    "日本語のテキスト 한국어 ไทย العربية עברית",
    "é ﬁ Å ǆ ǅ Ǆ ʰ ª º",
    "emoji 😀👩‍👩‍👧‍👦 flags 🇳🇴",
    "\u2028line\u0085separators\u00a0nbsp",
    "snake_case camelCase PascalCase HTTPServer iOS",
    '{"city":"Oslo","n":[1,2,3]}',
    "",
    " ",
    "\n",
    "\x00\x7f",
]


def random_texts(*, seed: int, count: int) -> list[str]:
    """Texts of 1 to 60 characters from mixed alphabets."""
    chooser = random.Random(seed)
    alphabets = [
        "abcdefghijklmnopqrstuvwxyz ",
        "ABCabc xyz'stdm .,;:!?",
        "0123456789 +-*/=.,",
        "你好世界中文字符和English ",
        "àéîõüßñçøåÆŒ ΑΒΓαβγ абвгд",
        "def return(self):\n\t {}[]<>|_#\r\n",
        "😀🎉한국어日本語かなไทยہ ",
    ]
    return ["".join(chooser.choices(chooser.choice(alphabets), k=chooser.randint(1, 60))) for _ in range(count)]


@pytest.fixture(scope="module")
def plain(kimi_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(kimi_folder / "tokenizer.json"))


def test_all_ids_have_the_texts_that_splintr_gives(plain: Tokenizer) -> None:
    names = {i: text for text, i in splintr.Tokenizer.from_pretrained("kimi_k2").special_tokens().items()}
    controls = vocabulary.control_names()
    assert plain.get_vocab_size() == 163_840
    assert controls == [names[i] for i in range(163_584, 163_840)]
    assert [plain.id_to_token(i) for i in range(163_584, 163_840)] == controls
    assert [plain.token_to_id(name) for name in controls] == list(range(163_584, 163_840))


def test_every_rank_decodes_to_its_bytes(kimi: PreTrainedTokenizerBase) -> None:
    ranks = vocabulary.rank_bytes()
    assert len(ranks) == 163_584
    for i in range(0, len(ranks), 97):
        assert kimi.decode([i], skip_special_tokens=False) == ranks[i].decode("utf-8", errors="replace")


def test_autotokenizer_gives_the_ids_of_the_plain_file_and_of_splintr(
    plain: Tokenizer, kimi: PreTrainedTokenizerBase
) -> None:
    texts = PROBES + random_texts(seed=1, count=4000)
    reference = splintr.Tokenizer.from_pretrained("kimi_k2")
    for text in texts:
        ids = plain.encode(text, add_special_tokens=False).ids
        assert kimi.encode(text, add_special_tokens=False) == ids, repr(text)
        assert reference.encode_ordinary(text) == ids, repr(text)


def test_wild_text_gives_splintrs_ids_and_decodes_to_itself(kimi: PreTrainedTokenizerBase) -> None:
    reference = splintr.Tokenizer.from_pretrained("kimi_k2")
    controls = vocabulary.control_names()

    # Letters younger than the regex engines' Unicode tables split differently in each of them (U+323B0, say).
    known = st.characters(max_codepoint=0x2A6DF, exclude_categories=["Cn", "Co", "Cs"])

    @given(st.text(known, max_size=40))
    @settings(max_examples=300, deadline=None)
    def check(text: str) -> None:
        assume(not any(name in text for name in controls))
        ids = kimi.encode(text, add_special_tokens=False)
        assert ids == reference.encode_ordinary(text)
        assert kimi.decode(ids, skip_special_tokens=False) == text

    check()


def test_a_llama_config_beside_it_changes_no_id(kimi_folder: Path, tmp_path: Path, plain: Tokenizer) -> None:
    for file in kimi_folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 163_840}
    (tmp_path / "config.json").write_text(json.dumps(config))
    beside_config = AutoTokenizer.from_pretrained(tmp_path)
    for text in PROBES + random_texts(seed=2, count=1000):
        assert beside_config.encode(text) == plain.encode(text).ids, repr(text)


def test_control_texts_become_control_ids_and_back(kimi: PreTrainedTokenizerBase) -> None:
    assert kimi.encode("a</think>b<|im_end|>", add_special_tokens=False) == [64, 163607, 65, 163586]
    assert kimi.decode([64, 163607, 65, 163586], skip_special_tokens=False) == "a</think>b<|im_end|>"
    assert (kimi.bos_token_id, kimi.eos_token_id) == (163584, 163585)
    assert (kimi.unk_token_id, kimi.pad_token_id) == (163838, 163839)


def test_an_altered_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "TIKTOKEN_SHA256", "0" * 64)
    with pytest.raises(TokenizerError, match="expected 0000"):
        vocabulary.rank_bytes()
