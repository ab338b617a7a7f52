"""Reports of the generation before, right after a rollback, do not count."""

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.reports import SaveRef, ShardReport, ShardState, TrainerState
from cpr_operator.api.progress_status import HeldOut, Segment
from cpr_operator.api.status import Anchor
from cpr_operator.reconcile import reconcile
from cpr_operator.reconcile.apply_reports import apply_reports
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.polling import recorded_in
from cpr_operator.reconcile.recover import apply_rollback
from cpr_operator.reconcile.types import ReconcileInput, Report
from cpr_operator.recovery.decide import RollBack
from simulation.control_plane.run import input_in_mid_training
from support.reconcile_inputs import with_status

STATES = (TrainerState.TRAINING, TrainerState.FINISHING)


async def sent_back(leader: dict[str, Any], shards: ShardState = ShardState.RESTORING) -> ReconcileInput:
    """A job that has just gone back to step 0: shards restore, and the leader reports with new counters."""
    observed = await input_in_mid_training(2)
    rolled = apply_rollback(begin(observed), RollBack(None, (), "test")).status
    counters = rolled.counters.to_contract()
    reports: dict[str, Report] = {}
    changed: Report
    for uid, report in observed.reports.items():
        if isinstance(report, ShardReport):
            changed = replace(report, state=shards, applied=(), lost=(), row_updates=None)
        else:
            changed = replace(report, **(leader if report.index == 0 else {"state": TrainerState.JOINING}))
        reports[uid] = replace(changed, counters=counters)
    return replace(with_status(observed, rolled), reports=reports, now=observed.now + 1)


@pytest.mark.parametrize(("samples", "recorded"), [(0, 0), (199, 0), (200, 20), (400, 20)])
async def test_rollback_removes_scores_that_it_undoes(samples: int, recorded: int) -> None:
    """Otherwise the next generation's evaluation of that step would count as recorded."""
    observed = await input_in_mid_training(2)
    progress = observed.before.progress.evolve(step=50, samples=500, held_out=HeldOut(step=20, samples=200, scored=10))
    progress = progress.evolve(segment=Segment(pin=2, first_sample=100, stop=200, scored=100))
    observed = with_status(observed, progress=progress)
    anchor = Anchor(key="job/1", digest="", generation=1, step=samples // 10, samples=samples) if samples else None
    rolled = apply_rollback(begin(observed), RollBack(anchor, (), "test")).status
    assert recorded_in(rolled).evaluation == recorded
    assert (rolled.progress.segment is not None) is (recorded == 20)
    assert recorded_in(rolled).generation == recorded_in(observed.before).generation + 1


@pytest.mark.parametrize("state", STATES)
async def test_premature_leader_report_ends_no_recovery_and_charges_nothing(
    state: TrainerState,
) -> None:
    observed = await sent_back({"state": state, "lost": ((200, 300),)})
    now = reconcile(observed).status
    assert now.budget is not None
    assert now.budget.spent == 0
    assert now.phase != "Running"
    assert {shard.state for shard in now.shards} == {"Restoring"}


async def test_leader_report_counts_once_a_shard_serves() -> None:
    observed = await sent_back({"state": TrainerState.TRAINING, "lost": ()}, ShardState.READY)
    assert {shard.state for shard in apply_reports(begin(observed)).status.shards} == {"Ready"}


@pytest.mark.parametrize(("generation", "saved"), [(1, 0), (2, 1500)])
async def test_dense_save_of_an_earlier_generation_is_ignored(generation: int, saved: int) -> None:
    uid = (await sent_back({})).job.id.uid
    key = f"{uid}/gen-000{generation}/dense/group-0001/step-000000015-dense/manifest.json"
    observed = await sent_back({"state": TrainerState.JOINING, "dense_save": SaveRef(key, 15, 1500), "samples": 0})
    assert apply_reports(begin(observed)).status.dense.saved_samples == saved
