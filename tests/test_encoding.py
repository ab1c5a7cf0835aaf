import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, TokenizersBackend
from transformers.convert_slow_tokenizer import bytes_to_unicode

from rawtokens.records import Json
from rawtokens.target.encoding import UNCUT, TextEncoder, Way
from rawtokens.target.target_tokenizer import Tokenizer as TargetTokenizer
from rawtokens.target.target_tokenizer import load_tokenizer

CONVERSATIONS = 5_000
WORDS: tuple[str, ...] = (
    "What is 2+2?  The answer",
    "你好，世界！漢字かな交じり文",
    "def f(x):\n\treturn {'a': [1, 22, 333]}\n\n\n",
    "don't WE'LL ÇA",
)
WORDS += (
    "👩‍👩‍👧‍👦 👍🏽🙂",
    "e\u0301a\u0308\u0323 नमस्ते สวัสดี مرحبا",
    "\x00\x1f\ufeff\u200b\u2028",
    "   \n \r\n\t  ",
    "12345678901 3.14159",
)
WORDS += (
    "</think>",
    "<|im_end|>",
    "<|im_end|",
    "<think>",
    "<tool_call>",
    "<|im_user|><|im_start|>",
    "[EOS]",
    "a" * 40,
    "=" * 33,
)


def conversations() -> Iterator[list[dict[str, Json]]]:
    """5,000 conversations of many scripts, with control tokens spelt in them; 5 texts of a megabyte."""
    choice = random.Random(7)

    def text(most: int, least: int = 1) -> str:
        return choice.choice(["", " ", "\n"]).join(choice.choices(WORDS, k=choice.randint(least, most)))

    for number in range(CONVERSATIONS):
        yield [
            {"role": "system", "content": text(3)},
            {"role": "user", "content": text(9)},
            {"role": "assistant", "content": text(5), "reasoning_content": text(4)},
            {"role": "user", "content": text(60_000, 60_000) if number % 1000 == 0 else text(6)},
        ]


def as_core(encoder: PreTrainedTokenizerBase) -> TextEncoder:
    made = TextEncoder(encoder, core_after=0)
    made.encode(["Hi"])
    return made


def one_by_one(encoder: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(encoder(text, add_special_tokens=False)["input_ids"])


@pytest.fixture(scope="module")
def core(target: TargetTokenizer) -> TextEncoder:
    return as_core(target.encoder)


def check_conversations(target: TargetTokenizer, encoder: TextEncoder) -> None:
    rendered, longest = [], 0
    for messages in conversations():
        rendered.append((messages, target.render(messages)))
        longest = max(longest, len(rendered[-1][1]))
        if len(rendered) == 500:
            made = encoder.encode([text for _, text in rendered])
            assert made == [target.prompt_ids(messages) for messages, _ in rendered]
            rendered.clear()
    assert not rendered
    assert longest > 900_000


def test_five_thousand_conversations_get_the_ids_of_apply_chat_template_from_kimis_core(
    target: TargetTokenizer, core: TextEncoder
) -> None:
    assert core.way == "tiktoken core"
    check_conversations(target, core)


def test_conversations_get_the_ids_of_apply_chat_template_from_qwen3s_batches(
    family_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_encoding.CONVERSATIONS", 500)
    target = load_tokenizer(str(family_folder("qwen3")))
    made = as_core(target.encoder)
    assert made.way == "batch"
    check_conversations(target, made)


wild = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(
            [
                " ",
                "\n",
                "\t",
                "\r",
                "\x00",
                "你",
                "漢",
                "\u200d",
                "\ufe0f",
                "\u0301",
                "👩",
                "'",
                "s",
                "T",
                "1",
                "ſ",
                "K",
            ]
        ),
    ),
    max_size=60,
)


@settings(max_examples=1_000, deadline=None)
@given(text=st.one_of(wild, st.lists(st.one_of(wild, st.sampled_from(WORDS)), max_size=8).map("".join)))
def test_wild_texts_get_the_same_ids_from_the_core(target: TargetTokenizer, core: TextEncoder, text: str) -> None:
    assert core.encode([text]) == [one_by_one(target.encoder, text)]


def test_characters_of_every_plane_get_the_same_ids_from_the_core(target: TargetTokenizer, core: TextEncoder) -> None:
    planes = [range(0x20, 0xD800), range(0xE000, 0xF900), range(0xF900, 0x32000), range(0xE0000, 0xE0200)]
    planes += [range(0xF0000, 0x110000, 101)]
    texts = [
        "".join(f"{chr(i)}b {chr(i)}1" for i in plane[start : start + 500])
        for plane in planes
        for start in range(0, len(plane), 500)
    ]
    assert core.encode(texts) == TextEncoder(target.encoder).encode(texts)


