"""The startup deadline fails no healthy job, and no job that has trained, also with lost answers."""

from collections.abc import Callable

import pytest

from cpr_operator.api.status import Condition, Status
from cpr_operator.cluster.certificates import PodTLS
from cpr_operator.cluster.views import PodView
from cpr_operator.controller.cache import LOOK_UP_S
from cpr_operator.reconcile.phases import EXCEEDED, PAUSE_S, RECOVERY_EXCEEDED
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.run import TICK_S, Simulation
from simulation.control_plane.workload import (
    Scenario,
    after,
    any_node,
    no_node,
    phase,
    resume,
    spec,
    suspend,
    trained,
)

LONG = 1_000_000  # samples: the job is not over before the test is
DEADLINE_S = 60.0


def condition_of(status: Status, kind: str) -> Condition | None:
    return next((c for c in status.conditions if c.type == kind), None)


def started(status: Status) -> bool:
    return status.phase == "Starting" and all(m.host for m in (*status.shards, *status.trainers))


def a_driver(total: int = LONG) -> Simulation:
    driver = Simulation(Scenario("starting", (), spec(data__samples=total)))
    driver.cluster.total = total
    return driver


async def until(driver: Simulation, condition: Callable[[Status], bool]) -> None:
    while not condition(driver.status()):
        driver.cluster.tick(TICK_S)
        await driver.controller.run_pass("default", "job")


def pass_time(cluster: SimulatedCluster, seconds: float) -> None:
    """Time passes for the pods without the operator."""
    for _ in range(int(seconds / TICK_S)):
        cluster.tick(TICK_S)


def lose_answers(driver: Simulation, passes: int) -> None:
    """Lose all answers for this number of passes."""
    fetch, left = driver.cluster.fetch_report, [passes]

    async def lost(
        pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "", tls: PodTLS | None = None
    ) -> bytes | None:
        return await fetch(pod, deadline_s, max_bytes, recorded, tls) if left[0] <= 0 else None

    run = driver.controller.run_pass

    async def counted(namespace: str, name: str) -> float | None:
        try:
            return await run(namespace, name)
        finally:
            left[0] -= 1

    driver.cluster.fetch_report = lost
    driver.controller.run_pass = counted


@pytest.mark.parametrize("restarted", [True, False], ids=["a new operator", "the same operator"])
async def test_lost_answer_after_an_operator_outage_fails_no_training_job(*, restarted: bool) -> None:
    driver = a_driver()
    await until(driver, started)
    pass_time(driver.cluster, DEADLINE_S + 40)
    if restarted:
        driver.take_over()
    lose_answers(driver, 1)
    await driver.controller.run_pass("default", "job")
    assert driver.status().phase == "Starting"
    driver.cluster.tick(TICK_S)
    await driver.controller.run_pass("default", "job")
    assert driver.status().phase == "Running"
    assert driver.status().progress.samples > 0


async def test_job_without_answers_trains_on_past_the_deadline() -> None:
    driver = a_driver()
    await until(driver, started)
    lose_answers(driver, 10**6)
    for _ in range(int(2 * DEADLINE_S / TICK_S)):
        driver.cluster.tick(TICK_S)
        await driver.controller.run_pass("default", "job")
    assert driver.status().phase == "Starting"
    available = condition_of(driver.status(), "ReportsAvailable")
    assert available is not None
    assert (available.status, available.reason) == ("False", "NoAnswer")


async def test_startup_deadline_counts_from_the_first_rosters() -> None:
    driver = a_driver()
    while not any(pod.phase == "Pending" for pod in driver.cluster.pods.values()):
        await driver.controller.run_pass("default", "job")
    pass_time(driver.cluster, DEADLINE_S + 40)  # all run, and no trainer has a shard's address
    driver.take_over()
    await until(driver, lambda status: status.phase != "Starting")
    assert driver.status().phase == "Running"


