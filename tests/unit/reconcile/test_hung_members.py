"""When silence of a member counts, and who is at fault where members call each other silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cpr_contract.processor import PRECISION_EMULATED
from cpr_contract.reports import SPILL_UNAVAILABLE, Problem, ShardReport, TrainerReport, TrainerState
from cpr_contract.spec import steps_in
from cpr_operator.api.evaluation_spec import EarlyStop
from cpr_operator.failures import Kind
from cpr_operator.reconcile import ReconcileInput, first_round, missed_by_peers, reconcile, second_round
from cpr_operator.reconcile.observe import HungEvidence, Peer, begin, find_hung, observe, with_unwatched
from cpr_operator.reconcile.polling import unreported_ends
from cpr_operator.reconcile.recovery_decision import STEPS_UNDER_WAY, recovery_input
from cpr_operator.reconcile.types import Lost, Report
from simulation.control_plane.run import Simulation, input_in_mid_training
from simulation.control_plane.workload import BATCH, Scenario, spec
from support.passes import pod_of, with_pod, with_report, with_shard, with_spec, with_status, without_reports


def missing(world: ReconcileInput, target: str, *reporters: str) -> ReconcileInput:
    """The world where these miss `target`, who does not answer itself."""
    world = without_reports(world, target)
    for name in reporters:
        world = with_report(world, name, silent=(target,))
    return world


def is_hung(world: ReconcileInput, name: str) -> bool:
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
async def test_hung_member_needs_enough_witnesses(
    trainers: int,
    target: str,
    reporters: tuple[str, ...],
    hung: bool,  # noqa: FBT001
) -> None:
    assert is_hung(missing(await input_in_mid_training(trainers), target, *reporters), target) is hung


async def test_restoring_member_or_one_missed_in_another_generation_is_not_hung() -> None:
    world = missing(await input_in_mid_training(1), "shard/1", "trainer/0")
    assert is_hung(world, "shard/1")
    assert not is_hung(with_shard(world, 1, lost_at=world.now), "shard/1")
    later = world.job.status.counters.model_copy(update={"generation": 2})
    assert not is_hung(with_status(world, counters=later), "shard/1")


def peers(trainers: Mapping[int, str], shards: Mapping[int, str]) -> dict[str, Peer]:
    """Members that all work, by index, and their nodes."""
    names = {f"trainer/{i}": node for i, node in trainers.items()} | {f"shard/{i}": n for i, n in shards.items()}
    return {name: Peer(name.partition("/")[0], node, settled=True, watches=True) for name, node in names.items()}  # type: ignore[arg-type]


THREE = ("shard/0", "shard/1", "shard/2")


@pytest.mark.parametrize(
    ("trainers", "shards", "missed", "hung"),
    [
        pytest.param(
            {0: "a"},
            {0: "b", 1: "c", 2: "d"},
            {"trainer/0": THREE, **dict.fromkeys(THREE, ("trainer/0",))},
            {"trainer/0": HungEvidence(THREE)},
            id="the only trainer is cut off from all shards",
        ),
        pytest.param(
            {0: "a", 1: "a"},
            {0: "b", 1: "c", 2: "d"},
            {"trainer/0": THREE, "trainer/1": THREE, **dict.fromkeys(THREE, ("trainer/0", "trainer/1"))},
            {"trainer/0": HungEvidence(THREE), "trainer/1": HungEvidence(THREE)},
            id="both trainers are on a node that is cut off from all shards",
        ),
        pytest.param(
            {0: "a"},
            {0: "b", 1: "c", 2: "d"},
            {"trainer/0": THREE, "shard/0": ("trainer/0",)},
            {},
            id="only one shard has noticed yet that the trainer is cut off",
        ),
        pytest.param(
            {0: "a"},
            {0: "b", 1: "c", 2: "d"},
            {"trainer/0": ("shard/0",), "shard/0": ("trainer/0",)},
            {"shard/0": HungEvidence(("trainer/0",))},
            id="one link is broken: fewer than half of the shards",
        ),
        pytest.param(
            {0: "a"},
            {0: "b"},
            {"trainer/0": ("shard/0",), "shard/0": ("trainer/0",)},
            {"trainer/0": HungEvidence(("shard/0",))},
            id="one trainer and one shard: the shard's state is the larger loss",
        ),
        pytest.param(
            {0: "a"},
            {0: "b", 1: "b", 2: "b"},
            {"trainer/0": THREE},
            {name: HungEvidence(("trainer/0",)) for name in THREE},
            id="all shards were on one node, and nobody misses the trainer",
        ),
        pytest.param(
            {0: "a", 1: "a", 2: "a"},
            {0: "b", 1: "b"},
            {
                **{f"trainer/{i}": ("shard/0", "shard/1") for i in range(3)},
                **{f"shard/{i}": ("trainer/0", "trainer/1", "trainer/2") for i in range(2)},
            },
            {f"shard/{i}": HungEvidence(("trainer/0", "trainer/1", "trainer/2")) for i in range(2)},
            id="a cut between two nodes: the side with fewer members",
        ),
        pytest.param(
            {0: "a", 1: "b"},
            {0: "c", 1: "d", 2: "b"},
            {"trainer/0": ("shard/2", "trainer/1"), "shard/0": ("trainer/1",), "shard/1": ("trainer/1",)},
            {
                "trainer/1": HungEvidence(("trainer/0", "shard/0", "shard/1")),
                "shard/2": HungEvidence(("trainer/0",)),
            },
            id="a trainer and a shard on one lost node: the trainer would be no witness",
        ),
        pytest.param(
            {0: "a", 1: "b", 2: "c"},
            {0: "c", 1: "d", 2: "b"},
            {"trainer/0": ("shard/2", "trainer/1"), "shard/0": ("trainer/1",)},
            {
                "trainer/1": HungEvidence(("trainer/0", "shard/0")),
                "shard/2": HungEvidence(("trainer/0",), same_node="trainer/1"),
            },
            id="on a lost node the word of one is enough, though two could tell",
        ),
        pytest.param(
            {0: "b", 1: "b", 2: "c"},
            {0: "c", 1: "d", 2: "b"},
            {"trainer/0": ("shard/2", "trainer/1"), "shard/0": ("trainer/1",)},
            {"trainer/1": HungEvidence(("trainer/0", "shard/0"))},
            id="but not the word of one on that very node",
        ),
        pytest.param(
            {0: "a", 1: "e", 2: "c"},
            {0: "c", 1: "d", 2: "b"},
            {"trainer/0": ("shard/2", "trainer/1"), "shard/0": ("trainer/1",)},
            {"trainer/1": HungEvidence(("trainer/0", "shard/0"))},
            id="on another node two have to tell",
        ),
    ],
)
def test_hung_members_of_a_partition(
    trainers: Mapping[int, str],
    shards: Mapping[int, str],
    missed: Mapping[str, tuple[str, ...]],
    hung: Mapping[str, HungEvidence],
) -> None:
    assert find_hung(peers(trainers, shards), missed, failed_nodes={}) == hung


def test_recently_failed_node_needs_one_witness_for_its_members() -> None:
    everybody = peers({0: "a", 1: "c"}, {0: "c", 1: "d", 2: "b"})
    missed = {"trainer/0": ("shard/2",)}
    assert find_hung(everybody, missed, failed_nodes={}) == {}
    beside = {"shard/2": HungEvidence(("trainer/0",), same_node="trainer/1")}
    assert find_hung(everybody, missed, failed_nodes={"b": "trainer/1"}) == beside


def test_new_trainer_is_not_awaited_as_a_witness() -> None:
    everybody = peers({0: "a", 1: "c"}, {0: "b", 1: "d"})
    everybody["trainer/1"] = replace(everybody["trainer/1"], settled=False, watches=False)
    missed = {"trainer/0": ("shard/0",)}
    assert find_hung(everybody, missed, failed_nodes={}) == {"shard/0": HungEvidence(("trainer/0",))}


@pytest.mark.parametrize("trainers", [1, 2])
async def test_trainers_cut_off_from_shards_are_the_only_replaced_members(trainers: int) -> None:
    world = await input_in_mid_training(trainers)
    cut_off = tuple(f"trainer/{i}" for i in range(trainers))
    reports = {
        uid: replace(report, silent=THREE, state=TrainerState.PAUSED, waiting_for=THREE)
        if isinstance(report, TrainerReport)
        else replace(report, silent=cut_off)
        for uid, report in world.reports.items()
    }
    status = reconcile(replace(world, reports=reports)).status
    assert status.phase == "Recovering"
    assert [shard.incarnation for shard in status.shards] == [1, 1, 1]
    assert [trainer.incarnation for trainer in status.trainers] == [2] * trainers


async def test_unresponsive_members_of_one_node_are_replaced_together() -> None:
    world = with_shard(await input_in_mid_training(2), 2, node="island")
    leader, other = world.job.status.trainers
    world = with_status(world, trainers=(leader, other.model_copy(update={"node": "island"})))
    for name in ("trainer/1", "shard/2"):
        world = with_pod(world, name, node="island")
    world = without_reports(world, "trainer/1", "shard/2")
    world = with_report(world, "trainer/0", silent=("shard/2", "trainer/1"))
    status = reconcile(with_report(world, "shard/0", silent=("trainer/1",))).status
    assert [shard.incarnation for shard in status.shards] == [1, 1, 2]
    assert [trainer.incarnation for trainer in status.trainers] == [1, 2]
    assert (status.shards[2].avoid, status.trainers[1].avoid) == ("island", "island")


async def wakes(world: ReconcileInput) -> tuple[str, float, bool]:
    """The phase, when the next pass is due, and whether training stands still; saves are ten minutes apart."""
    plan = world.job.status.plan
    assert plan is not None
    world = with_status(world, plan=plan.model_copy(update={"interval_seconds": 600.0}))
    outcome = reconcile(with_spec(world, "snapshots", dense_interval_seconds=600))
    assert outcome.wake_after_s is not None
    return outcome.status.phase, outcome.wake_after_s, outcome.stalled


async def test_reconciliation_is_soon_while_a_member_or_the_leader_is_unresponsive() -> None:
    world = await input_in_mid_training(2)
    soon_s = world.timing.changing_s
    assert await wakes(missing(world, "shard/1", "trainer/0")) == ("Running", soon_s / 2, True)
    assert await wakes(replace(world, reports={})) == ("Running", soon_s, False)


async def test_paused_leader_is_polled_again_soon() -> None:
    """Whether it can name them yet or not; but not one that waits for the store, which nobody is replaced for."""
    world = await input_in_mid_training(2)
    uid = pod_of(world, "trainer/0").uid
    world = replace(world, reports={uid: world.reports[uid]})
    _, usual_s, stalled = await wakes(world)
    assert (usual_s > world.timing.changing_s, stalled) == (True, False)
    slow = Problem(PRECISION_EMULATED, "bf16 is emulated.", "Train in fp32.")
    full = Problem(SPILL_UNAVAILABLE, "The disk is full.", "Free it.")
    for names, problem in ((("shard/1",), None), ((), None), ((), slow), ((), full)):
        waiting = with_report(world, "trainer/0", state=TrainerState.PAUSED, waiting_for=names, problem=problem)
        assert await wakes(waiting) == ("Running", world.timing.changing_s / 2, True)
    away = Problem("StoreUnreachable", "It is away.", "Wait.")
    assert await wakes(with_report(world, "trainer/0", state=TrainerState.PAUSED, problem=away)) == (
        "Running",
        usual_s,
        False,
    )


async def test_polling_covers_the_leader_alone_while_training_and_all_otherwise() -> None:
    world = await input_in_mid_training(2)
    leader = "job-12345-trainer-0-1"
    assert [pod.name for pod in first_round(world)] == [leader]
    assert set(first_round(replace(world, leader_unresponsive=True))) == set(world.pods)
    assert second_round(world) == ()
    others = {pod.name for pod in world.pods} - {leader}
    for seen in (replace(world, reports={}), missing(world, "shard/1", "trainer/0")):
        assert {pod.name for pod in second_round(seen)} == others


async def test_missed_by_peers_needs_one_report() -> None:
    world = await input_in_mid_training(2)
    assert missed_by_peers(world) == frozenset()
    for witness in ("trainer/0", "trainer/1", "shard/0"):
        assert missed_by_peers(missing(world, "shard/1", witness)) == {pod_of(world, "shard/1").uid}
    restores = with_shard(world, 1, lost_at=world.now)
    assert missed_by_peers(missing(restores, "shard/1", "trainer/0")) == frozenset()


async def at_the_last_step(trainers: int) -> ReconcileInput:
    """A world whose shards have applied all steps of all trainers."""
    world = await input_in_mid_training(trainers)
    last = steps_in(world.job.status.ledger.total_samples, world.job.spec.data.batch_size)
    reports = {
        uid: replace(report, applied=(last,) * trainers) if isinstance(report, ShardReport) else report
        for uid, report in world.reports.items()
    }
    return replace(world, reports=reports)


async def test_unreported_end_of_a_trainer_after_its_last_step() -> None:
    world = missing(await at_the_last_step(2), "trainer/0", "shard/0", "shard/1", "shard/2")
    uid = pod_of(world, "trainer/0").uid
    assert unreported_ends(world) == {uid}
    assert is_hung(world, "trainer/0")
    assert not is_hung(replace(world, ending=frozenset({uid})), "trainer/0")


async def test_unreported_ends_exclude_lost_nodes_and_unfinished_trainers() -> None:
    world = missing(await at_the_last_step(2), "trainer/0", "shard/0")
    assert unreported_ends(replace(world, lost_node=pod_of(world, "trainer/0").node)) == frozenset()
    assert unreported_ends(missing(await input_in_mid_training(2), "trainer/0", "shard/0")) == frozenset()


async def test_unreported_ends_with_early_stop_need_a_common_step() -> None:
    world = missing(missing(await input_in_mid_training(2), "trainer/0", *THREE), "trainer/1")
    both = frozenset(pod_of(world, f"trainer/{rank}").uid for rank in (0, 1))
    reports = {
        uid: replace(report, silent=("trainer/0", "trainer/1"), applied=(7, 7))
        for uid, report in world.reports.items()
        if isinstance(report, ShardReport)
    }
    world = replace(world, reports=reports)
    assert unreported_ends(world) == frozenset()
    stop = EarlyStop(metric="AUC", patience=1)
    world = with_spec(world, "evaluation", early_stop=stop)
    assert unreported_ends(world) == both
    one = {uid: replace(report, silent=("trainer/0",)) for uid, report in reports.items()}
    assert unreported_ends(replace(world, reports=one)) == frozenset()
    apart = {uid: replace(report, applied=(7, 6)) for uid, report in reports.items()}
    assert unreported_ends(replace(world, reports=apart)) != both
    none = {uid: replace(report, applied=()) for uid, report in reports.items()}
    assert unreported_ends(replace(world, reports=none)) == frozenset()


@pytest.mark.parametrize("watches", [False, True])
def test_shards_of_a_lost_node_are_hung_unless_a_trainer_watches_them(*, watches: bool) -> None:
    peers = {
        "trainer/0": Peer("trainer", "lost", settled=True, watches=False),
        "trainer/1": Peer("trainer", "other", settled=False, watches=watches),
        "trainer/2": Peer("trainer", "lost", settled=True, watches=False),  # it may have ended
        "shard/0": Peer("shard", "other", settled=True, watches=True),
        "shard/1": Peer("shard", "lost", settled=True, watches=False),
        "shard/2": Peer("shard", "lost", settled=False, watches=False),
    }
    found = {"trainer/0": HungEvidence(("shard/0",))}
    unheard = {} if watches else {"shard/1": HungEvidence((), same_node="trainer/0")}
    assert with_unwatched(found, peers, {"trainer/0", "trainer/2", "shard/1", "shard/2"}) == found | unheard
    assert with_unwatched({}, peers, {"trainer/0", "trainer/2", "shard/1", "shard/2"}) == {}


STARTED = 700
FASTEST_STEP = 12


async def world_after(dense_sync: str) -> ReconcileInput:
    """Trainer 1, which was at step 12, and shard 0 are gone; trainer 0 has started 700 samples."""
    driver = Simulation(Scenario("half", (), spec(trainers__denseSync=dense_sync)))
    await driver.passes(10)
    world = await driver.pass_input()
    gone = {("trainer", 1), ("shard", 0)}
    pods = tuple(pod for pod in world.pods if (pod.role, pod.index) not in gone)
    reports = dict[str, Report]()
    for pod in pods:
        match world.reports[pod.uid]:
            case TrainerReport() as report:
                reports[pod.uid] = replace(report, samples_started=STARTED)
            case ShardReport() as report:
                reports[pod.uid] = replace(report, applied=(6, FASTEST_STEP))
    return replace(world, pods=pods, reports=reports)


@pytest.mark.parametrize(
    ("dense_sync", "bound"),
    [("AllReduce", STARTED), ("ShadowMA", (FASTEST_STEP + STEPS_UNDER_WAY) * BATCH)],
)
async def test_trainer_bound_in_shadow_modes_uses_shards_reports(dense_sync: str, bound: int) -> None:
    world = await world_after(dense_sync)
    given = recovery_input(begin(world))
    assert given is not None
    assert given.trainer_bound == bound
    assert given.dense_charged == (dense_sync == "AllReduce")