@pytest.mark.parametrize("letter", [" ", "\n", "a", "=", "你", "🙂", "1"])
@pytest.mark.parametrize("length", [24_999, 25_001, 300_000])
def test_long_runs_get_the_same_ids_from_the_core(
    target: TargetTokenizer, core: TextEncoder, letter: str, length: int
) -> None:
    text = f"before {letter * length}after"
    assert core.encode([text]) == TextEncoder(target.encoder).encode([text])


def test_a_run_that_the_cores_pattern_gives_up_on_is_encoded_without_it(
    target: TargetTokenizer, core: TextEncoder
) -> None:
    text = " " * 1_000_000
    with pytest.raises(ValueError, match="stack size"):
        core._core.encode(text)  # type: ignore[union-attr]
    assert core.encode([text, "Hi"]) == [*TextEncoder(target.encoder).encode([text]), [18699]]


@pytest.mark.parametrize("core_after", [0, 10**9])
def test_a_lone_surrogate_raises_and_is_not_replaced(target: TargetTokenizer, core_after: int) -> None:
    made = TextEncoder(target.encoder, core_after=core_after)
    made.encode(["Hi"])
    with pytest.raises((TypeError, UnicodeError)):
        made.encode(["Hi", "\ud800"])


def test_nothing_is_encoded_to_nothing(core: TextEncoder, target: TargetTokenizer) -> None:
    assert core.encode([]) == TextEncoder(target.encoder).encode([]) == []
    assert core.encode([""]) == TextEncoder(target.encoder).encode([""]) == [[]]


def test_the_core_comes_after_the_characters_that_repay_it(target: TargetTokenizer) -> None:
    made = TextEncoder(target.encoder, core_after=10)
    ways: list[Way] = []
    for text in ("12345", "12345", "12345"):
        ways.append(made.way)
        made.encode([text])
    assert ways == ["batch", "batch", "tiktoken core"]


# A small vocabulary, to change one thing at a time.


def vocabulary(pieces: Sequence[bytes]) -> list[bytes]:
    return [*(bytes([byte]) for byte in range(256)), *pieces]


def merges_of(ranks: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    known = set(ranks)
    splits = ((piece[:cut], piece[cut:]) for piece in ranks for cut in range(1, len(piece)))
    return [(left, right) for left, right in splits if left in known and right in known]


def small(
    pieces: Sequence[bytes],
    change: Callable[[Tokenizer], None] = lambda _: None,
    *,
    merges: Sequence[tuple[bytes, bytes]] | None = None,
    ignore_merges: bool = True,
    added: Sequence[AddedToken] = (AddedToken("<end>", normalized=False, special=True),),
    split_special_tokens: bool = False,
) -> TokenizersBackend:
    letters = bytes_to_unicode()

    def written(piece: bytes) -> str:
        return "".join(letters[byte] for byte in piece)

    ranks = vocabulary(pieces)
    taken = merges_of(ranks) if merges is None else merges
    raw = Tokenizer(
        models.BPE(
            vocab={written(piece): i for i, piece in enumerate(ranks)},
            merges=[(written(left), written(right)) for left, right in taken],
            ignore_merges=ignore_merges,
        )
    )
    split = pre_tokenizers.Split(Regex(r"\w+|\s+|[^\w\s]+"), behavior="isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    raw.decoder = decoders.ByteLevel()
    raw.add_tokens(list(added))
    change(raw)
    return TokenizersBackend(tokenizer_object=raw, split_special_tokens=split_special_tokens)


def _set(name: str, value: object) -> Callable[[Tokenizer], None]:
    return lambda raw: setattr(raw, name, value)


PIECES = (b"ab", b"abc", b"bc", b"  ")
PLAIN = {"normalized": False, "special": True}


def test_a_vocabulary_as_tiktokens_gets_a_core() -> None:
    assert as_core(small(PIECES)).way == "tiktoken core"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: small(PIECES, ignore_merges=False), id="pieces are joined though they are whole"),
        pytest.param(lambda: small(PIECES, merges=merges_of(vocabulary(PIECES))[:-1]), id="a merge is missing"),
        pytest.param(lambda: small(PIECES, merges=merges_of(vocabulary(PIECES))[::-1]), id="merges in another order"),
        pytest.param(lambda: small(PIECES, _set("normalizer", normalizers.NFC())), id="a normalizer"),
        pytest.param(lambda: small(PIECES, split_special_tokens=True), id="special tokens as text"),
        pytest.param(
            lambda: small(PIECES, _set("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True))),
            id="a space put before",
        ),
        pytest.param(lambda: small(PIECES, added=[AddedToken("<e>", lstrip=True, **PLAIN)]), id="lstrip"),
        pytest.param(lambda: small(PIECES, added=[AddedToken("<e>", rstrip=True, **PLAIN)]), id="rstrip"),
        pytest.param(lambda: small(PIECES, added=[AddedToken("<e>", single_word=True, **PLAIN)]), id="single word"),
        pytest.param(lambda: small(PIECES, added=[AddedToken("<e>", normalized=True)]), id="normalized"),
        pytest.param(
            lambda: small(PIECES, added=[AddedToken("<e>", **PLAIN), AddedToken("<e>e", **PLAIN)]),
            id="one begins another",
        ),
    ],
)
def test_any_other_structure_gets_batches_and_the_same_ids(other: Callable[[], TokenizersBackend]) -> None:
    encoder = other()
    made = as_core(encoder)
    assert made.way == "batch"
    texts = ["abc ab  <e> <e>e <end>", " <e> abcab bc\u0301 e\u0301", ""]
    assert made.encode(texts) == [one_by_one(encoder, text) for text in texts]


def test_a_core_that_gives_other_ids_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawtokens.target.encoding._split_pattern", lambda _: r"\w|\W")
    assert as_core(small(PIECES)).way == "batch"


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.text("ab", min_size=2, max_size=7).map(str.encode), unique=True, max_size=25),
    texts=st.lists(st.text("ab ", max_size=40), min_size=1, max_size=20),
)
def test_joins_in_the_order_of_ranks_take_the_same_steps_in_both_engines(pieces: list[bytes], texts: list[str]) -> None:
    encoder = small(pieces)
    core = tiktoken.Encoding(
        "small",
        pat_str=r"\w+|\s+|[^\w\s]+",
        mergeable_ranks={piece: i for i, piece in enumerate(vocabulary(pieces))},
        special_tokens={},
    )
    assert [core.encode(text) for text in texts] == [one_by_one(encoder, text) for text in texts]