async def test_job_that_trained_without_answers_is_suspended_and_not_failed_if_a_later_pod_is_stuck() -> None:
    driver = a_driver()
    await until(driver, started)
    lose_answers(driver, 10**6)
    for _ in range(20):
        driver.cluster.tick(TICK_S)
        await driver.controller.run_pass("default", "job")
    driver.cluster.unschedulable = "no cpu"
    driver.cluster.kill("trainer", 0)
    await until(driver, lambda status: status.phase != "Starting")
    assert driver.status().phase == "Suspending"
    await until(driver, lambda status: status.phase == "Suspended")
    suspended = condition_of(driver.status(), "Suspended")
    assert suspended is not None
    assert suspended.reason == EXCEEDED
    assert "no cpu" in suspended.message


async def test_first_start_that_a_kubelet_reports_as_stuck_fails_with_the_remedy() -> None:
    steps = ((after(0), lambda cluster: setattr(cluster, "unschedulable", "no cpu")),)
    finished = await Simulation(Scenario("stuck", steps, deadline_s=2 * DEADLINE_S)).run()
    failed = condition_of(finished.status, "Failed")
    assert failed is not None
    assert failed.reason == EXCEEDED
    assert "no cpu" in failed.message
    assert "startupDeadlineSeconds" in failed.message


async def test_a_volume_that_cannot_be_mounted_is_named_before_and_after_the_deadline() -> None:
    message = 'MountVolume.SetUp failed for volume "data": secret "lake" not found'
    driver = a_driver()
    driver.cluster.mounts["shard/1"] = message
    await until(driver, lambda status: any(t.state == "Joining" for t in status.trainers))
    ready = condition_of(driver.status(), "PodsReady")
    assert ready is not None
    assert ready.message.startswith("waiting for shard/1 to start; ")
    assert ready.message.endswith("trainer/0, trainer/1 run, and are not ready before that")
    await until(driver, lambda status: any(c.reason == "FailedMount" for c in status.conditions))
    ready = condition_of(driver.status(), "PodsReady")
    assert ready is not None
    assert ready.message.startswith(f"shard/1: {message}; ")
    await until(driver, lambda status: status.phase == "Failed")
    failed = condition_of(driver.status(), "Failed")
    assert failed is not None
    assert failed.message.startswith(f"not all pods were ready within 60 s: shard/1; shard/1: {message}")
    assert set(driver.cluster.looked_up) == {"job-12345-shard-1-1"}
    assert len(driver.cluster.looked_up) <= 60 / LOOK_UP_S + 1


async def recovering(victim: str, **changes: object) -> Simulation:
    """A job that has lost a member, without a node for its replacement."""
    driver = Simulation(Scenario("recovering", (), spec(data__samples=LONG, recovery__deadlineSeconds=30, **changes)))
    driver.cluster.total = LONG
    await until(driver, lambda status: status.progress.samples > 900)
    no_node(driver.cluster)
    driver.cluster.kill(*("trainer", 0) if victim == "leader" else (victim, 1))
    return driver


@pytest.mark.parametrize("replay", ["Off", "Auto"])
@pytest.mark.parametrize("victim", ["shard", "trainer", "leader"])
async def test_recovery_deadline_gives_nodes_back_and_the_job_resumes(victim: str, replay: str) -> None:
    driver = await recovering(victim, recovery__replay={"mode": replay})
    since = driver.cluster.now
    await until(driver, lambda status: status.phase == "Suspending")
    assert 30 <= driver.cluster.now - since < 40
    await until(driver, lambda status: status.phase == "Suspended")
    suspended = condition_of(driver.status(), "Suspended")
    assert suspended is not None
    assert (suspended.status, suspended.reason) == ("True", RECOVERY_EXCEEDED)
    name = "trainer/0" if victim == "leader" else f"{victim}/1"
    for part in (f"within 30 s: {name}; {name}: 0/3 nodes", "spec.recovery.deadlineSeconds"):
        assert part in suspended.message
    assert driver.cluster.pods == {}
    any_node(driver.cluster)
    before = driver.status().progress.samples
    await until(driver, lambda status: status.phase == "Running" and status.progress.samples > before)
    assert driver.cluster.now - since < 2 * PAUSE_S
    assert driver.status().counters.generation == 1, "the loss of a shard fits the budget"
    assert victim == "shard" or not any(driver.status().ledger.ranges)


