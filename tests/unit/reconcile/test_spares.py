"""Warm spares: which one takes a lost shard's place, who is told, and how many there are."""

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
from cpr_operator.reconcile.pass_ import Outcome, PassInput
from cpr_operator.reconcile.pipeline import reconcile
from cpr_operator.reconcile.spares import PAUSE_S, choose
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, spec


async def world(spares: int = 1, **changes: Any) -> PassInput:
    """A job that trains, and its spares are warm."""
    driver = Simulation(Scenario("spares", (), spec(shards__spares=spares, **changes)))
    await driver.passes(16)
    seen = await driver.pass_input()
    assert (seen.job.status.phase, seen.job.status.recovery) == ("Running", None)
    assert [spare.state for spare in seen.job.status.spares] == ["Ready"] * spares
    return seen


def spares_of(status: Status) -> list[str]:
    return [spare.pod for spare in status.spares]


def with_pods(seen: PassInput, change: Any) -> PassInput:
    return replace(seen, pods=tuple(filter(None, map(change, seen.pods))))


def killed(seen: PassInput, *indices: int) -> PassInput:
    """The same, with the pods of these shards killed."""
    ended = ContainerView("Terminated", "Error", "", 137)

    def kill(pod: PodView) -> PodView:
        lost = pod.role == "shard" and pod.index in indices
        return replace(pod, phase="Failed", container=ended) if lost else pod

    gone = {pod.uid for pod in seen.pods if pod.role == "shard" and pod.index in indices}
    reports = {uid: report for uid, report in seen.reports.items() if uid not in gone}
    return replace(with_pods(seen, kill), reports=reports)


def then(seen: PassInput, outcome: Outcome, *, later_s: float = 1.0) -> PassInput:
    """The next pass, in which nothing of the outcome has been done but the status."""
    return replace(seen, job=replace(seen.job, status=outcome.status), now=seen.now + later_s)


def events(outcome: Outcome) -> list[str]:
    return [str(event.reason) for event in outcome.events]


async def test_a_lost_shard_is_its_spare_from_then_on() -> None:
    seen = await world()
    (spare,) = [pod for pod in seen.pods if pod.role == env.ROLE_SPARE]
    outcome = reconcile(killed(seen, 1))
    shard = outcome.status.shards[1]
    assert (shard.incarnation, shard.pod, shard.uid, shard.host) == (2, spare.name, spare.uid, spare.host)
    assert outcome.status.spares == ()
    assert outcome.creates == ()
    assert "SparePromoted" in events(outcome)
    (failure,) = outcome.status.failures
    assert (failure.incarnation, failure.tier, failure.action) == (1, "Spare", "ReplaceShards")


async def test_the_spare_is_told_first_and_all_at_once_and_trainers_learn_its_address() -> None:
    seen = await world()
    (spare,) = [pod for pod in seen.pods if pod.role == env.ROLE_SPARE]
    first, *others = reconcile(killed(seen, 1)).rosters
    assert first.uid == spare.uid
    labels = {env.LABEL_ROLE: "shard", env.LABEL_INDEX: "1", env.LABEL_INCARNATION: "2"}
    assert labels.items() <= first.labels.items()
    roster = from_json(ShardRoster, first.annotations[env.ANNOTATION_ROSTER])
    assert (roster.index, roster.incarnation, roster.may_restore) == (1, 2, True)
    told = [from_json(TrainerRoster, patch.annotations[env.ANNOTATION_ROSTER]) for patch in others[:2]]
    assert [(peer.incarnation, peer.host) for each in told for peer in each.shards if peer.index == 1] == [
        (2, spare.host)
    ] * 2
    assert all(not patch.labels for patch in others)


async def test_until_its_labels_say_so_the_status_does() -> None:
    seen = killed(await world(), 1)
    once = reconcile(seen)
    again = reconcile(then(seen, once))
    assert again.status.shards[1].evolve(state="Starting") == once.status.shards[1]
    assert [patch.labels for patch in again.rosters if patch.labels] == [once.rosters[0].labels]
    assert (again.creates, [each.name for each in again.deletes]) == ((), [])


async def test_a_promoted_spare_that_dies_before_its_labels_say_who_it_is_is_replaced_and_deleted() -> None:
    seen = killed(await world(), 1)
    (spare,) = [pod for pod in seen.pods if pod.role == env.ROLE_SPARE]
    once = reconcile(seen)
    ended = ContainerView("Terminated", "Error", "", 137)
    dead = with_pods(
        then(seen, once), lambda pod: replace(pod, phase="Failed", container=ended) if pod.uid == spare.uid else pod
    )
    reports = {uid: report for uid, report in dead.reports.items() if uid != spare.uid}
    twice = reconcile(replace(dead, reports=reports))
    assert (twice.status.shards[1].incarnation, twice.status.shards[1].uid) == (3, "")
    assert spare.name in [each.name for each in twice.deletes]
    assert [pod["metadata"]["labels"].get(env.LABEL_INCARNATION) for pod in twice.creates] == ["3"]


async def test_each_lost_shard_takes_another_spare_and_the_last_one_gets_a_new_pod() -> None:
    seen = await world(2)
    names = spares_of(seen.job.status)
    outcome = reconcile(killed(seen, 0, 1, 2))
    assert [shard.pod for shard in outcome.status.shards[:2]] == names
    assert len(outcome.creates) == 1
    assert outcome.status.shards[2].uid == ""
    assert [failure.tier for failure in outcome.status.failures] == ["Spare", "Spare", "NewPod"]
    (message,) = [event.message for event in outcome.events if event.reason == "NoSpare"]
    assert "shard/2" in message
    assert "there is none left" in message


