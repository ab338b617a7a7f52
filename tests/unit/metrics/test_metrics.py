from __future__ import annotations

import asyncio
import random

import httpx
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from cpr_operator import http_server
from cpr_operator.api.status import (
    Anchor,
    BestModel,
    Budget,
    Condition,
    DynamicTable,
    FailureRecord,
    Goodput,
    HeldOut,
    LostTime,
    Overhead,
    PinnedData,
    Plan,
    Progress,
    PublishedModel,
    Segment,
    Shard,
    Status,
)
from cpr_operator.candidate import visit_known
from cpr_operator.http_server import serve
from cpr_operator.metrics import GAUGES, Metrics
from cpr_operator.queue import ReconcileQueue


def failure(index: int, recovery_s: float | None = None) -> FailureRecord:
    return FailureRecord(
        time=1.0, role="shard", index=index, incarnation=1, kind="Killed", action="ReplaceShards",
        recovery_seconds=recovery_s,
    )  # fmt: skip


def status(*failures: FailureRecord, phase: str = "Running") -> Status:
    return Status(
        phase=phase,
        failures=failures,
        plan=Plan(mode="Partial", interval_seconds=60),
        budget=Budget(limit=0.1, spent=0.02, reserved=0.03, remaining=0.05, running_sum=0.07, rollbacks=1),
        overhead=Overhead(save_seconds=7),
        shards=(Shard(index=0, lost_row_updates=30), Shard(index=1, lost_row_updates=12)),
    )


def families(metrics: Metrics) -> list[Metric]:
    return list(text_string_to_metric_families(metrics.text().decode()))


def value(metrics: Metrics, name: str, *labels: str) -> float | None:
    """The sample of that name with these label values, in any order."""
    found = (each for family in families(metrics) for each in family.samples if each.name == name)
    return next((each.value for each in found if sorted(each.labels.values()) == sorted(labels)), None)


def test_every_gauge_has_a_value_once_its_job_has_one() -> None:
    segment = Segment(pin=1, first_sample=0, stop=1, scored=1, auc=0.7, logloss=0.5, calibration=1.0)
    held_out = HeldOut(step=1, samples=1, scored=1, auc=0.7, gauc=0.6)
    progress = Progress(protected_samples=1, auc=0.7, held_out=held_out, segment=segment)
    anchor = Anchor(key="k", digest="d", generation=1, step=1, samples=1)
    table = DynamicTable(name="user", capacity=8192, entries=2048, occupancy_percent=25, updated=1.0)
    full = status().evolve(progress=progress, tables=(table,), best=BestModel(anchor=anchor, value=0.7, since=0))
    data = PinnedData(pins=1, newest_pin_time=1.0, pinned_samples=2, void_samples=0, lag_samples=1)
    full = full.evolve(data=data, published=PublishedModel(sequence=1, anchor="k", step=1, samples=1, time=1.0))
    metrics, groups = Metrics(), "cprjob_held_out_group_auc"
    metrics.observe_status("n", "j", full)
    assert {gauge.name for gauge in GAUGES} - {groups} <= {f.name for f in families(metrics) if f.samples}
    assert value(metrics, "cprjob_table_occupancy_ratio", "n", "j", "user") == 0.25
    assert not any(gauge.read(Status()) for gauge in GAUGES if "budget" in gauge.name)


def test_status_sets_the_gauges_of_its_job() -> None:
    metrics = Metrics()
    metrics.observe_status("n", "j", status())
    shares = [
        value(metrics, f"cprjob_budget_{part}_ratio", "n", "j")
        for part in ("limit", "spent", "running_sum", "reserved")
    ]
    assert shares == [0.1, 0.02, 0.07, 0.03]
    values = [
        value(metrics, f"cprjob_{name}", "n", "j") for name in ("rollbacks", "lost_row_updates", "interval_seconds")
    ]
    assert values == [1, 42, 60]
    assert value(metrics, "cprjob_overhead_seconds", "n", "j", "save") == 7
    assert 'cprjob_budget_spent_ratio{cprjob="j",namespace="n"}' in metrics.text().decode()
    assert "job" not in {key for family in families(metrics) for each in family.samples for key in each.labels}


def test_parity_metrics_show_protected_samples_and_rebuilt_shards() -> None:
    metrics = Metrics()
    metrics.observe_status("n", "j", status(failure(1)).evolve(progress=Progress(protected_samples=590)))
    assert value(metrics, "cprjob_protected_samples", "n", "j") == 590
    for _ in range(2):
        metrics.observe_status("n", "j", status(failure(1).evolve(tier="Parity")))
    assert value(metrics, "cprjob_rebuilt_shards_total", "n", "j") == 1
    metrics.forget("n", "j")
    assert value(metrics, "cprjob_rebuilt_shards_total", "n", "j") is None
    assert value(metrics, "cprjob_protected_samples", "n", "j") is None


