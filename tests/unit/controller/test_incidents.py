"""The restart limit counts what went wrong, not how many pods that took."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from cpr_contract.codec import to_json
from cpr_contract.reports import ExitCode, Problem
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.failpoints import cut_result, kill
from simulation.control_plane.run import RunResult, Simulation
from simulation.control_plane.workload import Scenario, after, restoring, spec, trained

UNREACHABLE = to_json(Problem("StoreUnreachable", "The store does not answer.", "Check it."))


def exits(code: int, *trainers: int) -> Callable[[SimulatedCluster], None]:
    def act(cluster: SimulatedCluster) -> None:
        for index in trainers:
            cluster.exit_with("trainer", index, code, UNREACHABLE)

    return act


async def live(*steps: object, trainers: int, limit: int | None, phase: str) -> RunResult:
    document = spec(trainers__replicas=trainers, failurePolicy__restartLimit={"count": limit})
    if limit is None:
        document["failurePolicy"].pop("restartLimit")
    replaced = (*tuple(f"trainer/{i}" for i in range(trainers)), "shard/1")
    finished = await Simulation(Scenario("incidents", steps, document, replaced=replaced)).run()  # type: ignore[arg-type]
    assert finished.status.phase == phase
    return finished


async def test_all_trainers_of_a_large_job_that_end_for_one_cause_are_one_incident() -> None:
    trainers = 12
    finished = await live((trained(600), exits(1, *range(trainers))), trainers=trainers, limit=None, phase="Succeeded")
    assert len(finished.status.restart_times) == 1
    assert finished.status.restarts == trainers


async def test_members_that_end_seconds_apart_for_one_cause_are_one_incident() -> None:
    steps = ((trained(600), exits(1, 0, 1)), (after(1.0), exits(1, 2)), (after(2.0), exits(1, 3)))
    finished = await live(*steps, trainers=4, limit=1, phase="Succeeded")
    assert [f.counted for f in finished.status.failures] == [True, False, False, False]


async def test_a_trainer_that_keeps_failing_reaches_the_limit_however_soon_it_fails_again() -> None:
    steps = [(trained(600), exits(1, 0)), *((after(1.5), exits(1, 0)) for _ in range(3))]
    finished = await live(*steps, trainers=4, limit=3, phase="Failed")
    failed = next(c for c in finished.status.conditions if c.type == "Failed")
    assert failed.reason == "RestartLimitReached"
    assert "4 incidents" in failed.message


async def test_failures_of_other_roles_and_kinds_are_incidents_of_their_own() -> None:
    steps = ((trained(600), exits(1, 0)), (after(0.0), kill("shard", 1)), (after(0.0), kill("trainer", 1)))
    finished = await live(*steps, trainers=4, limit=6, phase="Succeeded")
    assert [(f.role, f.kind, f.counted) for f in finished.status.failures] == [
        ("trainer", "Crashed", True),
        ("shard", "Killed", True),
        ("trainer", "Killed", True),
    ]


async def test_a_store_that_cannot_be_reached_uses_up_no_restart() -> None:
    steps = [(trained(600), exits(ExitCode.STORE_UNREACHABLE, 0)), (after(1.5), exits(ExitCode.STORE_UNREACHABLE, 1))]
    finished = await live(*steps, trainers=2, limit=0, phase="Succeeded")
    assert [(f.kind, f.counted) for f in finished.status.failures] == 2 * [("StoreUnreachable", False)]
    assert finished.status.restart_times == ()


async def test_job_succeeds_with_the_final_anchor_of_a_result_whose_end_is_cut() -> None:
    finished = await Simulation(Scenario("cut", ((trained(600), cut_result(slice(250))),))).run()
    assert (finished.status.phase, finished.status.failures, finished.status.progress.samples) == (
        "Succeeded",
        (),
        2000,
    )
    assert finished.status.result is not None
    assert finished.status.result.key == finished.cluster.plane().store.anchors[-1].key


@pytest.mark.parametrize("trainers", [1, 2])
@pytest.mark.parametrize("budget", [0.3, 0.0])
async def test_second_end_without_a_readable_result_fails_the_job(trainers: int, budget: float) -> None:
    document = spec(trainers__replicas=trainers, accuracyBudget__portionOfLostSamples=budget)
    steps = ((trained(600), cut_result(slice(100, None))),)
    replaced = ("trainer/0", "trainer/1")
    finished = await Simulation(Scenario("unreadable", steps, document, phase="Failed", replaced=replaced)).run()
    assert [(f.role, f.kind, f.action) for f in finished.status.failures] == [
        *[("trainer", "Undone", "ReplaceTrainers")] * trainers,
        *[("trainer", "Undone", "Fail")] * trainers,
    ]
    failed = next(c for c in finished.status.conditions if c.type == "Failed")
    assert failed.reason == "Undone"
    assert "spec.restoreFrom.job: job" in failed.message
    assert finished.status.counters.generation == 1, "trainers look for the final anchor, and nothing is rolled back"


async def test_members_that_sigterm_ends_before_they_work_are_incidents_unless_their_pods_are_deleted() -> None:
    """As by a probe of the template that fails."""

    def end(cluster: SimulatedCluster) -> None:
        cluster.exit_with("shard", 1, ExitCode.FLUSHED, "")

    steps = [(trained(600), end), *((restoring(1), end) for _ in range(3))]
    finished = await live(*steps, trainers=2, limit=2, phase="Failed")
    assert [(f.kind, f.counted) for f in finished.status.failures] == [("Flushed", False), *[("Flushed", True)] * 3]


async def outage(driver: Simulation, seconds: float, role: str, index: int) -> list[float]:
    """End each process of a member as StoreUnreachable once it runs. Returns the times."""
    ends: list[float] = []
    until = driver.cluster.now + seconds
    while driver.cluster.now < until:
        await driver.step()
        pod = driver.cluster.member(role, index)
        if pod.phase == "Running":
            driver.cluster.exit_with(role, index, ExitCode.STORE_UNREACHABLE, UNREACHABLE)
            ends.append(driver.cluster.now)
    return ends


@pytest.mark.parametrize(("role", "index"), [("trainer", 1), ("trainer", 0), ("shard", 1)])
async def test_attempts_become_rarer_while_the_store_cannot_be_reached(role: str, index: int) -> None:
    document = spec(trainers__replicas=2, failurePolicy__restartLimit={"count": 0})
    driver = Simulation(Scenario("outage", (), document, replaced=(f"{role}/{index}",)))
    while not trained(600)(driver.cluster):
        await driver.step()
    ends = await outage(driver, 150.0, role, index)
    pauses = [later - earlier for earlier, later in pairwise(ends)]
    assert 5 <= len(ends) <= 8
    assert all(pause > least for pause, least in zip(pauses[1:], (4, 4, 9, 19, 39), strict=False))
    condition = next(c for c in driver.status().conditions if c.type == "Recovering")
    assert "the store cannot be reached" in condition.message
    finished = await driver.run()
    assert (finished.status.phase, finished.status.restart_times) == ("Succeeded", ())
    assert {f.kind for f in finished.status.failures} == {"StoreUnreachable"}


async def test_member_lost_for_another_reason_does_not_wait_for_the_store() -> None:
    document = spec(trainers__replicas=2)
    replaced = ("trainer/0", "trainer/1")
    driver = Simulation(Scenario("beside", (), document, replaced=replaced))
    while not trained(600)(driver.cluster):
        await driver.step()
    await outage(driver, 45.0, "trainer", 1)
    assert driver.status().trainers[1].state == "Lost"
    driver.cluster.kill("trainer", 0)
    await driver.passes(2)
    assert driver.status().trainers[0].incarnation == 2
    assert "Lost" not in {t.state for t in driver.status().trainers}
