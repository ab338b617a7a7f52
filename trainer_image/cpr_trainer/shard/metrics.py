"""A shard's figures for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from cpr_trainer.checkpoint.write.save import SaveMetrics


class Metrics:
    """All metrics of one shard, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rows_read = self._counter("rows_read", "Rows sent to trainers")
        self.rows_changed = self._counter("rows_changed", "Rows that pushes changed")
        self.pushes = Counter(
            "cprjob_shard_pushes_total", "Pushes by what became of them", ["fate"], registry=self.registry
        )
        self.saves = SaveMetrics(self.registry)
        self.load_seconds = self._gauge("load_seconds", "Time that the last restore took")
        self.rows = self._gauge("rows", "Rows held")
        self.tracker_bytes = self._gauge("tracker_bytes", "Memory that ranking rows for priority saves takes")
        self.parity_bytes = self._gauge("parity_bytes", "Memory of the parity that is kept for other shards")
        self.protected_samples = self._gauge("protected_samples", "Samples that parity at other shards holds")
        self.flushes = self._counter("flushes", "Flushes to the parity at other shards")
        self.flushed_bytes = self._counter("flushed_bytes", "Bytes of rows in flushes to other shards")
        self.lost_row_updates = self._gauge("lost_row_updates", "Row updates lost since the job began, at most")
        self.applied_step = self._gauge("applied_step", "Last step applied of any trainer")
        self.generation = self._gauge("generation", "Generation of the roster")
        self.ready = self._gauge("ready", "1 while lookups and pushes are served")

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(f"cprjob_shard_{name}_total", what, registry=self.registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"cprjob_shard_{name}", what, registry=self.registry)
