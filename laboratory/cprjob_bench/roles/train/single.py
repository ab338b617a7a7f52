"""Training without CPRJob: one process, plain torch, all tables in memory. What `cprjob bench train` compares with.

Written to be as fast as one process can be: batches and their unique ids are prepared on threads beside, the tables
are one matrix, gradients are summed by unique row, and the optimizer touches these rows alone. It saves nothing, keeps
no score, and stops when it is told to.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial

import torch

from cpr_contract.env import STEP_TRACE
from cpr_contract.spec import JobSpec
from cpr_trainer.access import the_only
from cpr_trainer.data.loader import Loader
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.data.source import open_dataset
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.placement import Placement
from cpr_trainer.runtime import Trace, optional_path, read_job
from cpr_trainer.store import Uris
from cpr_trainer.trainer.compute import compute
from cpr_trainer.trainer.crew import Crew
from cpr_trainer.trainer.feed import Feed
from cprjob_bench.roles.train.tables import Tables


def run(environ: Mapping[str, str]) -> None:
    """Train all steps of the job in the environment. Raises TrainerError."""
    with closing(Trace(optional_path(environ, STEP_TRACE))) as trace:
        train(read_job(environ), trace)


def train(job: JobSpec, trace: Trace) -> tuple[DenseReplica, Tables]:
    """Train all steps; return what they end in. Raises DataError, DivergedError."""
    dataset = open_dataset(job.data, job.model, Uris(job.snapshots.store))
    order = BatchOrder.of(job.data, dataset.layout)
    placement = Placement.of(job.model, 1)
    tables, replica = Tables(job, placement), DenseReplica(job.model, job.data.seed, job.device, job.precision)
    loader, crew = Loader(dataset, order, rank=0, trainers=1, first_step=1), Crew(job.workers)
    with Feed(loader, placement, split=False) as feed:
        while (wanted := feed.take()) is not None:
            trace.lap("data")
            places = torch.from_numpy(wanted.access.unique.places)
            fetch = partial(tables.rows.index_select, 0, places)
            computed = compute(replica, wanted.batch, wanted.access, fetch, len(wanted.batch), crew)
            trace.lap("compute")
            replica.step(wanted.step)
            trace.lap("optimizer")
            tables.update(places, the_only(computed.row_gradients).float(), wanted.step)
            trace.lap("update")
            trace.end(wanted.step)
    return replica, tables
