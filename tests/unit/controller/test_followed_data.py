"""Jobs that follow their data: CaughtUp, late files, the lag, and the budget, which grows with the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cpr_operator.api.status import Status
from cpr_operator.ledger import most_in_window
from cpr_operator.metrics import Metrics
from cpr_operator.recovery.account import account_of
from simulation.control_plane.failpoints import kill
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import BATCH, Scenario, spec

FOLLOWED: dict[str, Any] = {"format": "Criteo", "uri": "s3://clicks/log/", "follow": {}, "batchSize": BATCH}
FIRST = 2000


def simulation(**changes: Any) -> Simulation:
    return Simulation(Scenario("followed", (), spec(data=FOLLOWED, **changes)))


async def until(driver: Simulation, holds: Callable[[Status], bool]) -> Status:
    for _ in range(400):
        if holds(driver.status()):
            return driver.status()
        await driver.passes(1)
    raise AssertionError(f"not reached: {driver.status().model_dump_json(indent=1)}")


def caught_up(status: Status) -> bool:
    return any(each.type == "CaughtUp" and each.status == "True" for each in status.conditions)


async def test_job_without_new_data_runs_on_and_is_caught_up_until_data_arrives() -> None:
    driver = simulation()
    status = await until(driver, caught_up)
    assert status.phase == "Running"
    assert status.data is not None
    assert (status.data.pinned_samples, status.data.lag_samples) == (FIRST, 0)
    assert (status.shown.progress, status.shown.eta) == ("caught up", "")
    assert status.anchors[-1].samples == FIRST
    driver.cluster.plane().arrive(1000)
    status = await until(driver, lambda now: not caught_up(now))
    assert status.data is not None
    assert status.data.lag_samples > 0
    assert status.shown.progress == f"lag {status.data.lag_samples}"
    assert status.progress.eta_seconds is None
    status = await until(driver, caught_up)
    assert status.progress.samples == status.progress.total_samples == FIRST + 1000
    metrics = Metrics(lambda: 1010.0)
    metrics.observe_status("default", "job", status)
    text = metrics.text().decode()
    assert 'cprjob_data_lag_samples{cprjob="job",namespace="default"} 0.0' in text
    assert 'cprjob_data_pin_age_seconds{cprjob="job",namespace="default"} 8.0' in text


@pytest.mark.parametrize("end", [{"until": "2126-01-01T00:00:00Z"}, {"idle": "Finish"}])
async def test_job_whose_data_may_end_is_caught_up_but_for_the_last_batch(end: dict[str, str]) -> None:
    driver = Simulation(Scenario("followed", (), spec(data=FOLLOWED | {"follow": end})))
    status = await until(driver, caught_up)
    assert status.data is not None
    assert (status.data.lag_samples, status.anchors[-1].samples) == (BATCH, FIRST - BATCH)
    driver.cluster.plane().arrive(0, end=True)
    status = await until(driver, lambda now: now.phase == "Succeeded")
    assert status.result is not None
    assert status.result.samples == FIRST


async def test_late_files_are_an_event_with_their_names_once() -> None:
    driver = simulation()
    await until(driver, caught_up)
    driver.cluster.plane().arrive(100, late=("s3://clicks/log/day-1.csv",))
    status = await until(driver, lambda now: now.data is not None and now.data.late_files == 1)
    await driver.passes(5)
    late = [each for each in driver.cluster.events.values() if each.reason == "LateFiles"]
    assert len(late) == 1
    assert "s3://clicks/log/day-1.csv" in late[0].message
    assert status.data is not None
    assert status.data.last_late_files == ("s3://clicks/log/day-1.csv",)


async def test_shard_that_is_lost_while_the_job_waits_is_replaced_before_data_arrives() -> None:
    driver = simulation()
    await until(driver, caught_up)
    kill("shard", 1)(driver.cluster)
    await until(driver, lambda now: now.restarts == 1)
    status = await until(driver, lambda now: now.recovery is None and caught_up(now))
    assert status.budget is not None
    assert (status.phase, status.budget.spent) == ("Running", 0)


async def test_job_ends_with_its_data_and_shows_its_total() -> None:
    driver = simulation()
    await until(driver, caught_up)
    driver.cluster.plane().arrive(BATCH - 10, voids=10, end=True)
    status = await until(driver, lambda now: now.phase == "Succeeded")
    assert status.data is not None
    assert (status.data.ended, status.data.void_samples) == (True, 10)
    assert (status.progress.percent, status.shown.progress) == (100, "100%")
    assert status.result is not None
    assert status.result.samples == FIRST + BATCH
    assert status.ledger.total_samples == FIRST + BATCH - 10


@pytest.mark.parametrize("window", [None, 500])
async def test_losses_keep_to_the_portion_of_what_has_arrived_and_of_each_window(window: int | None) -> None:
    """The limit grows with each pin, void samples left out. A rollback shrinks neither the limit nor the total."""
    budget = {"portionOfLostSamples": 0.1} | ({} if window is None else {"window": window})
    driver = simulation(accuracyBudget=budget)
    arrived, before = 0, driver.status()
    for number in range(6):
        await until(driver, caught_up)
        driver.cluster.plane().arrive(900, voids=100)
        await until(driver, lambda now: not caught_up(now))
        await driver.passes(2 + number % 5)
        kill("shard", number % 3)(driver.cluster)
        await driver.passes(1)
        status = await until(driver, lambda now: now.recovery is None)
        assert status.data is not None
        account = account_of(status)
        assert status.ledger.total_samples == status.data.real_samples >= before.ledger.total_samples
        assert account.ledger.limit == status.ledger.total_samples * 3 // 10
        assert not account.is_overspent
        if window is not None:
            assert most_in_window(account.ledger.lost, window) <= account.ledger.window_limit == 150
        assert status.phase in {"Running", "RollingBack", "Recovering"}
        arrived, before = status.data.pinned_samples, status
    assert arrived >= FIRST + 6 * 1000
    assert before.budget is not None
    assert (before.budget.rollbacks > 0) is (window is not None)
    assert (before.ledger.carried_sample_shards > 0) is (window is None), "rollbacks undo losses, others are folded"
    assert before.ledger.folded_samples <= before.anchors[0].samples - (window or 0)
