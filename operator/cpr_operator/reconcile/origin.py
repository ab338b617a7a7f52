"""Which anchor a new job starts from, if its spec names another job (`restoreFrom.job`). Chosen once, then frozen."""

from __future__ import annotations

import json
from dataclasses import dataclass

from cpr_contract.codec import ContractError, unpack
from cpr_operator.api.status import Runtime
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile.pass_ import Job

#: The reasons of the condition PodsReady.
AWAITED, REFUSED = "AnchorAwaited", "AnchorRefused"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The key of the anchor; None if the spec names no other job."""

    key: str | None


@dataclass(frozen=True, slots=True)
class NotYet:
    """There is no anchor to start from. With `refused`, there will be none before a spec is changed."""

    reason: str
    message: str

    @property
    def refused(self) -> bool:
        """Whether waiting alone does not help."""
        return self.reason == REFUSED


def origin_of(job: Job, other: JobView | None) -> Chosen | NotYet:
    """The anchor that a job starts from, which has not started yet. `other` is the one that its spec names, if any."""
    restore = job.spec.restore_from
    if restore is None or restore.job is None:
        return Chosen(None)
    field = f"spec.restoreFrom.job: {restore.job}"
    if other is None or other.deleting:
        what = "does not exist" if other is None else "is being deleted"
        return NotYet(AWAITED, f"{field} {what}; create it, or create this job again with spec.restoreFrom.anchor")
    if other.uid == job.id.uid:
        return NotYet(REFUSED, f"{field} is this job; name another one")
    if not _same_store(job, other):
        remedy = "give both jobs the same spec.snapshots.store, or name another job"
        return NotYet(REFUSED, f"{field} saves into another store, bucket or prefix; {remedy}")
    return _newest(field, other)


def _newest(field: str, other: JobView) -> Chosen | NotYet:
    """The result of a job, or its newest anchor."""
    status = other.status
    newest = status.get("result") or (status.get("anchors") or [{}])[-1]
    if key := newest.get("key"):
        return Chosen(str(key))
    if status.get("phase") == "Failed":
        return NotYet(REFUSED, f"{field} has failed and has no anchor; name another job")
    return NotYet(AWAITED, f"{field} has no anchor yet; this job starts from its first one")


def frozen_origin(runtime: Runtime | None) -> str | None:
    """The anchor that a job has started from, by what its pods were told; None if there is none."""
    return None if runtime is None else origin_in(runtime.job_spec)


def origin_in(job_spec: str) -> str | None:
    """The anchor in a job's description, of any version; None if it has none, or cannot be read."""
    try:
        key = json.loads(unpack(job_spec))["snapshots"]["restore_from"]
    except (ContractError, ValueError, LookupError, TypeError):
        return None
    return None if key is None else str(key)


def _same_store(job: Job, other: JobView) -> bool:
    theirs = other.spec.get("snapshots", {}).get("store", {})
    own = job.spec.snapshots.store
    return (theirs.get("endpoint"), theirs.get("bucket"), theirs.get("prefix", "")) == (
        own.endpoint,
        own.bucket,
        own.prefix,
    )
