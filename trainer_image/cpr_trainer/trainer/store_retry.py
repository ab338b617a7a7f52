"""Store calls of a trainer with retries: while the store fails, the trainer waits and reports the problem."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import monotonic, sleep
from typing import TypeVar

from cpr_trainer.runtime import backoff, problem_of, retry
from cpr_trainer.store import StoreError
from cpr_trainer.trainer.control import POLL_INTERVAL_S, PollInterrupts
from cpr_trainer.trainer.status import StatusPublisher

T = TypeVar("T")


def retry_store_errors(
    call: Callable[[], T],
    status: StatusPublisher,
    poll_interrupts: PollInterrupts,
    *,
    final: type[StoreError] | tuple[()] = (),
) -> T:
    """Return the result of `call`, repeated while the store fails; the problem is reported meanwhile.

    Raises what `poll_interrupts` raises, and errors of `call` that are no StoreError, or are `final`.
    """

    def pause(error: StoreError, delay_s: float) -> None:
        if isinstance(error, final):
            raise error
        status.update(problem=problem_of(error))
        end = monotonic() + delay_s
        while monotonic() < end:
            poll_and_sleep(poll_interrupts)

    result = retry(call, StoreError, backoff(random.Random(), first_s=0.2, cap_s=5.0), pause)
    status.update(problem=None)
    return result


def poll_and_sleep(poll_interrupts: PollInterrupts) -> None:
    """Poll once, and wait for one interval."""
    poll_interrupts()
    sleep(POLL_INTERVAL_S)


class RetryingReader:
    """Reads training data on another thread. While its store fails the trainer is paused, not failed.

    Every method raises what `poll_interrupts` raises, and DataError for errors that no retry can solve.
    """

    def __init__(self, status: StatusPublisher, poll_interrupts: PollInterrupts) -> None:
        self._status = status
        self._poll_interrupts = poll_interrupts
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")

    def read(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which runs on the other thread."""
        return self.wait(lambda: self._thread.submit(call))

    def wait(self, begin: Callable[[], Future[T]]) -> T:
        """Return the result of the future that `begin` returns; call it again after each failure of the store."""
        try:
            return self._result(begin())
        except StoreError:
            with self._status.paused():
                return retry_store_errors(lambda: self._result(begin()), self._status, self._poll_interrupts)

    def _result(self, future: Future[T]) -> T:
        while not wait((future,), POLL_INTERVAL_S).done:
            self._poll_interrupts()
        return future.result()
