"""What trainers can push again and what parity holds, as reports tell it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.choices import ReplayPolicy
from cpr_contract.reports import Problem, TrainerState
from cpr_operator.api.sizes import recoverable
from cpr_operator.api.spec import Redundancy
from cpr_operator.api.status import FailureRecord
from cpr_operator.failures import Failure, Kind
from cpr_operator.reconcile import first_round, second_round
from cpr_operator.reconcile.conditions import snapshots
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.recover import apply_replacement
from cpr_operator.reconcile.recovery_decision import recovery_input
from cpr_operator.reconcile.reports import apply_reports
from cpr_operator.reconcile.types import Lost, ReconcileInput
from cpr_operator.recovery.decide import Loss, RecoveryInput, Replace, ShardGrant
from cpr_trainer.parity.coding import Ring
from simulation.control_plane.run import input_in_mid_training
from support.passes import with_report, with_shard, with_spec, with_status, without_reports

Samples = tuple[int, ...]
#: What a trainer has forgotten of each shard, and the saves that it knows.
Told = tuple[Samples, Samples]
NOTHING: Told = ((0, 0, 0), (0, 0, 0))


async def training(*trainers: Told, replay: str = "Auto") -> ReconcileInput:
    """A job whose trainers tell this, each in its place."""
    world = await input_in_mid_training(len(trainers))
    runtime = world.job.status.runtime
    assert runtime is not None
    in_force = ReplayPolicy(memory_bytes=1 << 30 if replay == "Auto" else 0)
    world = with_status(world, runtime=runtime.evolve(replay=in_force))
    numbers = tuple(shard.incarnation for shard in world.job.status.shards)
    for rank, (forgotten, saves) in enumerate(trainers):
        told = {"forgotten": forgotten, "shard_saves": saves, "shard_incarnations": numbers}
        world = with_report(world, f"trainer/{rank}", **told)
    return world


def losing(world: ReconcileInput, *names: str) -> RecoveryInput:
    """What is to be decided once these members are dead."""
    state = begin(world)
    dead = Lost(None, Failure(Kind.NODE_LOST, "NodeLost", "its node is gone", ended=True))
    given = recovery_input(replace(state, facts={**state.facts, **dict.fromkeys(names, dead)}))
    assert given is not None
    return given


def loss_of_shard_1(world: ReconcileInput, *others: str) -> Loss:
    (loss,) = losing(world, "shard/1", *others).losses
    return loss


@pytest.mark.parametrize(
    ("trainers", "lost", "saved", "replayed_after"),
    [
        pytest.param(
            (((500, 450, 0), (500, 500, 500)), ((500, 550, 0), (500, 500, 500))), (), 500, 550, id="who forgot most"
        ),
        pytest.param(
            (((500, 500, 500), (500, 500, 500)), ((500, 600, 500), (500, 600, 500))), (), 600, 600, id="newest save"
        ),
        pytest.param((NOTHING, NOTHING), (), None, 0, id="nothing forgotten"),
        pytest.param((NOTHING, ((), (0, 0, 0))), (), None, None, id="no replay"),
        pytest.param((NOTHING, ((-1, -1, -1), (0, 0, 0))), (), None, None, id="keeps nothing"),
        pytest.param((NOTHING, NOTHING), ("trainer/1",), None, None, id="lost trainer"),
    ],
)
async def test_replayed_after_is_the_worst_of_all_trainers(
    trainers: tuple[Told, ...], lost: tuple[str, ...], saved: int | None, replayed_after: int | None
) -> None:
    loss = loss_of_shard_1(await training(*trainers), *lost)
    assert loss.replayed_after == replayed_after
    assert saved is None or loss.saved == saved, "what is forgotten because of a save is in it"


async def test_unresponsive_trainer_is_unreported() -> None:
    world = await training(NOTHING, NOTHING)
    assert losing(without_reports(world, "trainer/1"), "shard/1").unreported == (1,)
    assert losing(world, "shard/1").unreported == ()


async def test_orphaned_shards_lose_the_buffer_of_a_lost_trainer() -> None:
    world = await training(NOTHING, NOTHING)
    catching_up = with_shard(world, 0, lost_at=world.now, floor_samples=150)
    assert losing(catching_up, "trainer/1").orphaned == ((0, 150),)


@pytest.mark.parametrize(("replay", "asked"), [("Auto", {"trainer/1", "trainer/2"}), ("Off", set())])
async def test_all_trainers_are_polled_once_a_shard_is_lost(replay: str, asked: set[str]) -> None:
    """The leader alone knows how far training is; what each one keeps only it knows."""
    world = await training(NOTHING, NOTHING, NOTHING, replay=replay)
    leader = world.job.status.trainers[0].uid
    world = replace(world, reports={leader: world.reports[leader]})
    assert second_round(world) == ()
    pods = tuple(pod for pod in world.pods if (pod.role, pod.index) != ("shard", 1))
    lost = replace(world, pods=pods)
    assert {f"{pod.role}/{pod.index}" for pod in second_round(lost)} == asked
    assert "trainer/0" in {f"{pod.role}/{pod.index}" for pod in first_round(lost)}


async def test_save_committed_during_a_replay_counts() -> None:
    """The shard did not live to tell the operator; what its trainers heard of its predecessor may be off its line."""
    world = await training(((0, 600, 0), (0, 600, 0)), ((0, 600, 0), (0, 600, 0)))
    world = with_shard(world, 1, lost_at=world.now, saved_samples=100)
    loss = loss_of_shard_1(world)
    assert (loss.saved, loss.replayed_after) == (600, 600)
    assert loss_of_shard_1(with_shard(world, 1, incarnation=2)).saved == 100


async def in_parity(data_shards: int, protected: Samples) -> ReconcileInput:
    """A job of three shards and one trainer, which has forgotten up to 550 of shard 1."""
    world = await training(((500, 550, 500), (500, 500, 500)))
    world = with_spec(world, "recovery", redundancy=Redundancy(data_shards=data_shards))
    return with_report(world, "trainer/0", shard_protected=protected)


async def test_parity_counts_as_saved() -> None:
    world = await in_parity(1, (600, 590, 600))
    loss = loss_of_shard_1(world)
    assert (loss.saved, loss.replayed_after) == (590, 550)
    first, last = losing(world, "shard/0", "shard/1").losses
    assert (first.saved, last.saved) == (500, 590), "shard 1 kept the parity of shard 0, and shard 2 that of shard 1"


async def test_parity_needs_its_stripe() -> None:
    world = await in_parity(2, (600, 590, 600))
    assert {loss.saved for loss in losing(world, "shard/0", "shard/1").losses} == {500}
    assert loss_of_shard_1(await in_parity(2, (600, -1, 600))).saved == 500
    world = await in_parity(1, (600, 590, 600))
    assert loss_of_shard_1(with_shard(world, 2, lost_at=world.now)).saved == 500, "its neighbour is being replaced"


def knowing(world: ReconcileInput, protected: int | None, **of_shard_1: Any) -> ReconcileInput:
    """With the parity that was told last, and other fields of shard 1."""
    progress = world.job.status.progress.evolve(protected_samples=protected)
    return with_status(with_shard(world, 1, **of_shard_1), progress=progress)


@pytest.mark.parametrize(("known", "saved"), [(580, 580), (None, 500)])
async def test_parity_of_the_last_report_counts_without_trainers(known: int | None, saved: int) -> None:
    world = knowing(await in_parity(1, (600, 590, 600)), known, saved_samples=500)
    loss = loss_of_shard_1(world, "trainer/0")
    assert (loss.saved, loss.replayed_after) == (saved, None)


@pytest.mark.parametrize(
    ("protected", "shard", "saved"),
    [
        # No trainer has spoken with it: what they may have forgotten since its last save is in the parity all the same.
        (-1, {"incarnation": 2, "state": "Restoring"}, 590),
        (590, {"state": "BelowFloor", "saved_samples": 100}, 500),  # the newest save that its trainer knows
    ],
    ids=["lost before it was there", "did not find its floor"],
)
async def test_parity_covers_a_shard_lost_again_unless_below_its_floor(
    protected: int, shard: dict[str, Any], saved: int
) -> None:
    world = knowing(await in_parity(1, (600, protected, 600)), 580, lost_at=1.0, floor_samples=590, **shard)
    if shard["state"] == "Restoring":
        assert loss_of_shard_1(world).saved == saved
    else:
        given = recovery_input(begin(world))
        assert given is not None
        (loss,) = given.losses
        assert loss.saved == saved


@pytest.mark.parametrize(
    ("saves", "protected", "expected"),
    [
        ((500, 500, 500), (600, 590, 600), 590),
        ((500, 500, 500), (600, -1, 600), 500),
        ((500, 500, 500), (), None),
        ((-1, 500, 500), (-1, 590, 600), None),
    ],
)
async def test_protected_samples_are_the_minimum_over_shards(
    saves: Samples, protected: Samples, expected: int | None
) -> None:
    world = with_report(await in_parity(1, protected), "trainer/0", shard_saves=saves)
    assert apply_reports(begin(world)).status.progress.protected_samples == expected


@pytest.mark.parametrize(
    ("protected", "says"),
    [(590, "several go back to sample 500"), (500, "a shard that is lost now goes back to sample 500")],
)
async def test_store_problem_names_the_samples_in_parity(protected: int, says: str) -> None:
    world = knowing(await in_parity(1, (600, 590, 600)), protected)
    world = with_report(world, "trainer/0", problem=Problem("StoreUnreachable", "no answer", "check it"))
    for index in range(3):
        world = with_shard(world, index, saved_samples=500)
    (update,) = snapshots(begin(world))
    assert update.status == "True"
    assert update.message.endswith(says)


@pytest.mark.parametrize(("rebuilt", "tier"), [(True, "Parity"), (False, "NewPod")])
async def test_rebuilt_event_is_emitted_once(tier: str, *, rebuilt: bool) -> None:
    failure = FailureRecord(time=1.0, role="shard", index=1, incarnation=1, kind="Killed", action="ReplaceShards")
    world = knowing(await in_parity(1, (600, 590, 600)), 590, lost_at=1.0, floor_samples=590, incarnation=2)
    told = {"incarnation": 2, "rebuilt": rebuilt, "restored_samples": 590, "resumed_samples": 590, "lost": ()}
    world = with_report(with_status(world, failures=(failure,)), "shard/1", **told, replayed_samples=64)
    state = apply_reports(begin(world))
    (record,) = state.status.failures
    assert (record.tier, record.lost_samples) == (tier, 0)
    events = [each for each in state.events if each.reason == "Rebuilt"]
    assert len(events) == rebuilt
    assert not rebuilt or "shard/1, incarnation 2" in events[0].message
    again = apply_reports(begin(with_status(world, state.status)))
    assert not [each for each in again.events if each.reason == "Rebuilt"]


@pytest.mark.parametrize(("shards", "k"), [(2, 1), (3, 2), (5, 2), (7, 3), (18, 4)])
def test_parity_ring_has_the_shards_of_the_status(shards: int, k: int) -> None:
    ring = Ring(shards, k)
    for shard in range(shards):
        for other in range(shards):
            assert recoverable(shard, {shard, other}, shards, k) == ring.recoverable(shard, {other} - {shard})


@pytest.mark.parametrize("flushed", [True, False])
async def test_drained_shard_is_not_orphaned(*, flushed: bool) -> None:
    """Its flush holds all that was acknowledged, and the heir computes the rest again."""
    world = await training(NOTHING, NOTHING)
    grant = ShardGrant(0, 150, (), flushed=flushed)
    state = apply_replacement(begin(world), Replace((grant,), (), 0, None, (), "a test"))
    given = losing(with_status(world, state.status), "trainer/1")
    bound = given.trainer_bound
    assert bound is not None
    assert bound > 150
    assert [(shard, first) for shard, first in given.orphaned if first < bound] == ([] if flushed else [(0, 150)])


async def test_recovery_input_without_replay_ignores_buffers() -> None:
    told = ((0, 0, 0), (500, 500, 500))
    world = await training(told, told, replay="Off")
    given = losing(world, "shard/1")
    (loss,) = given.losses
    assert (loss.replayed_after, loss.saved) == (None, world.job.status.shards[1].saved_samples)
    assert given.orphaned == ()


async def test_replay_time_is_measured_once() -> None:
    """It is told with what was lost, when all of it has come; at 100 samples a second, 500 are 5 s of training."""
    world = await training(NOTHING)
    learnt = world.job.status.policy.evolve(samples_per_second=100.0, replay_ratio=None)
    world = with_status(with_shard(world, 0, lost_at=world.now, floor_samples=0), policy=learnt)
    told = {"restored_samples": 0, "resumed_samples": 500, "replayed_samples": 500, "replay_s": 0.5}
    world = with_report(world, "shard/0", **told)
    once = apply_reports(begin(world)).status
    assert once.policy.replay_ratio == pytest.approx(0.1)
    assert apply_reports(begin(with_status(world, once))).status.policy.replay_ratio == once.policy.replay_ratio


@pytest.mark.parametrize(
    ("forgotten", "state", "replays"),
    [((), TrainerState.TRAINING, False), ((), TrainerState.LOADING, True), ((-1, -1, -1), TrainerState.TRAINING, True)],
)
async def test_leader_without_a_buffer_switches_replay_off(
    forgotten: Samples, state: TrainerState, *, replays: bool
) -> None:
    world = with_report(await training((forgotten, (0, 0, 0))), "trainer/0", state=state)
    runtime = apply_reports(begin(world)).status.runtime
    assert runtime is not None
    assert (runtime.replay.enabled) is replays
    assert replays or "predates" in runtime.replay.reason
