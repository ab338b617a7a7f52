from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_contract.codec import to_json
from cpr_contract.pinned_data import SegmentScores
from cpr_contract.reports import BestEvaluation, HeldOutScores, Result
from cpr_operator.api.cost_status import Ledger
from cpr_operator.api.member_status import Dense
from cpr_operator.api.status import (
    Anchor,
    BestModel,
    Budget,
    Counters,
    Fork,
    HeldOut,
    Plan,
    Progress,
    Scale,
    Segment,
    Shard,
    Status,
    Trainer,
)
from cpr_operator.api.validate import parse_spec
from cpr_operator.reconcile.apply_reports import reported_anchors, restorable, with_anchor
from cpr_operator.reconcile.completion import result_of, with_termination_message
from cpr_operator.reconcile.effects import with_shown
from cpr_operator.reconcile.types import Done
from simulation.control_plane.workload import spec

SPEC = parse_spec(spec())


def anchor(generation: int, samples: int) -> Anchor:
    return Anchor(key=f"{generation}-{samples}", digest="0", generation=generation, step=0, samples=samples)


def test_restorable_excludes_anchors_undone_by_a_rollback() -> None:
    status = Status(
        counters=Counters(generation=2), forks=(Fork(generation=1), Fork(generation=2, anchor=anchor(1, 800)))
    )
    given = (anchor(1, 400), anchor(1, 800), anchor(1, 1200), anchor(2, 1100))
    assert restorable(status, given) == (anchor(1, 400), anchor(1, 800), anchor(2, 1100))
    with_two = status.evolve(anchors=given[1:2])
    assert reported_anchors(with_two, tuple(each.to_contract() for each in given)) == (anchor(1, 800), anchor(2, 1100))
    assert reported_anchors(with_two, (anchor(1, 400).to_contract(),)) == (anchor(1, 800),)
    status = status.evolve(forks=(Fork(generation=1), Fork(generation=2)))
    assert restorable(status, (anchor(1, 400), anchor(2, 100))) == (anchor(2, 100),), "after a rollback to step 0"


@pytest.mark.parametrize(("generation", "samples", "counts"), [(2, 1200, True), (1, 800, True), (1, 1200, False)])
def test_result_is_on_the_lineage(generation: int, samples: int, counts: bool) -> None:  # noqa: FBT001
    status = Status(
        counters=Counters(generation=2),
        forks=(Fork(generation=1), Fork(generation=2, anchor=anchor(1, 800))),
        trainers=(Trainer(index=0),),
    )
    found = anchor(generation, samples)
    text = to_json(Result(found.to_contract(), ((600, 700),), None, None, None))
    for message in (text, text[: text.index("auc")]):  # a kubelet cuts long messages
        assert result_of(status, {"trainer/0": Done(message)}) == (found if counts else None)


@pytest.mark.parametrize("message", ["", "no result", '{"anchor":{"key":', '{"anchor":[]}', '{"anchor":{"key":5}}'])
def test_unreadable_result_is_the_known_anchor_of_the_last_sample(message: str) -> None:
    facts = {"trainer/0": Done(message)}
    known = Status(trainers=(Trainer(index=0),), ledger=Ledger(total_samples=1200), anchors=(anchor(1, 800),))
    assert result_of(known, facts) is None
    assert result_of(known.evolve(result=anchor(1, 900)), facts) == anchor(1, 900), "reported, of an early end"
    last = known.evolve(anchors=(anchor(1, 800), anchor(1, 1200)))
    assert result_of(last, facts) == anchor(1, 1200)
    assert result_of(last, {}) is None, "the leader still trains"


