"""The checks of a server, each shown a proxy or a server that does exactly what it is there to find."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import httpx
import msgspec
import pytest
from family_tokens import VOCABULARIES, markers_of
from faulty_proxies import ANSWER, CONTEXT, Fault, PatientServer, Proxy, chat_only, on, strips_stop, tokenises_again
from faulty_proxies import truncates as truncating

from rawtokens.__main__ import main
from rawtokens.capture import server_facts
from rawtokens.demo.server import DemoServer
from rawtokens.engines.answers import Answer
from rawtokens.errors import ServerError
from rawtokens.server_checks.answer_checks import echo_check, stop_check, thinking_check
from rawtokens.server_checks.check_table import (
    Check,
    checks_takeaway,
    checks_text,
    require_no_failure,
    without_secret,
    write_checks,
)
from rawtokens.server_checks.fact_checks import stop_id_check
from rawtokens.server_checks.server_check import check_server, check_servers
from rawtokens.server_checks.server_questions import Heard
from rawtokens.target.target_tokenizer import Tokenizer, load_tokenizer

URL = "http://one:1"
KEY = "k-not-to-be-told"
ALL = [
    *("reachable", "model", "context", "vocabulary", "parsers", "tokenizer on the server", "stop ids"),
    *("same ids on both sides", "generates from ids", "thinking is closed", "stop id is kept", "settings are obeyed"),
    *("prompt ids come back", "the same answer again", "long prompts are kept", "auto-truncate"),
]


def check(target: Tokenizer, transport: httpx.AsyncBaseTransport) -> dict[str, Check]:
    checks = asyncio.run(check_server(URL, target, api_key=KEY, transport=transport))
    assert KEY not in repr(checks)
    return {item.check: item for item in checks}


def status(checks: dict[str, Check], wanted: str) -> list[str]:
    return [name for name, item in checks.items() if item.status == wanted]


def behind(target: Tokenizer, **faults: Fault) -> dict[str, Check]:
    """The checks of a faithful server behind a proxy."""
    return check(target, Proxy(PatientServer(target), **faults))


def test_a_faithful_server_passes_all_but_what_it_does_not_tell(target: Tokenizer) -> None:
    checks = check(target, PatientServer(target))
    assert list(checks) == ALL
    assert (status(checks, "warn"), status(checks, "fail")) == (["vocabulary"], [])
    require_no_failure(URL, list(checks.values()))
    assert checks_takeaway(list(checks.values())) == "15 of 16 checks pass; warn: vocabulary"
    assert checks["settings are obeyed"].seen == "asked to stop at 17 or after 15 ids: 8 ids, the last 17"


def refuse(*_: object) -> httpx.Response:
    raise httpx.ConnectError("refused")


def test_a_server_that_is_not_there_is_one_failed_check(target: Tokenizer) -> None:
    checks = behind(target, question=refuse)
    assert [(item.check, item.status) for item in checks.values()] == [("reachable", "fail")]
    with pytest.raises(ServerError, match=f"{URL} fails the check 'reachable': no server answers at {URL}"):
        require_no_failure(URL, list(checks.values()))


def settings_dropped(*names: str) -> Fault:
    def drop(content: dict[str, object]) -> None:
        settings = content["sampling_params"]
        assert isinstance(settings, dict)
        content["sampling_params"] = {name: value for name, value in settings.items() if name not in names}

    return on("/generate", drop)


def other_echo(content: dict[str, list[int]]) -> None:
    content["prompt_token_ids"][3] += 1


def larger_ids(content: dict[str, list[int]]) -> None:
    content["output_ids"][3] = 163_840


FAULTS: dict[str, tuple[dict[str, Fault], dict[str, str]]] = {
    "a chat-only proxy": (
        {"question": chat_only},
        {"generates from ids": "nothing here takes ids: a chat-only proxy?"},
    ),
    "a wrapper that strips the stop id": (
        {"answer": strips_stop(counts=False, matched=False)},
        {"generates from ids": "a wrapper may strip the stop id"},
    ),
    "a wrapper that strips and counts": (
        {"answer": strips_stop(counts=True, matched=False)},
        {"generates from ids": "a wrapper strips the stop id"},
    ),
    "a wrapper that strips, counts and forgets why": (
        {"answer": strips_stop(counts=True, matched=True)},
        {"stop id is kept": "a wrapper strips the stop id", "settings are obeyed": "a wrapper strips the stop id"},
    ),
    "a router that drops stop ids": (
        {"question": settings_dropped("stop_token_ids")},
        {"settings are obeyed": "stop_token_ids is dropped"},
    ),
    "a router that drops settings": (
        {"question": settings_dropped("stop_token_ids", "max_new_tokens")},
        {"settings are obeyed": "max_new_tokens is dropped"},
    ),
    "a proxy that cuts prompts": (truncating(1000), {"long prompts are kept": "something cuts or rewrites prompts"}),
    "a proxy that cuts prompts and lies": (
        truncating(1000, lies=True),
        {"long prompts are kept": "something makes other ids of them"},
    ),
    "a proxy that changes an id": (
        {"answer": on("/generate", other_echo)},
        {"prompt ids come back": "something makes other ids", "long prompts are kept": "something makes other ids"},
    ),
    "a model with a larger vocabulary": (
        {"answer": on("/generate", larger_ids)},
        {"generates from ids": "a larger vocabulary"},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_would_spoil_a_capture_fails(target: Tokenizer, name: str) -> None:
    faults, expected = FAULTS[name]
    checks = behind(target, **faults)
    assert status(checks, "fail") == list(expected)
    for failed, words in expected.items():
        assert words in checks[failed].to_do
    with pytest.raises(ServerError, match="fails the check"):
        require_no_failure(URL, list(checks.values()))


@pytest.mark.parametrize("lies", [False, True])
def test_a_proxy_that_makes_text_of_ids_and_tokenises_it_again_fails(target: Tokenizer, lies: bool) -> None:
    checks = behind(target, **tokenises_again(target, lies=lies))
    assert checks["prompt ids come back"].status == "pass"  # the short prompt comes back as it was
    assert status(checks, "fail") == ["long prompts are kept"]


def test_a_router_that_drops_what_it_does_not_know_is_a_warning(target: Tokenizer) -> None:
    dropped = on("/generate", lambda content: content.pop("return_prompt_token_ids", None))
    checks = behind(target, question=dropped)
    assert status(checks, "fail") == []
    assert status(checks, "warn") == ["vocabulary", "prompt ids come back"]


@pytest.mark.parametrize("size", [32000, 163841])
def test_another_vocabulary_fails(target: Tokenizer, size: int) -> None:
    server = PatientServer(target, facts={"vocab_size": size})
    assert status(check(target, server), "fail") == ["vocabulary"]
    assert "/generate" not in server.asked


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
def test_another_models_tokenizer_fails_and_nothing_is_generated(
    target: Tokenizer, family_target: Callable[[str], Tokenizer], name: str
) -> None:
    server = PatientServer(target)
    checks = check(family_target(name), server)  # gpt-oss has ids above Kimi's vocabulary: one would kill the server
    assert status(checks, "fail") == ["same ids on both sides"]
    assert "there" in checks["same ids on both sides"].seen
    assert checks["generates from ids"].status == "warn"
    assert "/generate" not in server.asked


def test_other_control_ids_alone_fail(target: Tokenizer) -> None:
    def renumbered(content: dict[str, list[int]]) -> None:
        content["tokens"] = [item + 1 if item > 163_583 else item for item in content["tokens"]]

    checks = behind(target, answer=on("/tokenize", renumbered))
    assert status(checks, "fail") == ["same ids on both sides"]
    assert "<think>" in checks["same ids on both sides"].seen


@pytest.mark.parametrize(
    "reply",
    [
        refuse,
        lambda: httpx.Response(404, json={"detail": "Not Found"}),
        lambda: httpx.Response(500, text=f"no {KEY}"),
        lambda: httpx.Response(200, text="[1, 2]"),
        lambda: httpx.Response(200, text="<html>"),
        lambda: httpx.Response(200, json={"tokens": "many"}),
    ],
)
def test_where_tokenize_gives_no_ids_their_number_is_compared(
    target: Tokenizer, family_target: Callable[[str], Tokenizer], reply: Callable[[], httpx.Response]
) -> None:
    def unserved(path: str, _: object) -> httpx.Response | None:
        return reply() if path == "/tokenize" else None

    same = behind(target, question=unserved)["same ids on both sides"]
    assert same.status == "warn"
    assert "6 probe texts have as many ids on both sides" in same.seen
    other = check(target, Proxy(PatientServer(family_target("qwen3")), question=unserved))["same ids on both sides"]
    assert other.status == "fail"


@pytest.mark.parametrize(
    "reply", [refuse, lambda *_: httpx.Response(400, json={"error": KEY}), lambda *_: httpx.Response(200, text="{}")]
)
def test_a_server_that_does_not_generate_fails(target: Tokenizer, reply: Callable[..., httpx.Response]) -> None:
    checks = behind(target, question=lambda path, _: reply() if path == "/generate" else None)
    assert status(checks, "fail") == ["generates from ids"]


def test_auto_truncate_is_found_by_what_the_server_does(target: Tokenizer) -> None:
    def cut(content: dict[str, list[int]]) -> None:
        content["input_ids"] = content["input_ids"][: CONTEXT - 7]

    found = behind(target, question=on("/generate", cut))
    assert found["auto-truncate"].status == "warn"
    assert found["auto-truncate"].seen.startswith("on: ")
    assert status(found, "fail") == []
    told = check(target, PatientServer(target, facts={"allow_auto_truncate": True}))["auto-truncate"]
    assert (told.status, told.seen) == ("warn", "on: long prompts are cut without a word")


@pytest.mark.parametrize(("place", "expected"), [(2, "warn"), (15, "pass")])
def test_that_a_greedy_answer_comes_again_is_stated_and_not_required(
    target: Tokenizer, place: int, expected: str
) -> None:
    asked: list[int] = []

    def another(content: dict[str, list[int]]) -> None:
        asked.append(len(content["output_ids"]))
        if len(asked) == 3:  # first the question, then the settings, then the question again
            content["output_ids"][place] += 1

    again = behind(target, answer=on("/generate", another))["the same answer again"]
    assert again.status == expected
    assert f"another id at position {place}; not required" in again.seen


def test_servers_of_one_run_are_held_against_the_first(target: Tokenizer) -> None:
    def pair(second: PatientServer) -> Check:
        first = PatientServer(target)

        class Both(httpx.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                return await (first if request.url.host == "one" else second).handle_async_request(request)

        found = asyncio.run(check_servers([URL, "http://two:1"], target, transport=Both()))
        assert [item.check for item in found[URL]] == ALL
        assert [item.check for item in found["http://two:1"]] == [*ALL, "like the first server"]
        return found["http://two:1"][-1]

    assert pair(PatientServer(target)).status == "pass"
    other = pair(PatientServer(target, facts={"version": "0.5.20"}))
    assert (other.status, other.seen[:17]) == ("fail", "version is '0.5.2")
    early = pair(PatientServer(target, answer=[1008, 5, *ANSWER[2:]]))
    assert (early.status, "position 1," in early.seen) == ("warn", True)
    late = pair(PatientServer(target, answer=[*ANSWER[:14], 5, *ANSWER[15:]]))
    assert (late.status, "position 14," in late.seen) == ("pass", True)


def test_a_first_server_that_is_gone_is_its_own_failure_alone(target: Tokenizer) -> None:
    class Second(PatientServer):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return refuse() if request.url.host == "one" else await super().handle_async_request(request)

    found = asyncio.run(check_servers([URL, "http://two:1"], target, transport=Second(target)))
    assert [item.check for item in found[URL]] == ["reachable"]
    assert [item.check for item in found["http://two:1"]] == ALL


def answer_of(ids: list[int], *, matched: int | None = None, finish: Literal["stop", "length"] = "stop") -> Answer:
    return Answer(
        output_ids=msgspec.Raw(msgspec.json.encode(ids)),
        finish_reason=finish,
        matched=matched,
        prompt_tokens=1,
        completion_tokens=len(ids),
        cached_tokens=0,
        weight_version="",
    )


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_familys_turn_ends_are_stop_ids_and_nothing_else_is(name: str) -> None:
    markers = markers_of(name)
    for end in markers.turn_ends:
        assert stop_check(answer_of([5, *markers.closer, 6, end]), markers, proved=False).status == "pass"
    for other in {*markers.ids(), 7} - set(markers.turn_ends):
        assert stop_check(answer_of([5, other]), markers, proved=True).status == "fail"
        assert stop_check(answer_of([5, other], matched=other), markers, proved=True).status == "warn"
    assert stop_check(answer_of([]), markers, proved=True).status == "fail"
    assert stop_check(answer_of([5], finish="length"), markers, proved=False).status == "warn"
    assert stop_check(answer_of([5], finish="length"), markers, proved=True).status == "pass"


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_closer_is_found_as_the_family_spells_it(name: str) -> None:
    markers = markers_of(name)
    closed = thinking_check([5, *markers.opener], [5, *markers.closer, 6], markers)
    assert closed.status == "pass"
    if markers.channels is not None:
        assert "channels" in closed.seen
        return
    assert "at position 1" in closed.seen
    assert thinking_check([5, *markers.opener], [5, *markers.closer[:-1], 6], markers).status == "warn"
    off = thinking_check([5, *markers.opener, *markers.closer], [6], markers)
    assert (off.status, off.seen) == ("pass", "the prompt asks for no thinking")


def test_the_models_own_stop_ids_are_told_beside_the_templates(tmp_path: Path, kimi_folder: Path) -> None:
    for path in kimi_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 163840, "text_config": {"vocab_size": 163840, "eos_token_id": 163585}})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [163585, 163593]}))
    found = stop_id_check(load_tokenizer(str(tmp_path)))
    assert found.status == "pass"
    assert found.seen == (
        "a turn ends with 163586 <|im_end|>; the model's files stop at: config.json 163585 [EOS], "
        "generation_config.json 163585 [EOS], 163593 [EOT], tokenizer 163585 [EOS]"
    )
    assert found.to_do.startswith("harmless: ")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 163607}))
    cut = stop_id_check(load_tokenizer(str(tmp_path)))
    assert (cut.status, "163607 </think>" in cut.to_do) == ("warn", True)


def test_an_echo_that_does_not_come_is_a_doubt() -> None:
    answer = answer_of([5, 163586], matched=163586)
    assert echo_check([1, 2], Heard(answer=answer)).status == "warn"
    assert echo_check([1, 2], Heard(answer=answer, prompt_ids=[1, 2])).status == "pass"
    cut = echo_check([1, 2], Heard(answer=answer, prompt_ids=[1]))
    assert (cut.status, cut.seen) == ("fail", "2 ids were sent, 1 came back, other ones from position 1 on")


PLANTED: dict[str, object] = {
    "api_key": KEY,
    "launch_command": f"--api-key {KEY}",
    "internal_states": [{"api_key": KEY}],
    "version": f"0.5.23+{KEY}",
    "reasoning_parser": KEY,
    "tool_call_parser": f"p{KEY}",
}


def test_a_key_that_a_server_tells_reaches_neither_table_nor_file(target: Tokenizer, tmp_path: Path) -> None:
    told = PatientServer(target, facts=PLANTED)
    repeats = Proxy(told, question=lambda path, _: httpx.Response(500, text=KEY) if path == "/tokenize" else None)
    for transport in (told, repeats):
        checks = asyncio.run(check_server(URL, target, api_key=KEY, transport=transport))
        write_checks(tmp_path / "server_check.json", {URL: checks})
        assert KEY not in checks_text(checks)
        assert KEY not in (tmp_path / "server_check.json").read_text()
        assert "[secret]" in checks_text(checks)
    assert without_secret([Check(check="c", status="warn", seen=KEY, to_do=KEY)], KEY) == [
        Check(check="c", status="warn", seen="[secret]", to_do="[secret]")
    ]


@pytest.mark.parametrize("chat_alone", [False, True])
def test_the_command_shows_no_key_and_exits_with_1_on_a_failure(
    target: Tokenizer,
    kimi_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    chat_alone: bool,
) -> None:
    transport = Proxy(PatientServer(target, facts=PLANTED), question=chat_only if chat_alone else None)
    monkeypatch.setattr("httpx.AsyncHTTPTransport", lambda **_: transport)
    monkeypatch.setenv("SERVER_AUTH", KEY)
    arguments = ["check-server", URL, "--tokenizer", str(kimi_folder), "--api-key-env", "SERVER_AUTH", "--golden"]
    assert main(arguments) == int(chat_alone)
    told = capsys.readouterr()
    assert KEY not in told.out + told.err
    assert ("[secret]" in told.out) is not chat_alone
    assert "the 15 published ids exactly" in told.out
    assert ("no_generate_route: Not Found" in told.out) is chat_alone
    expected = f"rawtokens: {URL} fails the check 'generates from ids'; the table tells why\n"
    assert told.err == (expected if chat_alone else "")


def test_the_text_table_wraps_and_hides_nothing() -> None:
    checks = [
        Check(check="a", status="pass", seen="\u202eword " * 30, to_do="do"),
        Check(check="bb", status="fail", seen=""),
    ]
    text = checks_text(checks, width=60)
    assert max(map(len, text.splitlines())) <= 60 + 10
    assert text.count("⟨U+202E⟩word") == 30
    assert text.splitlines()[-1].split() == ["fail", "bb"]


REAL_FAULTS = [name for name in FAULTS if name != "a router that drops settings"]  # it draws at temperature 1 then


@pytest.mark.engine
@pytest.mark.parametrize("name", REAL_FAULTS)
def test_the_same_proxies_before_the_real_server_fail(
    demo_server: DemoServer, demo_target: Tokenizer, name: str
) -> None:
    faults, expected = FAULTS[name]

    async def found() -> list[Check]:
        async with httpx.AsyncHTTPTransport() as wire:
            return await check_server(demo_server.url, demo_target, transport=Proxy(wire, **faults))

    failed = {item.check for item in asyncio.run(found()) if item.status == "fail"}
    assert failed == set(expected)


@pytest.mark.engine
def test_another_models_tokenizer_fails_and_leaves_the_real_server_alive(
    demo_server: DemoServer, family_target: Callable[[str], Tokenizer]
) -> None:
    checks = asyncio.run(check_server(demo_server.url, family_target("gpt_oss")))
    assert [item.check for item in checks if item.status == "fail"] == ["same ids on both sides"]
    assert asyncio.run(server_facts.facts_of([demo_server.url])).engine == "sglang"
    assert demo_server.wait_until_ready(60)


@pytest.mark.engine
def test_the_golden_question_on_the_command_line(
    demo_server: DemoServer, demo_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_AUTH", KEY)
    arguments = ["check-server", demo_server.url, "--tokenizer", str(demo_folder), "--api-key-env", "DEMO_AUTH"]
    assert main([*arguments, "--golden"]) == 0
    told = capsys.readouterr().out
    assert "pass  golden prompt            the 15 published ids exactly" in told
    assert "stop id (1 id): <|im_end|>" in told
    assert KEY not in told
    assert main([*arguments, "--golden", "--template-kwargs", '{"thinking":false}']) == 0
    assert "no published ids; its own 16 are [163587, 2482," in capsys.readouterr().out
