"""The metrics that the operator, the trainers and the shards really have, by name."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from cpr_contract.pinned_data import PinnedData, SegmentScores
from cpr_contract.reports import BestEvaluation, GroupScores, HeldOutScores, TrainerReport, TrainerState
from cpr_contract.roster import AnchorRef, Counters
from cpr_operator.metrics import Metrics as OperatorMetrics
from cpr_trainer.shard.status import Metrics as ShardMetrics
from cpr_trainer.trainer.status import ReportCollector, StatusPublisher

#: Labels that Prometheus adds to a pod's series: its own of a target, and those of the chart's monitors.
OF_TARGETS = frozenset({"namespace", "pod"})
OF_PODS = frozenset({"cprjob", "role", "index"})


def metrics() -> dict[str, str]:
    """All metrics and their types; a counter's name is that of its series, a histogram's has no suffix."""
    families = [family for registry in _registries() for family in registry.collect()]
    return {_series_name(each): each.type for each in families}


def series() -> set[str]:
    """All names for queries."""
    return set(labels())


def labels() -> dict[str, frozenset[str]]:
    """All names for queries, with the possible labels of their series."""
    added = OF_TARGETS | OF_PODS
    of_operator = set(_own_labels(_registries()[0]))
    return {name: own | (OF_TARGETS if name in of_operator else added) for name, own in own_labels().items()}


def own_labels() -> dict[str, frozenset[str]]:
    """The same, with the labels that the operator, trainers and shards write themselves."""
    return {name: own for registry in _registries() for name, own in _own_labels(registry).items()}


def _own_labels(registry: CollectorRegistry) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for collector in registry._collector_to_names:
        stated = frozenset(getattr(collector, "_labelnames", ()))
        for family in collector.collect():
            seen = {label for sample in family.samples for label in sample.labels}
            known, name = stated | seen | frozenset(getattr(family, "_labelnames", ())), _series_name(family)
            if family.type == "histogram":
                found |= {f"{name}_bucket": known | {"le"}}
                found |= {f"{name}_sum": known - {"le"}, f"{name}_count": known - {"le"}}
            else:
                found[name] = known
    return found


def _series_name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


GROUP = GroupScores("shop", 1, 1.0, 1.0, 1.0, 1.0)


@cache
def _registries() -> tuple[CollectorRegistry, ...]:
    """Those of the operator, of a shard and of a trainer."""
    return OperatorMetrics()._registry, ShardMetrics().registry, _trainer_registry()


def _trainer_registry() -> CollectorRegistry:
    """The exposition of a trainer with every value in its report."""
    report = TrainerReport(1, "job", 0, 1, Counters(1, 1, 1), TrainerState.TRAINING, 0, 0, 0, 0, (), (), (), None)
    known: dict[str, Any] = {each.name: 1.0 for each in fields(report) if getattr(report, each.name) is None}
    known["evaluation"] = HeldOutScores(1, 1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, (GROUP,))
    known["data"] = PinnedData(1, 1, 0, 1.0)
    known["segment"] = SegmentScores(1, 0, 1, 1, 1.0, 1.0, 1.0, 1.0)
    known["best"] = BestEvaluation(AnchorRef("key", "digest", 1, 1, 1), 1.0, 1)
    registry = CollectorRegistry()
    registry.register(ReportCollector(StatusPublisher(replace(report, metrics=(("own", 1.0),), **known))))
    return registry
