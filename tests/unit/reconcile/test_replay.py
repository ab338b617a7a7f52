"""What trainers can push again, as their reports tell it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.reports import Problem, ShardReport, TrainerReport, TrainerState
from cpr_operator.api.sizes import recoverable
from cpr_operator.api.spec import Redundancy
from cpr_operator.api.status import FailureRecord, ReplayInForce
from cpr_operator.failures import Failure, Kind
from cpr_operator.reconcile import first_round, second_round
from cpr_operator.reconcile.apply_reports import apply_reports
from cpr_operator.reconcile.conditions import snapshots
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.pass_ import Lost, PassInput
from cpr_operator.reconcile.recover import apply_replacement
from cpr_operator.reconcile.recovery_input import recovery_input
from cpr_operator.recovery.decide import RecoveryInput, Replace, ShardGrant
from cpr_trainer.parity.coding import Ring
from simulation.control_plane.run import input_in_mid_training


async def training(*, replay: str = "Auto", **told: tuple[tuple[int, ...], tuple[int, ...]]) -> PassInput:
    """A job of several trainers. told: by trainer, as t0, what it has forgotten and the saves that it knows."""
    world = await input_in_mid_training(len(told))
    status = world.job.status
    assert status.runtime is not None
    in_force = ReplayInForce(memory_bytes=1 << 30 if replay == "Auto" else 0)
    status = status.evolve(runtime=status.runtime.evolve(replay=in_force))
    world = replace(world, job=replace(world.job, status=status))
    reports: dict[str, Any] = dict(world.reports)
    for name, (forgotten, saves) in told.items():
        uid = world.job.status.trainers[int(name[1:])].uid
        report = reports[uid]
        assert isinstance(report, TrainerReport)
        numbers = tuple(shard.incarnation for shard in world.job.status.shards)
        reports[uid] = replace(report, forgotten=forgotten, shard_saves=saves, shard_incarnations=numbers)
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


@pytest.mark.parametrize(("replay", "asked"), [("Auto", {"trainer/1", "trainer/2"}), ("Off", set())])
async def test_once_a_shard_is_lost_all_trainers_are_asked(replay: str, asked: set[str]) -> None:
    """The leader alone knows how far training is; what each one keeps only it knows."""
    three = {f"t{rank}": ((0, 0, 0), (0, 0, 0)) for rank in range(3)}
    world = await training(replay=replay, **three)
    leader = world.job.status.trainers[0].uid
    world = replace(world, reports={leader: world.reports[leader]})
    assert second_round(world) == ()
    pods = tuple(pod for pod in world.pods if (pod.role, pod.index) != ("shard", 1))
    lost = replace(world, pods=pods)
    assert {f"{pod.role}/{pod.index}" for pod in second_round(lost)} == asked
    assert "trainer/0" in {f"{pod.role}/{pod.index}" for pod in first_round(lost)}


async def test_a_save_that_a_shard_committed_while_it_caught_up_counts() -> None:
    """The shard did not live to tell the operator; what its trainers heard of its predecessor may be off its line."""
    world = await training(t0=((0, 600, 0), (0, 600, 0)), t1=((0, 600, 0), (0, 600, 0)))
    shards = tuple(
        s.evolve(lost_at=world.now, saved_samples=100) if s.index == 1 else s for s in world.job.status.shards
    )
    world = replace(world, job=replace(world.job, status=world.job.status.evolve(shards=shards)))
    (loss,) = losing(world, "shard/1").losses
    assert (loss.saved, loss.kept_after) == (600, 600)
    shards = tuple(s.evolve(incarnation=2) if s.index == 1 else s for s in shards)
    world = replace(world, job=replace(world.job, status=world.job.status.evolve(shards=shards)))
    (loss,) = losing(world, "shard/1").losses
    assert loss.saved == 100


async def in_parity(data_shards: int, protected: tuple[int, ...]) -> PassInput:
    """A job of three shards and one trainer, which has forgotten up to 550 of shard 1."""
    world = await training(t0=((500, 550, 500), (500, 500, 500)))
    spec = world.job.spec
    recovery = spec.recovery.model_copy(update={"redundancy": Redundancy(data_shards=data_shards)})
    world = replace(world, job=replace(world.job, spec=spec.model_copy(update={"recovery": recovery})))
    uid = world.job.status.trainers[0].uid
    report = world.reports[uid]
    assert isinstance(report, TrainerReport)
    return replace(world, reports={**world.reports, uid: replace(report, shard_protected=protected)})


async def test_what_parity_holds_counts_as_saved() -> None:
    world = await in_parity(1, (600, 590, 600))
    (loss,) = losing(world, "shard/1").losses
    assert (loss.saved, loss.kept_after) == (590, 550)
    first, last = losing(await in_parity(1, (600, 590, 600)), "shard/0", "shard/1").losses
    assert (first.saved, last.saved) == (500, 590), "shard 1 kept the parity of shard 0, and shard 2 that of shard 1"


async def test_parity_does_not_count_where_others_of_the_stripe_are_lost_or_do_not_hold_it() -> None:
    world = await in_parity(2, (600, 590, 600))
    assert {loss.saved for loss in losing(world, "shard/0", "shard/1").losses} == {500}
    (loss,) = losing(await in_parity(2, (600, -1, 600)), "shard/1").losses
    assert loss.saved == 500


async def test_parity_does_not_count_while_a_neighbour_is_being_replaced() -> None:
    world = await in_parity(1, (600, 590, 600))
    shards = tuple(s.evolve(lost_at=world.now) if s.index == 2 else s for s in world.job.status.shards)
    world = replace(world, job=replace(world.job, status=world.job.status.evolve(shards=shards)))
    (loss,) = losing(world, "shard/1").losses
    assert loss.saved == 500


def knowing(world: PassInput, protected: int | None, **of_shard_1: Any) -> PassInput:
    """With what was told of parity last, and other fields of shard 1."""
    status = world.job.status
    shards = tuple(s.evolve(**of_shard_1) if s.index == 1 else s for s in status.shards)
    progress = status.progress.evolve(protected_samples=protected)
    return replace(world, job=replace(world.job, status=status.evolve(shards=shards, progress=progress)))


@pytest.mark.parametrize(("known", "saved"), [(580, 580), (None, 500)])
async def test_once_all_trainers_are_lost_it_counts_what_was_told_of_parity_last(known: int | None, saved: int) -> None:
    world = knowing(await in_parity(1, (600, 590, 600)), known, saved_samples=500)
    (loss,) = losing(world, "shard/1", "trainer/0").losses
    assert (loss.saved, loss.kept_after) == (saved, None)


async def test_a_shard_that_is_lost_again_before_it_was_there_is_in_parity_as_before() -> None:
    """No trainer has spoken with it: what they may have forgotten since its last save is in the parity all the same."""
    world = knowing(
        await in_parity(1, (600, -1, 600)), 580, incarnation=2, lost_at=1.0, floor_samples=590, state="Restoring"
    )
    (loss,) = losing(world, "shard/1").losses
    assert loss.saved == 590


async def test_a_shard_that_did_not_find_its_floor_is_not_in_parity() -> None:
    world = knowing(
        await in_parity(1, (600, 590, 600)), 580, lost_at=1.0, floor_samples=590, state="BelowFloor", saved_samples=100
    )
    draft = begin(world)
    uid = world.job.status.shards[1].uid
    shard = world.reports[uid]
    assert isinstance(shard, ShardReport)
    given = recovery_input(draft)
    assert given is not None
    (loss,) = given.losses
    assert loss.saved == 500, "the newest save that its trainer knows"


@pytest.mark.parametrize(
    ("saves", "protected", "expected"),
    [
        ((500, 500, 500), (600, 590, 600), 590),
        ((500, 500, 500), (600, -1, 600), 500),
        ((500, 500, 500), (), None),
        ((-1, 500, 500), (-1, 590, 600), None),
    ],
)
async def test_the_status_says_what_is_protected_of_all_shards(
    saves: tuple[int, ...], protected: tuple[int, ...], expected: int | None
) -> None:
    world = await in_parity(1, protected)
    uid = world.job.status.trainers[0].uid
    report = world.reports[uid]
    assert isinstance(report, TrainerReport)
    world = replace(world, reports={**world.reports, uid: replace(report, shard_saves=saves)})
    assert apply_reports(begin(world)).status.progress.protected_samples == expected


@pytest.mark.parametrize(
    ("protected", "says"),
    [(590, "several go back to sample 500"), (500, "a shard that is lost now goes back to sample 500")],
)
async def test_while_the_store_is_away_it_says_what_parity_gives_back(protected: int, says: str) -> None:
    world = knowing(await in_parity(1, (600, 590, 600)), protected)
    uid = world.job.status.trainers[0].uid
    report = world.reports[uid]
    assert isinstance(report, TrainerReport)
    away = replace(report, problem=Problem("StoreUnreachable", "no answer", "check it"))
    status = world.job.status
    shards = tuple(shard.evolve(saved_samples=500) for shard in status.shards)
    world = replace(world, job=replace(world.job, status=status.evolve(shards=shards)))
    (update,) = snapshots(begin(replace(world, reports={**world.reports, uid: away})))
    assert update.status == "True"
    assert update.message.endswith(says)


@pytest.mark.parametrize(("rebuilt", "tier"), [(True, "Parity"), (False, "NewPod")])
async def test_a_shard_that_was_rebuilt_is_told_once(tier: str, *, rebuilt: bool) -> None:
    world = await in_parity(1, (600, 590, 600))
    failure = FailureRecord(time=1.0, role="shard", index=1, incarnation=1, kind="Killed", action="ReplaceShards")
    world = knowing(world, 590, lost_at=1.0, floor_samples=590, incarnation=2)
    status = world.job.status.evolve(failures=(failure,))
    uid = status.shards[1].uid
    report = world.reports[uid]
    assert isinstance(report, ShardReport)
    told = replace(
        report, incarnation=2, rebuilt=rebuilt, restored_samples=590, resumed_samples=590, lost=(), replayed_samples=64
    )
    world = replace(world, job=replace(world.job, status=status), reports={**world.reports, uid: told})
    draft = apply_reports(begin(world))
    (record,) = draft.status.failures
    assert (record.tier, record.lost_samples) == (tier, 0)
    events = [each for each in draft.events if each.reason == "Rebuilt"]
    assert len(events) == rebuilt
    assert not rebuilt or "shard/1, incarnation 2" in events[0].message
    again = replace(world, job=replace(world.job, status=draft.status))
    assert not [each for each in apply_reports(begin(again)).events if each.reason == "Rebuilt"]


@pytest.mark.parametrize(("shards", "k"), [(2, 1), (3, 2), (5, 2), (7, 3), (18, 4)])
def test_the_ring_is_that_of_the_shards(shards: int, k: int) -> None:
    ring = Ring(shards, k)
    for shard in range(shards):
        for other in range(shards):
            assert recoverable(shard, {shard, other}, shards, k) == ring.recoverable(shard, {other} - {shard})


@pytest.mark.parametrize("flushed", [True, False])
async def test_a_drained_shard_needs_nothing_of_a_lost_trainer(*, flushed: bool) -> None:
    """Its flush holds all that was acknowledged, and the heir computes the rest again."""
    world = await training(t0=((0, 0, 0), (0, 0, 0)), t1=((0, 0, 0), (0, 0, 0)))
    draft = begin(world)
    grant = ShardGrant(0, 150, (), flushed=flushed)
    draft = apply_replacement(draft, Replace((grant,), (), 0, None, (), "a test"))
    world = replace(world, job=replace(world.job, status=draft.status))
    given = losing(world, "trainer/1")
    bound = given.trainer_bound
    assert bound is not None
    assert bound > 150
    assert [(shard, first) for shard, first in given.bereft if first < bound] == ([] if flushed else [(0, 150)])


async def test_without_replay_reports_change_nothing() -> None:
    world = await training(replay="Off", t0=((0, 0, 0), (500, 500, 500)), t1=((0, 0, 0), (500, 500, 500)))
    given = losing(world, "shard/1")
    (loss,) = given.losses
    assert loss.kept_after is None
    assert loss.saved == world.job.status.shards[1].saved_samples
    assert given.bereft == ()


async def test_how_long_a_shard_was_sent_pushes_again_is_learnt_once() -> None:
    """It is told with what was lost, when all of it has come; at 100 samples a second, 500 are 5 s of training."""
    world = await training(t0=((0, 0, 0), (0, 0, 0)))
    first, *rest = world.job.status.shards
    waiting = first.evolve(lost_at=world.now, floor_samples=0)
    learnt = world.job.status.policy.evolve(samples_per_second=100.0, replay_ratio=None)
    status = world.job.status.evolve(shards=(waiting, *rest), policy=learnt)
    told = world.reports[first.uid]
    assert isinstance(told, ShardReport)
    told = replace(told, restored_samples=0, resumed_samples=500, replayed_samples=500, replay_s=0.5)
    reports = {**world.reports, first.uid: told}
    world = replace(world, job=replace(world.job, status=status), reports=reports)
    once = apply_reports(begin(world)).status
    assert once.policy.replay_ratio == pytest.approx(0.1)
    again = replace(world, job=replace(world.job, status=once))
    assert apply_reports(begin(again)).status.policy.replay_ratio == once.policy.replay_ratio


@pytest.mark.parametrize(
    ("forgotten", "state", "replays"),
    [((), TrainerState.TRAINING, False), ((), TrainerState.LOADING, True), ((-1, -1, -1), TrainerState.TRAINING, True)],
)
async def test_a_leader_that_trains_and_keeps_no_pushes_is_of_an_image_without_replay(
    forgotten: tuple[int, ...],
    state: TrainerState,
    replays: bool,  # noqa: FBT001
) -> None:
    world = await training(t0=(forgotten, (0, 0, 0)))
    uid = world.job.status.trainers[0].uid
    report = world.reports[uid]
    assert isinstance(report, TrainerReport)
    world = replace(world, reports={**world.reports, uid: replace(report, state=state)})
    runtime = apply_reports(begin(world)).status.runtime
    assert runtime is not None
    assert (runtime.replay.memory_bytes > 0) is replays
    assert replays or "earlier release" in runtime.replay.reason
