import pytest

from rawtokens.addresses import api_key_from, server_urls, urls_from
from rawtokens.errors import InputError


def test_addresses_have_one_spelling() -> None:
    assert server_urls(["http://a:1//", "http://a:1", "https://b/sglang/"]) == ("http://a:1", "https://b/sglang")
    assert urls_from('["http://a:1/", "http://b:2"]') == ("http://a:1", "http://b:2")
    assert urls_from("http://a:1/") == ("http://a:1",)


NO_ADDRESS = ("", "[]", "[1]", "[", "a:1", "localhost:30000", "ftp://a", "http://", "http:a", "http://a:port")
NO_SERVER = (
    "http://a:99999",
    "http://a:1?x=1",
    "http://a:1/v1",
    "http://a:1/generate/",
    " http://a:1",
    '"http://a:1"',
    "http://[::1",
    "http://a b:1",
    "http://bücher:1",
)


@pytest.mark.parametrize("text", [*NO_ADDRESS, *NO_SERVER])
def test_what_is_no_address_is_named_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="http://") as caught:
        urls_from(text)
    assert "\n" not in str(caught.value)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(InputError, match=r"host\.example holds a name or password") as caught:
        server_urls(["http://user:pa55word@host.example:1"])
    assert "pa55word" not in str(caught.value)


def test_a_key_comes_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_AUTH", " the-key\n")
    assert api_key_from("SERVER_AUTH") == "the-key"
    assert api_key_from("") == ""


@pytest.mark.parametrize("value", ["", "  ", "two words", "line\nbreak", "naïve", "\x07bell"])
def test_a_variable_without_a_key_is_named_and_its_value_is_not(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SERVER_AUTH", value)
    with pytest.raises(InputError, match="SERVER_AUTH") as caught:
        api_key_from("SERVER_AUTH")
    assert not value.strip() or value not in str(caught.value)


@pytest.mark.parametrize("pasted", ["sk-abcdefghijklmnop", "hf_abcdefghij", "not-a-name", "ключ"])
def test_a_pasted_key_is_not_repeated(pasted: str) -> None:
    with pytest.raises(InputError, match="api_key_env") as caught:
        api_key_from(pasted)
    assert pasted not in str(caught.value)
