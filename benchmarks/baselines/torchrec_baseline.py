"""TorchRec with FBGEMM's fused optimizers: torchrec_baseline.py PROCESSES [PARAMETERS.pt].

One process has TorchRec's fused tables. Several divide the tables by TorchRec's planner, train equal parts of each
batch, and average dense gradients with DistributedDataParallel, all over Gloo.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing

import numpy as np
import torch
from common import join, open_batches, open_trace, save
from torch import Tensor, distributed, nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.optim.apply_optimizer_in_backward import (
    _apply_optimizer_in_backward as apply_optimizer_in_backward,
)
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.distributed import DistributedModelParallel, ShardingEnv
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad

from cpr_contract.spec import JobSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.embedding.segments import initial_rows
from cpr_trainer.model.entrypoint import DTYPES, build_network, loss_share, start
from cpr_trainer.process import threads
from cpr_trainer.runtime import read_job

_DENSE: dict[str, Callable[..., torch.optim.Optimizer]] = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}
_SPARSE = {"SGD": torch.optim.SGD, "RowWiseAdagrad": RowWiseAdagrad}
_CPU = torch.device("cpu")


class Network(nn.Module):
    """Tables and dense network of a job."""

    def __init__(self, job: JobSpec, tables: nn.Module) -> None:
        super().__init__()
        self.tables = tables
        self.dense = build_network(job.model, job.data.seed, job.precision)
        self._names = [table.name for table in job.model.tables]
        self._dim = job.model.embedding_dim
        self._dtype = DTYPES[job.precision]

    def forward(self, numbers: Tensor, ids: KeyedJaggedTensor) -> Tensor:
        """Return logits, float32 [n], of numbers, float32 [n, 13], and ids of all tables."""
        pooled = self.tables(ids)  # asynchronous if there are several processes
        with torch.autocast("cpu", self._dtype, enabled=self._dtype is not torch.float32):
            finish = start(self.dense, numbers)
            vectors = pooled.values().to(self._dtype).view(len(numbers), len(self._names), self._dim)
            if (found := pooled.keys()) != self._names:  # the planner reorders tables
                vectors = vectors.index_select(1, torch.tensor([found.index(name) for name in self._names]))
            return finish(vectors).float()


def build(job: JobSpec, processes: int) -> tuple[nn.Module, nn.Module]:
    """Return the model, and the dense network in it."""
    sparse = job.model.sparse_optimizer
    if sparse.kind not in _SPARSE or {sparse} != {*job.model.table_optimizers}:
        raise SystemExit(f"This baseline trains all tables with one optimizer: {' or '.join(_SPARSE)}.")
    configs = [_config(table.name, table.rows, job.model.embedding_dim) for table in job.model.tables]
    kind, options = _SPARSE[sparse.kind], {"lr": sparse.learning_rate}
    if sparse.kind == "RowWiseAdagrad":
        options["eps"] = sparse.epsilon
    if processes == 1:
        network = Network(job, FusedEmbeddingBagCollection(configs, kind, options, device=_CPU))
        return network, network.dense
    tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    apply_optimizer_in_backward(kind, tables.parameters(), options)
    network, sharders = Network(job, tables), [EmbeddingBagCollectionSharder()]
    topology = Topology(world_size=processes, compute_device="cpu")
    planner = EmbeddingShardingPlanner(topology, batch_size=job.data.batch_size // processes)
    plan = planner.collective_plan(network, sharders, distributed.group.WORLD)
    whole = ShardingEnv.from_process_group(distributed.group.WORLD)
    return DistributedModelParallel(network, env=whole, device=_CPU, plan=plan, sharders=sharders), network.dense


def _config(name: str, rows: int, dim: int) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=name, embedding_dim=dim, num_embeddings=rows, feature_names=[name], pooling=PoolingType.SUM
    )


@torch.no_grad()
def seed(model: nn.Module, job: JobSpec) -> None:
    """Write CPRJob's first values to the rows of this process."""
    state = model.state_dict()
    for place, table in enumerate(job.model.tables):
        weights = state[f"tables.embedding_bags.{table.name}.weight"]
        if isinstance(weights, ShardedTensor):
            local = weights.local_shards()
            parts = [
                (shard.tensor, shard.metadata.shard_offsets[0], shard.metadata.shard_offsets[1]) for shard in local
            ]
        else:
            parts = [(weights, 0, 0)]
        for part, row, column in parts:
            values = initial_rows(job.model, job.data.seed, place, np.arange(row, row + part.shape[0]))
            part.copy_(torch.from_numpy(values[:, column : column + part.shape[1]]))


def main() -> None:
    """Train all steps of the job in the environment."""
    job, processes = read_job(os.environ), int(sys.argv[1])
    torch.set_num_threads(max(threads(os.environ) // processes, 1))
    rank = join(processes)
    if processes > 1:
        distributed.init_process_group("gloo")
    model, dense = build(job, processes)
    seed(model, job)
    optimizer = _DENSE[job.model.dense_optimizer.kind](dense.parameters(), job.model.dense_optimizer.learning_rate)
    names = [table.name for table in job.model.tables]
    with closing(open_trace(rank)) as trace, closing(open_batches(job, rank, processes)) as batches:
        for step, batch in batches:
            ids = _keyed(names, batch)
            trace.lap("data")
            optimizer.zero_grad()
            logits = model(torch.from_numpy(batch.dense), ids)
            trace.lap("forward")
            # Both TorchRec and DistributedDataParallel take the mean of the processes' gradients.
            loss_share(dense, logits, torch.from_numpy(batch.labels), len(batch)).backward()  # type: ignore[no-untyped-call]
            trace.lap("backward")
            optimizer.step()
            trace.lap("optimizer")
            trace.end(step)
    save(nn.utils.parameters_to_vector(dense.parameters()).detach(), rank)


def _keyed(names: list[str], batch: Batch) -> KeyedJaggedTensor:
    """Return the ids as TorchRec wants them: table after table, one id each."""
    ids = torch.from_numpy(batch.ids).T.flatten()
    return KeyedJaggedTensor(names, ids, lengths=torch.ones(len(ids), dtype=torch.int64), stride=len(batch))


if __name__ == "__main__":
    main()
