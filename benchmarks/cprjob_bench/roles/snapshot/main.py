"""`python -m cprjob_bench snapshot`: measures one shard and its store, and reports line by line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from cpr_contract import env
from cpr_contract.codec import to_json
from cpr_contract.spec import JobSpec
from cpr_trainer.runtime import Access, read_job, read_request, store_access
from cpr_trainer.store import Store, open_store
from cprjob_bench.bench_documents import BenchReport, SnapshotBench, SnapshotMetrics
from cprjob_bench.roles.snapshot.raw_transfers import Transfers, raw_client
from cprjob_bench.roles.snapshot.saves import BenchShard, TrainedShard, delete_all
from cprjob_bench.roles.snapshot.serving import Trainer, running_shard


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read a `SnapshotBench` from `source` and write a `BenchReport` a line to `sink`.

    The job is in `CPR_SPEC`; the shard process uses ports from `CPR_PORT_BASE`. Raises TrainerError, and OSError
    for a store that the raw client cannot use.
    """
    job = read_job(environ)
    request = read_request(SnapshotBench, source, "bench snapshot")
    access = store_access(environ)
    store = open_store(job.snapshots.store, *access)
    bench = _Bench(job, request, environ, store, access)
    try:
        for done, stage in enumerate(bench.stages()):
            print(to_json(BenchReport(stage, done, bench.total)), file=sink, flush=True)
        print(to_json(BenchReport("done", bench.total, bench.total, bench.metrics)), file=sink, flush=True)
    finally:
        delete_all(store, job.job_uid)


@dataclass(slots=True, eq=False)
class _Bench:
    """A bench in progress; its stages add to `metrics`."""

    job: JobSpec
    request: SnapshotBench
    environ: Mapping[str, str]
    store: Store
    access: Access
    metrics: SnapshotMetrics = SnapshotMetrics(0, 0, (), (), (), None, (), ())  # noqa: RUF009 -- frozen

    @property
    def total(self) -> int:
        """The number of stages."""
        return 2 * self.request.repeats + len(self.request.strategies)

    def stages(self) -> Iterator[str]:
        """Measure stage after stage; yield the name of each before it."""
        yield from self._stages_within()
        yield from self._stages_of_a_process()

    def _stages_within(self) -> Iterator[str]:
        """Measure in this process."""
        shard = BenchShard.of(self.job, self.store)
        with raw_client(self.job.snapshots.store, *self.access) as raw:
            transfers = Transfers(shard, raw)
            for _ in range(self.request.repeats):
                yield "save and restore"
                transfers.repeat()
        self._found(
            table_bytes=shard.table_bytes,
            saved_bytes=transfers.saved_bytes,
            save=tuple(transfers.saves),
            restore=tuple(transfers.restores),
        )
        trained = TrainedShard(shard, self.request.strategies)
        for strategy in self.request.strategies:
            yield f"bytes of {strategy}"
            cuts = tuple(trained.cuts(strategy, self.request.bits))
            self._found(
                cuts=(*self.metrics.cuts, *cuts),
                trackers=(*self.metrics.trackers, trained.tracker_bytes(strategy)),
            )

    def _stages_of_a_process(self) -> Iterator[str]:
        """Measure a shard process, after the memory of this process's shard is free again."""
        port_base = int(self.environ[env.PORT_BASE])
        with (
            tempfile.TemporaryDirectory(prefix="cprjob-") as folder,
            running_shard(self.job, self.environ, port_base, Path(folder)) as process,
            Trainer.of(self.job, process) as trainer,
        ):
            trainer.change_everything()
            before, peaks = process.memory_bytes(), list[int]()
            for number in range(self.request.repeats):
                yield "training during a save"
                if number:
                    trainer.change_everything()
                process.reset_peak()  # large pushes need extra memory
                self._found(rounds=(*self.metrics.rounds, trainer.round(self.request.window_s)))
                peaks += filter(None, [process.peak_memory_bytes()])
        if before is not None and peaks:
            # The byte per row with its last change was allocated before.
            self._found(extra_memory_bytes=max(peaks) - before + self.job.model.tables[0].rows)

    def _found(self, **metrics: Any) -> None:
        self.metrics = replace(self.metrics, **metrics)
