"""Warm spares: the choice for a lost shard, rosters, and their number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract import env
from cpr_contract.codec import from_json
from cpr_contract.reports import ShardReport, ShardState
from cpr_contract.roster import ShardRoster, TrainerRoster
from cpr_operator.api.status import Shard, Spare, Status
from cpr_operator.cluster.views import ContainerView, PodView
from cpr_operator.reconcile.pipeline import reconcile
from cpr_operator.reconcile.spares import PAUSE_S, choose
from cpr_operator.reconcile.types import Outcome, ReconcileInput
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, spec
from support.reconcile_inputs import then, with_pod, with_spec, with_status, without_reports


async def observed(spares: int = 1, **changes: Any) -> ReconcileInput:
    """A job that trains, and its spares are warm."""
    driver = Simulation(Scenario("spares", (), spec(shards__spares=spares, **changes)))
    await driver.passes(16)
    seen = await driver.reconcile_input()
    assert (seen.job.status.phase, seen.job.status.recovery) == ("Running", None)
    assert [spare.state for spare in seen.job.status.spares] == ["Ready"] * spares
    return seen


def spares_of(status: Status) -> list[str]:
    return [spare.pod for spare in status.spares]


ENDED = {"phase": "Failed", "container": ContainerView("Terminated", "Error", "", 137)}


def killed(seen: ReconcileInput, *names: str) -> ReconcileInput:
    """The same, with the pods of these members killed."""
    for name in names:
        seen = with_pod(without_reports(seen, name), name, **ENDED)
    return seen


def spare_of(seen: ReconcileInput) -> PodView:
    (spare,) = [pod for pod in seen.pods if pod.role == env.ROLE_SPARE]
    return spare


def with_spare(seen: ReconcileInput, pod: dict[str, Any] | None, report: dict[str, Any] | None) -> ReconcileInput:
    """The same, with other fields of the spare's pod and of its report, or without them."""
    spare = spare_of(seen)
    pods = [] if pod is None else [replace(spare, **pod)]
    reports = dict(seen.reports)
    warm = reports.pop(spare.uid)
    assert isinstance(warm, ShardReport)
    if report is not None:
        reports[spare.uid] = replace(warm, **report)
    return replace(seen, pods=(*(each for each in seen.pods if each != spare), *pods), reports=reports)


def events(outcome: Outcome) -> list[str]:
    return [str(event.reason) for event in outcome.events]


async def test_spare_replaces_a_lost_shard_and_rosters_have_its_address() -> None:
    seen = await observed()
    spare = spare_of(seen)
    outcome = reconcile(killed(seen, "shard/1"))
    shard = outcome.status.shards[1]
    assert (shard.incarnation, shard.pod, shard.uid, shard.host) == (2, spare.name, spare.uid, spare.host)
    assert (outcome.status.spares, outcome.creates) == ((), ())
    assert "SparePromoted" in events(outcome)
    (failure,) = outcome.status.failures
    assert (failure.incarnation, failure.tier, failure.action) == (1, "Spare", "ReplaceShards")
    first, *others = outcome.rosters
    assert first.uid == spare.uid, "it gets its roster first"
    labels = {env.LABEL_ROLE: "shard", env.LABEL_INDEX: "1", env.LABEL_INCARNATION: "2"}
    assert labels.items() <= first.labels.items()
    roster = from_json(ShardRoster, first.annotations[env.ANNOTATION_ROSTER])
    assert (roster.index, roster.incarnation, roster.may_restore) == (1, 2, True)
    rosters = [from_json(TrainerRoster, patch.annotations[env.ANNOTATION_ROSTER]) for patch in others[:2]]
    assert [(peer.incarnation, peer.host) for each in rosters for peer in each.shards if peer.index == 1] == [
        (2, spare.host)
    ] * 2
    assert all(not patch.labels for patch in others)


async def test_promoted_spare_is_a_member_before_its_labels() -> None:
    seen = killed(await observed(), "shard/1")
    once = reconcile(seen)
    again = reconcile(then(seen, once))
    assert again.status.shards[1].evolve(state="Starting") == once.status.shards[1]
    assert [patch.labels for patch in again.rosters if patch.labels] == [once.rosters[0].labels]
    assert (again.creates, again.deletes) == ((), ())


async def test_promoted_spare_that_dies_before_its_labels_is_replaced_and_deleted() -> None:
    seen = killed(await observed(), "shard/1")
    twice = reconcile(with_spare(then(seen, reconcile(seen)), ENDED, None))
    assert (twice.status.shards[1].incarnation, twice.status.shards[1].uid) == (3, "")
    assert spare_of(seen).name in [each.name for each in twice.deletes]
    assert [pod["metadata"]["labels"].get(env.LABEL_INCARNATION) for pod in twice.creates] == ["3"]


async def test_spares_replace_one_shard_each() -> None:
    seen = await observed(2)
    names = spares_of(seen.job.status)
    outcome = reconcile(killed(seen, "shard/0", "shard/1", "shard/2"))
    assert [shard.pod for shard in outcome.status.shards[:2]] == names
    assert len(outcome.creates) == 1
    assert outcome.status.shards[2].uid == ""
    assert [failure.tier for failure in outcome.status.failures] == ["Spare", "Spare", "NewPod"]
    (message,) = [event.message for event in outcome.events if event.reason == "NoSpare"]
    assert "shard/2" in message
    assert "there is none left" in message


