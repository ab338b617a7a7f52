"""A parameter server on torch RPC: rpc_baseline.py [PARAMETERS.pt], with the job's numbers of trainers and of servers.

Each row is requested and updated once, in one pull and one push per server and step. The pull overlaps with the bottom
network, the push with the sum of dense gradients over Gloo in one flat all-reduce.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from threading import Lock

import torch
from common import join, open_batches, open_trace, save
from torch import Tensor, distributed
from torch.distributed import rpc
from torch.futures import Future, wait_all

from cpr_contract.spec import JobSpec
from cpr_contract.trace import STEP_TRACE
from cpr_trainer.embedding.access import single_tensor
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.process import threads
from cpr_trainer.runtime import read_job
from cpr_trainer.trainer.compute import ComputeWorkers, compute
from cpr_trainer.trainer.prefetch import Feed
from cprjob_bench.roles.single import Tables

#: The tables of this process, if it is a server, and the lock for pushes.
_served: list[Tables] = []
_lock = Lock()


def pull(slots: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows of this server, [u, D]; slots: int64 [u]."""
    return _served[0].rows.index_select(0, slots).to(dtype)


def push(slots: Tensor, gradients: Tensor, step: int) -> None:
    """Take `step` of the optimizer on this server. slots: int64 [u], gradients: [u, D]."""
    with _lock:
        _served[0].update(slots, gradients.float(), step)


class Servers:
    """Client of all servers, in a trainer."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def pull(self, rows: UniqueRows, dtype: torch.dtype) -> list[Future[Tensor]]:
        """Request its part of these rows from each server."""
        return [
            rpc.rpc_async(_server(shard), pull, (self._slots(rows, shard), dtype))
            for shard in range(self._placement.shards)
        ]

    def push(self, rows: UniqueRows, gradients: Tensor, step: int) -> list[Future[None]]:
        """Send its part of these rows' gradients, [u, D], to each server."""
        return [
            rpc.rpc_async(_server(shard), push, (self._slots(rows, shard), gradients[rows.on_shard(shard)], step))
            for shard in range(self._placement.shards)
        ]

    def _slots(self, rows: UniqueRows, shard: int) -> Tensor:
        return torch.from_numpy(rows.places[rows.on_shard(shard)] - self._placement.starts[shard])


def train(job: JobSpec, placement: Placement, rank: int) -> DenseReplica:
    """Train all steps as trainer `rank`."""
    replica = DenseReplica(job.model, job.data.seed, precision=job.precision, explicit=False)
    servers, workers = Servers(placement), ComputeWorkers(job.workers)
    batches = open_batches(job, rank, job.trainers)
    with closing(open_trace(rank)) as trace, Feed(batches, placement, split=False) as feed:
        while (prepared := feed.take()) is not None:
            rows = prepared.access.unique
            pulls = servers.pull(rows, replica.dtype)
            trace.lap("pull")

            def fetch(pulls: list[Future[Tensor]] = pulls) -> Tensor:
                trace.lap("bottom")
                vectors = torch.cat(wait_all(pulls))
                trace.lap("vectors")
                return vectors

            computed = compute(replica, prepared.batch, prepared.access, fetch, job.data.batch_size, workers)
            trace.lap("compute")
            pushes = servers.push(rows, single_tensor(computed.row_gradients), prepared.step)
            if job.trainers > 1:
                distributed.all_reduce(replica.gradients)
            trace.lap("reduce")
            replica.step(prepared.step)
            trace.lap("optimizer")
            wait_all(pushes)
            trace.lap("push")
            trace.end(prepared.step)
    return replica


def _server(shard: int) -> str:
    return f"server{shard}"


def main() -> None:
    """Run one of the job's trainers or servers until all trainers are done."""
    job = read_job(os.environ)
    placement, processes = Placement.of(job.model, job.shards), job.trainers + job.shards
    rank = join(processes)
    shard = rank - job.trainers
    torch.set_num_threads(threads(os.environ) if shard < 0 else 1)  # as in CPRJob
    if shard >= 0:
        _served.append(Tables(job, placement, shard))
    # TensorPipe would use shared memory, and poll it with half a core of each process.
    options = rpc.TensorPipeRpcBackendOptions(_transports=["uv"])
    name = _server(shard) if shard >= 0 else f"trainer{rank}"
    rpc.init_rpc(name, rank=rank, world_size=processes, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    if shard < 0:
        if job.trainers > 1:
            place = Path(os.environ[STEP_TRACE]).with_name("group").as_uri()
            distributed.init_process_group("gloo", place, rank=rank, world_size=job.trainers)
        save(train(job, placement, rank).parameters, rank)
    rpc.shutdown()


if __name__ == "__main__":
    main()
