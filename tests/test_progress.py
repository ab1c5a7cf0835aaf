import pytest
from small_dataset import response

from rawtokens.capture.progress import Progress, Tally, bin_seconds, latency_bin


def test_a_run_is_counted_from_its_answers_and_its_failures() -> None:
    tally = Tally()
    tally.answered(response("a#0/0", [1, 2, 3], start=0, seconds=2.0))
    tally.answered(response("b#0/0", [1] * 16, finish="length", start=0, seconds=8.0))
    for reason in ("timeout", "http_503", "timeout"):
        tally.failed(reason)
    progress = tally.progress(
        planned=10,
        present=3,
        rejected=1,
        asked={"c#0/0": 1.5, "d#0/0": 0.5},
        servers={"http://a:1": 2},
        seconds=4.0,
        max_new_tokens=16,
    )
    assert (progress.done, progress.ids, progress.truncated, progress.in_flight) == (2, 19, 1, 2)
    assert progress.failures == {"timeout": 2, "http_503": 1}
    assert progress.latencies == {latency_bin(2.0): 1, latency_bin(8.0): 1}
    assert (progress.request_seconds, progress.ids_per_second, progress.remaining) == (10.0, 4.75, 4)
    assert str(progress) == "5 of 10 generated, 1 rejected, 2 in flight, 5 ids/s, 4 s"


def test_a_record_of_progress_does_not_change_with_the_tally() -> None:
    tally = Tally()
    facts = {"planned": 1, "present": 0, "rejected": 0, "asked": {}, "servers": {}, "seconds": 0.0, "max_new_tokens": 0}
    before = tally.progress(**facts)  # type: ignore[arg-type]
    tally.failed("timeout")
    tally.answered(response("a#0/0", [1], start=0, seconds=1.0))
    assert (before.failures, before.latencies, before.done) == ({}, {}, 0)
    assert before.ids_per_second == 0.0


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.4, 7.0, 3600.0, 260_000.0])
def test_a_latency_is_kept_to_five_percent(seconds: float) -> None:
    assert bin_seconds(latency_bin(seconds)) == pytest.approx(max(seconds, 0.001), rel=0.05)


def test_what_remains_is_never_below_nothing() -> None:
    progress = Progress(planned=1, present=1, done=0, rejected=1, in_flight=0, seconds=0.0)
    assert progress.remaining == 0