async def test_spares_do_not_replace_trainers() -> None:
    seen = await observed()
    outcome = reconcile(killed(seen, "trainer/1"))
    assert [pod["metadata"]["labels"][env.LABEL_ROLE] for pod in outcome.creates] == ["trainer"]
    assert spares_of(outcome.status) == spares_of(seen.job.status)


async def test_spare_of_a_drained_shard_waits_for_the_last_save() -> None:
    seen = await observed()
    evicted = {"deleting_until": seen.now + 30, "disruption": "EvictionByEvictionAPI", "deletion_grace_s": 30}
    outcome = reconcile(with_pod(seen, "shard/1", **evicted))
    (roster,) = [
        from_json(ShardRoster, patch.annotations[env.ANNOTATION_ROSTER]) for patch in outcome.rosters if patch.labels
    ]
    assert (roster.index, roster.may_restore) == (1, False)
    assert outcome.status.shards[1].predecessor is not None


SHARD = Shard(index=1, incarnation=2, pod="job-shard-1-2", avoid="node-7")


@pytest.mark.parametrize(
    ("pod", "report", "why"),
    [
        (None, None, "is gone"),
        ({"phase": "Failed"}, None, "is gone"),
        ({"deleting_until": 2e9}, {}, "is gone"),
        ({"phase": "Pending", "host": ""}, None, "does not run yet"),
        ({"node": "node-7"}, {}, "is on node-7, which does not answer"),
        ({}, None, "does not answer"),
        ({}, {"state": ShardState.STARTING}, "is not warm yet"),
        ({}, {"state": ShardState.READY, "index": 2}, "is not warm yet"),
        ({}, {"job_uid": "another"}, "is not warm yet"),
    ],
)
async def test_unfit_spare_has_a_reason(pod: Any, report: Any, why: str) -> None:
    seen = await observed()
    (spare,) = seen.job.status.spares
    assert choose([spare], seen, SHARD).pod == spare_of(seen)
    choice = choose([spare], with_spare(seen, pod, report), SHARD)
    assert (choice.pod, choice.reason) == (None, f"{spare.pod} {why}")


async def test_first_fit_spare_is_chosen() -> None:
    seen = await observed(3)
    first, second, _ = (pod for pod in seen.pods if pod.role == env.ROLE_SPARE)
    unresponsive = {uid: report for uid, report in seen.reports.items() if uid != first.uid}
    choice = choose(seen.job.status.spares, replace(seen, reports=unresponsive), SHARD)
    assert choice.pod == second


async def test_restart_of_a_spare_is_no_failure_of_the_shard() -> None:
    outcome = reconcile(with_spare(killed(await observed(), "shard/1"), {}, {"lives": 2}))
    assert outcome.status.shards[1].processes == 2


async def test_spares_are_created_once_the_job_trains_without_losses() -> None:
    driver = Simulation(Scenario("start", (), spec(shards__spares=1)))
    await driver.passes(1)
    assert (driver.status().phase, driver.status().spares) == ("Starting", ())
    seen = killed(await observed(), "shard/1")
    recovering = reconcile(seen)
    assert recovering.status.phase == "Recovering"
    assert reconcile(then(seen, recovering)).status.spares == ()


async def test_lost_spare_is_replaced_after_a_pause() -> None:
    dead = with_spare(await observed(), ENDED, None)
    (old,) = spares_of(dead.job.status)
    once = reconcile(dead)
    assert [(spare.pod, spare.state) for spare in once.status.spares] == [(old, "Lost")]
    assert (once.creates, once.status.restarts, once.status.failures) == ((), 0, ())
    twice = reconcile(then(dead, once, later_s=PAUSE_S))
    (new,) = spares_of(twice.status)
    assert new != old
    assert [pod["metadata"]["name"] for pod in twice.creates] == [new]
    assert old in [each.name for each in twice.deletes]


async def test_refused_spare_is_retried_under_its_name() -> None:
    seen = await observed()
    number = seen.job.status.last_spare + 1
    name = f"{seen.job.id.stem}-spare-{number}"
    spare = Spare(number=number, pod=name, started_at=seen.now - 2 * PAUSE_S)
    refused = replace(with_status(seen, spares=(spare,), last_spare=number), refusals={name: "exceeded quota"})
    outcome = reconcile(refused)
    assert outcome.status.spares == (spare,)
    assert [pod["metadata"]["name"] for pod in outcome.creates] == [name]
    (ready,) = [each for each in outcome.status.conditions if each.type == "PodsReady"]
    assert ready.status == "True"


async def test_spare_names_are_never_reused() -> None:
    seen = await observed(2)
    outcome = reconcile(with_status(seen, spares=(), last_spare=0))
    there = {pod.name for pod in seen.pods}
    made = [pod["metadata"]["name"] for pod in outcome.creates]
    assert len(made) == 2
    assert there.isdisjoint(made)
    assert {each.name for each in outcome.deletes} == set(spares_of(seen.job.status))


@pytest.mark.parametrize(("desired", "there"), [(0, 0), (1, 1), (3, 3)])
async def test_number_of_spares_follows_the_spec(desired: int, there: int) -> None:
    outcome = reconcile(with_spec(await observed(2), "shards", spares=desired))
    assert len(outcome.status.spares) == there
    assert len(outcome.creates) == max(desired - 2, 0)
    assert len(outcome.deletes) == max(2 - desired, 0)
