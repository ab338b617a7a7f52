"""Converts the `spec` of the resource to the contract's `JobSpec`, which the pods read."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from cpr_contract import CONTRACT_VERSION
from cpr_contract import spec as contract
from cpr_contract.choices import ReplayPolicy, SparseUpdates
from cpr_contract.codec import MAX_LENGTH, pack, to_json
from cpr_contract.model import CrossSpec, FeatureSpec, OptimizerSpec, PhaseSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.model import ModelSpec as ContractModel
from cpr_operator.api.base import SpecModel, epoch
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.data_spec import Columns, Data, Evaluation, Follow
from cpr_operator.api.frozen_settings import replay_policy, sparse_updates, worker_count
from cpr_operator.api.model_spec import Interaction, ModelSpec, Table
from cpr_operator.api.optimizer_spec import DenseOptimizer, TableOptimizer
from cpr_operator.api.publish_spec import DEFAULT_EVERY_S, Publish
from cpr_operator.api.restore_spec import RestoreFrom
from cpr_operator.api.sizes import data_shards_of
from cpr_operator.api.snapshots_spec import Snapshots
from cpr_operator.api.status import WorkerCount

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Part = TypeVar("_Part", bound="DataclassInstance")
#: The defaults of torch.optim where the contract has others.
_DENSE_DEFAULTS = {"Adam": {"epsilon": 1e-8}, "AdamW": {"epsilon": 1e-8, "weight_decay": 0.01}}
#: The description of up to this many tables, features and numbers is always shorter than `codec.MAX_LENGTH`.
_FEW = 32


def to_job_spec(  # noqa: PLR0913 -- the job, and its frozen settings
    spec: CPRJobSpec,
    uid: str,
    name: str,
    version: int = CONTRACT_VERSION,
    *,
    found: str | None = None,
    replay: ReplayPolicy | None = None,
    workers: WorkerCount | None = None,
    updates: SparseUpdates | None = None,
) -> contract.JobSpec:
    """Return the description of a job for its pods, which `status.runtime` keeps from the start.

    `found` is the key of the anchor that was chosen of another job. `replay`, `workers` and `updates` default to those
    of a new job.
    """
    replay = replay or replay_policy(spec)
    count = (workers or worker_count(spec)).count
    job = contract.JobSpec(
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
        workers=contract.MEASURED if count is None else count,
        device=spec.trainers.device,
        replay_bytes=replay.memory_bytes,
        spill_bytes=replay.spill_bytes,
        evaluation=_evaluation(spec.evaluation),
        parity_shards=data_shards_of(spec, replay),
        sparse_updates=updates or sparse_updates(spec).mode,
        publish=_publish(spec.publish),
    )
    return replace(job, contract=contract.description_version(version, job))


def has_long_description(spec: CPRJobSpec) -> bool:
    """Return whether the description of a new job is longer than its pods and its status can hold."""
    columns = spec.data.columns
    numeric = 0 if columns is None else len(columns.counts) + len(columns.numbers)
    if len(spec.model.tables) + len(spec.model.features or ()) + numeric <= _FEW:
        return False
    return len(pack(to_json(to_job_spec(spec, "", "")))) > MAX_LENGTH


def _copied(kind: type[_Part], part: SpecModel, **others: Any) -> _Part:
    """Return a part of the contract with the stated fields of `part` of the same names; `others` are computed."""
    copied = {field.name: getattr(part, field.name) for field in fields(kind) if field.name not in others}
    defaults = {field.name for field in fields(kind) if field.default is not MISSING}
    stated = {name: value for name, value in copied.items() if value is not None or name not in defaults}
    return kind(**stated, **others)


def _data(data: Data) -> contract.DataSpec:
    return _copied(
        contract.DataSpec,
        data,
        columns=None if data.columns is None else _columns(data.columns),
        store=None if data.store is None else _copied(contract.EndpointSpec, data.store),
        csv=None if data.csv is None else _copied(contract.CsvSpec, data.csv),
        follow=None if data.follow is None else _follow(data.follow),
        epochs=data.epochs if data.follow is None else data.epochs or 1,
    )


def _follow(follow: Follow) -> contract.FollowSpec:
    return _copied(contract.FollowSpec, follow, every_s=float(follow.every_seconds), until_s=epoch(follow.until))


def _model(model: ModelSpec, columns: Columns | None) -> ContractModel:
    of_columns: dict[str, Any] = {}
    if columns is not None:
        of_columns = {"labels": columns.labels, "targets": columns.targets, "has_weights": columns.weight is not None}
    dense = model.dense_optimizer
    defaults = _DENSE_DEFAULTS.get(dense.kind, {})
    unstated = [name for name in defaults if getattr(dense, name) is None]
    return ContractModel(
        embedding_dim=model.embedding_dim,
        bottom_mlp=model.bottom_mlp or (),
        top_mlp=model.top_mlp or (),
        tables=tuple(map(_table, model.tables)),
        dense_optimizer=_copied(
            OptimizerSpec, dense, schedule=_schedule(dense), **{name: defaults[name] for name in unstated}
        ),
        sparse_optimizer=_sparse(model.sparse_optimizer),
        entrypoint=model.entrypoint,
        features=tuple(_copied(FeatureSpec, feature) for feature in model.features or ()),
        numeric=model.numeric,
        cross=_cross(model.interaction),
        **of_columns,
    )


def _cross(interaction: Interaction) -> CrossSpec | None:
    if interaction.layers is None or interaction.rank is None:
        return None
    return CrossSpec(interaction.layers, interaction.rank)


def _columns(columns: Columns) -> contract.ColumnsSpec:
    values = tuple(_copied(contract.LabelValuesSpec, each) for each in columns.label_values)
    return _copied(contract.ColumnsSpec, columns, label_values=values)


def _table(table: Table) -> TableSpec:
    built = None if table.vocabulary is None else table.vocabulary.build
    return _copied(
        TableSpec,
        table,
        optimizer=None if table.optimizer is None else _sparse(table.optimizer),
        out_of_range=table.out_of_range or ("Fail" if built is None else "DefaultRow"),
        vocabulary=None if table.vocabulary is None else table.vocabulary.uri,
        min_count=None if built is None else built.min_count,
        dynamic=table.dynamic_rules,
    )


def _sparse(optimizer: TableOptimizer) -> SparseOptimizerSpec:
    return _copied(SparseOptimizerSpec, optimizer, schedule=_schedule(optimizer))


def _schedule(optimizer: DenseOptimizer | TableOptimizer) -> tuple[PhaseSpec, ...]:
    return tuple(_copied(PhaseSpec, phase) for phase in optimizer.schedule)


def _evaluation(evaluation: Evaluation) -> contract.EvaluationSpec | None:
    every, stop = evaluation.every_samples, evaluation.early_stop
    if not every and evaluation.uri is None and evaluation.group_by is None:
        return None
    early_stop = None if stop is None else _copied(contract.EarlyStopSpec, stop)
    return _copied(contract.EvaluationSpec, evaluation, every=every, early_stop=early_stop)


def _publish(publish: Publish | None) -> contract.PublishSpec | None:
    if publish is None:
        return None
    seconds = publish.every_seconds or (DEFAULT_EVERY_S if publish.every_samples is None else None)
    return _copied(contract.PublishSpec, publish, every_s=None if seconds is None else float(seconds))


def _snapshots(snapshots: Snapshots, restore: RestoreFrom | None, found: str | None) -> contract.SnapshotSpec:
    anchor, by_name = snapshots.restore_from, None
    if restore is not None:
        tables = tuple(_copied(contract.TableSourceSpec, each) for each in restore.map or ())
        anchor, by_name = restore.anchor, _copied(contract.ByNameSpec, restore, map=tables)
    return _copied(
        contract.SnapshotSpec,
        snapshots,
        store=_copied(contract.StoreSpec, snapshots.store),
        dense_interval_s=float(snapshots.dense_interval_seconds),
        restore_from=anchor or found,
        max_bytes_per_s=snapshots.max_bytes_per_second,
        by_name=by_name,
    )