# A model's own Python class over a tiktoken vocabulary, which cuts long texts as Kimi's does.

OWN_CLASS = """
import tiktoken
from transformers import PreTrainedTokenizer

CUT = 30_000

class OwnTokenizer(PreTrainedTokenizer):
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, **kwargs):
        special = {"<think>": 259, "</think>": 260, "<|im_start|>": 261, "<|im_end|>": 262}
        special |= {"<tool_call>": 263, "</tool_call>": 264, "<tool_response>": 265, "</tool_response>": 266}
        ranks = {bytes([i]): i for i in range(256)} | {b"ab": 256, b"aaaa": 257, b"aa": 258}
        self.model = tiktoken.Encoding("own", pat_str=r"\\w+|\\W+", mergeable_ranks=ranks, special_tokens=special)
        super().__init__(**kwargs)

    @property
    def vocab_size(self):
        return self.model.n_vocab

    def get_vocab(self):
        return {self._convert_id_to_token(i): i for i in range(self.model.n_vocab)}

    def _tokenize(self, text):
        parts = [text[i : i + CUT] for i in range(0, len(text), CUT)]
        return [self._convert_id_to_token(i) for part in parts for i in self.model.encode(part, disallowed_special=())]

    def _convert_token_to_id(self, token):
        special = token in self.model.special_tokens_set
        try:
            return self.model.encode_single_token(token if special else token.encode("latin-1"))
        except (KeyError, UnicodeEncodeError):
            return None

    def _convert_id_to_token(self, index):
        return self.model.decode_single_token_bytes(index).decode("latin-1")

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens).encode("latin-1").decode("utf-8", "replace")
"""


@cache
def own_special() -> dict[str, dict[str, object]]:
    names = ["<think>", "</think>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    names += ["<tool_response>", "</tool_response>"]
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {str(259 + place): {"content": name, **flags} for place, name in enumerate(names)}


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A model whose repository brings a tokenizer class of its own, and no tokenizer.json."""
    (tmp_path / "tokenization_own.py").write_text(OWN_CLASS)
    config = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "added_tokens_decoder": own_special()}))
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tmp_path


def test_a_class_of_its_own_keeps_its_cuts_and_lends_its_core_to_shorter_texts(own_folder: Path) -> None:
    target = load_tokenizer(str(own_folder), trust_remote_code=True)
    made = TextEncoder(target.encoder, core_after=0)
    ways = [made.way]
    made.encode(["Hi"])
    assert [*ways, made.way] == ["one by one", "tiktoken core"]
    texts = ["ab<|im_end|>\naaaab</think>é你 <think", "a" * UNCUT, "b" + "a" * 70_001, "ab" * 20_000 + "<think>aaaa"]
    assert made.encode(texts) == [one_by_one(target.encoder, text) for text in texts]
    uncut = target.encoder.model.encode(texts[2])
    assert made.encode([texts[2]]) != [uncut]
