import asyncio
import gc
import threading

import pytest
import uvloop

from rawtokens.capture.own_loop import in_own_loop
from rawtokens.errors import RunStopped


def nothing() -> None:
    """An `on_stop` that is never called."""
    raise AssertionError


def test_the_work_has_a_uvloop_and_a_thread_of_its_own() -> None:
    async def where() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        return asyncio.get_running_loop(), threading.current_thread()

    async def caller() -> None:
        loop, thread = await in_own_loop(where, on_stop=nothing)
        assert isinstance(loop, uvloop.Loop)
        assert loop is not asyncio.get_running_loop()
        assert thread is not threading.current_thread()
        thread.join(5.0)
        assert loop.is_closed()

    asyncio.run(caller())


def test_an_exception_reaches_the_caller() -> None:
    async def fails() -> None:
        raise ValueError("seven")

    with pytest.raises(ValueError, match="seven"):
        asyncio.run(in_own_loop(fails, on_stop=nothing))


def test_the_caller_is_not_held_up() -> None:
    async def caller() -> int:
        begun, go_on = threading.Event(), threading.Event()

        async def blocks() -> None:
            begun.set()
            assert go_on.wait(10.0)

        task, turns = asyncio.create_task(in_own_loop(blocks, on_stop=nothing)), 0
        while not begun.is_set():
            await asyncio.sleep(0.001)
        while turns < 10:
            await asyncio.sleep(0.001)
            turns += 1
        go_on.set()
        await task
        return turns

    assert asyncio.run(caller()) == 10


async def cancelled(times: int, *, heeds: bool) -> list[str]:
    """What happens in the work when its caller is cancelled so many times; it heeds the first, or waits on."""
    happened: list[str] = []
    stopped = asyncio.Event()

    async def work() -> None:
        happened.append("started")
        try:
            if heeds:
                await stopped.wait()
                happened.append("heeded")
            await asyncio.sleep(0 if heeds else 600)
        except asyncio.CancelledError:
            happened.append("cancelled")
            raise

    def tell() -> None:
        happened.append("told")
        stopped.set()

    task = asyncio.create_task(in_own_loop(work, on_stop=tell))
    while not happened:
        await asyncio.sleep(0.001)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await task
    return happened


def test_a_first_cancellation_is_an_order_that_the_work_may_take_its_time_over() -> None:
    assert asyncio.run(cancelled(1, heeds=True)) == ["started", "told", "heeded"]


def test_a_second_cancellation_cancels_the_work() -> None:
    assert asyncio.run(cancelled(2, heeds=False)) == ["started", "told", "cancelled"]


def test_cycles_are_looked_for_rarely_while_it_lasts_and_as_before_when_it_has_failed() -> None:
    before = gc.get_threshold()

    async def work() -> tuple[int, int]:
        return gc.get_threshold()[0], gc.get_freeze_count()

    newest, frozen = asyncio.run(in_own_loop(work, on_stop=nothing))
    assert newest > before[0]
    assert frozen > 1000

    async def fails() -> None:
        raise RunStopped("no")

    with pytest.raises(RunStopped):
        asyncio.run(in_own_loop(fails, on_stop=nothing))
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
