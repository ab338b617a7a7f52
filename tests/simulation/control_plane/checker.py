"""Invariants of a job during a storm and after it."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from itertools import pairwise

from cpr_operator.api.status import Status
from cpr_operator.goodput import parts_ms
from cpr_operator.recovery.account import account_of
from simulation.control_plane.deletions import end_of_deletion
from simulation.control_plane.failpoints import Storm, StormSimulation
from simulation.control_plane.processes import CELLS, Cells, steps_in_all
from simulation.control_plane.run import RunResult
from simulation.control_plane.workload import BATCH, TOTAL


def run_storm(storm: Storm) -> RunResult:
    """Run a job through its storm, and check its end; the simulation checks each status on the way."""
    result = asyncio.run(StormSimulation(storm).run())
    assert result.status.phase == "Succeeded"
    check_reservations(result)
    check_time(result)
    account = account_of(result.status).ledger
    assert account.left >= 0
    assert missing_portion(result) <= Fraction(account.spent, account.total * len(account.lost))
    if not account.carried:
        lost, known = missing(result), charged(result.status)
        for shard, samples in enumerate(lost):
            assert samples <= known[shard], f"shard {shard} misses samples that were never charged"
        for reported, true in zip(result.status.shards, missing_row_updates(result), strict=True):
            if reported.lost_row_updates is None:
                assert may_end_suspended(storm), f"{reported.name} has not reported what it lost"
            elif reported.lost_row_updates_exact or not storm.report_age_s:
                assert reported.lost_row_updates == true, f"{reported.name} reports a wrong number"
            else:
                assert reported.lost_row_updates >= true, f"{reported.name} reports less than it lost"
    assert failures_counted(result.status) == failures_seen(result)
    return result


def check_reservations(result: RunResult) -> None:
    """Whenever a pod is created, what is lost and what may still be lost keep to the limit.

    An allowance to train without a shard is covered by a reservation.
    """
    statuses = [Status.model_validate(document) for document in result.cluster.statuses]
    for shard in (shard for status in statuses for shard in status.shards):
        assert shard.allowance <= max((end for _, end in shard.reserved), default=0)
    for before, after in pairwise(statuses):
        numbers = [[m.incarnation for m in (*status.shards, *status.trainers)] for status in (before, after)]
        account = account_of(after)
        if numbers[0] != numbers[1] and account.ledger.total:
            assert account.charged <= max(account.ledger.limit, account.ledger.carried)


def check_time(result: RunResult) -> None:
    """Every written status has the whole time of the job, and no part shrinks: see `Simulation`, too."""
    accounts = [Status.model_validate(document).goodput for document in result.cluster.statuses]
    known = [each for each in accounts if each is not None]
    assert len(known) == len(accounts), "a status has no account of the time"
    for before, after in pairwise(known):
        assert all(parts_ms(after)[name] >= value for name, value in parts_ms(before).items())
    for each in known:
        passed_ms = round(1000 * (each.updated - known[0].updated))
        assert sum(parts_ms(each).values()) == round(1000 * each.wall_seconds) == passed_ms
    assert known[-1].activity is None, "the job has ended, and its time goes on"


def may_end_suspended(storm: Storm) -> bool:
    """Return whether the job may end when it is to be suspended: no report is awaited then."""
    return any(fault.kind in {"suspend", "reshard", "scale trainers"} for fault in storm.faults)


def failures_counted(status: Status) -> float:
    alpha = status.policy.alpha
    return 0.0 if alpha is None else alpha - 1.0  # what the user expected weighs one


def failures_seen(result: RunResult) -> int:
    """Interruptions that took the state of a shard, as the written statuses show them: each has one end."""
    statuses = [Status.model_validate(document) for document in result.cluster.statuses]
    return sum(
        bool(before.recovery and before.recovery.lost_shards) or any(s.state == "Lost" for s in after.shards)
        for before, after in pairwise(statuses)
        if _interrupted(before) and not _interrupted(after) and after.phase not in {"Succeeded", "Failed"}
    )


def _interrupted(status: Status) -> bool:
    return status.recovery is not None or status.phase == "Suspending"


def missing(result: RunResult) -> list[set[int]]:
    """For each shard the samples that some of its rows in the finished model never saw."""
    shards, dense = _anchored(result)
    steps = range(1, -(-TOTAL // BATCH) + 1)
    held = [steps_in_all(cells) & dense for cells in shards]
    return [
        {sample for step in steps if not seen & 1 << step for sample in range((step - 1) * BATCH, step * BATCH)}
        for seen in held
    ]


def missing_portion(result: RunResult) -> Fraction:
    """The portion of the samples that the finished model never saw, each row for itself."""
    shards, dense = _anchored(result)
    seen = sum((cell & dense).bit_count() for cells in shards for cell in cells)
    return 1 - Fraction(seen, CELLS * -(-TOTAL // BATCH))


def missing_row_updates(result: RunResult) -> list[int]:
    """For each shard the row updates that the finished model lacks there: one for each step."""
    shards, _ = _anchored(result)
    return [-(-TOTAL // BATCH) - steps_in_all(cells).bit_count() for cells in shards]


def _anchored(result: RunResult) -> tuple[list[Cells], int]:
    """The steps in the finished model."""
    anchor = result.status.result
    assert anchor is not None
    return result.cluster.plane().store.anchored[anchor.key]


def charged(status: Status) -> list[set[int]]:
    """Return the lost samples of each shard in the account."""
    return [{sample for first, end in ranges for sample in range(first, end)} for ranges in status.ledger.ranges]


def outcome_of(result: RunResult) -> tuple[object, ...]:
    """The part of a result that must not depend on the moment of a fault."""
    status = result.status
    failures = sorted((f.role, f.index, f.counted) for f in status.failures)
    account = status.ledger.ranges, status.counters.generation, len(status.restart_times)
    auc = status.progress.auc if status.phase == "Succeeded" else None
    return status.phase, auc, failures, account, end_of_deletion(result)
