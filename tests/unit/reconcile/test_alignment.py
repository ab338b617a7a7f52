"""Trainers in a shadow mode come to one step before others take their place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_operator.desired.rosters import trainer_roster
from cpr_operator.reconcile import ReconcileInput, reconcile
from cpr_operator.reconcile.observe import observe
from cpr_operator.reconcile.suspend import resize, trainers_aligned
from cpr_operator.reconcile.types import NoPod, ReconcileState
from simulation.control_plane.run import TICK_S, Simulation
from simulation.control_plane.workload import Scenario, spec
from support.reconcile_inputs import with_status, without_reports

DESIRED = 3


async def input_of(dense_sync: str = "ShadowMA", *, meets: bool) -> ReconcileInput:
    """Return a job with two trainers and three in its spec; with `meets` they are aligned."""
    driver = Simulation(Scenario("scaled", (), spec(trainers__denseSync=dense_sync)))
    cluster = driver.cluster
    await driver.passes(12)
    cluster.set_spec("job", trainers={"replicas": DESIRED, "denseSync": dense_sync})
    while meets and not any(trainer.met for trainer in cluster.plane().trainers.values()):
        await driver.controller.run_pass("default", "job")
        cluster.tick(TICK_S)
    return await driver.reconcile_input()


async def test_trainers_of_a_shadow_mode_align_before_they_stop() -> None:
    outcome = reconcile(await input_of(meets=False))
    assert outcome.status.aligning
    assert outcome.status.phase == "Running"
    assert "2 trainers become 3" in next(event.message for event in outcome.events if event.reason == "Meeting")
    roster = trainer_roster(outcome.status, outcome.status.trainers[0], 1)
    assert (roster.meet, roster.stop) == (True, False)


async def test_trainers_in_lockstep_stop_at_once() -> None:
    observed = await input_of("AllReduce", meets=False)
    outcome = reconcile(observed)
    assert trainers_aligned(observed)
    assert (outcome.status.phase, outcome.status.aligning) == ("Suspending", False)


@pytest.mark.parametrize("suspended", [True, False])
async def test_resized_job_starts_at_once_after_its_pods_are_deleted(*, suspended: bool) -> None:
    observed = await input_of("AllReduce", meets=False)
    stopping = with_status(observed, reconcile(observed).status)
    job = replace(stopping.job, spec=stopping.job.spec.evolve(suspend=suspended))
    outcome = reconcile(replace(stopping, job=job, pods=(), reports={}))
    assert outcome.status.phase == "Suspended"
    assert outcome.wake_after_s == (stopping.timing.running_s if suspended else 0.0)


async def test_aligned_trainers_stop_at_the_newest_anchor() -> None:
    observed = await input_of(meets=True)
    met = observed.job.status.evolve(anchors=observed.job.status.anchors[-1:])
    news = with_status(observed, met.evolve(anchors=()))
    assert not trainers_aligned(news)
    assert reconcile(news).status.phase == "Running"
    assert reconcile(news).status.anchors[-1:] == met.anchors
    assert trainers_aligned(with_status(observed, met))
    outcome = reconcile(with_status(observed, met))
    assert (outcome.status.phase, outcome.status.aligning) == ("Suspending", True)


async def test_trainers_aligned_needs_the_newest_anchor_and_the_leaders_answer() -> None:
    observed = await input_of(meets=True)
    status = observed.job.status
    assert trainers_aligned(observed)
    later = status.anchors[-1].evolve(key="later", samples=status.anchors[-1].samples + 100)
    assert not trainers_aligned(with_status(observed, anchors=(*status.anchors, later)))
    assert not trainers_aligned(with_status(observed, counters=status.counters.evolve(generation=2)))
    assert not trainers_aligned(without_reports(observed, "trainer/0"))


async def test_trainers_suspended_before_the_common_step_are_not_aligned() -> None:
    observed = await input_of(meets=False)
    aligning = with_status(observed, reconcile(observed).status)
    suspended = replace(aligning, job=replace(aligning.job, spec=aligning.job.spec.evolve(suspend=True)))
    outcome = reconcile(suspended)
    assert (outcome.status.phase, outcome.status.aligning) == ("Suspending", False)


@pytest.mark.parametrize("met", [True, False])
async def test_resize_in_a_shadow_mode_needs_aligned_trainers(*, met: bool) -> None:
    observed = await input_of(meets=True)
    status = observed.job.status
    no_pods = dict.fromkeys(observe(observed), NoPod())
    suspended = with_status(observed, phase="Suspended", aligning=met)
    state = resize(ReconcileState(suspended, suspended.before, no_pods))
    assert (state is not None) == met
    if state is not None:
        assert len(state.status.trainers) == DESIRED
        assert state.status.anchors == status.anchors[-1:], "older ones are of two ranks"
