"""An asyncio program on an event loop of its own, in a thread of its own, beside a notebook's.

A notebook's kernel has asyncio's loop, which its messages share; uvloop takes a third off the cost of a request, and
a kernel that is not held up takes an interrupt at once. This module does not know what the program does.
"""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

import uvloop

_NEW_OBJECTS = 20_000
_Result = TypeVar("_Result")


async def in_own_loop(work: Callable[[], Coroutine[None, None, _Result]], *, on_stop: Callable[[], None]) -> _Result:
    """Run `work()` to its end on a uvloop loop in a new thread, and give its result or raise its exception.

    Where the caller is cancelled (the stop button, SIGINT under asyncio.run), `on_stop` is called in that loop and
    `work` goes on to the end that it chooses; at the second cancellation it is cancelled itself. CancelledError is
    raised where it then ended without an exception of its own.
    """
    ended: Future[_Result] = Future()
    loop = uvloop.new_event_loop()
    task: asyncio.Task[_Result] | None = None

    async def main() -> _Result:
        nonlocal task
        task = asyncio.current_task()
        return await work()

    def run() -> None:
        try:
            with _rare_collections(), asyncio.Runner(loop_factory=lambda: loop) as runner:
                result = runner.run(main())
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(result)

    def cancel() -> None:
        if task is not None:
            task.cancel()

    threading.Thread(target=run, name="rawtokens", daemon=True).start()
    orders = [on_stop, cancel]
    waiter = asyncio.wrap_future(ended)
    while not waiter.done():
        try:
            await asyncio.wait([waiter])
        except asyncio.CancelledError:
            if not orders:
                raise
            with suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(orders.pop(0))
    result = waiter.result()
    if len(orders) < 2:
        raise asyncio.CancelledError
    return result


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for cycles less often, and not among what was there before: that took 15 % of a run's time."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
