"""Choose the anchor that a new job starts from, if its spec names other jobs (`restoreFrom`), once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cpr_contract.codec import ContractError, unpack
from cpr_operator.api.base import epoch
from cpr_operator.api.restore_spec import LatestOf, Requirement
from cpr_operator.api.status import TERMINAL_PHASES, SourceJob
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile.types import Job

#: The reasons of the condition PodsReady.
AWAITED, REFUSED = "AnchorAwaited", "AnchorRefused"
_LATEST = "spec.restoreFrom.latestOf"


@dataclass(frozen=True, slots=True)
class RestoreSource:
    """The source of a job: another job's anchor, or none. `event_suffix` ends the message of its event."""

    job: SourceJob | None = None
    event_suffix: str = ""


@dataclass(frozen=True, slots=True)
class NoSource:
    """No anchor to start from is available. If it is REFUSED, none will be before a spec is changed."""

    reason: str
    message: str


def restore_source(job: Job, others: tuple[JobView, ...]) -> RestoreSource | NoSource:
    """Return the anchor from which a new job starts. `others`: the job that `restoreFrom` names, or the namespace's."""
    restore = job.spec.restore_from
    if restore is None or restore.anchor is not None:
        return RestoreSource()
    if restore.latest_of is not None:
        return _latest(job, restore.latest_of, others)
    field = f"spec.restoreFrom.job: {restore.job}"
    other = next(iter(others), None)
    if other is None or other.deleting:
        state = "does not exist" if other is None else "is being deleted"
        return NoSource(AWAITED, f"{field} {state}; create it, or create this job again with spec.restoreFrom.anchor")
    if other.uid == job.id.uid:
        return NoSource(REFUSED, f"{field} is this job; name another one")
    return _newest(field, job, other)


def selects(latest: LatestOf, labels: Mapping[str, str]) -> bool:
    """Return whether a job with these labels is chosen, by the rules of label selectors of Kubernetes."""
    stated = (latest.match_labels or {}).items()
    return stated <= labels.items() and all(_holds(each, labels) for each in latest.match_expressions or ())


def shares_store(job: Job, other: JobView) -> bool:
    """Return whether both jobs save below the same prefix of a store."""
    theirs, own = other.spec.get("snapshots", {}).get("store", {}), job.spec.snapshots.store
    place = (theirs.get("endpoint"), theirs.get("bucket"), theirs.get("prefix", ""))
    return place == (own.endpoint, own.bucket, own.prefix)


def source_anchor_in(job_spec: str) -> str | None:
    """Return the anchor in a job's description, of any version; None if it has none, or cannot be read."""
    try:
        key = json.loads(unpack(job_spec))["snapshots"]["restore_from"]
    except (ContractError, ValueError, LookupError, TypeError):
        return None
    return None if key is None else str(key)


def _latest(job: Job, latest: LatestOf, others: tuple[JobView, ...]) -> RestoreSource | NoSource:
    """Return the result of the job that succeeded last, once all matching jobs created before this one have ended."""
    matching = [other for other in others if other.uid != job.id.uid and not other.deleting]
    matching = [other for other in matching if selects(latest, other.labels)]
    own = next((other for other in others if other.uid == job.id.uid), None)
    under_way = [other for other in matching if other.status.get("phase") not in TERMINAL_PHASES]
    if earlier := [other for other in under_way if own is not None and _created(other) < _created(own)]:
        first = min(earlier, key=_created)
        phase = first.status.get("phase", "Pending")
        remedy = "this job starts when that one has ended; delete it to continue without it"
        return NoSource(AWAITED, f"{_LATEST}: {first.name} is older than this job, and is {phase}; {remedy}")
    if succeeded := [other for other in matching if other.status.get("phase") == "Succeeded"]:
        newest = max(succeeded, key=lambda other: (epoch(other.status.get("completionTime")) or 0.0, other.name))
        return _newest(f"{_LATEST}: {newest.name}", job, newest)
    none = f"{_LATEST} matches no job that has succeeded"
    if latest.none == "Initialise":
        return RestoreSource(event_suffix=f", from first values: {none}")
    remedy = f"correct the labels, or create this job again with {_LATEST}.none: Initialise"
    return NoSource(AWAITED, f"{none}; this job starts when one has; {remedy}")


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None


def _created(job: JobView) -> tuple[float, str]:
    return job.created, job.uid


def _newest(field: str, job: Job, other: JobView) -> RestoreSource | NoSource:
    """Return the result of a job, or its newest anchor."""
    if not shares_store(job, other):
        remedy = "give both jobs the same spec.snapshots.store, or name another job"
        return NoSource(REFUSED, f"{field} saves into another store, bucket or prefix; {remedy}")
    status = other.status
    newest = status.get("result") or (status.get("anchors") or [{}])[-1]
    if key := newest.get("key"):
        return RestoreSource(SourceJob(job=other.name, key=str(key)), f", from the model of {other.name}: {key}")
    if status.get("phase") == "Failed":
        return NoSource(REFUSED, f"{field} has failed and has no anchor; name another job")
    return NoSource(AWAITED, f"{field} has no anchor yet; this job starts from its first one")
