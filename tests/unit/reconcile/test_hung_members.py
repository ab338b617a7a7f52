"""Hung members: witnesses, partitions, and the pods that are polled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cpr_contract.processor import PRECISION_EMULATED
from cpr_contract.reports import SPILL_UNAVAILABLE, Problem, ShardReport, TrainerReport, TrainerState
from cpr_contract.spec import steps_in
from cpr_operator.api.data_spec import EarlyStop
from cpr_operator.failures import Kind
from cpr_operator.reconcile import ReconcileInput, first_round, missed_by_peers, reconcile, second_round
from cpr_operator.reconcile.observe import HungEvidence, Peer, begin, find_hung, observe, with_unwatched
from cpr_operator.reconcile.polling import unreported_ends
from cpr_operator.reconcile.recovery_decision import STEPS_UNDER_WAY, recovery_input
from cpr_operator.reconcile.types import Lost, Report
from simulation.control_plane.run import Simulation, input_in_mid_training
from simulation.control_plane.workload import BATCH, Scenario, spec
from support.reconcile_inputs import pod_of, with_pod, with_report, with_shard, with_spec, with_status, without_reports


def missing(observed: ReconcileInput, target: str, *reporters: str) -> ReconcileInput:
    """Return the input in which these miss `target`, which does not answer."""
    observed = without_reports(observed, target)
    for name in reporters:
        observed = with_report(observed, name, silent=(target,))
    return observed


def is_hung(observed: ReconcileInput, name: str) -> bool:
    fact = observe(observed)[name]
    return isinstance(fact, Lost) and fact.failure.kind is Kind.HUNG


@pytest.mark.parametrize(
    ("trainers", "target", "reporters", "hung"),
    [
        (2, "shard/1", ("trainer/0", "trainer/1"), True),
        (2, "shard/1", ("trainer/0",), False),
        (2, "shard/1", (), False),
        (1, "shard/1", ("trainer/0",), True),  # no other member could report it
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
    observed = missing(await input_in_mid_training(1), "shard/1", "trainer/0")
    assert is_hung(observed, "shard/1")
    assert not is_hung(with_shard(observed, 1, lost_at=observed.now), "shard/1")
    later = observed.job.status.counters.model_copy(update={"generation": 2})
    assert not is_hung(with_status(observed, counters=later), "shard/1")


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
            id="all shards were on one node, and none misses the trainer",
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
            id="a trainer and a shard on one lost node: the trainer would not be a witness",
        ),
        pytest.param(
            {0: "a", 1: "b", 2: "c"},
            {0: "c", 1: "d", 2: "b"},
            {"trainer/0": ("shard/2", "trainer/1"), "shard/0": ("trainer/1",)},
            {
                "trainer/1": HungEvidence(("trainer/0", "shard/0")),
                "shard/2": HungEvidence(("trainer/0",), same_node="trainer/1"),
            },
            id="on a lost node one witness is enough, though two could report",
        ),
        pytest.param(
            {0: "b", 1: "b", 2: "c"},
            {0: "c", 1: "d", 2: "b"},
            {"trainer/0": ("shard/2", "trainer/1"), "shard/0": ("trainer/1",)},
            {"trainer/1": HungEvidence(("trainer/0", "shard/0"))},
            id="a witness on that very node does not count",
        ),
        pytest.param(
            {0: "a", 1: "e", 2: "c"},
            {0: "c", 1: "d", 2: "b"},
            {"trainer/0": ("shard/2", "trainer/1"), "shard/0": ("trainer/1",)},
            {"trainer/1": HungEvidence(("trainer/0", "shard/0"))},
            id="on another node two witnesses are needed",
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
    all_peers = peers({0: "a", 1: "c"}, {0: "c", 1: "d", 2: "b"})
    missed = {"trainer/0": ("shard/2",)}
    assert find_hung(all_peers, missed, failed_nodes={}) == {}
    same_node = {"shard/2": HungEvidence(("trainer/0",), same_node="trainer/1")}
    assert find_hung(all_peers, missed, failed_nodes={"b": "trainer/1"}) == same_node


def test_new_trainer_is_not_awaited_as_a_witness() -> None:
    all_peers = peers({0: "a", 1: "c"}, {0: "b", 1: "d"})
    all_peers["trainer/1"] = replace(all_peers["trainer/1"], settled=False, watches=False)
    missed = {"trainer/0": ("shard/0",)}
    assert find_hung(all_peers, missed, failed_nodes={}) == {"shard/0": HungEvidence(("trainer/0",))}


@pytest.mark.parametrize("trainers", [1, 2])
async def test_trainers_cut_off_from_shards_are_the_only_replaced_members(trainers: int) -> None:
    observed = await input_in_mid_training(trainers)
    cut_off = tuple(f"trainer/{i}" for i in range(trainers))
    reports = {
        uid: replace(report, silent=THREE, state=TrainerState.PAUSED, waiting_for=THREE)
        if isinstance(report, TrainerReport)
        else replace(report, silent=cut_off)
        for uid, report in observed.reports.items()
    }
    status = reconcile(replace(observed, reports=reports)).status
    assert status.phase == "Recovering"
    assert [shard.incarnation for shard in status.shards] == [1, 1, 1]
    assert [trainer.incarnation for trainer in status.trainers] == [2] * trainers


async def test_unresponsive_members_of_one_node_are_replaced_together() -> None:
    observed = with_shard(await input_in_mid_training(2), 2, node="island")
    leader, other = observed.job.status.trainers
    observed = with_status(observed, trainers=(leader, other.model_copy(update={"node": "island"})))
    for name in ("trainer/1", "shard/2"):
        observed = with_pod(observed, name, node="island")
    observed = without_reports(observed, "trainer/1", "shard/2")
    observed = with_report(observed, "trainer/0", silent=("shard/2", "trainer/1"))
    status = reconcile(with_report(observed, "shard/0", silent=("trainer/1",))).status
    assert [shard.incarnation for shard in status.shards] == [1, 1, 2]
    assert [trainer.incarnation for trainer in status.trainers] == [1, 2]
    assert (status.shards[2].avoid, status.trainers[1].avoid) == ("island", "island")


async def wakes(observed: ReconcileInput) -> tuple[str, float, bool]:
    """The phase, when the next pass is due, and whether training stands still; saves are ten minutes apart."""
    plan = observed.job.status.plan
    assert plan is not None
    observed = with_status(observed, plan=plan.model_copy(update={"interval_seconds": 600.0}))
    outcome = reconcile(with_spec(observed, "snapshots", dense_interval_seconds=600))
    assert outcome.wake_after_s is not None
    return outcome.status.phase, outcome.wake_after_s, outcome.stalled


async def test_reconciliation_is_soon_while_a_member_or_the_leader_is_unresponsive() -> None:
    observed = await input_in_mid_training(2)
    soon_s = observed.timing.changing_s
    assert await wakes(missing(observed, "shard/1", "trainer/0")) == ("Running", soon_s / 2, True)
    assert await wakes(replace(observed, reports={})) == ("Running", soon_s, False)


async def test_paused_leader_is_polled_again_soon() -> None:
    """With and without names of members; but not for a pause of the store, which replaces no member."""
    observed = await input_in_mid_training(2)
    uid = pod_of(observed, "trainer/0").uid
    observed = replace(observed, reports={uid: observed.reports[uid]})
    _, usual_s, stalled = await wakes(observed)
    assert (usual_s > observed.timing.changing_s, stalled) == (True, False)
    slow = Problem(PRECISION_EMULATED, "bf16 is emulated.", "Train in fp32.")
    full = Problem(SPILL_UNAVAILABLE, "The disk is full.", "Free it.")
    for names, problem in ((("shard/1",), None), ((), None), ((), slow), ((), full)):
        waiting = with_report(observed, "trainer/0", state=TrainerState.PAUSED, waiting_for=names, problem=problem)
        assert await wakes(waiting) == ("Running", observed.timing.changing_s / 2, True)
    unavailable = Problem("StoreUnreachable", "It is away.", "Wait.")
    assert await wakes(with_report(observed, "trainer/0", state=TrainerState.PAUSED, problem=unavailable)) == (
        "Running",
        usual_s,
        False,
    )


async def test_polling_covers_the_leader_alone_while_training_and_all_otherwise() -> None:
    observed = await input_in_mid_training(2)
    leader = "job-12345-trainer-0-1"
    assert [pod.name for pod in first_round(observed)] == [leader]
    assert set(first_round(replace(observed, leader_unresponsive=True))) == set(observed.pods)
    assert second_round(observed) == ()
    others = {pod.name for pod in observed.pods} - {leader}
    for seen in (replace(observed, reports={}), missing(observed, "shard/1", "trainer/0")):
        assert {pod.name for pod in second_round(seen)} == others


async def test_missed_by_peers_needs_one_report() -> None:
    observed = await input_in_mid_training(2)
    assert missed_by_peers(observed) == frozenset()
    for witness in ("trainer/0", "trainer/1", "shard/0"):
        assert missed_by_peers(missing(observed, "shard/1", witness)) == {pod_of(observed, "shard/1").uid}
    restores = with_shard(observed, 1, lost_at=observed.now)
    assert missed_by_peers(missing(restores, "shard/1", "trainer/0")) == frozenset()


async def at_the_last_step(trainers: int) -> ReconcileInput:
    """Return an input with shards that have applied all steps of all trainers."""
    observed = await input_in_mid_training(trainers)
    last = steps_in(observed.job.status.ledger.total_samples, observed.job.spec.data.batch_size)
    reports = {
        uid: replace(report, applied=(last,) * trainers) if isinstance(report, ShardReport) else report
        for uid, report in observed.reports.items()
    }
    return replace(observed, reports=reports)


async def test_unreported_end_of_a_trainer_after_its_last_step() -> None:
    observed = missing(await at_the_last_step(2), "trainer/0", "shard/0", "shard/1", "shard/2")
    uid = pod_of(observed, "trainer/0").uid
    assert unreported_ends(observed) == {uid}
    assert is_hung(observed, "trainer/0")
    assert not is_hung(replace(observed, ending=frozenset({uid})), "trainer/0")


async def test_unreported_ends_exclude_lost_nodes_and_unfinished_trainers() -> None:
    observed = missing(await at_the_last_step(2), "trainer/0", "shard/0")
    assert unreported_ends(replace(observed, lost_node=pod_of(observed, "trainer/0").node)) == frozenset()
    assert unreported_ends(missing(await input_in_mid_training(2), "trainer/0", "shard/0")) == frozenset()


async def test_unreported_ends_with_early_stop_need_a_common_step() -> None:
    observed = missing(missing(await input_in_mid_training(2), "trainer/0", *THREE), "trainer/1")
    both = frozenset(pod_of(observed, f"trainer/{rank}").uid for rank in (0, 1))
    reports = {
        uid: replace(report, silent=("trainer/0", "trainer/1"), applied=(7, 7))
        for uid, report in observed.reports.items()
        if isinstance(report, ShardReport)
    }
    observed = replace(observed, reports=reports)
    assert unreported_ends(observed) == frozenset()
    stop = EarlyStop(metric="AUC", patience=1)
    observed = with_spec(observed, "evaluation", early_stop=stop)
    assert unreported_ends(observed) == both
    one = {uid: replace(report, silent=("trainer/0",)) for uid, report in reports.items()}
    assert unreported_ends(replace(observed, reports=one)) == frozenset()
    apart = {uid: replace(report, applied=(7, 6)) for uid, report in reports.items()}
    assert unreported_ends(replace(observed, reports=apart)) != both
    none = {uid: replace(report, applied=()) for uid, report in reports.items()}
    assert unreported_ends(replace(observed, reports=none)) == frozenset()


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
    unwatched = {} if watches else {"shard/1": HungEvidence((), same_node="trainer/0")}
    assert with_unwatched(found, peers, {"trainer/0", "trainer/2", "shard/1", "shard/2"}) == found | unwatched
    assert with_unwatched({}, peers, {"trainer/0", "trainer/2", "shard/1", "shard/2"}) == {}


STARTED = 700
FASTEST_STEP = 12


async def input_after(dense_sync: str) -> ReconcileInput:
    """Trainer 1, which was at step 12, and shard 0 are gone; trainer 0 has started 700 samples."""
    driver = Simulation(Scenario("half", (), spec(trainers__denseSync=dense_sync)))
    await driver.passes(10)
    observed = await driver.reconcile_input()
    lost = {("trainer", 1), ("shard", 0)}
    pods = tuple(pod for pod in observed.pods if (pod.role, pod.index) not in lost)
    reports = dict[str, Report]()
    for pod in pods:
        match observed.reports[pod.uid]:
            case TrainerReport() as report:
                reports[pod.uid] = replace(report, samples_started=STARTED)
            case ShardReport() as report:
                reports[pod.uid] = replace(report, applied=(6, FASTEST_STEP))
    return replace(observed, pods=pods, reports=reports)


@pytest.mark.parametrize(
    ("dense_sync", "bound"),
    [("AllReduce", STARTED), ("ShadowMA", (FASTEST_STEP + STEPS_UNDER_WAY) * BATCH)],
)
async def test_trainer_bound_in_shadow_modes_uses_shards_reports(dense_sync: str, bound: int) -> None:
    observed = await input_after(dense_sync)
    given = recovery_input(begin(observed))
    assert given is not None
    assert given.trainer_bound == bound
    assert given.dense_charged == (dense_sync == "AllReduce")
