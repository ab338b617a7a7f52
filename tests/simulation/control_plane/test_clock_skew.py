"""Skew between the clocks of the API server and the operator changes no decision."""

from dataclasses import replace
from typing import Any

import pytest

from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.controller.cache import JobCache
from simulation.control_plane.failpoints import drain, lose_node, skew_clock
from simulation.control_plane.kueue import no_workload
from simulation.control_plane.run import RunResult, Simulation
from simulation.control_plane.scenarios import ADMIT, ALL, HALF, SCENARIOS
from simulation.control_plane.workload import Action, Scenario, after, case, spec

skews = pytest.mark.parametrize("skew_s", [-40.0, 40.0], ids=["the server is behind", "the server is ahead"])


async def run(skew_s: float, fault: Action, **changes: Any) -> RunResult:
    job = spec(accuracyBudget__portionOfLostSamples=0, **changes)
    steps = ((after(0), skew_clock(skew_s)), (HALF, fault))
    return await Simulation(case("skewed", *steps, spec=job, replaced="shard/1")).run()


@skews
async def test_drained_shard_has_its_whole_grace_period(skew_s: float) -> None:
    result = await run(skew_s, drain("shard", 1))
    assert result.status.budget is not None
    assert (result.status.budget.spent, result.status.budget.rollbacks) == (0, 0)


@skews
async def test_lost_node_delays_at_most_the_grace_period_of_its_pods(skew_s: float) -> None:
    plain, skewed = await run(0, lose_node("shard", 1)), await run(skew_s, lose_node("shard", 1))
    assert skewed.cluster.now == plain.cluster.now


def scenario(name: str) -> Scenario:
    (found,) = (each for each in SCENARIOS if each.name == name)
    return found


@skews
async def test_startup_deadline_counts_from_the_first_observation_of_the_pod(skew_s: float) -> None:
    stuck = scenario("unschedulable for ever")
    ends = set()
    for seconds in (0, skew_s):
        skewed = replace(stuck, steps=((after(0), skew_clock(seconds)), *stuck.steps))
        ends.add((await Simulation(skewed).run()).cluster.now)
    assert len(ends) == 1


async def test_planted_comparison_of_both_clocks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_pods(_memory: JobCache, view: JobView, listed: tuple[PodView, ...], _now: float) -> tuple[PodView, ...]:
        return tuple(pod for pod in listed if pod.owner_uid == view.uid)

    monkeypatch.setattr(JobCache, "own_pods", own_pods)
    with pytest.raises(AssertionError, match="two incarnations of shard 1 serve"):
        await Simulation(scenario("a shard is drained after the API server's clock jumped back")).run()


@skews
async def test_drained_shard_has_its_whole_grace_period_though_another_operator_takes_over(skew_s: float) -> None:
    """Its predecessor wrote the end of the grace period by a clock of its own."""
    job = spec(accuracyBudget__portionOfLostSamples=0)
    simulation = Simulation(case("taken over", (HALF, drain("shard", 1)), spec=job, replaced="shard/1"))
    while not any(shard.predecessor for shard in simulation.status().shards):
        await simulation.step()
    simulation.skew_s = skew_s
    simulation.take_over()
    status = (await simulation.run()).status
    assert status.budget is not None
    assert (status.budget.spent, status.budget.rollbacks) == (0, 0)
    assert all(failure.recovery_seconds is not None for failure in status.failures)
    assert all(failure.recovery_seconds >= 0 for failure in status.failures if failure.recovery_seconds is not None)


@skews
async def test_deleted_job_keeps_its_quota_while_its_pods_flush(skew_s: float) -> None:
    steps = ((after(0), skew_clock(skew_s)), ADMIT, (HALF, lambda cluster: cluster.user_deletes("job")))
    simulation = Simulation(case("deleted", *steps, replaced=ALL, queue="team"))
    await simulation.run()  # every step checks that pods have quota
    await simulation.step()
    assert no_workload(simulation.cluster)


async def test_progress_is_written_despite_a_fast_clock_of_the_previous_operator() -> None:
    simulation = Simulation(Scenario("ahead", (), spec(data__samples=10**6)))
    simulation.cluster.total = 10**6
    simulation.skew_s = 3600.0
    await simulation.passes(14)
    simulation.skew_s = 0.0
    simulation.take_over()
    before = simulation.status().progress.samples
    await simulation.passes(40)
    assert simulation.status().progress.samples > before
