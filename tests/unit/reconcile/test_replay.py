"""Samples that trainers can push again and that parity holds, by their reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.choices import ReplayPolicy
from cpr_contract.reports import Problem, TrainerState
from cpr_operator.api.cprjob_spec import Redundancy
from cpr_operator.api.sizes import recoverable
from cpr_operator.api.status import FailureRecord
from cpr_operator.failures import Failure, Kind
from cpr_operator.reconcile import first_round, second_round
from cpr_operator.reconcile.apply_reports import apply_reports
from cpr_operator.reconcile.conditions import snapshots
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.recover import apply_replacement
from cpr_operator.reconcile.recovery_decision import recovery_input
from cpr_operator.reconcile.types import Lost, ReconcileInput
from cpr_operator.recovery.decide import Loss, RecoveryInput, Replace, ShardGrant
from cpr_trainer.parity.coding import Ring
from simulation.control_plane.run import input_in_mid_training
from support.parity_ring import needed
from support.reconcile_inputs import with_report, with_shard, with_spec, with_status, without_reports

Samples = tuple[int, ...]
#: The dropped samples of each shard in a trainer's buffer, and its newest saves.
Buffers = tuple[Samples, Samples]
NOTHING: Buffers = ((0, 0, 0), (0, 0, 0))


async def training(*trainers: Buffers, replay: str = "Auto") -> ReconcileInput:
    """Return a job with these buffers in the reports of its trainers, by rank."""
    observed = await input_in_mid_training(len(trainers))
    runtime = observed.job.status.runtime
    assert runtime is not None
    in_force = ReplayPolicy(memory_bytes=1 << 30 if replay == "Auto" else 0)
    observed = with_status(observed, runtime=runtime.evolve(replay=in_force))
    numbers = tuple(shard.incarnation for shard in observed.job.status.shards)
    for rank, (forgotten, saves) in enumerate(trainers):
        fields = {"forgotten": forgotten, "shard_saves": saves, "shard_incarnations": numbers}
        observed = with_report(observed, f"trainer/{rank}", **fields)
    return observed


def losing(observed: ReconcileInput, *names: str) -> RecoveryInput:
    """Return the inputs of the decision after the loss of these members."""
    state = begin(observed)
    dead = Lost(None, Failure(Kind.NODE_LOST, "NodeLost", "its node is gone", ended=True))
    given = recovery_input(replace(state, facts={**state.facts, **dict.fromkeys(names, dead)}))
    assert given is not None
    return given


def loss_of_shard_1(observed: ReconcileInput, *others: str) -> Loss:
    (loss,) = losing(observed, "shard/1", *others).losses
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
    trainers: tuple[Buffers, ...], lost: tuple[str, ...], saved: int | None, replayed_after: int | None
) -> None:
    loss = loss_of_shard_1(await training(*trainers), *lost)
    assert loss.replayed_after == replayed_after
    assert saved is None or loss.saved == saved, "what is forgotten because of a save is in it"


async def test_unresponsive_trainer_is_unreported() -> None:
    observed = await training(NOTHING, NOTHING)
    assert losing(without_reports(observed, "trainer/1"), "shard/1").unreported == (1,)
    assert losing(observed, "shard/1").unreported == ()


async def test_orphaned_shards_lose_the_buffer_of_a_lost_trainer() -> None:
    observed = await training(NOTHING, NOTHING)
    catching_up = with_shard(observed, 0, lost_at=observed.now, floor_samples=150)
    assert losing(catching_up, "trainer/1").orphaned == ((0, 150),)


@pytest.mark.parametrize(("replay", "polled"), [("Auto", {"trainer/1", "trainer/2"}), ("Off", set())])
async def test_all_trainers_are_polled_once_a_shard_is_lost(replay: str, polled: set[str]) -> None:
    """The leader reports the position of training. Each trainer reports only its own buffer."""
    observed = await training(NOTHING, NOTHING, NOTHING, replay=replay)
    leader = observed.job.status.trainers[0].uid
    observed = replace(observed, reports={leader: observed.reports[leader]})
    assert second_round(observed) == ()
    pods = tuple(pod for pod in observed.pods if (pod.role, pod.index) != ("shard", 1))
    lost = replace(observed, pods=pods)
    assert {f"{pod.role}/{pod.index}" for pod in second_round(lost)} == polled
    assert "trainer/0" in {f"{pod.role}/{pod.index}" for pod in first_round(lost)}


async def test_save_committed_during_a_replay_counts() -> None:
    """The shard died before its report. A save of its predecessor in trainers' reports may be off its lineage."""
    observed = await training(((0, 600, 0), (0, 600, 0)), ((0, 600, 0), (0, 600, 0)))
    observed = with_shard(observed, 1, lost_at=observed.now, saved_samples=100)
    loss = loss_of_shard_1(observed)
    assert (loss.saved, loss.replayed_after) == (600, 600)
    assert loss_of_shard_1(with_shard(observed, 1, incarnation=2)).saved == 100


