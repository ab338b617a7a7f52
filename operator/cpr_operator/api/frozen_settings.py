"""The settings that a job chooses at its start: replay, the number of workers, the updates of rows, encryption."""

from __future__ import annotations

import json

from cpr_contract.choices import Encryption, ReplayPolicy
from cpr_contract.codec import from_json, unpack
from cpr_contract.spec import JobSpec
from cpr_operator.api.cprjob_spec import CPRJobSpec, IssuerRef
from cpr_operator.api.quantities import limit_of, main_container, read_bytes, write_bytes
from cpr_operator.api.status import Runtime, SparseUpdatesMode, Status, WorkerCount
from cpr_operator.api.templates import DEFAULT_MIB

_MIB = 2**20
#: By default the memory for pushes is this portion of the container's memory, within these bounds.
_SHARE, _LEAST, _MOST = 8, 16 * _MIB, 1024 * _MIB


def replay_policy(spec: CPRJobSpec, before: ReplayPolicy | None = None) -> ReplayPolicy:
    """Return the replay policy of a job that starts or resumes.

    A job that resumes has replay only if it had replay `before`; the size of its buffers may change.
    """
    if before is not None and not before.enabled:
        return ReplayPolicy(reason=before.reason)
    replay = spec.recovery.replay
    if replay.mode == "Off":
        return ReplayPolicy(reason="spec.recovery.replay.mode is Off")
    if spec.recovery.on_shard_loss == "Degrade":
        return ReplayPolicy(reason="with onShardLoss Degrade trainers push nothing for a lost shard")
    if spec.trainers.dense_sync != "AllReduce":
        return ReplayPolicy(reason="in a shadow mode trainers do not wait for replayed pushes")
    if spec.snapshots.strategy != "Full":
        return ReplayPolicy(
            reason=f"rows that {spec.snapshots.strategy} saves between cuts would have pushes applied twice"
        )
    memory, spill = read_bytes(replay.memory) or 0, read_bytes(replay.spill) or 0
    if replay.memory is None:
        limit = limit_of(main_container(spec.trainers.template).get("resources"), "memory")
        share = (DEFAULT_MIB * _MIB if limit is None else limit) // _SHARE // _MIB * _MIB
        memory = min(max(share, _LEAST), _MOST)
    capacity = f"{write_bytes(memory)} of pushes" + (f", and {write_bytes(spill)} more on disk," if spill else "")
    return ReplayPolicy(memory, spill, f"trainers keep up to {capacity} for shards that are replaced")


def replay_in_force(spec: CPRJobSpec, status: Status) -> ReplayPolicy:
    """Return the replay policy that a job chose at its start, or before the start the one of its spec.

    An upgrade of the operator leaves a running job as it is.
    """
    return replay_policy(spec) if status.runtime is None else status.runtime.replay


def worker_count(spec: CPRJobSpec, before: Runtime | None = None) -> WorkerCount:
    """Return the number of workers of a job that starts, or of one that resumes: then it is the number of `before`.

    The job's spec does not suffice: jobs of 0.1.0 without `workers` in it have one worker.
    """
    if before is not None and before.workers is not None:
        return before.workers
    if before is not None:
        started_with = from_json(JobSpec, unpack(before.job_spec)).workers
        return WorkerCount(count=started_with, reason="an earlier release started the job so")
    stated = spec.trainers.workers
    if isinstance(stated, int):
        return WorkerCount(count=stated, reason="spec.trainers.workers says so")
    if spec.trainers.device == "cuda":
        return WorkerCount(count=1, reason="the network is computed on a GPU")
    return WorkerCount(reason="the first leader measures how many are fastest, before the first step")


def sparse_updates(spec: CPRJobSpec, before: Runtime | None = None) -> SparseUpdatesMode:
    """Return how shards update rows in a job that starts, or in one that has the settings `before` since its start.

    With a single trainer both modes are the same. It has PerStep nevertheless, because a resize may add trainers.
    """
    if before is not None and before.sparse_updates is not None:
        return before.sparse_updates
    if before is not None:
        # An operator of an earlier release may have written the status of a job of this one.
        started_with = json.loads(unpack(before.job_spec)).get("sparse_updates", "PerPush")
        return SparseUpdatesMode(mode=started_with, reason="an earlier release started the job so")
    if spec.trainers.sparse_updates == "PerPush":
        return SparseUpdatesMode(mode="PerPush", reason="spec.trainers.sparseUpdates says so")
    if spec.trainers.dense_sync != "AllReduce":
        return SparseUpdatesMode(mode="PerPush", reason="in a shadow mode trainers take no common steps")
    if spec.recovery.on_shard_loss == "Degrade":
        reason = "with onShardLoss Degrade each trainer continues by itself without a lost shard"
        return SparseUpdatesMode(mode="PerPush", reason=reason)
    return SparseUpdatesMode(mode="PerStep", reason="all trainers take each step together")


def is_encrypted(spec: CPRJobSpec, default: Encryption) -> bool:
    """Return whether the pods of a job that starts or resumes encrypt their traffic. `default`: the operator's."""
    return (spec.security.encryption or default) == "TLS"


def issuer_of(spec: CPRJobSpec, encryption: Encryption, default: IssuerRef | None) -> IssuerRef | None:
    """Return the issuer of the CA of a job that starts or resumes; None if there is none, or nothing is encrypted.

    encryption, default: those of the operator.
    """
    if not is_encrypted(spec, encryption):
        return None
    stated = spec.security.certificates
    return stated.issuer_ref if stated is not None else default
