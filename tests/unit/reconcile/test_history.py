from __future__ import annotations

from itertools import pairwise

import pytest

from cpr_operator.api.progress_status import MAX_LINE, HistoryPoint
from cpr_operator.api.status import MAX_HISTORY, Anchor, Budget, Counters, Plan, Progress, Shard, Status, Trainer
from cpr_operator.api.validate import parse_status
from cpr_operator.reconcile.effects import POINTS, with_history

TOTAL = 100_000


def after_report(status: Status, samples: int, now: float, generation: int = 1, total: int = TOTAL) -> Status:
    """After a report of the leader."""
    progress = Progress(
        samples=samples,
        total_samples=total,
        updated=now,
        samples_per_second=12345.678,
        loss=0.456789012,
        auc=0.75,
        logloss=0.47,
        metrics={"click.auc": 0.75, "click.calibration": 1.01, "buy.calibration": 2.0},
    )
    after = status.evolve(progress=progress, counters=Counters(generation=generation))
    return with_history(status, after)


def trained(status: Status, first: int, last: int, generation: int = 1) -> Status:
    for samples in range(first, last + 1, 100):
        status = after_report(status, samples, 1e9 + samples / 1000 + 1000 * generation, generation)
    return status


def test_history_has_points_at_even_distances() -> None:
    samples = [point.samples for point in trained(Status(), 0, TOTAL).history]
    assert POINTS * 0.9 < len(samples) <= POINTS + 1
    assert {later - earlier for earlier, later in pairwise(samples)} == {1300}


def test_history_has_a_point_for_each_rollback() -> None:
    status = after_report(trained(Status(), 0, 50_000), 20_000, 2e9, generation=2)
    assert [(point.samples, point.generation) for point in status.history[-2:]] == [(49_400, 1), (20_000, 2)]


def test_history_is_bounded_over_many_rollbacks() -> None:
    status = Status()
    for generation in range(1, 200):
        status = trained(status, 0, 20_000, generation)
        assert len(status.history) <= MAX_HISTORY
        assert status.history[-1].generation == generation
        times = [point.time for point in status.history]
        assert times == sorted(times)
    assert max(len(point) for point in status.to_dict()["history"]) <= MAX_LINE


def test_thinned_history_keeps_the_first_point_of_each_generation() -> None:
    status = Status()
    for generation in range(1, 9):
        status = trained(status, 0, 50_000, generation)
    assert status.history[0].generation == 1
    begins = [now.generation for before, now in pairwise(status.history) if now.samples < before.samples]
    assert begins == list(range(2, 9))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda status: status, id="no report"),
        pytest.param(lambda status: after_report(status, 50_100, 2e9), id="little was trained"),
        pytest.param(lambda status: after_report(status, 99_000, 2e9, total=0), id="the total is unknown"),
    ],
)
def test_history_has_no_point_without_a_new_report(changed: object) -> None:
    status = after_report(Status(), 50_000, 1e9)
    assert callable(changed)
    assert changed(status).history == status.history


def test_history_point_has_the_state_of_the_job() -> None:
    status = Status(
        plan=Plan(mode="Partial", interval_seconds=99.53917050691244),
        budget=Budget(limit=0.1, spent=0.0123456789, remaining=0.09),
        anchors=(Anchor(key="k", digest="d", generation=1, step=1, samples=400),),
        shards=(Shard(index=0), Shard(index=1)),
        trainers=(Trainer(index=0),),
    )
    (found,) = after_report(status, 500, 1764032647.1234).history
    assert found == HistoryPoint(
        time=1764032647.123, samples=500, samples_per_second=12345.7, loss=0.456789, logloss=0.47, auc=0.75,
        calibration=1.01, spent=0.0123457, saved_samples=400, interval_seconds=99.5392, mode="Partial", shards=2,
        trainers=1, generation=1,
    )  # fmt: skip


def test_history_point_is_one_line_of_json() -> None:
    status = after_report(Status(), 500, 1764032647.1234)
    written = status.to_dict()
    assert written["history"] == ["1764032647.123,500,12345.7,0.456789,0.47,0.75,1.01,,0,,,0,0,1"]
    assert parse_status(written).history == status.history
