"""What Prometheus reads from the operator: figures of its passes, and of each job's status.

Figures of a status are set whenever a job is seen with a new one. Failures are counted from the records in it, each
once; those that a job already had when the operator first saw it were counted before its start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from cpr_operator.api.members import SparePhase
from cpr_operator.api.status import ConditionType, FailureRecord, Phase, Status

#: Not `job`: that is the label by which Prometheus tells its own targets apart.
JOB = ("namespace", "cprjob")
RECOVERY_BUCKETS_S = (0.5, 1, 2, 3, 5, 8, 13, 20, 30, 60, 120, 300, 600)
PASS_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

_Record = tuple[str, int, int, int]


class Metrics:
    """All metrics of one operator, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._records: dict[tuple[str, str], dict[_Record, FailureRecord]] = {}
        self._phases: dict[tuple[str, str], Phase] = {}
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
        self._gauges: list[Gauge] = []

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            made = Gauge(name, text, (*JOB, *labels), registry=self._registry)
            self._gauges.append(made)
            return made

        self._phase = gauge("cprjob_phase", "1 for the phase that the job is in.", "phase")
        self._condition = gauge("cprjob_condition", "1 while the condition is True.", "condition")
        self._samples = gauge("cprjob_samples", "Samples trained.")
        self._total = gauge("cprjob_total_samples", "Samples in all; 0 until the data is read.")
        self._degraded = gauge("cprjob_degraded_samples", "Samples trained while a shard was away.")
        self._protected = gauge("cprjob_protected_samples", "Samples that parity or a save holds of every shard.")
        self._auc = gauge("cprjob_auc", "Area under the ROC curve so far.")
        self._held_out_auc = gauge("cprjob_held_out_auc", "AUC of the last evaluation on held-out rows.")
        self._limit = gauge("cprjob_budget_limit_ratio", "Portion of samples that may be lost.")
        self._spent = gauge("cprjob_budget_spent_ratio", "Portion of samples that is lost.")
        self._reserved = gauge("cprjob_budget_reserved_ratio", "Portion of samples set aside for recoveries under way.")
        self._running = gauge("cprjob_budget_running_sum_ratio", "Portion lost by all recoveries, none taken back.")
        self._lost_updates = gauge("cprjob_lost_row_updates", "Row updates that shards have lost, or at most so many.")
        self._rollbacks = gauge("cprjob_rollbacks", "How often the whole job went back to an anchor.")
        self._interval_s = gauge("cprjob_interval_seconds", "Planned training time between two cuts.")
        self._restarts = gauge("cprjob_restarts", "Pods replaced so far.")
        self._spares = gauge("cprjob_spares", "Spares by state; those that are Ready can be promoted.", "state")
        text = "Requests to the API server that wait for their turn."
        self._waiting = Gauge("cprjob_requests_waiting", text, registry=self._registry)
        self._overhead_s = gauge("cprjob_overhead_seconds", "Time that fault tolerance has cost so far.", "kind")

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
        self._set_phase(key, status.phase)
        true = {each.type for each in status.conditions if each.status == "True"}
        for condition in get_args(ConditionType):
            self._condition.labels(*key, condition).set(condition in true)
        self._samples.labels(*key).set(status.progress.samples)
        self._total.labels(*key).set(status.progress.total_samples)
        self._degraded.labels(*key).set(status.progress.degraded_samples)
        self._restarts.labels(*key).set(status.restarts)
        if status.progress.protected_samples is not None:
            self._protected.labels(*key).set(status.progress.protected_samples)
        if status.progress.auc is not None:
            self._auc.labels(*key).set(status.progress.auc)
        if status.progress.held_out is not None and status.progress.held_out.auc is not None:
            self._held_out_auc.labels(*key).set(status.progress.held_out.auc)
        if status.lost_row_updates is not None:
            self._lost_updates.labels(*key).set(status.lost_row_updates)
        if status.plan is not None:
            self._interval_s.labels(*key).set(status.plan.interval_seconds)
        if status.budget is not None:
            self._limit.labels(*key).set(status.budget.limit)
            self._spent.labels(*key).set(status.budget.spent)
            self._reserved.labels(*key).set(status.budget.reserved)
            self._running.labels(*key).set(status.budget.running_sum)
            self._rollbacks.labels(*key).set(status.budget.rollbacks)
        for state in get_args(SparePhase):
            self._spares.labels(*key, state).set(sum(spare.state == state for spare in status.spares))
        for kind, seconds in status.overhead:
            self._overhead_s.labels(*key, kind.removesuffix("_seconds")).set(seconds)
        self._count_failures(key, status.failures)

    def forget(self, namespace: str, job: str) -> None:
        """The job is gone: its figures would be stale."""
        for gauge in self._gauges:
            gauge.remove_by_labels({"namespace": namespace, "cprjob": job})
        for counter in (self._failures, self._rebuilt):
            counter.remove_by_labels({"namespace": namespace, "cprjob": job})
        self._records.pop((namespace, job), None)
        self._phases.pop((namespace, job), None)

    def jobs(self) -> tuple[tuple[str, str], ...]:
        """Namespace and name of all jobs that there are figures of."""
        return tuple(self._phases)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def _set_phase(self, key: tuple[str, str], phase: Phase) -> None:
        before = self._phases.get(key)
        if before is not None and before != phase:
            self._phase.remove(*key, before)
        self._phase.labels(*key, phase).set(1)
        self._phases[key] = phase

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
