"""The feature transform of a job, for those who serve its model."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

from cpr_contract.spec import JobSpec
from cpr_trainer.data.columns import columns_of
from cprjob_serving.transform import Feature, Numeric, Table, Transform


def transform_of(job: JobSpec) -> Transform:
    """Return what leads from the columns of the job's data to the inputs of its network. Raises DataError.

    Synthetic data has the columns of the Criteo layout, as `python -m cpr_trainer samples` writes it.
    """
    model, data = job.model, job.data
    columns = columns_of(replace(data, format="Criteo") if data.format == "Synthetic" else data, model)
    names = [each.name for each in model.features or model.tables]
    return Transform(
        columns.width,
        (*(Numeric(name, "Count") for name in columns.counts), *(Numeric(name, "Number") for name in columns.numbers)),
        tuple(
            Table(
                table.name,
                f"tables/{quote(table.name, safe='')}.safetensors",
                table.rows,
                dim,
                table.ids,
                table.hash_seed,
                table.out_of_range,
            )
            for table, dim in zip(model.tables, model.table_dims, strict=True)
        ),
        tuple(
            Feature(name, each.column, each.table.name, each.pooling, each.max_length, each.weights)
            for name, each in zip(names, columns.inputs, strict=True)
        ),
        (*model.labels, *model.targets),
        columns.separator,
    )
