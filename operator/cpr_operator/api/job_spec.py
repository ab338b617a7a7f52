"""From the resource to the contract: the part of `spec` that pods need, and how large it may be."""

from __future__ import annotations

from typing import Any

from cpr_contract import CONTRACT_VERSION
from cpr_contract import spec as contract
from cpr_contract.choices import ReplayPolicy
from cpr_contract.codec import LONGEST, pack, to_json
from cpr_contract.model import FeatureSpec, OptimizerSpec, PhaseSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.model import ModelSpec as ContractModel
from cpr_operator.api.data_spec import Columns, Data, RestoreFrom
from cpr_operator.api.held_out_spec import Evaluation
from cpr_operator.api.model import SpecModel
from cpr_operator.api.model_spec import DenseOptimizer, Feature, ModelSpec, Table, TableOptimizer
from cpr_operator.api.sizes import data_shards_of, replay_policy
from cpr_operator.api.snapshots import Snapshots
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import WorkersInForce
from cpr_operator.api.workers import to_contract, workers_of


def to_job_spec(  # noqa: PLR0913 -- who, and what was chosen before
    spec: CPRJobSpec,
    uid: str,
    name: str,
    version: int = CONTRACT_VERSION,
    *,
    found: str | None = None,
    replay: ReplayPolicy | None = None,
    workers: WorkersInForce | None = None,
) -> contract.JobSpec:
    """What the trainers and shards of the job `name` must agree on; frozen in `status.runtime` at the start.

    `found` is the key of the anchor that was chosen of another job. `replay`, `workers`: what was chosen before, if
    anything was.
    """
    kept = replay_policy(spec) if replay is None else replay
    return contract.JobSpec(
        contract=version,
        job_uid=uid,
        job_name=name,
        model=_model(spec.model, spec.data.columns),
        data=_data(spec.data),
        trainers=spec.trainers.replicas,
        shards=spec.shards.replicas,
        snapshots=_snapshots(spec.snapshots, spec.restore_from, found),
        silence_s=float(spec.failure_policy.silence_seconds),
        precision=spec.trainers.precision,
        dense_sync=spec.trainers.dense_sync,
        prefetch=spec.trainers.prefetch,
        workers=to_contract(workers or workers_of(spec)),
        device=spec.trainers.device,
        replay_bytes=kept.memory_bytes,
        spill_bytes=kept.spill_bytes,
        evaluation=_evaluation(spec.evaluation),
        parity_shards=data_shards_of(spec, kept),
    )


def _model(model: ModelSpec, columns: Columns | None) -> ContractModel:
    predicted = {} if columns is None else {"labels": columns.labels, "targets": columns.targets}
    return ContractModel(
        embedding_dim=model.embedding_dim,
        bottom_mlp=model.bottom_mlp or (),
        top_mlp=model.top_mlp or (),
        tables=tuple(map(_table, model.tables)),
        dense_optimizer=_dense(model.dense_optimizer),
        sparse_optimizer=_sparse(model.sparse_optimizer),
        entrypoint=model.entrypoint,
        features=tuple(map(_feature, model.features or ())),
        numeric=model.numeric,
        **predicted,
    )


def _table(table: Table) -> TableSpec:
    built = None if table.vocabulary is None else table.vocabulary.build
    return TableSpec(
        name=table.name,
        rows=table.rows,
        pooling=table.pooling,
        optimizer=None if table.optimizer is None else _sparse(table.optimizer),
        dim=table.dim,
        ids=table.ids,
        out_of_range=table.out_of_range or ("Fail" if built is None else "DefaultRow"),
        hash_seed=table.hash_seed or 0,
        vocabulary=None if table.vocabulary is None else table.vocabulary.uri,
        min_count=None if built is None else built.min_count,
    )


def _feature(feature: Feature) -> FeatureSpec:
    return FeatureSpec(
        name=feature.name,
        column=feature.column,
        table=feature.table,
        pooling=feature.pooling,
        max_length=feature.max_length,
        weights=feature.weights,
    )


def _dense(optimizer: DenseOptimizer) -> OptimizerSpec:
    stated = _stated(optimizer, "momentum", "nesterov", "epsilon", "beta1", "beta2", "weight_decay", "clip_norm")
    fields = _DENSE_DEFAULTS[optimizer.kind] | stated | _schedule(optimizer)
    return OptimizerSpec(optimizer.kind, optimizer.learning_rate, **fields)


#: What torch.optim takes where nothing is stated, and the contract has another default.
_DENSE_DEFAULTS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "Adagrad": {},
    "Adam": {"epsilon": 1e-8},
    "AdamW": {"epsilon": 1e-8, "weight_decay": 0.01},
}


