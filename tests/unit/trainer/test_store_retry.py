"""Reads with retries: an outage of the store is a pause with a problem, however long it lasts."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from cpr_contract.reports import TrainerReport, TrainerState
from cpr_contract.roster import Counters
from cpr_trainer.errors import DataError
from cpr_trainer.store import CredentialsRefusedError, StoreError, StoreUnreachableError, StoreUnsuitableError
from cpr_trainer.trainer.control import RosterChanged
from cpr_trainer.trainer.status import StatusPublisher
from cpr_trainer.trainer.store_retry import RetryingReader, retry_store_errors


def status() -> StatusPublisher:
    counters = Counters(1, 1, 1)
    return StatusPublisher(TrainerReport(1, "job", 0, 1, counters, TrainerState.TRAINING, 0, 0, 0, 0, (), (), (), None))


@pytest.mark.parametrize("error", [StoreUnreachableError, CredentialsRefusedError])
def test_trainer_is_paused_and_reports_the_problem_while_the_store_fails(error: type[StoreError]) -> None:
    shown, seen, fails = status(), set(), 3

    def poll_interrupts() -> None:
        report = shown.report()
        seen.add((report.state, report.problem and report.problem.reason))

    def read() -> str:
        nonlocal fails
        if fails:
            fails -= 1
            raise error("The store does not answer.", "Wait.")
        return "rows"

    assert RetryingReader(shown, poll_interrupts).read(read) == "rows"
    assert (TrainerState.PAUSED, error.reason) in seen
    assert (shown.state, shown.report().problem) == (TrainerState.TRAINING, None)
    assert shown.take_waited_s() > 0


def test_unsuitable_store_is_waited_for_unless_the_job_has_not_begun() -> None:
    """A job that has saves does not fail because of a gateway that needs repair."""
    shown, answers = status(), list[StoreError | None]([StoreUnsuitableError("The store cannot.", "Repair it."), None])

    def call() -> str:
        if (error := answers.pop(0)) is not None:
            raise error
        return "read"

    assert retry_store_errors(call, shown, lambda: None) == "read"
    answers = [StoreUnreachableError("Away.", "Wait."), StoreUnsuitableError("The store cannot.", "Use another.")]
    with pytest.raises(StoreUnsuitableError):
        retry_store_errors(call, shown, lambda: None, final=StoreUnsuitableError)


def test_data_error_is_raised() -> None:
    def read() -> None:
        raise DataError("a.csv has changed.", "Restore it.")

    with pytest.raises(DataError):
        RetryingReader(status(), lambda: None).read(read)


def test_hanging_read_ends_at_an_interruption() -> None:
    stuck = threading.Event()

    def poll_interrupts() -> None:
        raise RosterChanged("another group")

    with pytest.raises(RosterChanged):
        RetryingReader(status(), poll_interrupts).read(lambda: stuck.wait(10))
    stuck.set()


def test_each_attempt_waits_for_a_separate_future() -> None:
    begun = 0

    with ThreadPoolExecutor(1) as pool:

        def begin() -> Future[int]:
            nonlocal begun
            begun += 1
            if begun < 3:
                return pool.submit(_fail)
            return pool.submit(int, begun)

        assert RetryingReader(status(), lambda: None).wait(begin) == 3


def _fail() -> int:
    raise StoreUnreachableError("The store does not answer.", "Wait.")
