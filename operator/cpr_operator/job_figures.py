"""What Prometheus reads of each job's status. Gauges are made when somebody reads them.

A gauge object for each series would be half of all objects of an operator of 1,000 jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cpr_operator.api.members import SparePhase
from cpr_operator.api.status import Budget, Condition, ConditionType, Status

#: Not `job`: that is the label by which Prometheus tells its own targets apart.
JOB = ("namespace", "cprjob")

Key = tuple[str, str]
_Figures = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class _Gauge:
    """`read` gives values by those of `label`; without a label by the empty text, and nothing if it is unknown."""

    name: str
    text: str
    read: Callable[[Status], _Figures]
    label: str = ""


def _one(name: str, text: str, value: Callable[[Status], float | None]) -> _Gauge:
    def read(status: Status) -> _Figures:
        found = value(status)
        return () if found is None else (("", found),)

    return _Gauge(f"cprjob_{name}", text, read)


def _of_budget(name: str, text: str, value: Callable[[Budget], float]) -> _Gauge:
    return _one(name, text, lambda s: None if s.budget is None else value(s.budget))


def _true(conditions: Iterable[Condition]) -> _Figures:
    true = {each.type for each in conditions if each.status == "True"}
    return tuple((kind, float(kind in true)) for kind in get_args(ConditionType))


def _spares(status: Status) -> _Figures:
    return tuple((state, float(sum(each.state == state for each in status.spares))) for state in get_args(SparePhase))


def _overhead(status: Status) -> _Figures:
    return tuple((kind.removesuffix("_seconds"), seconds) for kind, seconds in status.overhead)


def _by_group(status: Status) -> _Figures:
    found = status.progress.held_out
    groups = () if found is None else (*found.groups, *filter(None, (found.rest,)))
    return tuple((each.name, each.auc) for each in groups if each.auc is not None)


GAUGES = (
    _Gauge("cprjob_phase", "1 for the phase that the job is in.", lambda s: ((s.phase, 1.0),), "phase"),
    _Gauge("cprjob_condition", "1 while the condition is True.", lambda s: _true(s.conditions), "condition"),
    _one("samples", "Samples trained.", lambda s: s.progress.samples),
    _one("total_samples", "Samples in all; 0 until the data is read.", lambda s: s.progress.total_samples),
    _one("degraded_samples", "Samples trained while a shard was away.", lambda s: s.progress.degraded_samples),
    _one(
        "protected_samples",
        "Samples that parity or a save holds of every shard.",
        lambda s: s.progress.protected_samples,
    ),
    _one("auc", "Area under the ROC curve so far.", lambda s: s.progress.auc),
    _one(
        "held_out_auc",
        "AUC of the last evaluation on held-out rows.",
        lambda s: None if s.progress.held_out is None else s.progress.held_out.auc,
    ),
    _one(
        "held_out_gauc",
        "Its mean AUC of groups, weighted by samples.",
        lambda s: None if s.progress.held_out is None else s.progress.held_out.gauc,
    ),
    _Gauge("cprjob_held_out_group_auc", "Its AUC of the largest groups, and of the rest.", _by_group, "group"),
    _one(
        "best_evaluation",
        "What the best evaluation scored by the metric of earlyStop.",
        lambda s: None if s.best is None else s.best.value,
    ),
    _one(
        "evaluations_since_best",
        "Evaluations since the best one.",
        lambda s: None if s.best is None else s.best.since,
    ),
    _of_budget("budget_limit_ratio", "Portion of samples that may be lost.", lambda b: b.limit),
    _of_budget("budget_spent_ratio", "Portion of samples that is lost.", lambda b: b.spent),
    _of_budget("budget_reserved_ratio", "Portion of samples set aside for recoveries under way.", lambda b: b.reserved),
    _of_budget("budget_running_sum_ratio", "Portion lost by all recoveries, none taken back.", lambda b: b.running_sum),
    _one("lost_row_updates", "Row updates that shards have lost, or at most so many.", lambda s: s.lost_row_updates),
    _of_budget("rollbacks", "How often the whole job went back to an anchor.", lambda b: b.rollbacks),
    _one(
        "interval_seconds",
        "Planned training time between two cuts.",
        lambda s: None if s.plan is None else s.plan.interval_seconds,
    ),
    _one("restarts", "Pods replaced so far.", lambda s: s.restarts),
    _Gauge("cprjob_spares", "Spares by state; those that are Ready can be promoted.", _spares, "state"),
    _Gauge("cprjob_overhead_seconds", "Time that fault tolerance has cost so far.", _overhead, "kind"),
)


class JobFigures(Collector):
    """The gauges of all jobs. Any thread may collect while one thread sets and drops."""

    def __init__(self) -> None:
        self._jobs: dict[Key, tuple[_Figures, ...]] = {}

    def set(self, key: Key, status: Status) -> None:
        """The job was seen with this status."""
        self._jobs[key] = tuple(gauge.read(status) for gauge in GAUGES)

    def drop(self, key: Key) -> None:
        """The job is gone: its figures would be stale."""
        self._jobs.pop(key, None)

    def keys(self) -> tuple[Key, ...]:
        """Namespace and name of all jobs that there are figures of."""
        return tuple(self._jobs)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See `Collector`."""
        jobs = list(self._jobs.items())
        for number, gauge in enumerate(GAUGES):
            labels = (*JOB, gauge.label) if gauge.label else JOB
            family = GaugeMetricFamily(gauge.name, gauge.text, labels=labels)
            for key, figures in jobs:
                for label, value in figures[number]:
                    family.add_metric((*key, label) if gauge.label else key, value)
            yield family