async def in_parity(data_shards: int, protected: Samples) -> ReconcileInput:
    """A job of three shards and one trainer, which has forgotten up to 550 of shard 1."""
    observed = await training(((500, 550, 500), (500, 500, 500)))
    observed = with_spec(observed, "recovery", redundancy=Redundancy(data_shards=data_shards))
    return with_report(observed, "trainer/0", shard_protected=protected)


async def test_parity_counts_as_saved() -> None:
    observed = await in_parity(1, (600, 590, 600))
    loss = loss_of_shard_1(observed)
    assert (loss.saved, loss.replayed_after) == (590, 550)
    first, last = losing(observed, "shard/0", "shard/1").losses
    assert (first.saved, last.saved) == (500, 590), "shard 1 kept the parity of shard 0, and shard 2 that of shard 1"


async def test_parity_needs_its_stripe() -> None:
    observed = await in_parity(2, (600, 590, 600))
    assert {loss.saved for loss in losing(observed, "shard/0", "shard/1").losses} == {500}
    assert loss_of_shard_1(await in_parity(2, (600, -1, 600))).saved == 500
    observed = await in_parity(1, (600, 590, 600))
    assert loss_of_shard_1(with_shard(observed, 2, lost_at=observed.now)).saved == 500, (
        "its neighbour is being replaced"
    )


def knowing(observed: ReconcileInput, protected: int | None, **of_shard_1: Any) -> ReconcileInput:
    """Return the input with the parity of the last report, and other fields of shard 1."""
    progress = observed.job.status.progress.evolve(protected_samples=protected)
    return with_status(with_shard(observed, 1, **of_shard_1), progress=progress)


@pytest.mark.parametrize(("known", "saved"), [(580, 580), (None, 500)])
async def test_parity_of_the_last_report_counts_without_trainers(known: int | None, saved: int) -> None:
    observed = knowing(await in_parity(1, (600, 590, 600)), known, saved_samples=500)
    loss = loss_of_shard_1(observed, "trainer/0")
    assert (loss.saved, loss.replayed_after) == (saved, None)


@pytest.mark.parametrize(
    ("protected", "shard", "saved"),
    [
        # No trainer has spoken with it: what they may have forgotten since its last save is in the parity all the same.
        (-1, {"incarnation": 2, "state": "Restoring"}, 590),
        (590, {"state": "BelowFloor", "saved_samples": 100}, 500),  # the newest save in its trainer's report
    ],
    ids=["lost before it was there", "did not find its floor"],
)
async def test_parity_covers_a_shard_lost_again_unless_below_its_floor(
    protected: int, shard: dict[str, Any], saved: int
) -> None:
    observed = knowing(await in_parity(1, (600, protected, 600)), 580, lost_at=1.0, floor_samples=590, **shard)
    if shard["state"] == "Restoring":
        assert loss_of_shard_1(observed).saved == saved
    else:
        given = recovery_input(begin(observed))
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
    observed = with_report(await in_parity(1, protected), "trainer/0", shard_saves=saves)
    assert apply_reports(begin(observed)).status.progress.protected_samples == expected


@pytest.mark.parametrize(
    ("protected", "says"),
    [(590, "several go back to sample 500"), (500, "a shard that is lost now goes back to sample 500")],
)
async def test_store_problem_names_the_samples_in_parity(protected: int, says: str) -> None:
    observed = knowing(await in_parity(1, (600, 590, 600)), protected)
    observed = with_report(observed, "trainer/0", problem=Problem("StoreUnreachable", "no answer", "check it"))
    for index in range(3):
        observed = with_shard(observed, index, saved_samples=500)
    (update,) = snapshots(begin(observed))
    assert update.status == "True"
    assert update.message.endswith(says)


