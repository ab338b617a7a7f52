"""Training continues without lost shards: it loses no more than allowed, and the account has exactly the losses."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_operator.api.status import Status
from simulation.control_plane.checker import charged, missing, run_storm
from simulation.control_plane.failpoints import Storm, faults
from simulation.control_plane.run import RunResult
from simulation.control_plane.workload import BATCH, TOTAL, partial_job


def job(portion: float, *, shards: int = 2, trainers: int = 1, loss: str = "Degrade") -> dict[str, Any]:
    recovery = {"mode": "Partial", "onShardLoss": loss}
    return partial_job(portion, shards=shards, trainers=trainers, recovery=recovery)


def statuses(result: RunResult) -> list[Status]:
    return [Status.model_validate(document) for document in result.cluster.statuses]


def allowances(result: RunResult) -> set[int]:
    """All that were ever given."""
    return {shard.allowance for status in statuses(result) for shard in status.shards} - {0}


def time_of(result: RunResult, samples: int) -> float:
    """Return when that many samples were first reported."""
    return next(s.progress.updated or 0.0 for s in statuses(result) if s.progress.samples >= samples)


KILLED = faults("1.75 kill shard 1")
#: The successor of the shard finds no store for so long.
DELAYED = faults("1.75 kill shard 1; 0.25 store down for 8")


def test_degraded_training_charges_exactly_the_missing_updates() -> None:
    result = run_storm(Storm(job(0.3), KILLED))
    assert result.status.progress.degraded_samples > 0
    assert result.status.budget is not None
    assert result.status.budget.rollbacks == 0
    assert charged(result.status) == missing(result)
    assert missing(result)[0] == set()


def test_pause_loses_less_than_degrade_and_waits() -> None:
    on, off = (run_storm(Storm(job(0.9, loss=loss), DELAYED)) for loss in ("Degrade", "Pause"))
    assert off.status.progress.degraded_samples == 0
    assert not allowances(off)
    assert len(missing(on)[1]) > len(missing(off)[1])
    assert time_of(on, 1800) < time_of(off, 1800)


def test_degraded_training_waits_at_the_end_of_its_allowance() -> None:
    result = run_storm(Storm(job(0.2), DELAYED))
    (until,) = allowances(result)
    stand = [s.progress.samples for s in statuses(result) if any(shard.allowance for shard in s.shards)]
    assert max(stand) <= until < TOTAL
    assert max(missing(result)[1]) < until
    assert charged(result.status) == missing(result)
    assert result.status.progress.degraded_samples >= BATCH
    messages = [event.message for event in result.cluster.events.values() if event.reason == "Replacing"]
    assert any(f"up to sample {until}" in message for message in messages)


@pytest.mark.parametrize(
    ("portion", "script", "spends"),
    [(0.125, "1.75 kill shard 1", True), (0.3, "1.75 drain shard 1", False)],
    ids=["the worst of the loss takes all of the budget", "a drained shard loses nothing"],
)
def test_degraded_training_waits_without_an_allowance(portion: float, script: str, *, spends: bool) -> None:
    result = run_storm(Storm(job(portion), faults(script)))
    assert not allowances(result)
    assert result.status.progress.degraded_samples == 0
    assert result.status.budget is not None
    assert (result.status.budget.spent > 0, result.status.budget.rollbacks) == (spends, 0)


@pytest.mark.parametrize(
    ("storm", "rollbacks"),
    [
        (Storm(job(0.9), (*DELAYED[:1], *faults("0.25 store down for 20"))), 0),
        (Storm(job(0.9, shards=3), (*DELAYED, *faults("1 kill shard 0"))), 0),
        (Storm(job(0.9), (*DELAYED, *faults("1 kill shard 0"))), 0),
        (Storm(job(0.9), (*DELAYED, *faults("1 kill shard 1"))), 0),
        (Storm(job(0.9, trainers=2), (*DELAYED, *faults("1 kill trainer 1"))), 0),
        (Storm(job(0.9, trainers=2), (*DELAYED, *faults("1 suspend 1 for 2"))), 0),
        (Storm(job(0.9), faults("1.75 cut off shard 1 for 2"), roster_delay_s=1.5, report_age_s=1.5), 0),
        (Storm(job(0.2), (*DELAYED, *faults("1 kill two shards 0 for 0.5"))), 1),
    ],
    ids=[
        "the job is trained before the shard is back",
        "another shard dies meanwhile",
        "the last shard that works dies meanwhile",
        "the successor dies before it is back",
        "a trainer dies meanwhile",
        "the job is suspended meanwhile",
        "a shard is cut off, and rosters and reports are late",
        "more is lost than there is budget for",
    ],
)
def test_degraded_training_survives_further_faults(storm: Storm, rollbacks: int) -> None:
    result = run_storm(storm)
    assert allowances(result)
    starts = [status for status in statuses(result) if status.phase == "Starting"]
    assert not any(shard.allowance for status in starts for shard in status.shards), "all trainers are new"
    assert result.status.budget is not None
    assert result.status.budget.rollbacks == rollbacks


def test_finished_job_leaves_no_allowance() -> None:
    """The shard is cut off to the end, and its successor does not report before: its loss counts at its worst."""
    script = faults(
        "0.5 cut off shard 1 for 1; 1 damage anchor 2 for 0.5; 0.5 cut off shard 1 for 1; "
        "1 operator away 1 for 0.5; 0.25 operator away 1 for 1; 0 drain trainer 2; "
        "0.5 reshard 1 for 1; 2 cut off trainer 1"
    )
    late = job(0.9, shards=3) | {"snapshots": {**job(0.9)["snapshots"], "interval": {"mode": "Fixed", "seconds": 3}}}
    result = run_storm(Storm(late, script, roster_delay_s=0.5, report_age_s=1.5))
    assert allowances(result)
    assert not any(shard.allowance for shard in result.status.shards)


def test_resume_with_a_rollback_charges_unreported_losses() -> None:
    """A shard that was cut off trains on, its successor restores what that saved, and the job is suspended often."""
    script = faults(
        "1 cut off shard 0 for 4; 0.5 store down for 0.25; 2 suspend 2 for 0.25; "
        "2 stop shard 2 for 0.5; 4 suspend 2 for 0.5; 0.25 suspend 2 for 4; 0.25 suspend 2; "
        "2 suspend 2 for 0.25"
    )
    often = job(0.3) | {"snapshots": {**job(0.3)["snapshots"], "interval": {"mode": "Auto"}}}
    often["failurePolicy"] = {**often["failurePolicy"], "expectedJobMtbfSeconds": 1}
    run_storm(Storm(often, script, roster_delay_s=1.5, report_age_s=0.5))
