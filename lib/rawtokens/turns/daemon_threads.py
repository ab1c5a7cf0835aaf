"""A user's code in a thread that no process waits for at its end, as it does for a pool's.

This module does not know what is run, nor for how long anybody waits for it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

_Result = TypeVar("_Result")


def in_daemon_thread(work: Callable[[], _Result]) -> Future[_Result]:
    """Begin `work()`; the future has what it returns or raises, whatever that is, and can't be cancelled."""
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    Thread(target=run, daemon=True).start()
    return future
