"""The number of trainers changes in a shadow mode, under faults: only lost updates are charged."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from cpr_operator.api.status import Status
from simulation.control_plane.checker import charged, run_storm
from simulation.control_plane.failpoints import Fault, Storm, faults
from simulation.control_plane.run import RunResult
from simulation.control_plane.workload import partial_job


def job(trainers: int = 2, portion: float = 0.3) -> dict[str, Any]:
    return partial_job(portion, trainers__replicas=trainers, trainers__denseSync="ShadowMA")


def numbers(result: RunResult) -> list[int]:
    """Return the numbers of trainers of the job, one after the other."""
    counts = (len(Status.model_validate(document).trainers) for document in result.cluster.statuses)
    return [count for count, _ in groupby(counts) if count]


MORE = Fault("scale trainers", 2, 1.25, 0.0)
KILL, SUSPEND = faults("1 kill shard 1 for 1")[0], faults("0.25 suspend for 1")[0]
FEWER = Fault("scale trainers", 1, 2.0, 0.0)


@pytest.mark.parametrize(
    ("storm", "expected", "rollbacks"),
    [
        (Storm(job(), (MORE,)), [2, 3], 0),
        (Storm(job(3), (FEWER,), roster_delay_s=1.5), [3, 2], 0),
        (Storm(job(), (MORE, *faults("0.25 kill shard 1")), roster_delay_s=0.5), [2, 3], 0),
        (Storm(job(), (MORE, *faults("0.25 kill trainer 1")), roster_delay_s=0.5), [2, 3], 0),
        (Storm(job(), (MORE, *faults("0.25 kill trainer 0")), roster_delay_s=1.5, report_age_s=1.5), [2, 3], 0),
        (Storm(job(), (*faults("0.75 stop trainer 1 for 4"), MORE)), [2, 3], 0),
        (Storm(job(), (*faults("1 store down 1 for 4"), MORE)), [2, 3], 0),
        (Storm(job(), (MORE, *faults("0.25 suspend 1 for 2")), roster_delay_s=1.5), [2, 3], 0),
        (Storm(job(), (MORE, *faults("0.25 operator killed 1"), FEWER), roster_delay_s=0.5), [2], 0),
        (Storm(job(), (MORE, replace(FEWER, after_s=7.5))), [2, 3, 2], 0),
        (
            Storm(
                job(portion=0.15), (KILL, replace(MORE, after_s=0.75), SUSPEND), roster_delay_s=0.5, report_age_s=1.5
            ),
            [2, 3],
            0,
        ),
        (Storm(job(), (MORE, *faults("1.75 damage anchor 1; 0.5 kill shard 1"))), [2, 3], 1),
    ],
    ids=[
        "nothing else happens",
        "fewer, and rosters are late",
        "a shard is killed",
        "a trainer is killed",
        "the leader is killed, and rosters and reports are late",
        "a trainer stands still",
        "the store is away",
        "the job is suspended on the way",
        "and back before they have stopped",
        "and back again",
        "a shard has not reported what it lost, and its worst fits at no anchor",
        "the anchor is damaged later",
    ],
)
def test_trainer_count_changes_under_faults(storm: Storm, expected: list[int], rollbacks: int) -> None:
    result = run_storm(storm)
    assert numbers(result) == expected
    assert result.status.budget is not None
    assert result.status.budget.rollbacks == rollbacks
    if not any("shard" in fault.kind for fault in storm.faults):
        assert charged(result.status) == [set(), set()]
