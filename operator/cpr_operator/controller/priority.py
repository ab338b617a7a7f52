"""The priority of a pass's requests, and the rates of passes and of status writes. Pure."""

from __future__ import annotations

from cpr_operator.api.status import Phase, Status
from cpr_operator.cluster.protocol import Priority
from cpr_operator.reconcile import Outcome

#: Status fields that change all the time.
VOLATILE = frozenset({"progress", "tables", "history", "shown", "overhead", "policy", "published", "goodput"})
#: The maximum rate of progress writes for all jobs together: a third of the writes that the API server should take.
PROGRESS_WRITES_PER_S = 16.0
#: The rate of passes for all training jobs together, and the maximum seconds between two passes of one job.
PASSES_PER_S, MAX_WAKE_S = 25.0, 45.0
#: Seconds between two records of a job, and the maximum rate of all: each is a patch of a pod.
RECORD_S, RECORDS_PER_S = 60.0, 8.0
#: Phases in which no training waits for the operator.
_IDLE: frozenset[Phase] = frozenset({"Pending", "Starting", "Suspended", "Succeeded", "Failed"})


def request_priority(before: Status, outcome: Outcome) -> Priority:
    """The priority of a pass's effects, and of the next pass's reads."""
    after = outcome.status
    if after.start_time is None:
        return Priority.BEGIN
    effects = (outcome.creates, outcome.deletes, outcome.rosters, outcome.events)
    has_effects = any(effects) or outcome.delete_job or outcome.release
    if before.phase == after.phase == "Running" and not has_effects and not outcome.stalled:
        edited = before.observed_generation != after.observed_generation
        return Priority.START if edited else Priority.REGULAR
    return Priority.START if before.phase in _IDLE else Priority.RECOVERY


def status_priority(before: Status, priority: Priority) -> Priority:
    """The priority of a status write: that of its effects, but new jobs come after started ones."""
    return Priority.BEGIN if before.start_time is None else priority


def status_pause_s(before: Status, after: Status, priority: Priority, progress_s: float, running_jobs: int) -> float:
    """Minimum seconds between two writes of this job's status: `progress_s` if only volatile fields changed.

    The more jobs run, the less often each job writes.
    """
    volatile = all(getattr(before, name) == value for name, value in after if name not in VOLATILE)
    own_s = progress_s if volatile else 0.0
    shared_s = running_jobs / PROGRESS_WRITES_PER_S if volatile or priority is Priority.REGULAR else 0.0
    return max(own_s, shared_s)


def record_pause_s(running_jobs: int) -> float:
    """Minimum seconds between two records of a job: a minute, and more if many jobs run."""
    return max(RECORD_S, running_jobs / RECORDS_PER_S)


def wake_after_s(requested_s: float, priority: Priority, running_jobs: int) -> float:
    """Seconds until the next pass if no event comes first.

    Everything that needs a fast reaction causes an event: pods that end or vanish, and pods that are not ready because
    they wait for others. Passes of training jobs may therefore be rarer if there are many jobs.
    """
    if priority is not Priority.REGULAR:
        return requested_s
    return max(requested_s, min(running_jobs / PASSES_PER_S, MAX_WAKE_S))