def _sparse(optimizer: TableOptimizer) -> SparseOptimizerSpec:
    stated = _stated(optimizer, "epsilon", "beta1", "beta2")
    return SparseOptimizerSpec(optimizer.kind, optimizer.learning_rate, **stated, **_schedule(optimizer))


def _schedule(optimizer: DenseOptimizer | TableOptimizer) -> dict[str, Any]:
    names = ("start", "end", "power", "every", "factor")
    phases = (PhaseSpec(each.kind, each.steps, **_stated(each, *names)) for each in optimizer.schedule)
    return {"schedule": tuple(phases)}


def _stated(part: SpecModel, *names: str) -> dict[str, Any]:
    """Those of these fields that are stated, by name."""
    values = {name: getattr(part, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _data(data: Data) -> contract.DataSpec:
    return contract.DataSpec(
        format=data.format,
        uri=data.uri,
        epochs=data.epochs,
        samples=data.samples,
        batch_size=data.batch_size,
        seed=data.seed,
        max_bad_lines=data.max_bad_lines,
        columns=None if data.columns is None else _columns(data.columns),
        header=data.header,
        shuffle_rows=data.shuffle_rows,
        hold_out=data.hold_out,
        entrypoint=data.entrypoint,
        store=None if data.store is None else contract.EndpointSpec(data.store.endpoint, data.store.region),
    )


def _evaluation(evaluation: Evaluation) -> contract.EvaluationSpec | None:
    every, uri, early_stop = evaluation.every_samples, evaluation.uri, None
    if not every and uri is None and evaluation.group_by is None:
        return None
    if (stop := evaluation.early_stop) is not None:
        early_stop = contract.EarlyStopSpec(stop.metric, stop.patience, stop.min_improvement)
    return contract.EvaluationSpec(every, evaluation.samples, early_stop, uri, evaluation.group_by)


def _columns(columns: Columns) -> contract.ColumnsSpec:
    return contract.ColumnsSpec(
        labels=columns.labels,
        counts=columns.counts,
        numbers=columns.numbers,
        categories=columns.categories,
        separator=columns.separator,
        targets=columns.targets,
        integers=columns.integers,
    )


def _snapshots(snapshots: Snapshots, restore: RestoreFrom | None, found: str | None) -> contract.SnapshotSpec:
    store = snapshots.store
    anchor = snapshots.restore_from if restore is None else restore.anchor
    return contract.SnapshotSpec(
        store=contract.StoreSpec(
            endpoint=store.endpoint, region=store.region, bucket=store.bucket, prefix=store.prefix
        ),
        keep=snapshots.keep,
        dense_interval_s=float(snapshots.dense_interval_seconds),
        restore_from=anchor or found,
        rebase=snapshots.rebase,
        strategy=snapshots.strategy,
        fraction=snapshots.fraction,
        max_bytes_per_s=snapshots.max_bytes_per_second,
        by_name=None if restore is None else _by_name(restore),
    )


def _by_name(restore: RestoreFrom) -> contract.ByNameSpec:
    return contract.ByNameSpec(
        missing=restore.missing,
        extra=restore.extra,
        resized=restore.resized,
        map=tuple(contract.TableSourceSpec(each.table, each.source, each.resized) for each in restore.map or ()),
        dense=restore.dense,
    )


# How large a job may be, so that its pods can be told of it and the API server can store it.


#: The bytes of the largest object that etcd takes.
LARGEST_OBJECT = 1536 << 10
#: The bytes of a status with the longest description and the most lost ranges, and of each member in it.
_STATUS, _MEMBER = 288 << 10, 512
#: So many tables, features and numbers are described in less than `packing.LONGEST`, whatever they are.
_FEW = 32


def has_long_description(spec: CPRJobSpec) -> bool:
    """Whether a new job is described in more than its pods and its status can hold."""
    columns = spec.data.columns
    numeric = 0 if columns is None else len(columns.counts) + len(columns.numbers)
    if len(spec.model.tables) + len(spec.model.features or ()) + numeric <= _FEW:
        return False
    return len(pack(to_json(to_job_spec(spec, "", "")))) > LONGEST


def longest_spec(members: int) -> int:
    """The characters of the longest spec, as JSON, of a job with so many shards and trainers.

    The API server keeps a spec twice: it notes for each field of a named element who has set it. The rest of an object
    is the status, which grows with the members.
    """
    return (LARGEST_OBJECT - _STATUS - _MEMBER * members) // 2
