"""`python -m cprjob_bench saves`: saves, restores and verifies one shard, and reports the times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO, TypeVar

import numpy as np

from cpr_contract.codec import to_json
from cpr_contract.requests import Request, Verification
from cpr_trainer.checkpoint.restore.lineage import Candidate
from cpr_trainer.checkpoint.restore.loading import load_shard
from cpr_trainer.checkpoint.write.save import SavedShard
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.inventory import answer
from cpr_trainer.runtime import read_job, read_request, store_access
from cpr_trainer.store import open_store
from cprjob_bench.bench_documents import SaveTimes, SaveTrials, Timing
from cprjob_bench.roles.snapshot.raw_transfers import WrongRestoreError
from cprjob_bench.roles.snapshot.saves import BenchShard, delete_all

_Result = TypeVar("_Result")


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read `SaveTrials` from `source` and write `SaveTimes` to `sink`.

    The job is in `CPR_SPEC`. Raises TrainerError, WrongRestoreError among them.
    """
    job, request = read_job(environ), read_request(SaveTrials, source, "bench scale")
    store = open_store(job.snapshots.store, *store_access(environ))
    shard = BenchShard.of(job, store)
    arena = shard.local.arena
    arena.epochs.note(np.arange(len(arena.rows)))
    restored = LocalRows.of(job, shard.local.placement, 0)
    verify = Request("Verify", job.snapshots.store, job.job_uid, job.model)
    times: dict[str, list[Timing]] = {"save": [], "restore": [], "verify": []}
    try:
        for number in range(request.repeats):
            saved, timing = _time(partial(_save, shard, number + 1))
            times["save"].append(timing)
            candidate = Candidate("Save", saved.manifest.layout, saved.manifest.step, (saved.ref,))
            restored.arena.rows.fill(0.0)
            times["restore"].append(_time(partial(load_shard, store, candidate, restored))[1])
            verification, timing = _time(partial(answer, verify, store, time.time()))
            times["verify"].append(timing)
            assert isinstance(verification, Verification)  # noqa: S101 -- the answer to this action
            if verification.damaged or not np.array_equal(restored.arena.rows, arena.rows):
                raise WrongRestoreError
            shard.clear()
    finally:
        delete_all(store, job.job_uid)
    found = SaveTimes(shard.table_bytes, **{name: tuple(each) for name, each in times.items()})
    print(to_json(found), file=sink, flush=True)


def _save(shard: BenchShard, step: int) -> SavedShard:
    """Save all rows, as a shard captures them first."""
    return shard.save(shard.local.arena.capture_changes(0), step)


def _time(work: Callable[[], _Result]) -> tuple[_Result, Timing]:
    """Return the result of `work`, and its time in this process."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = work()
    return result, Timing(time.perf_counter() - wall_s, time.process_time() - cpu_s)
