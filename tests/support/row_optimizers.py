"""Jobs with an optimizer for each table."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from cpr_contract.model import SparseOptimizerSpec
from cpr_contract.spec import JobSpec

Kind = Literal["SGD", "RowWiseAdagrad", "Adagrad", "Adam"]
KINDS: tuple[Kind, ...] = ("SGD", "RowWiseAdagrad", "Adagrad", "Adam")

#: Optimizers of the tables in turn; None: the optimizer of the model.
_CYCLE = (
    SparseOptimizerSpec("Adam", 0.002, beta1=0.8, epsilon=1e-6),
    None,
    SparseOptimizerSpec("Adagrad", 0.02, epsilon=1e-6),
    SparseOptimizerSpec("SGD", 0.05),
)


def of_kind(job: JobSpec, kind: Kind) -> JobSpec:
    """The job with one kind of optimizer for all tables."""
    sparse = SparseOptimizerSpec(kind, 0.002 if kind == "Adam" else 0.02)
    return replace(job, model=replace(job.model, sparse_optimizer=sparse))


def mixed(job: JobSpec) -> JobSpec:
    """The job with another optimizer for each table."""
    tables = tuple(replace(table, optimizer=_CYCLE[t % 4]) for t, table in enumerate(job.model.tables))
    return replace(job, model=replace(job.model, tables=tables))