def test_lost_time_of_a_job_that_waits_grows_between_statuses_and_never_falls() -> None:
    now = [100.0]
    metrics = Metrics(clock=lambda: now[0])

    def shown() -> list[float | None]:
        causes = ("recovering", "saving")
        lost = [value(metrics, "cprjob_lost_seconds_total", "n", "j", cause) for cause in causes]
        return [value(metrics, "cprjob_goodput_ratio", "n", "j"), *lost]

    first = Goodput(
        ratio=0.8, wall_seconds=10, productive_seconds=8, lost=LostTime(saving=2), updated=100, activity="Recovering"
    )
    metrics.observe_status("n", "j", status().evolve(goodput=first))
    assert shown() == [0.8, 0, 2]
    now[0] = 106.0
    assert shown() == [0.5, 6, 2]
    # The leader reports that it trained for most of that time.
    later = first.evolve(
        wall_seconds=16, productive_seconds=13, lost=LostTime(saving=2, recovering=1), updated=106, activity="Training"
    )
    metrics.observe_status("n", "j", status().evolve(goodput=later.evolve(ratio=0.8125)))
    assert shown() == [0.8125, 6, 2]
    assert value(metrics, "cprjob_productive_seconds_total", "n", "j") == 13
    metrics.observe_status("n", "j", status().evolve(goodput=Goodput(updated=107)))
    assert shown() == [None, 0, 0]


def test_a_job_is_in_one_phase() -> None:
    metrics = Metrics()
    for phase in ("Pending", "Running", "Running", "Succeeded"):
        metrics.observe_status("n", "j", status(phase=phase))
    assert value(metrics, "cprjob_phase", "n", "j", "Succeeded") == 1
    assert value(metrics, "cprjob_phase", "n", "j", "Running") is None


def test_a_condition_is_one_while_it_is_true() -> None:
    metrics = Metrics()
    for truth, expected in (("True", 1), ("Unknown", 0), ("False", 0)):
        condition = Condition(type="SnapshotsDegraded", status=truth, reason="Why", last_transition_time=1.0)
        metrics.observe_status("n", "j", Status(conditions=(condition,)))
        assert value(metrics, "cprjob_condition", "n", "j", "SnapshotsDegraded") == expected
        assert value(metrics, "cprjob_condition", "n", "j", "CRDOutdated") == 0


def test_a_failure_is_counted_once_and_its_recovery_when_it_is_over() -> None:
    metrics = Metrics()
    old = failure(0, 9.0)
    for records in ((old,), (old, failure(1)), (old, failure(1)), (old, failure(1, 2.5)), (failure(1, 2.5),)):
        metrics.observe_status("n", "j", status(*records))
    assert value(metrics, "cprjob_failures_total", "n", "j", "shard", "Killed") == 1
    assert value(metrics, "cprjob_recovery_seconds_count", "shard", "ReplaceShards") == 1
    assert value(metrics, "cprjob_recovery_seconds_sum", "shard", "ReplaceShards") == 2.5


def test_deleted_job_leaves_no_metrics() -> None:
    metrics = Metrics()
    for job in ("existing", "deleted"):
        metrics.observe_status("n", job, status())
        metrics.observe_status("n", job, status(failure(0)))
        metrics.observe_status("n", job, status().evolve(goodput=Goodput(updated=1)))
    metrics.forget("n", "deleted")
    metrics.forget("n", "never seen")
    assert value(metrics, "cprjob_failures_total", "n", "existing", "shard", "Killed") == 1
    assert b"deleted" not in metrics.text()


def test_waiting_requests_are_counted_on_a_scrape() -> None:
    metrics, waiting = Metrics(), 0
    metrics.observe_waiting(lambda: waiting)
    assert value(metrics, "cprjob_requests_waiting") == 0
    waiting = 7
    assert value(metrics, "cprjob_requests_waiting") == 7


class FakeHealth:
    role = ""
    stuck = False

    async def tick(self) -> None:
        if self.stuck:
            await asyncio.Event().wait()


async def test_health_is_there_at_once_and_readiness_when_the_operator_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    health, metrics = FakeHealth(), Metrics()
    metrics.observe_pass("ok", 0.1)
    client = httpx.AsyncClient(trust_env=False, timeout=60.0)
    async with serve("127.0.0.1", 0, health, metrics) as port, client:

        async def get(path: str) -> httpx.Response:
            return await client.get(f"http://127.0.0.1:{port}{path}")

        assert (await get("/healthz")).status_code == 200
        assert (await get("/readyz")).status_code == 503
        for health.role in ("standby", "leader"):
            answer = await get("/readyz")
            assert (answer.status_code, answer.text) == (200, f"{health.role}\n")
        answer = await get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert 'cprjob_passes_total{result="ok"} 1.0' in answer.text
        monkeypatch.setattr(http_server, "TICK_S", 0.05)
        health.stuck = True
        assert (await get("/healthz")).status_code == 503


async def test_jobs_deleted_between_watches_are_scheduled_on_the_next_list() -> None:
    metrics, deleted = Metrics(), asyncio.Event()
    metrics.observe_status("n", "old", Status(phase="Succeeded"))

    async def run_pass(namespace: str, name: str) -> None:
        metrics.forget(namespace, name)  # as a pass does that does not find its job
        deleted.set()

    queue = ReconcileQueue(run_pass, random.Random(1))
    visit_known(metrics, queue)
    await deleted.wait()
    assert metrics.jobs() == ()
    assert 'cprjob="old"' not in metrics.text().decode()
    await queue.close()
