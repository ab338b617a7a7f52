"""The store with patience: while it fails, a trainer waits and says why, and follows what it is told meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import monotonic, sleep
from typing import TypeVar

from cpr_trainer.runtime import backoff, problem_of
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
    """Return what `call` returns, tried again while the store fails; the board says so meanwhile.

    Raises what `poll_interrupts` raises, and every error of `call` that is not the store's, or is `final`.
    """
    delays = backoff(random.Random(), first_s=0.2, cap_s=5.0)
    while True:
        try:
            result = call()
        except final:
            raise
        except StoreError as error:
            status.update(problem=problem_of(error))
            end = monotonic() + next(delays)
            while monotonic() < end:
                poll_and_sleep(poll_interrupts)
        else:
            status.update(problem=None)
            return result


def poll_and_sleep(poll_interrupts: PollInterrupts) -> None:
    """Let a slice of a wait pass."""
    poll_interrupts()
    sleep(POLL_INTERVAL_S)


class RetryingReader:
    """Reads training data on other threads. While its store fails the trainer is paused, not failed.

    Every method raises what `poll_interrupts` raises, and DataError for what no wait can mend.
    """

    def __init__(self, status: StatusPublisher, poll_interrupts: PollInterrupts) -> None:
        self._status = status
        self._poll_interrupts = poll_interrupts
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reading")

    def read(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, which is made on another thread."""
        return self.wait(lambda: self._thread.submit(call))

    def wait(self, begin: Callable[[], Future[T]]) -> T:
        """Return the result of the future that `begin` returns; it is called again after each failure of the store."""
        try:
            return self._result(begin())
        except StoreError:
            with self._status.paused():
                return retry_store_errors(lambda: self._result(begin()), self._status, self._poll_interrupts)

    def _result(self, future: Future[T]) -> T:
        while not wait((future,), POLL_INTERVAL_S).done:
            self._poll_interrupts()
        return future.result()
