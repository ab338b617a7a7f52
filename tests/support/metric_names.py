"""The metrics that the operator, the trainers and the shards really have, by name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from prometheus_client import CollectorRegistry

from cpr_contract.reports import TrainerReport, TrainerState
from cpr_contract.roster import Counters
from cpr_operator.metrics import Metrics as OperatorMetrics
from cpr_trainer.shard.metrics import Metrics as ShardMetrics
from cpr_trainer.trainer.board import Board, ReportCollector


def metrics() -> dict[str, str]:
    """All metrics and their types; a counter's name is that of its series, a histogram's has no suffix."""
    registries = (OperatorMetrics()._registry, ShardMetrics().registry, _trainer_registry())
    families = [family for registry in registries for family in registry.collect()]
    return {f"{each.name}_total" if each.type == "counter" else each.name: each.type for each in families}


def series() -> set[str]:
    """All names that a query can ask for."""
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    return {f"{name}{suffix}" for name, kind in metrics().items() for suffix in suffixes.get(kind, ("",))}


def _trainer_registry() -> CollectorRegistry:
    """That of a trainer with a report in which every figure is known."""
    report = TrainerReport(1, "job", 0, 1, Counters(1, 1, 1), TrainerState.TRAINING, 0, 0, 0, 0, (), (), (), None)
    known: dict[str, Any] = {each.name: 1.0 for each in fields(report) if getattr(report, each.name) is None}
    registry = CollectorRegistry()
    registry.register(ReportCollector(Board(replace(report, **known))))
    return registry
