"""The status of a shard: the report that its HTTP server returns, and its metrics."""

from __future__ import annotations

from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge

from cpr_contract import CONTRACT_VERSION
from cpr_contract.reports import ShardReport, ShardState
from cpr_contract.roster import Counters
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.write.save import SaveMetrics

_STALLED_S = 30.0  # far more than any tick of the main loop takes


class StatusPublisher:
    """Holds the report that the main loop published last, for the threads of the HTTP server.

    The index is -1 until a roster assigns one.
    """

    def __init__(self, job: JobSpec) -> None:
        self._published_s = monotonic()
        self.report = ShardReport(
            contract=CONTRACT_VERSION,
            job_uid=job.job_uid,
            index=-1,
            incarnation=0,
            counters=Counters(roster=0, group=0, generation=0),
            state=ShardState.STARTING,
            applied=(),
            newest_save=None,
            restored_samples=None,
            resumed_samples=None,
            lost=(),
            load_s=None,
            silent=(),
            problem=None,
        )

    def publish(self, report: ShardReport) -> None:
        """Replace the report, on the main thread: this also shows that the main loop makes progress."""
        self.report, self._published_s = report, monotonic()

    def healthy(self) -> bool:
        """Return whether the main loop made progress lately."""
        return monotonic() - self._published_s < _STALLED_S

    def ready(self) -> bool:
        """Return whether lookups and pushes are served, or a spare could do so at once."""
        return self.report.state in {ShardState.READY, ShardState.SPARE}


class Metrics:
    """All metrics of one shard, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rows_read = self._counter("rows_read", "Rows sent to trainers")
        self.rows_changed = self._counter("rows_changed", "Rows that pushes changed")
        self.pushes = Counter("cprjob_shard_pushes_total", "Pushes by outcome", ["fate"], registry=self.registry)
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

    def show(self, report: ShardReport) -> None:
        """Set the gauges that repeat figures of a report."""
        self.applied_step.set(report.applied_step)
        if report.row_updates is not None:
            self.lost_row_updates.set(max(report.row_updates.lost, 0))
        self.protected_samples.set(report.protected_samples or 0)
        self.generation.set(report.counters.generation)
        self.ready.set(report.state is ShardState.READY)

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(f"cprjob_shard_{name}_total", what, registry=self.registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"cprjob_shard_{name}", what, registry=self.registry)