@pytest.mark.parametrize(("rebuilt", "tier"), [(True, "Parity"), (False, "NewPod")])
async def test_rebuilt_event_is_emitted_once(tier: str, *, rebuilt: bool) -> None:
    failure = FailureRecord(time=1.0, role="shard", index=1, incarnation=1, kind="Killed", action="ReplaceShards")
    observed = knowing(await in_parity(1, (600, 590, 600)), 590, lost_at=1.0, floor_samples=590, incarnation=2)
    fields = {"incarnation": 2, "rebuilt": rebuilt, "restored_samples": 590, "resumed_samples": 590, "lost": ()}
    observed = with_report(with_status(observed, failures=(failure,)), "shard/1", **fields, replayed_samples=64)
    state = apply_reports(begin(observed))
    (record,) = state.status.failures
    assert (record.tier, record.lost_samples) == (tier, 0)
    events = [each for each in state.events if each.reason == "Rebuilt"]
    assert len(events) == rebuilt
    assert not rebuilt or "shard/1, incarnation 2" in events[0].message
    again = apply_reports(begin(with_status(observed, state.status)))
    assert not [each for each in again.events if each.reason == "Rebuilt"]


@pytest.mark.parametrize(("shards", "k"), [(2, 1), (3, 2), (5, 2), (7, 3), (18, 4)])
def test_parity_ring_has_the_shards_of_the_status(shards: int, k: int) -> None:
    ring = Ring(shards, k)
    for shard in range(shards):
        for other in range(shards):
            assert recoverable(shard, {shard, other}, shards, k) == (other not in needed(ring, shard))


@pytest.mark.parametrize("flushed", [True, False])
async def test_drained_shard_is_not_orphaned(*, flushed: bool) -> None:
    """Its flush holds all that was acknowledged, and the heir computes the rest again."""
    observed = await training(NOTHING, NOTHING)
    grant = ShardGrant(0, 150, (), flushed=flushed)
    state = apply_replacement(begin(observed), Replace((grant,), (), 0, None, (), "a test"))
    given = losing(with_status(observed, state.status), "trainer/1")
    bound = given.trainer_bound
    assert bound is not None
    assert bound > 150
    assert [(shard, first) for shard, first in given.orphaned if first < bound] == ([] if flushed else [(0, 150)])


async def test_recovery_input_without_replay_ignores_buffers() -> None:
    buffers = ((0, 0, 0), (500, 500, 500))
    observed = await training(buffers, buffers, replay="Off")
    given = losing(observed, "shard/1")
    (loss,) = given.losses
    assert (loss.replayed_after, loss.saved) == (None, observed.job.status.shards[1].saved_samples)
    assert given.orphaned == ()


async def test_replay_time_is_measured_once() -> None:
    """The report has it with the losses, once all is replayed. At 100 samples a second, 500 are 5 s of training."""
    observed = await training(NOTHING)
    learnt = observed.job.status.policy.evolve(samples_per_second=100.0, replay_ratio=None)
    observed = with_status(with_shard(observed, 0, lost_at=observed.now, floor_samples=0), policy=learnt)
    fields = {"restored_samples": 0, "resumed_samples": 500, "replayed_samples": 500, "replay_s": 0.5}
    observed = with_report(observed, "shard/0", **fields)
    once = apply_reports(begin(observed)).status
    assert once.policy.replay_ratio == pytest.approx(0.1)
    assert apply_reports(begin(with_status(observed, once))).status.policy.replay_ratio == once.policy.replay_ratio


@pytest.mark.parametrize(
    ("forgotten", "state", "replays"),
    [((), TrainerState.TRAINING, False), ((), TrainerState.LOADING, True), ((-1, -1, -1), TrainerState.TRAINING, True)],
)
async def test_leader_without_a_buffer_switches_replay_off(
    forgotten: Samples, state: TrainerState, *, replays: bool
) -> None:
    observed = with_report(await training((forgotten, (0, 0, 0))), "trainer/0", state=state)
    runtime = apply_reports(begin(observed)).status.runtime
    assert runtime is not None
    assert (runtime.replay.enabled) is replays
    assert replays or "predates" in runtime.replay.reason
