"""Jobs with tables of several dims or precisions."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.choices import Precision
from cpr_contract.spec import JobSpec


def with_dims(job: JobSpec, *dims: int | None) -> JobSpec:
    """The job with these dims for its tables, in turn; None: the model's."""
    tables = tuple(replace(table, dim=dims[t % len(dims)]) for t, table in enumerate(job.model.tables))
    return replace(job, model=replace(job.model, tables=tables))


def with_precisions(job: JobSpec, *precisions: Precision) -> JobSpec:
    """The job with these precisions for its tables, in turn."""
    tables = (replace(table, precision=precisions[t % len(precisions)]) for t, table in enumerate(job.model.tables))
    return replace(job, model=replace(job.model, tables=tuple(tables)))
