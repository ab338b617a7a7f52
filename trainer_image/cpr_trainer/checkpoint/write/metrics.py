"""The figures of a shard's saves, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class SaveMetrics:
    """All metrics of saves, in the registry of their shard."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.committed = Counter("cprjob_shard_saves_total", "Saves committed, by kind", ["kind"], registry=registry)
        self.failed = Counter("cprjob_shard_failed_saves_total", "Attempts to save that failed", registry=registry)
        self.given_up = Counter("cprjob_shard_given_up_saves_total", "Saves that were given up", registry=registry)
        self.rows = Counter("cprjob_shard_saved_rows_total", "Rows in committed saves", registry=registry)
        self.seconds = Gauge("cprjob_shard_save_seconds", "Time that the last save took to write", registry=registry)
        self.mark_seconds = Gauge(
            "cprjob_shard_cut_seconds",
            "Time that the last mark of rows to save kept pushes waiting",
            registry=registry,
        )
