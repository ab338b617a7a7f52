"""When silence of a member counts: two witnesses, or all there are; never the lack of an answer."""

from dataclasses import replace
from typing import Any

import pytest

from cpr_operator.cluster.views import PodView
from cpr_operator.failures import Kind
from cpr_operator.reconcile import World, first_round, second_round
from cpr_operator.reconcile.observe import Lost, observe
from support.driver import world_in_mid_training


def pod_of(world: World, name: str) -> PodView:
    role, _, index = name.partition("/")
    return next(pod for pod in world.pods if (pod.role, pod.index) == (role, int(index)))


def missing(world: World, target: str, *reporters: str) -> World:
    """The world where these miss `target`, who does not answer itself."""
    reports: dict[str, Any] = dict(world.reports)
    reports.pop(pod_of(world, target).uid, None)
    for name in reporters:
        uid = pod_of(world, name).uid
        reports[uid] = replace(reports[uid], silent=(target,))
    return replace(world, reports=reports)


def is_hung(world: World, name: str) -> bool:
    fact = observe(world)[name]
    return isinstance(fact, Lost) and fact.failure.kind is Kind.HUNG


@pytest.mark.parametrize(
    ("trainers", "target", "reporters", "hung"),
    [
        (2, "shard/1", ("trainer/0", "trainer/1"), True),
        (2, "shard/1", ("trainer/0",), False),
        (2, "shard/1", (), False),
        (1, "shard/1", ("trainer/0",), True),  # nobody else could say so
        (2, "trainer/0", ("trainer/1", "shard/0"), True),
        (2, "trainer/0", ("shard/0", "shard/2"), True),
        (2, "trainer/0", ("shard/0",), False),
        (1, "trainer/0", ("shard/0",), False),
    ],
)
async def test_who_has_to_miss_a_member(trainers: int, target: str, reporters: tuple[str, ...], hung: bool) -> None:  # noqa: FBT001
    assert is_hung(missing(await world_in_mid_training(trainers), target, *reporters), target) is hung


async def test_a_member_that_restores_is_not_hung() -> None:
    world = missing(await world_in_mid_training(1), "shard/1", "trainer/0")
    shards = tuple(s.model_copy(update={"lost_at": world.now}) if s.index == 1 else s for s in world.job.status.shards)
    status = world.job.status.model_copy(update={"shards": shards})
    assert not is_hung(replace(world, job=replace(world.job, status=status)), "shard/1")


async def test_a_report_of_another_generation_is_no_witness() -> None:
    world = missing(await world_in_mid_training(1), "shard/1", "trainer/0")
    counters = world.job.status.counters.model_copy(update={"generation": 2})
    status = world.job.status.model_copy(update={"counters": counters})
    assert not is_hung(replace(world, job=replace(world.job, status=status)), "shard/1")


async def test_only_the_leader_is_asked_while_all_is_well() -> None:
    world = await world_in_mid_training(2)
    assert [pod.name for pod in first_round(world)] == ["job-12345-trainer-0-1"]
    assert second_round(world) == ()


async def test_everybody_is_asked_when_the_leader_does_not_answer_or_misses_somebody() -> None:
    world = await world_in_mid_training(2)
    others = {pod.name for pod in world.pods} - {"job-12345-trainer-0-1"}
    assert {pod.name for pod in second_round(replace(world, reports={}))} == others
    assert {pod.name for pod in second_round(missing(world, "shard/1", "trainer/0"))} == others
