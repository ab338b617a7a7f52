"""What Prometheus reads from the operator: figures of its passes, and of each job's status.

Figures of a status are set whenever a job is seen with a new one. Failures are counted from the records in it, each
once; those that a job already had when the operator first saw it were counted before its start.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from cpr_operator.api.status import FailureRecord, Status
from cpr_operator.job_figures import JOB, JobFigures

RECOVERY_BUCKETS_S = (0.5, 1, 2, 3, 5, 8, 13, 20, 30, 60, 120, 300, 600)
PASS_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

_Record = tuple[str, int, int, int]


class Metrics:
    """All metrics of one operator, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._records: dict[tuple[str, str], dict[_Record, FailureRecord]] = {}
        self._figures = JobFigures()
        self._define_events()
        self._define_gauges()

    def _define_events(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        self._passes = counter("cprjob_passes", "Passes over jobs, by how they ended.", "result")
        self._failures = counter("cprjob_failures", "Failures of pods, by kind.", *JOB, "role", "kind")
        self._rebuilt = counter("cprjob_rebuilt_shards", "Shards whose rows were computed from other shards.", *JOB)
        self._pass_s = Histogram(
            "cprjob_pass_seconds", "Duration of a pass.", buckets=PASS_BUCKETS_S, registry=self._registry
        )
        self._recovery_s = Histogram(
            "cprjob_recovery_seconds",
            "From a failure seen to training again.",
            ("role", "action"),
            buckets=RECOVERY_BUCKETS_S,
            registry=self._registry,
        )

    def _define_gauges(self) -> None:
        self.leading = Gauge("cprjob_leader", "1 for the operator that leads.", registry=self._registry)
        text = "Requests to the API server that wait for their turn."
        self._waiting = Gauge("cprjob_requests_waiting", text, registry=self._registry)
        self._registry.register(self._figures)

    def observe_waiting(self, waiting: Callable[[], float]) -> None:
        """Have `waiting` called whenever somebody reads how many requests wait for their turn."""
        self._waiting.set_function(waiting)

    def observe_pass(self, result: str, seconds: float) -> None:
        """A pass is over; `result` is ok or the class of its error."""
        self._passes.labels(result).inc()
        self._pass_s.observe(seconds)

    def observe_status(self, namespace: str, job: str, status: Status) -> None:
        """A job was seen with this status."""
        key = (namespace, job)
        self._figures.set(key, status)
        self._count_failures(key, status.failures)

    def forget(self, namespace: str, job: str) -> None:
        """The job is gone: its figures would be stale."""
        self._figures.drop((namespace, job))
        for counter in (self._failures, self._rebuilt):
            counter.remove_by_labels({"namespace": namespace, "cprjob": job})
        self._records.pop((namespace, job), None)

    def jobs(self) -> tuple[tuple[str, str], ...]:
        """Namespace and name of all jobs that there are figures of."""
        return self._figures.keys()

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def _count_failures(self, key: tuple[str, str], failures: tuple[FailureRecord, ...]) -> None:
        now: dict[_Record, FailureRecord] = {
            (each.role, each.index, each.incarnation, each.life): each for each in failures
        }
        before = self._records.get(key, now)
        self._records[key] = now
        for record, failure in now.items():
            if record not in before:
                self._failures.labels(*key, failure.role, failure.kind).inc()
            seen = before.get(record)
            if failure.tier == "Parity" and (seen is None or seen.tier != "Parity"):
                self._rebuilt.labels(*key).inc()
            if failure.recovery_seconds is not None and (seen is None or seen.recovery_seconds is None):
                self._recovery_s.labels(failure.role, failure.action).observe(failure.recovery_seconds)