async def test_recovery_deadline_fails_the_job_if_that_is_asked_for_later() -> None:
    driver = await recovering("trainer")
    await driver.passes(20)
    recovery = driver.cluster.jobs["default", "job"].spec["recovery"]
    driver.cluster.set_spec("job", recovery={**recovery, "onDeadline": "Fail"})
    await until(driver, lambda status: status.phase == "Failed")
    failed = condition_of(driver.status(), "Failed")
    assert failed is not None
    assert failed.reason == RECOVERY_EXCEEDED
    assert "trainer/1: 0/3 nodes" in failed.message


async def test_recovery_deadline_does_not_count_while_training_continues_or_a_replacement_runs() -> None:
    driver = await recovering("shard", recovery__onShardLoss="Degrade", accuracyBudget__portionOfLostSamples=0.9)
    assert await phases_within(driver, 60) == {"Recovering"}
    driver = await recovering("shard")
    any_node(driver.cluster)
    _store(down=True)(driver.cluster)
    assert await phases_within(driver, 60) == {"Recovering"}, "it restores"
    driver = await recovering("trainer")
    lose_answers(driver, 10**6)
    assert await phases_within(driver, 60) == {"Recovering"}, "it is unknown whether it trains"


async def phases_within(driver: Simulation, seconds: float) -> set[str]:
    found: set[str] = set()
    for _ in range(int(seconds / TICK_S)):
        await driver.passes(1)
        found.add(driver.status().phase)
    return found


def _store(*, down: bool) -> Callable[[SimulatedCluster], None]:
    return lambda cluster: setattr(cluster.plane().store, "down", down)


async def test_resume_with_an_unreachable_store_is_suspended_and_succeeds_later() -> None:
    def resume_without_store(cluster: SimulatedCluster) -> None:
        _store(down=True)(cluster)
        resume(cluster)

    all_members = ("shard/0", "shard/1", "shard/2", "trainer/0", "trainer/1")
    steps = (
        (trained(900), suspend),
        (phase("Suspended"), resume_without_store),
        (phase("Suspending"), lambda _: None),
        (phase("Suspended"), _store(down=False)),
    )
    scenario = Scenario("resumed in vain", steps, replaced=all_members, deadline_s=2 * PAUSE_S + 4 * DEADLINE_S)
    finished = await Simulation(scenario).run()
    assert finished.status.phase == "Succeeded"
    assert finished.status.ledger.ranges == ((), (), ())
    assert finished.status.failures == ()
    assert finished.status.resume_at is None
    back = [s for s in finished.cluster.statuses if s["phase"] == "Suspended" and s.get("resumeAt")]
    suspended = condition_of(Status.model_validate(back[-1]), "Suspended")
    assert suspended is not None
    assert (suspended.status, suspended.reason) == ("True", EXCEEDED)
    assert "waiting for" in suspended.message
    assert "spec.failurePolicy.startupDeadlineSeconds" in suspended.message


async def test_user_resumes_a_job_before_its_pause_ends() -> None:
    driver = a_driver()
    await until(driver, lambda status: status.progress.samples > 900)
    driver.cluster.set_spec("job", suspend=True)
    await until(driver, lambda status: status.phase == "Suspended")
    _store(down=True)(driver.cluster)
    driver.cluster.set_spec("job", suspend=False)
    await until(driver, lambda status: status.phase == "Starting")
    await until(driver, lambda status: status.phase == "Suspended")
    _store(down=False)(driver.cluster)
    driver.cluster.set_spec("job", suspend=True)
    await until(driver, lambda status: status.resume_at is None)
    driver.cluster.set_spec("job", suspend=False)
    now = driver.cluster.now
    await until(driver, lambda status: status.phase == "Running")
    assert driver.cluster.now - now < PAUSE_S / 10