def test_result_has_the_scores_of_the_last_step_and_the_best_model() -> None:
    status = Status(trainers=(Trainer(index=0),), progress=Progress(step=9, loss=0.5, auc=0.7, logloss=0.6))
    held_out = HeldOutScores(8, 800, 50, 0.75, 0.55, 0.9, 1.0)
    best = BestEvaluation(anchor(1, 800).to_contract(), 0.75, 3)
    result = Result(anchor(1, 1200).to_contract(), (), 0.4, 0.8, 0.5, (("buy.auc", 0.9),), held_out, best)
    segment = SegmentScores(7, 320, 640, 319, 0.7, 0.5, None, 1.0)
    result = replace(result, segment=segment)
    ended = with_termination_message(SPEC, status, {"trainer/0": Done(to_json(result))})
    assert ended.best == BestModel(anchor=anchor(1, 800), value=0.75, since=3)
    progress = ended.progress
    assert (progress.step, progress.loss, progress.auc, progress.logloss) == (9, 0.4, 0.8, 0.5)
    assert progress.metrics == {"buy.auc": 0.9}
    assert progress.held_out == HeldOut.of(held_out)
    assert progress.segment == Segment.of(segment)
    assert with_termination_message(SPEC, status, {"trainer/0": Done("no result")}) == status


def test_termination_message_settles_the_dense_loss() -> None:
    status = Status(
        trainers=(Trainer(index=0),),
        shards=(Shard(index=0), Shard(index=1, reserved=((900, 1000),))),
        ledger=Ledger(total_samples=1200, limit_sample_shards=900, ranges=((), ((100, 200),))),
        dense=Dense(reserved=((300, 500),)),
    )
    done = Done(to_json(Result(anchor(1, 1200).to_contract(), ((600, 700),), None, None, None)))
    ended = with_termination_message(SPEC, status, {"trainer/0": done})
    assert ended.ledger.ranges == (((600, 700),), ((100, 200), (600, 700)))
    assert ended.dense.reserved == ()
    assert ended.shards[1].reserved == ((900, 1000),)


def test_job_that_ends_before_its_first_report_has_the_total_of_its_result() -> None:
    status = Status(trainers=(Trainer(index=0),), shards=(Shard(index=0), Shard(index=1)))
    done = Done(to_json(Result(anchor(1, 100).to_contract(), (), None, None, None, total_samples=1200)))
    ended = with_termination_message(SPEC, status, {"trainer/0": done})
    assert (ended.progress.total_samples, ended.ledger.total_samples) == (1200, 1200)
    assert ended.ledger.limit_sample_shards == int(SPEC.accuracy_budget.portion * 1200 * 2)
    older = Done(to_json(Result(anchor(1, 100).to_contract(), (), None, None, None)))
    assert with_termination_message(SPEC, ended, {"trainer/0": older}).progress.total_samples == 1200
    assert with_termination_message(SPEC, status, {"trainer/0": older}).progress.total_samples == 100


def test_with_anchor_keeps_the_configured_number() -> None:
    status = Status(counters=Counters(generation=1), anchors=(anchor(1, 400), anchor(1, 800)))
    assert with_anchor(status, anchor(1, 900), 2).anchors == (anchor(1, 800), anchor(1, 900))
    assert with_anchor(status, anchor(1, 800), 2).anchors == status.anchors


STATUS = Status(
    phase="Running",
    plan=Plan(mode="Partial", interval_seconds=99.53917050691244, reason=""),
    budget=Budget(limit=0.1, spent=0.00123456, remaining=0.09, running_sum=0.0, rollbacks=0),
    progress=Progress(
        samples=1, total_samples=2, percent=42, auc=0.85864, samples_per_second=12345.6, eta_seconds=750.0
    ),
    trainers=(Trainer(index=0), Trainer(index=1)),
)


def test_shown_metrics_are_rounded_with_units_and_without_speed_if_paused() -> None:
    shown = with_shown(STATUS, "job").shown
    assert (shown.progress, shown.interval, shown.speed, shown.eta) == ("42%", "99.5 s", "12346/s", "12.5 min")
    assert (shown.spent, shown.limit, shown.auc) == ("0.001235", "0.1", "0.8586")
    for phase in ("Recovering", "Suspended", "Succeeded"):
        shown = with_shown(STATUS.model_copy(update={"phase": phase}), "job").shown
        assert (shown.speed, shown.eta, shown.progress) == ("", "", "42%")
    assert with_shown(STATUS, "job").scale == Scale(replicas=2, selector="cprjob.io/job=job,cprjob.io/role=trainer")
    assert with_shown(Status(), "job").scale == Scale(replicas=0, selector="cprjob.io/job=job,cprjob.io/role=trainer")
