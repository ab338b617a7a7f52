"""The operator's Prometheus metrics: of its passes, and of each job's status.

A watch event with a new status sets the gauges of a job. Failures are counted from the records in it, each once; those
that a job already had when the operator first saw it were counted before its start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cpr_operator.api.member_status import SparePhase
from cpr_operator.api.status import ConditionType, FailureRecord, Goodput, LostTime, Status
from cpr_operator.goodput import projected

#: The labels of a job. Prometheus has the label `job` for its own targets.
JOB = ("namespace", "cprjob")
RECOVERY_BUCKETS_S = (0.5, 1, 2, 3, 5, 8, 13, 20, 30, 60, 120, 300, 600)
PASS_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

Key = tuple[str, str]
_Values = tuple[tuple[str, float], ...]
#: Role, index, incarnation and restart of a failure.
_Record = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class _Gauge:
    """A gauge of a status. `read` returns (value of `label`, value) pairs; none if the value is unknown."""

    name: str
    text: str
    read: Callable[[Status], _Values]
    label: str = ""
    is_age: bool = False


def _one(name: str, text: str, path: str, *, is_age: bool = False) -> _Gauge:
    """Return the gauge of the value at a path of attributes, such as `budget.spent`; unknown if a part is None.

    is_age: the value is a time, and the gauge the seconds since.
    """

    def read(status: Status) -> _Values:
        value: Any = status
        for attribute in path.split("."):
            value = None if value is None else getattr(value, attribute)
        return () if value is None else (("", value),)

    return _Gauge(f"cprjob_{name}", text, read, is_age=is_age)


def _conditions(status: Status) -> _Values:
    true = {each.type for each in status.conditions if each.status == "True"}
    return tuple((kind, float(kind in true)) for kind in get_args(ConditionType))


def _spares(status: Status) -> _Values:
    return tuple((state, float(sum(each.state == state for each in status.spares))) for state in get_args(SparePhase))


def _overhead(status: Status) -> _Values:
    return tuple((kind.removesuffix("_seconds"), seconds) for kind, seconds in status.overhead)


def _occupancies(status: Status) -> _Values:
    return tuple((table.name, table.entries / table.capacity) for table in status.tables if table.capacity)


def _by_score_group(status: Status) -> _Values:
    found = status.progress.held_out
    groups = () if found is None else (*found.groups, *filter(None, (found.rest,)))
    return tuple((each.name, each.auc) for each in groups if each.auc is not None)


GAUGES = (
    _Gauge("cprjob_phase", "1 for the phase that the job is in.", lambda s: ((s.phase, 1.0),), "phase"),
    _Gauge("cprjob_condition", "1 while the condition is True.", _conditions, "condition"),
    _one("samples", "Samples trained.", "progress.samples"),
    _one("total_samples", "Samples in all; 0 until the data is read.", "progress.total_samples"),
    _one("data_lag_samples", "Samples of data that arrives that are pinned, and not trained.", "data.lag_samples"),
    _one("data_pin_age_seconds", "Time since the newest pin of data.", "data.newest_pin_time", is_age=True),
    _one("data_late_files", "Files that came after files with later names.", "data.late_files"),
    _one("degraded_samples", "Samples trained while a shard was unavailable.", "progress.degraded_samples"),
    _one("protected_samples", "Samples that parity or a save holds of every shard.", "progress.protected_samples"),
    _one("auc", "Area under the ROC curve so far.", "progress.auc"),
    _one("segment_auc", "AUC of the newest complete segment of data that arrives.", "progress.segment.auc"),
    _one("segment_logloss", "Its log loss in nats.", "progress.segment.logloss"),
    _one("segment_calibration_ratio", "Its mean prediction by the portion of ones.", "progress.segment.calibration"),
    _one("held_out_auc", "AUC of the last evaluation on held-out rows.", "progress.held_out.auc"),
    _one("held_out_gauc", "Its mean AUC of groups, weighted by samples.", "progress.held_out.gauc"),
    _Gauge("cprjob_held_out_group_auc", "Its AUC of the largest groups, and of all others.", _by_score_group, "group"),
    _Gauge("cprjob_table_occupancy_ratio", "Portion of a dynamic table's rows in use.", _occupancies, "table"),
    _one("best_evaluation", "Score of the best evaluation by the metric of earlyStop.", "best.value"),
    _one("evaluations_since_best", "Evaluations since the best one.", "best.since"),
    _one("budget_limit_ratio", "Portion of samples that may be lost.", "budget.limit"),
    _one("budget_spent_ratio", "Portion of samples that is lost.", "budget.spent"),
    _one("budget_reserved_ratio", "Portion of samples reserved for recoveries in progress.", "budget.reserved"),
    _one(
        "budget_running_sum_ratio",
        "Portion lost by all recoveries, also if a rollback took it back.",
        "budget.running_sum",
    ),
    _one("lost_row_updates", "Row updates that shards have lost, or an upper bound.", "lost_row_updates"),
    _one("published_age_seconds", "Time since the newest model was published.", "published.time", is_age=True),
    _one("published_step", "Step of the newest published model. A rollback may lower it.", "published.step"),
    _one("rollbacks", "Rollbacks of the whole job to an anchor.", "budget.rollbacks"),
    _one("interval_seconds", "Planned training time between two cuts.", "plan.interval_seconds"),
    _one("restarts", "Pods replaced so far.", "restarts"),
    _Gauge("cprjob_spares", "Spares by state; those that are Ready can be promoted.", _spares, "state"),
    _Gauge("cprjob_overhead_seconds", "Time that fault tolerance has cost so far.", _overhead, "kind"),
)


class Metrics(Collector):
    """All metrics of one operator, in a registry of their own.

    It collects the gauges of all jobs on each scrape: a gauge object per series would be half of an operator's objects.
    Any thread may collect while one thread sets and drops. `clock` is the time in seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._records: dict[Key, dict[_Record, FailureRecord]] = {}
        self._gauges: dict[Key, tuple[_Values, ...]] = {}
        self._goodputs: dict[Key, Goodput] = {}
        self._least_lost: dict[Key, LostTime] = {}  # as it may have been shown

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        self._passes = counter("cprjob_passes", "Passes over jobs, by how they ended.", "result")
        self._failures = counter("cprjob_failures", "Failures of pods, by kind.", *JOB, "role", "kind")
        self._rebuilt = counter("cprjob_rebuilt_shards", "Shards with rows rebuilt from parity.", *JOB)
        self._pass_s = Histogram(
            "cprjob_pass_seconds", "Duration of a pass.", buckets=PASS_BUCKETS_S, registry=self._registry
        )
        self._recovery_s = Histogram(
            "cprjob_recovery_seconds",
            "From a failure seen to training again; in place, from the end of a process to the work of the next.",
            ("role", "action"),
            buckets=RECOVERY_BUCKETS_S,
            registry=self._registry,
        )
        self.leading = Gauge("cprjob_leader", "1 for the elected operator.", registry=self._registry)
        text = "Requests to the API server that the rate limit defers."
        self._waiting = Gauge("cprjob_requests_waiting", text, registry=self._registry)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        jobs, now = list(self._gauges.items()), self._clock()
        for number, gauge in enumerate(GAUGES):
            labels = (*JOB, gauge.label) if gauge.label else JOB
            family = GaugeMetricFamily(gauge.name, gauge.text, labels=labels)
            for key, values in jobs:
                for label, read in values[number]:
                    value = max(now - read, 0.0) if gauge.is_age else read
                    family.add_metric((*key, label) if gauge.label else key, value)
            yield family
        yield from self._times(now)

    def _times(self, now: float) -> Iterator[Metric]:
        """Yield goodput and its parts, with the time that a job has waited since its status changed.

        This time may become training. The counters of lost time then stand still until it is caught up.
        """
        ratio = GaugeMetricFamily("cprjob_goodput_ratio", "Productive time by wall time.", labels=JOB)
        productive = CounterMetricFamily(
            "cprjob_productive_seconds", "Time in which samples were trained for the first time.", labels=JOB
        )
        lost = CounterMetricFamily("cprjob_lost_seconds", "The rest of the wall time.", labels=(*JOB, "cause"))
        for key, known in list(self._goodputs.items()):
            goodput = projected(known, now)
            productive.add_metric(key, goodput.productive_seconds)
            if goodput.ratio is not None:
                ratio.add_metric(key, goodput.ratio)
            for cause, seconds in _larger(goodput.lost, self._least_lost.get(key)):
                lost.add_metric((*key, cause), seconds)
        yield from (ratio, productive, lost)

    def observe_waiting(self, waiting: Callable[[], float]) -> None:
        """Call `waiting` on each scrape for the number of waiting requests."""
        self._waiting.set_function(waiting)

    def observe_pass(self, result: str, seconds: float) -> None:
        """Count a pass; `result` is ok or the class of its error."""
        self._passes.labels(result).inc()
        self._pass_s.observe(seconds)

    def observe_status(self, namespace: str, job: str, status: Status) -> None:
        """Set the gauges of a job, and count its new failures."""
        key = (namespace, job)
        self._gauges[key] = tuple(gauge.read(status) for gauge in GAUGES)
        if status.goodput is not None:
            self._set_goodput(key, status.goodput)
        now: dict[_Record, FailureRecord] = {each.identity: each for each in status.failures}
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

    def _set_goodput(self, key: Key, goodput: Goodput) -> None:
        before = self._goodputs.get(key)
        if before is not None and before.wall_seconds <= goodput.wall_seconds:
            self._least_lost[key] = _larger(projected(before, self._clock()).lost, self._least_lost.get(key))
        else:  # another job of this name
            self._least_lost.pop(key, None)
        self._goodputs[key] = goodput

    def forget(self, namespace: str, job: str) -> None:
        """Remove the metrics of a deleted job."""
        for values in (self._gauges, self._goodputs, self._least_lost):
            values.pop((namespace, job), None)
        for counter in (self._failures, self._rebuilt):
            counter.remove_by_labels({"namespace": namespace, "cprjob": job})
        self._records.pop((namespace, job), None)

    def jobs(self) -> tuple[Key, ...]:
        """Namespace and name of all jobs with metrics."""
        return tuple(self._gauges)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)


def _larger(lost: LostTime, least: LostTime | None) -> LostTime:
    """Return the larger time of each cause: a counter never falls."""
    if least is None:
        return lost
    return LostTime(**{cause: max(seconds, getattr(least, cause)) for cause, seconds in lost})
