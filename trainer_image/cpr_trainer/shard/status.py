"""The status of a shard: the report that its HTTP server returns, and its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cpr_contract import CONTRACT_VERSION
from cpr_contract.model import PAGE_SLOTS
from cpr_contract.reports import SaveRef, ShardReport, ShardState, TableCounts
from cpr_contract.roster import Counters
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.write.save import SaveMetrics
from cpr_trainer.embedding.dynamic.rows import DynamicRows
from cpr_trainer.shard.state import Progress

_STALLED_S = 30.0  # far more than any tick of the main loop takes
#: The interval at which entries are counted. A count reads four bytes of each slot and of each cell on the main thread:
#: 6 ms for ten million slots, so far less than a thousandth of the time.
COUNT_S = 10.0

_TABLE_GAUGES: Mapping[str, str] = {
    "slots": "Rows of a dynamic table on this shard",
    "entries": "Rows of a dynamic table that are in use",
    "waiting": "Keys that are counted until a dynamic table admits them",
}
_TABLE_COUNTERS: Mapping[str, str] = {
    "admitted": "Keys that got a row",
    "evicted": "Keys that lost their row to a new key",
    "expired": "Keys that had expired before a new key took their row",
    "dropped": "Gradients of keys that found a push of the same step in all of their places",
    "full": "New keys that found all of their places in use",
}


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


class TableCounter:
    """Counts the rows of dynamic tables for reports: every `COUNT_S`, when serving starts, and after each save.

    A job ends right after its last save, and the last report has the rows of the model. Each tick of the main loop
    makes a report, so reports between two counts repeat the last one.
    """

    def __init__(self, job: JobSpec, bands: Sequence[DynamicRows]) -> None:
        self._names = {table: job.model.tables[table].name for table in job.model.dynamic_tables}
        self._bands = bands
        self._counts: tuple[TableCounts, ...] | None = None
        self._save: SaveRef | None = None
        self._due_s = 0.0

    def counts(self, progress: Progress | None, save: SaveRef | None, now: float) -> tuple[TableCounts, ...]:
        """Return the counts of the tables at a time in seconds; none while nothing is served. save: the newest one."""
        if progress is None:
            self._counts = None
            return ()
        if self._counts is None or save != self._save or now >= self._due_s:
            self._counts = self._count(max(progress.applied))
            self._save, self._due_s = save, now + COUNT_S
        return self._counts

    def _count(self, step: int) -> tuple[TableCounts, ...]:
        found = dict[int, TableCounts]()
        for band in self._bands:
            slots = PAGE_SLOTS * np.bincount(band.pages.tables, minlength=len(band.tables))
            entries, waiting, counted = band.entries.occupancy(step), band.entries.waiting(step), band.counted
            effects = counted.admitted, counted.evicted, counted.expired, counted.dropped, counted.full
            counts = np.stack((slots, entries, waiting, *effects), axis=1).tolist()
            for table, each in zip(band.tables.tolist(), counts, strict=True):
                found[table] = TableCounts(self._names[table], *each)
        return tuple(found[table] for table in self._names)


class TableCollector(Collector):
    """The counts of dynamic tables in the last report as Prometheus metrics."""

    def __init__(self) -> None:
        self.tables: tuple[TableCounts, ...] = ()

    def collect(self) -> Iterator[Metric]:
        """Yield a family for each count."""
        for kind, texts in ((GaugeMetricFamily, _TABLE_GAUGES), (CounterMetricFamily, _TABLE_COUNTERS)):
            for field, text in texts.items():
                family = kind(f"cprjob_shard_table_{field}", text, labels=("table",))
                for table in self.tables:
                    family.add_metric((table.name,), getattr(table, field))
                yield family


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
        self._tables = TableCollector()
        self.registry.register(self._tables)

    def show(self, report: ShardReport) -> None:
        """Set the metrics that repeat figures of a report."""
        self._tables.tables = report.tables
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
