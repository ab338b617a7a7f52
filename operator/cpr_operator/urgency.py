"""How urgent the requests of a pass are, and how often figures are written. Pure decisions for the controller."""

from __future__ import annotations

from collections.abc import Mapping

from cpr_operator.api.status import Phase, Status
from cpr_operator.cluster.protocol import Priority
from cpr_operator.cluster.views import PodView
from cpr_operator.reconcile import Outcome

#: Fields that change all the time.
VOLATILE = frozenset({"progress", "shown", "overhead", "policy"})
#: The figures of all jobs together are written so often at most: a third of what the API server should take.
FIGURES_PER_S = 16.0
#: All jobs that train are looked at so often together, and each of them at least every so many seconds.
LOOKS_PER_S, LONGEST_S = 25.0, 45.0
#: Phases in which no training waits for the operator.
_NOTHING_WAITS: frozenset[Phase] = frozenset({"Pending", "Starting", "Suspended", "Succeeded", "Failed"})


def urgency_of(before: Status, outcome: Outcome) -> Priority:
    """The priority of what a pass does, and of what the next one reads."""
    after = outcome.status
    if after.start_time is None:
        return Priority.BEGIN
    if before.phase == after.phase == "Running" and not _has_effects(outcome) and not outcome.stalled:
        edited = before.observed_generation != after.observed_generation
        return Priority.START if edited else Priority.REGULAR
    return Priority.START if before.phase in _NOTHING_WAITS else Priority.RECOVERY


def urgency_of_status(before: Status, urgency: Priority) -> Priority:
    """The priority of a status write: that of what follows it, but jobs that have begun go before new ones."""
    return Priority.BEGIN if before.start_time is None else urgency


def pause_s(before: Status, after: Status, urgency: Priority, progress_s: float, running_jobs: int) -> float:
    """How long after the last write of this job's status the change may be written.

    Volatile fields alone are written every `progress_s`. The more jobs run, the less often each of them writes.
    """
    volatile = _lasting(after) == _lasting(before)
    own_s = progress_s if volatile else 0.0
    shared_s = running_jobs / FIGURES_PER_S if volatile or urgency is Priority.REGULAR else 0.0
    return max(own_s, shared_s)


def wake_s(wanted_s: float, urgency: Priority, running_jobs: int) -> float:
    """After how many seconds a job is looked at again if no event comes before.

    What is urgent shows in events: pods that end or vanish, and pods that are not ready because they wait for others.
    So the looks at jobs that train may be rarer the more jobs there are.
    """
    if urgency is not Priority.REGULAR:
        return wanted_s
    return max(wanted_s, min(running_jobs / LOOKS_PER_S, LONGEST_S))


def all_seen(status: Status, pods: tuple[PodView, ...]) -> bool:
    """Whether the list has the pod of every member. One that is missing from a cache may be there all the same."""
    uids = {pod.uid for pod in pods}
    return all(member.uid in uids for member in status.members)


def _has_effects(outcome: Outcome) -> bool:
    wanted = (outcome.creates, outcome.deletes, outcome.rosters, outcome.events)
    return any(wanted) or outcome.delete_job or outcome.release


def _lasting(status: Status) -> Mapping[str, object]:
    return {name: value for name, value in status if name not in VOLATILE}
