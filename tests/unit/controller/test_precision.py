"""Trainers with processors that emulate the job's precision: reported once, and revoked when no longer true."""

from collections.abc import Callable

import pytest

from cpr_contract.reports import Problem
from cpr_operator.api.status import Condition, Status
from cpr_operator.api.terminal_text import event_line
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.failpoints import kill
from simulation.control_plane.run import RunResult, Simulation
from simulation.control_plane.workload import Scenario, after, phase, resume, spec, suspend, trained

SLOW = Problem("PrecisionEmulated", "This processor has no instructions for bf16.", "Train in fp32.")
UNREACHABLE = Problem("StoreUnreachable", "The store does not answer.", "Check it.")


def reports(problem: Problem | None, *indices: int) -> Callable[[SimulatedCluster], None]:
    """The processes of these trainers report it from now on."""

    def act(cluster: SimulatedCluster) -> None:
        for trainer in cluster.plane().trainers.values():
            if trainer.roster.index in indices:
                trainer.problem = problem

    return act


async def live(*steps: object, replaced: tuple[str, ...] = ()) -> RunResult:
    return await Simulation(Scenario("emulated", steps, spec(), replaced=replaced)).run()  # type: ignore[arg-type]


def conditions(finished: RunResult) -> list[Condition]:
    """The condition as it was, one after the other: once for each change."""
    found: list[Condition] = []
    for document in finished.cluster.statuses:
        for condition in Status.model_validate(document).conditions:
            if condition.type == "PrecisionEmulated" and (not found or condition != found[-1]):
                found.append(condition)
    return found


def events(finished: RunResult) -> list[str]:
    return [
        event_line(event.type, event.reason, event.message)
        for event in finished.cluster.events.values()
        if event.reason == "PrecisionEmulated"
    ]


async def test_emulated_precision_is_reported_once_and_training_continues() -> None:
    finished = await live((trained(0), reports(SLOW, 0, 1)))
    (condition,) = conditions(finished)
    assert (condition.status, condition.reason) == ("True", "NoInstructions")
    assert condition.message.startswith("trainer/0, trainer/1: spec.trainers.precision is bf16")
    assert "fp32" in condition.message
    assert "AVX512-BF16" in condition.message
    assert [trainer.problem for trainer in finished.status.trainers] == ["PrecisionEmulated"] * 2
    assert events(finished) == [f"! PrecisionEmulated: {condition.message}"], "as `cprjob run` shows it"
    assert finished.status.phase == "Succeeded"
    assert (finished.status.restarts, finished.status.failures, finished.status.restart_times) == (0, (), ())
    assert {c.type for c in finished.status.conditions if c.status == "True"} >= {"PrecisionEmulated", "Complete"}
    assert not [e for e in finished.cluster.events.values() if e.reason in {"PodStuck", "SnapshotsDegraded"}]


@pytest.mark.parametrize(
    ("slow", "first", "then"),
    [
        ((1,), "trainer/1", ("False", "Instructions", "")),
        ((0, 1), "trainer/0, trainer/1", ("True", "NoInstructions", "trainer/0")),
    ],
)
async def test_it_is_over_for_a_trainer_once_it_runs_elsewhere(
    slow: tuple[int, ...], first: str, then: tuple[str, str, str]
) -> None:
    finished = await live(
        (trained(0), reports(SLOW, *slow)), (trained(500), kill("trainer", 1)), replaced=("trainer/1",)
    )
    before, after = conditions(finished)
    assert before.message.partition(": spec.")[0] == first
    assert (after.status, after.reason) == then[:2]
    assert after.message.startswith(then[2])
    statuses = [Status.model_validate(document) for document in finished.cluster.statuses]
    changed = next(s for s in statuses if after in s.conditions)
    assert changed.trainers[1].incarnation == 2
    assert after.status == "True" or changed.trainers[1].lost_at is None, "a successor may say it, too, until it joined"
    assert len(events(finished)) == 1


async def test_later_problem_leaves_the_precision_condition() -> None:
    outage = ((trained(300), reports(UNREACHABLE, 0)), (after(3.0), reports(SLOW, 0)))
    finished = await live((trained(0), reports(SLOW, 0)), *outage)
    problems = [Status.model_validate(document).trainers[0].problem for document in finished.cluster.statuses[1:]]
    assert "StoreUnreachable" in problems, "it was seen"
    assert {(c.status, c.reason) for c in conditions(finished)} == {("True", "NoInstructions")}
    assert len(events(finished)) == 1


def is_restarting(cluster: SimulatedCluster) -> bool:
    """The processes of the resumed job are there."""
    return {t.roster.incarnation for t in cluster.plane().trainers.values()} == {2}


async def test_emulated_precision_is_not_reported_again_after_a_resume() -> None:
    steps = (
        (trained(0), reports(SLOW, 0, 1)),
        (trained(500), suspend),
        (phase("Suspended"), resume),
        (is_restarting, reports(SLOW, 0, 1)),
    )
    all_members = ("shard/0", "shard/1", "shard/2", "trainer/0", "trainer/1")
    finished = await live(*steps, replaced=all_members)
    assert finished.status.trainers[0].incarnation == 2
    assert {(c.status, c.reason) for c in conditions(finished)} == {("True", "NoInstructions")}
    assert len(events(finished)) == 1
