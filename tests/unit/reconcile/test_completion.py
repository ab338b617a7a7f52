"""Once the final anchor is known, trainers have done their part, however they ended."""

from dataclasses import replace
from typing import get_args

import pytest

from cpr_contract.reports import ShardReport, ShardState
from cpr_operator.api.status import TERMINAL_PHASES, Anchor, BestModel, Phase
from cpr_operator.failures import Failure, Kind
from cpr_operator.reconcile.apply_reports import apply_reports
from cpr_operator.reconcile.completion import succeed, with_late_shards_lost
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.phases import TRANSITIONS
from cpr_operator.reconcile.types import Done, Fact, Lost, NoPod, ReconcileState
from simulation.control_plane.run import input_in_mid_training
from simulation.control_plane.workload import BATCH, TOTAL

KILLED = Lost(None, Failure(Kind.KILLED, "Error", "the process was killed by SIGKILL", ended=True, exit_code=137))


async def test_lost_trainers_are_done_after_the_final_anchor_and_shards_are_not() -> None:
    observed = await input_in_mid_training(1)
    facts: dict[str, Fact] = {"trainer/0": KILLED, "shard/0": KILLED, "shard/1": NoPod(), "shard/2": NoPod()}
    found = with_late_shards_lost(ReconcileState(observed, observed.job.status, facts))
    assert found.facts == facts | {"trainer/0": Done("")}


BEST = Anchor(key="best", digest="0", generation=1, step=5, samples=500)


@pytest.mark.parametrize(
    ("samples", "best", "reason", "model", "percent"),
    [
        (TOTAL, None, "Trained", "last", 100),
        (TOTAL, BestModel(anchor=BEST, value=0.75, since=1), "Trained", "best", 100),
        (800, BestModel(anchor=BEST, value=0.75, since=3), "EarlyStopped", "best", 40),
        (800, BestModel(anchor=BEST, value=0.75, since=0), "EarlyStopped", "best", 40),
        (800, None, "EarlyStopped", "last", 40),
    ],
)
async def test_result_is_the_best_model_if_there_is_one(
    samples: int, best: BestModel | None, reason: str, model: str, percent: int
) -> None:
    observed = await input_in_mid_training(1)
    status = observed.job.status.evolve(best=best)
    last = Anchor(key="last", digest="0", generation=1, step=samples // BATCH, samples=samples)
    ended = succeed(ReconcileState(observed, status, {}), last).status
    assert ended.phase == "Succeeded"
    assert ended.result is not None
    assert ended.result.key == model
    (complete,) = (each for each in ended.conditions if each.type == "Complete")
    assert (complete.status, complete.reason) == ("True", reason)
    assert complete.message.endswith(model)
    if best is not None and samples < TOTAL:
        why = "the last 3 evaluations were no better than 0.75"
        assert complete.message.startswith(why if best.since else "an evaluation of 0.75 reached the target")
    assert (ended.progress.samples, ended.progress.step, ended.progress.percent) == (samples, last.step, percent)


async def test_restored_shard_awaits_no_push_after_an_early_stop() -> None:
    """No trainer will push to it, and it misses no step: it reports its losses, though the data has more samples."""
    observed = await input_in_mid_training(1)
    status, step = observed.job.status, 8
    shard = status.shards[0].evolve(lost_at=observed.now)
    report = observed.reports[shard.uid]
    assert isinstance(report, ShardReport)
    report = replace(report, state=ShardState.READY, applied=(step, step), resumed_samples=None, lost=((100, 200),))
    reports = {**observed.reports, shard.uid: report}
    for result, settled in ((None, False), (Anchor(key="k", digest="0", generation=1, step=step, samples=800), True)):
        before = status.evolve(shards=(shard, *status.shards[1:]), result=result)
        given = replace(observed, job=replace(observed.job, status=before), reports=reports)
        found = apply_reports(begin(given)).status
        assert (found.shards[0].lost_at is None) is settled
        assert (found.ledger.ranges[0] == ((100, 200),)) is settled


def test_transitions_reach_all_phases_end_in_terminal_ones_and_can_fail() -> None:
    assert {TRANSITIONS[phase] for phase in TERMINAL_PHASES} == {frozenset()}
    for phase in set(TRANSITIONS) - TERMINAL_PHASES - {"Suspending", "Suspended"}:
        assert "Failed" in TRANSITIONS[phase]
    reached: set[Phase] = {"Pending"}
    while more := {after for phase in reached for after in TRANSITIONS[phase]} - reached:
        reached |= more
    assert reached == set(TRANSITIONS) == set(get_args(Phase))
