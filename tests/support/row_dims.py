"""Jobs with tables of several dims."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.spec import JobSpec


def with_dims(job: JobSpec, *dims: int | None) -> JobSpec:
    """The job with these dims for its tables, in turn; None: the model's."""
    tables = tuple(replace(table, dim=dims[t % len(dims)]) for t, table in enumerate(job.model.tables))
    return replace(job, model=replace(job.model, tables=tables))
