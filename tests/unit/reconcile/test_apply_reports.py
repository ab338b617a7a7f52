"""What a leader tells settles what was set aside for it."""

from dataclasses import replace

import pytest

from cpr_contract.reports import BestEvaluation, HeldOutScores, TrainerReport, TrainerState
from cpr_contract.roster import AnchorRef
from cpr_operator.api.status import Anchor, BestModel, Fork, HeldOut, Status
from cpr_operator.ledger import union
from cpr_operator.reconcile.apply_reports import apply_reports
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.pass_ import PassInput
from simulation.control_plane.run import input_in_mid_training

RESULT = AnchorRef("12345678-0000/gen-0001/dense/anchor-2000/manifest.json", "ab" * 32, 1, 20, 2000)


async def told(result: AnchorRef | None) -> PassInput:
    """A job that set [100, 300) aside for the dense state; its leader, of the group before, reports [200, 250)."""
    world = await input_in_mid_training(1)
    status, uid = world.job.status, world.job.status.trainers[0].uid
    report = world.reports[uid]
    assert isinstance(report, TrainerReport)
    report = replace(report, state=TrainerState.FINISHED, lost=((200, 250),), result=result)
    status = status.evolve(
        counters=status.counters.evolve(group=status.counters.group + 1),
        dense=status.dense.evolve(reserved=((100, 300),)),
    )
    return replace(world, job=replace(world.job, status=status), reports={**world.reports, uid: report})


async def test_a_final_anchor_settles_the_dense_state_whatever_group_was_to_train_on() -> None:
    world = await told(RESULT)
    status = apply_reports(begin(world)).status
    assert status.dense.reserved == ()
    assert status.ledger.ranges == (((200, 250),),) * len(status.shards)


async def test_a_group_of_the_past_settles_nothing() -> None:
    world = await told(None)
    status = apply_reports(begin(world)).status
    assert status.dense.reserved == ((100, 300),)
    assert status.ledger.ranges == world.job.status.ledger.ranges


@pytest.mark.parametrize(
    ("known_at", "told_at", "expected"),
    [
        (None, 200, 200),
        (100, 200, 200),
        (100, None, 100),  # a new leader has none to tell
        (10**9, None, None),  # a rollback has undone it
    ],
)
async def test_the_last_evaluation_stays_unless_it_is_undone(
    known_at: int | None, told_at: int | None, expected: int | None
) -> None:
    world = await input_in_mid_training(1)
    status, uid = world.job.status, world.job.status.trainers[0].uid
    report = world.reports[uid]
    assert isinstance(report, TrainerReport)
    if known_at is not None:
        known = HeldOut(step=1, samples=known_at, scored=5, auc=0.6)
        status = status.evolve(progress=status.progress.evolve(held_out=known))
    told = None if told_at is None else HeldOutScores(2, told_at, 5, 0.7, 0.5, 0.9, 1.1)
    reports = {**world.reports, uid: replace(report, evaluation=told)}
    world = replace(world, job=replace(world.job, status=status), reports=reports)
    found = apply_reports(begin(world)).status.progress.held_out
    assert (None if found is None else found.samples) == expected
    if told_at is not None:
        assert found == HeldOut(
            step=2, samples=200, scored=5, auc=0.7, logloss=0.5, normalised_entropy=0.9, calibration=1.1
        )


@pytest.mark.parametrize(
    ("known_at", "told_at", "expected"),
    [(None, 200, 200), (100, 200, 200), (100, None, 100), (900, None, None)],
    ids=["first", "better", "new leader", "undone"],
)
async def test_the_best_model_stays_known_unless_it_is_undone(
    known_at: int | None, told_at: int | None, expected: int | None
) -> None:
    world = await input_in_mid_training(1)
    status, uid = world.job.status, world.job.status.trainers[0].uid
    report = world.reports[uid]
    assert isinstance(report, TrainerReport)
    if known_at is not None:
        known = BestModel(anchor=Anchor.of(replace(RESULT, samples=known_at, generation=0)), value=0.7, since=1)
        status = status.evolve(best=known, forks=(Fork(generation=1, anchor=Anchor.of(replace(RESULT, samples=500))),))
    best = None if told_at is None else BestEvaluation(replace(RESULT, samples=told_at), 0.8, 0)
    reports = {**world.reports, uid: replace(report, best=best)}
    found = apply_reports(begin(replace(world, job=replace(world.job, status=status), reports=reports))).status.best
    assert (None if found is None else found.anchor.samples) == expected


@pytest.mark.parametrize("teller", ["shard", "leader"])
async def test_a_report_of_8000_ranges_leaves_a_status_that_parses_and_is_charged_in_full(teller: str) -> None:
    world = await input_in_mid_training(2)
    status, leader = world.job.status, world.reports[world.job.status.trainers[0].uid]
    assert isinstance(leader, TrainerReport)
    status = status.evolve(ledger=status.ledger.evolve(total_samples=20_000))
    world = replace(world, job=replace(world.job, status=status))
    reports = {**world.reports, status.trainers[0].uid: replace(leader, total_samples=20_000)}
    told = tuple((2 * n, 2 * n + 1) for n in range(8000))
    uid = (status.shards if teller == "shard" else status.trainers)[0].uid
    reports[uid] = replace(reports[uid], lost=told)
    status = apply_reports(begin(replace(world, reports=reports))).status
    again = Status.model_validate(status.to_dict())
    assert again.ledger == status.ledger
    charged = again.ledger.ranges
    assert charged[0] == union(charged[0], told)
    assert (charged[1] == union(charged[1], told)) is (teller == "leader")
