"""An example of a job for its report: one rollback, failures of every outcome, and all else that a page shows."""

from __future__ import annotations

from typing import Any

from cpr_operator.api.progress_status import HistoryPoint
from cpr_operator.api.status import (
    Anchor,
    Budget,
    Condition,
    Counters,
    FailureRecord,
    Goodput,
    Ledger,
    LostTime,
    Plan,
    Progress,
    Shard,
    Status,
    Trainer,
)
from cpr_operator.cluster.local.object_files import EventLine

START = 1_764_000_000.0
TOTAL = 100_000


def point(samples: int, second: float, generation: int = 1, **fields: Any) -> HistoryPoint:
    known = HistoryPoint(
        time=START + second, samples=samples, samples_per_second=1000.0, loss=0.5, logloss=0.5, auc=0.7,
        calibration=1.02, spent=0.0, saved_samples=max(samples - 5000, 0), interval_seconds=60.0, mode="Partial",
        shards=2, trainers=1, generation=generation,
    )  # fmt: skip
    return known._replace(**fields)


def failed(second: float, index: int, **fields: Any) -> FailureRecord:
    known: dict[str, Any] = {
        "time": START + second, "role": "shard", "index": index, "incarnation": 1, "kind": "Killed",
        "message": "by SIGKILL", "action": "ReplaceShards", "lost_samples": 0, "recovery_seconds": 5.0,
    }  # fmt: skip
    return FailureRecord(**known | fields)


STATUS = Status(
    phase="Running",
    start_time=START,
    counters=Counters(generation=2),
    conditions=(Condition(type="PodsReady", status="True", reason="AllReady", last_transition_time=START),),
    anchors=(Anchor(key="k", digest="d", generation=2, step=1, samples=50_000),),
    plan=Plan(mode="Full", interval_seconds=30, reason="The rest <b>of the budget</b> is small.", inputs={"shards": 2}),
    budget=Budget(limit=0.1, spent=0.01, remaining=0.09, running_sum=0.02, rollbacks=1),
    ledger=Ledger(total_samples=TOTAL, ranges=(((1000, 2000),), ())),
    progress=Progress(
        samples=60_000,
        total_samples=TOTAL,
        updated=START + 90,
        samples_per_second=900.0,
        loss=0.44,
        auc=0.76,
        logloss=0.46,
        metrics={"calibration": 1.01},
    ),
    history=(
        point(10_000, 10, auc=None, logloss=None, calibration=None),
        point(30_000, 30, spent=0.01),
        point(40_000, 50, spent=0.01),
        point(20_000, 60, generation=2, mode="Full", interval_seconds=30.0, spent=0.01),
    ),
    failures=(
        failed(20, 1, lost_samples=1000, lost_row_updates=7),
        failed(35, 1, replayed_samples=500),
        failed(55, 0, action="RollBack"),
        failed(70, 0, kind="Disruption"),
        failed(80, 0, role="trainer", lost_samples=None, recovery_seconds=None),
    ),
    goodput=Goodput(
        ratio=0.75,
        wall_seconds=100,
        productive_seconds=75,
        lost=LostTime(starting=5, recovering=12, repeated=8),
        updated=START + 100,
        activity="Recovering",
    ),
    shards=(Shard(index=0, state="Ready"), Shard(index=1, state="Ready")),
    trainers=(Trainer(index=0, state="Lost"),),
    leader=0,
)
EVENTS = (EventLine(START + 1, "uid", "Normal", "Planned", "a save <i>every</i> minute"),)


def document(status: Status = STATUS) -> dict[str, Any]:
    """Return the CPRJob object."""
    return {"metadata": {"name": "example", "namespace": "here", "uid": "uid"}, "status": status.to_dict()}
