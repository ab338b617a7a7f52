"""What trainers can push again, as their reports tell it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.reports import TrainerReport
from cpr_operator.api.replay import replay_of
from cpr_operator.failures import Failure, Kind
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.pass_ import Lost, PassInput
from cpr_operator.reconcile.recovery_input import recovery_input
from cpr_operator.recovery.decide import RecoveryInput
from support.driver import world_in_mid_training


@pytest.fixture(autouse=True)
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs of several trainers replay: what is decided on their reports holds for any number."""
    alone = lambda spec: replay_of(spec.evolve(trainers=spec.trainers.evolve(replicas=1)))  # noqa: E731 -- one line
    monkeypatch.setattr("cpr_operator.reconcile.replay.replay_of", alone)


async def training(*, replay: str = "Auto", **told: tuple[tuple[int, ...], tuple[int, ...]]) -> PassInput:
    """A job of several trainers. told: by trainer, as t0, what it has forgotten and the saves that it knows."""
    world = await world_in_mid_training(len(told))
    spec = world.job.spec
    recovery = spec.recovery.model_copy(update={"replay": spec.recovery.replay.model_copy(update={"mode": replay})})
    world = replace(world, job=replace(world.job, spec=spec.model_copy(update={"recovery": recovery})))
    reports: dict[str, Any] = dict(world.reports)
    for name, (forgotten, saves) in told.items():
        uid = world.job.status.trainers[int(name[1:])].uid
        report = reports[uid]
        assert isinstance(report, TrainerReport)
        reports[uid] = replace(report, forgotten=forgotten, shard_saves=saves)
    return replace(world, reports=reports)


def losing(world: PassInput, *names: str) -> RecoveryInput:
    """What is to be decided once these members are dead."""
    draft = begin(world)
    dead = Lost(None, Failure(Kind.NODE_LOST, "NodeLost", "its node is gone", ended=True))
    given = recovery_input(replace(draft, facts={**draft.facts, **dict.fromkeys(names, dead)}))
    assert given is not None
    return given


async def test_all_trainers_together_keep_what_the_one_that_forgot_most_keeps() -> None:
    world = await training(t0=((500, 450, 0), (500, 500, 500)), t1=((500, 550, 0), (500, 500, 500)))
    (loss,) = losing(world, "shard/1").losses
    assert (loss.saved, loss.kept_after) == (500, 550)


async def test_the_newest_save_that_any_trainer_knows_counts() -> None:
    world = await training(t0=((500, 500, 500), (500, 500, 500)), t1=((500, 600, 500), (500, 600, 500)))
    (loss,) = losing(world, "shard/1").losses
    assert (loss.saved, loss.kept_after) == (600, 600), "what is forgotten because of a save is in it"


@pytest.mark.parametrize("forgotten", [(), (-1, -1, -1)])
async def test_who_keeps_nothing_pushes_nothing_again(forgotten: tuple[int, ...]) -> None:
    world = await training(t0=((0, 0, 0), (0, 0, 0)), t1=(forgotten, (0, 0, 0)))
    (loss,) = losing(world, "shard/1").losses
    assert loss.kept_after is None


async def test_a_lost_trainer_takes_what_it_kept_along() -> None:
    world = await training(t0=((0, 0, 0), (0, 0, 0)), t1=((0, 0, 0), (0, 0, 0)))
    (loss,) = losing(world, "shard/1", "trainer/1").losses
    assert loss.kept_after is None


async def test_a_trainer_that_does_not_answer_is_waited_for() -> None:
    world = await training(t0=((0, 0, 0), (0, 0, 0)), t1=((0, 0, 0), (0, 0, 0)))
    uid = world.job.status.trainers[1].uid
    silent = replace(world, reports={key: each for key, each in world.reports.items() if key != uid})
    assert losing(silent, "shard/1").unheard == (1,)
    assert losing(world, "shard/1").unheard == ()


async def test_shards_that_catch_up_lose_what_a_lost_trainer_kept() -> None:
    world = await training(t0=((0, 0, 0), (0, 0, 0)), t1=((0, 0, 0), (0, 0, 0)))
    first, *rest = world.job.status.shards
    catching_up = first.evolve(lost_at=world.now, floor_samples=150)
    status = world.job.status.evolve(shards=(catching_up, *rest))
    world = replace(world, job=replace(world.job, status=status))
    assert losing(world, "trainer/1").bereft == ((0, 150),)


async def test_without_replay_reports_change_nothing() -> None:
    world = await training(replay="Off", t0=((0, 0, 0), (500, 500, 500)), t1=((0, 0, 0), (500, 500, 500)))
    given = losing(world, "shard/1")
    (loss,) = given.losses
    assert loss.kept_after is None
    assert loss.saved == world.job.status.shards[1].saved_samples
    assert given.bereft == ()