async def test_lost_trainers_get_new_pods() -> None:
    seen = await world()
    ended = ContainerView("Terminated", "Error", "", 137)
    lost = with_pods(
        seen,
        lambda pod: replace(pod, phase="Failed", container=ended) if (pod.role, pod.index) == ("trainer", 1) else pod,
    )
    outcome = reconcile(lost)
    assert [pod["metadata"]["labels"][env.LABEL_ROLE] for pod in outcome.creates] == ["trainer"]
    assert spares_of(outcome.status) == spares_of(seen.job.status)


async def test_a_drained_shards_spare_waits_for_the_last_save() -> None:
    seen = await world()
    until = seen.now + 30
    drained = with_pods(
        seen,
        lambda pod: (
            replace(pod, deleting_until=until, disruption="EvictionByEvictionAPI", deletion_grace_s=30)
            if (pod.role, pod.index) == ("shard", 1)
            else pod
        ),
    )
    outcome = reconcile(drained)
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
async def test_why_a_spare_does_not_take_a_place(pod: Any, report: Any, why: str) -> None:
    seen = await world()
    (view,) = [each for each in seen.pods if each.role == env.ROLE_SPARE]
    (spare,) = seen.job.status.spares
    warm = seen.reports[view.uid]
    assert isinstance(warm, ShardReport)
    assert choose([spare], seen, SHARD).pod == view
    seen = with_pods(
        seen,
        lambda each: each if each.uid != view.uid else None if pod is None else replace(view, **pod),
    )
    reports = {**seen.reports, view.uid: replace(warm, **report)} if report is not None else {}
    choice = choose([spare], replace(seen, reports=reports), SHARD)
    assert (choice.pod, choice.reason) == (None, f"{spare.pod} {why}")


async def test_the_first_that_can_is_taken() -> None:
    seen = await world(3)
    first, second, _ = (pod for pod in seen.pods if pod.role == env.ROLE_SPARE)
    silent = {uid: report for uid, report in seen.reports.items() if uid != first.uid}
    choice = choose(seen.job.status.spares, replace(seen, reports=silent), SHARD)
    assert choice.pod == second


async def test_a_life_that_a_spare_had_before_is_no_failure_of_the_shard() -> None:
    seen = killed(await world(), 1)
    (spare,) = [pod for pod in seen.pods if pod.role == env.ROLE_SPARE]
    warm = seen.reports[spare.uid]
    assert isinstance(warm, ShardReport)
    outcome = reconcile(replace(seen, reports={**seen.reports, spare.uid: replace(warm, lives=2)}))
    assert outcome.status.shards[1].lives == 2


async def test_spares_come_once_the_job_trains_and_nobody_is_lost() -> None:
    driver = Simulation(Scenario("start", (), spec(shards__spares=1)))
    await driver.passes(1)
    assert driver.status().phase == "Starting"
    assert driver.status().spares == ()
    seen = killed(await world(), 1)
    recovering = reconcile(seen)
    assert recovering.status.phase == "Recovering"
    assert reconcile(then(seen, recovering)).status.spares == ()


async def test_a_spare_that_ends_is_made_anew_after_a_pause() -> None:
    seen = await world()
    (old,) = spares_of(seen.job.status)
    ended = ContainerView("Terminated", "Error", "", 1)
    dead = with_pods(seen, lambda pod: replace(pod, phase="Failed", container=ended) if pod.name == old else pod)
    once = reconcile(dead)
    assert [(spare.pod, spare.state) for spare in once.status.spares] == [(old, "Lost")]
    assert (once.creates, once.status.restarts, once.status.failures) == ((), 0, ())
    twice = reconcile(then(dead, once, later_s=PAUSE_S))
    (new,) = spares_of(twice.status)
    assert new != old
    assert [pod["metadata"]["name"] for pod in twice.creates] == [new]
    assert old in [each.name for each in twice.deletes]


async def test_a_refused_spare_is_tried_again_under_its_name_and_the_job_is_ready() -> None:
    seen = await world()
    number = seen.job.status.last_spare + 1
    name = f"{seen.job.id.stem}-spare-{number}"
    spare = Spare(number=number, pod=name, started_at=seen.now - 2 * PAUSE_S)
    status = seen.job.status.evolve(spares=(spare,), last_spare=number)
    refused = replace(seen, job=replace(seen.job, status=status), refusals={name: "exceeded quota"})
    outcome = reconcile(refused)
    assert outcome.status.spares == (spare,)
    assert [pod["metadata"]["name"] for pod in outcome.creates] == [name]
    (ready,) = [each for each in outcome.status.conditions if each.type == "PodsReady"]
    assert ready.status == "True"


async def test_no_name_is_used_twice_even_if_the_status_forgot_its_spares() -> None:
    seen = await world(2)
    forgotten = replace(seen, job=replace(seen.job, status=seen.job.status.evolve(spares=(), last_spare=0)))
    outcome = reconcile(forgotten)
    there = {pod.name for pod in seen.pods}
    made = [pod["metadata"]["name"] for pod in outcome.creates]
    assert len(made) == 2
    assert there.isdisjoint(made)
    assert {each.name for each in outcome.deletes} == set(spares_of(seen.job.status))


@pytest.mark.parametrize(("wanted", "there"), [(0, 0), (1, 1), (3, 3)])
async def test_their_number_follows_the_spec(wanted: int, there: int) -> None:
    seen = await world(2)
    document = seen.job.spec.model_copy(update={"shards": seen.job.spec.shards.model_copy(update={"spares": wanted})})
    outcome = reconcile(replace(seen, job=replace(seen.job, spec=document)))
    assert len(outcome.status.spares) == there
    assert len(outcome.creates) == max(wanted - 2, 0)
    assert len(outcome.deletes) == max(2 - wanted, 0)
