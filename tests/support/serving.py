"""Jobs with models that are served."""

from __future__ import annotations

from cpr_contract import CONTRACT_VERSION
from cpr_contract.model import FeatureSpec, ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.spec import DataSpec, JobSpec, SnapshotSpec, StoreSpec

STORE = StoreSpec("file:///nowhere", None, "bucket", "")


def serving_job(
    data: DataSpec, tables: tuple[TableSpec, ...], features: tuple[FeatureSpec, ...], numeric: int | None
) -> JobSpec:
    """A job with a custom network, which is never built."""
    dense, sparse = OptimizerSpec("SGD", 0.1), SparseOptimizerSpec("SGD", 0.1)
    model = ModelSpec(4, (4,), (1,), tables, dense, sparse, entrypoint="a:b", features=features, numeric=numeric)
    return JobSpec(CONTRACT_VERSION, "uid", "job", model, data, 1, 1, SnapshotSpec(STORE, 2, 30.0, None), 10.0)
