"""Reports of shards and of the leader settle reservations."""

from dataclasses import replace

import pytest

from cpr_contract.pinned_data import SegmentScores
from cpr_contract.reports import BestEvaluation, HeldOutScores, TrainerState
from cpr_contract.roster import AnchorRef
from cpr_operator.api.status import Anchor, BestModel, Fork, HeldOut, Segment, Status
from cpr_operator.ledger import union
from cpr_operator.reconcile.apply_reports import apply_reports
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.types import ReconcileInput
from simulation.control_plane.run import input_in_mid_training
from support.reconcile_inputs import with_report, with_status

RESULT = AnchorRef("12345678-0000/gen-0001/dense/anchor-2000/manifest.json", "ab" * 32, 1, 20, 2000)


async def input_with(result: AnchorRef | None) -> ReconcileInput:
    """A job with [100, 300) reserved for the dense state; its leader, of the group before, reports [200, 250)."""
    observed = await input_in_mid_training(1)
    status = observed.job.status
    counters = status.counters.evolve(group=status.counters.group + 1)
    observed = with_status(observed, counters=counters, dense=status.dense.evolve(reserved=((100, 300),)))
    return with_report(observed, "trainer/0", state=TrainerState.FINISHED, lost=((200, 250),), result=result)


async def test_dense_state_is_settled_by_a_final_anchor_of_the_group_before() -> None:
    status = apply_reports(begin(await input_with(RESULT))).status
    assert status.dense.reserved == ()
    assert status.ledger.ranges == (((200, 250),),) * len(status.shards)
    observed = await input_with(None)
    status = apply_reports(begin(observed)).status
    assert status.dense.reserved == ((100, 300),)
    assert status.ledger.ranges == observed.job.status.ledger.ranges


KNOWN_AND_REPORTED = pytest.mark.parametrize(
    ("known_at", "reported_at", "expected"),
    [(None, 200, 200), (100, 200, 200), (100, None, 100), (900, None, None)],
    ids=["first", "newer", "a new leader has none to tell", "a rollback has undone it"],
)


@KNOWN_AND_REPORTED
async def test_last_evaluation_stays_unless_it_is_undone(
    known_at: int | None, reported_at: int | None, expected: int | None
) -> None:
    observed = await input_in_mid_training(1)
    if known_at is not None:
        known = HeldOut(step=1, samples=10**9 if expected is None else known_at, scored=5, auc=0.6)
        observed = with_status(observed, progress=observed.job.status.progress.evolve(held_out=known))
    reported = None if reported_at is None else HeldOutScores(2, reported_at, 5, 0.7, 0.5, 0.9, 1.1)
    found = apply_reports(begin(with_report(observed, "trainer/0", evaluation=reported))).status.progress.held_out
    assert (None if found is None else found.samples) == expected
    if reported is not None:
        scores = {"auc": 0.7, "logloss": 0.5, "normalised_entropy": 0.9, "calibration": 1.1}
        assert found == HeldOut(step=2, samples=200, scored=5, **scores)


@KNOWN_AND_REPORTED
async def test_scores_of_the_newest_segment_stay_unless_they_are_undone(
    known_at: int | None, reported_at: int | None, expected: int | None
) -> None:
    observed = await input_in_mid_training(1)
    if known_at is not None:
        stop = 10**9 if expected is None else known_at
        known = Segment(pin=1, first_sample=0, stop=stop, scored=stop, auc=0.6)
        observed = with_status(observed, progress=observed.job.status.progress.evolve(segment=known))
    reported = None if reported_at is None else SegmentScores(3, 100, reported_at, 90, 0.7, 0.5, 0.9, None)
    found = apply_reports(begin(with_report(observed, "trainer/0", segment=reported))).status.progress.segment
    assert (None if found is None else found.stop) == expected
    if reported is not None:
        scores = {"auc": 0.7, "logloss": 0.5, "normalised_entropy": 0.9}
        assert found == Segment(pin=3, first_sample=100, stop=200, scored=90, **scores)


@KNOWN_AND_REPORTED
async def test_best_model_stays_unless_it_is_undone(
    known_at: int | None, reported_at: int | None, expected: int | None
) -> None:
    observed = await input_in_mid_training(1)
    if known_at is not None:
        known = BestModel(anchor=Anchor.of(replace(RESULT, samples=known_at, generation=0)), value=0.7, since=1)
        forks = (Fork(generation=1, anchor=Anchor.of(replace(RESULT, samples=500))),)
        observed = with_status(observed, best=known, forks=forks)
    best = None if reported_at is None else BestEvaluation(replace(RESULT, samples=reported_at), 0.8, 0)
    found = apply_reports(begin(with_report(observed, "trainer/0", best=best))).status.best
    assert (None if found is None else found.anchor.samples) == expected


@pytest.mark.parametrize("reporter", ["shard", "leader"])
async def test_report_of_8000_ranges_leaves_a_valid_status_and_is_charged_in_full(reporter: str) -> None:
    observed = await input_in_mid_training(2)
    observed = with_status(observed, ledger=observed.job.status.ledger.evolve(total_samples=20_000))
    reported = tuple((2 * n, 2 * n + 1) for n in range(8000))
    observed = with_report(observed, "trainer/0", total_samples=20_000)
    observed = with_report(observed, "shard/0" if reporter == "shard" else "trainer/0", lost=reported)
    status = apply_reports(begin(observed)).status
    again = Status.model_validate(status.to_dict())
    assert again.ledger == status.ledger
    charged = again.ledger.ranges
    assert charged[0] == union(charged[0], reported)
    assert (charged[1] == union(charged[1], reported)) is (reporter == "leader")
