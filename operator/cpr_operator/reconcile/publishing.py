"""The publisher of a job: its pod and what it has published. It is no member, and no other decision depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cpr_contract.codec import ContractError, from_json
from cpr_contract.published import Published, PublisherReport
from cpr_contract.reports import ExitCode
from cpr_operator.api.status import PublishedModel, Status
from cpr_operator.clocks import elapsed_s
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.rosters import is_supported, version_of
from cpr_operator.desired.store_pod import publisher_pod
from cpr_operator.failures import Failure, Kind, Trouble, classify
from cpr_operator.policy.plan import duration
from cpr_operator.reconcile.conditions import ConditionUpdate, condition_events, with_conditions
from cpr_operator.reconcile.effects import LIVE_PHASES, pod_plan, works
from cpr_operator.reconcile.types import Outcome, PodDelete, ReconcileInput

#: Times of `Timing.changing_s` from the creation of a publisher to that of its replacement, and how often each failure
#: in a row doubles this pause: a publisher that always fails costs a pod each time.
PAUSES, DOUBLINGS = 10, 5
#: Seconds after the end of a job in which its last model is published.
LAST_S = 120.0
_BEGINS = frozenset({"Running", "Finishing"})
_STAYS = _BEGINS | {"Starting", "Recovering", "RollingBack"}


def with_publisher(observed: ReconcileInput, outcome: Outcome) -> Outcome:
    """Return the outcome with a publisher's pod while the job trains, and with the newest published model."""
    if observed.job.spec.publish is None and not observed.publishers:
        return outcome
    status = outcome.status.evolve(published=_published(observed, outcome.status))
    newest = max(observed.publishers, key=lambda pod: pod.incarnation, default=None)
    happened = None if newest is None else classify(newest)
    if status.published != observed.before.published:
        status = status.evolve(publisher_failures=0)
    update = _condition(observed, status, happened)
    if update is not None:
        status = with_conditions(status, observed.job.spec_generation, observed.now, update)
    is_last = is_unpublished(status, observed.now)
    needed = not observed.job.deleting and observed.job.spec.publish is not None and (status.phase in _STAYS or is_last)
    working = [pod for pod in observed.publishers if works(pod)]
    creates, wake_s = outcome.creates, outcome.wake_after_s
    begins = not any(pod.phase in LIVE_PHASES for pod in observed.publishers) if is_last else status.phase in _BEGINS
    if needed and not working and begins and is_supported(version_of(status)):
        left_s = 0.0 if newest is None else newest.created + _pause_s(observed, status) - observed.now
        if left_s <= 0:
            status = status.evolve(publisher_failures=status.publisher_failures + _counts(happened))
            number = 1 if newest is None else newest.incarnation + 1
            creates += (publisher_pod(pod_plan(observed.job.id, observed.job.spec, status), number, once=is_last),)
        elif wake_s is not None:
            wake_s = min(wake_s, left_s)
    if is_last or (not needed and any(pod.phase in LIVE_PHASES for pod in observed.publishers)):
        wake_s = min(wake_s or observed.timing.running_s, observed.timing.changing_s)
    deletes = (*outcome.deletes, *_deletes(observed, status, needed=needed))
    events = outcome.events if update is None else (*outcome.events, *condition_events(outcome.status, status))
    return replace(outcome, status=status, creates=creates, deletes=deletes, wake_after_s=wake_s, events=events)


def publisher_to_read(observed: ReconcileInput) -> PodView | None:
    """Return the newest publisher, if its report is to be read now.

    A pass that may replace a member, or is part of a recovery, does not wait for a publisher, which may hang.
    """
    before = observed.before
    newest = max(observed.publishers, key=lambda pod: pod.incarnation, default=None)
    if newest is None or newest.phase != "Running" or before.recovery is not None:
        return None
    if before.phase == "Running":
        live = {pod.uid for pod in observed.pods if works(pod)}
        return newest if live.issuperset(member.uid for member in before.members) else None
    return newest if before.phase in {"Succeeded", "Suspending"} else None


def is_unpublished(status: Status, now: float) -> bool:
    """Return whether the last model of a job that succeeded is still to be published."""
    ended, published = status.completion_time, status.published
    if status.phase != "Succeeded" or ended is None or elapsed_s(ended, now) >= LAST_S:
        return False
    return published is None or published.samples < status.progress.samples


def _deletes(observed: ReconcileInput, status: Status, *, needed: bool) -> Iterator[PodDelete]:
    """Yield publishers that are to end, and ended ones but the last, for its log, also while another one works."""
    newest = max((pod.incarnation for pod in observed.publishers), default=0)
    for pod in observed.publishers:
        if pod.deleting_until is not None:
            continue
        is_early = status.completion_time is not None and pod.created < status.completion_time
        if works(pod) and (is_early or not (needed and pod.incarnation == newest)):
            yield PodDelete(pod.name, pod.uid, f"the job is {status.phase}: the newest model is published last")
        elif not works(pod) and pod.incarnation < newest - 1:
            yield PodDelete(pod.name, pod.uid, "the log of a later publisher is kept")


def _pause_s(observed: ReconcileInput, status: Status) -> float:
    return PAUSES * observed.timing.changing_s * 2.0 ** min(status.publisher_failures, DOUBLINGS)


def _counts(happened: Failure | Trouble | None) -> bool:
    """Return whether a publisher failed by itself. Exit code 0: it was asked to end."""
    if not isinstance(happened, Failure) or not happened.ended or happened.exit_code == ExitCode.OK:
        return False
    return happened.counts_as_restart or happened.kind is Kind.STORE_UNREACHABLE


def _condition(observed: ReconcileInput, status: Status, happened: Failure | Trouble | None) -> ConditionUpdate | None:
    """Return PublishingDegraded; None if it is unchanged. One failure of a publisher alone does not make it True."""
    report = observed.publisher_report
    if report is not None and report.problem is not None:
        problem = report.problem
        return ConditionUpdate("PublishingDegraded", "True", problem.reason, f"{problem.message} {problem.remedy}")
    if _is_late(observed, status):
        message = "the job has ended, and its last model is not published; `cprjob export` writes it"
        return ConditionUpdate("PublishingDegraded", "True", "LastModelMissing", message)
    if isinstance(happened, Failure) and _counts(happened) and status.publisher_failures:
        number, pause = status.publisher_failures + 1, duration(_pause_s(observed, status))
        message = f"{number} publishers have failed one after the other, the last one because {happened.message}"
        return ConditionUpdate("PublishingDegraded", "True", happened.reason, f"{message}; the pause is {pause}")
    if isinstance(happened, Trouble):
        message = f"the publisher does not start: {happened.message}; {happened.remedy}"
        return ConditionUpdate("PublishingDegraded", "True", happened.reason, message)
    if report is not None and not status.publisher_failures:
        return ConditionUpdate("PublishingDegraded", "False", "Healthy")
    return None


def _is_late(observed: ReconcileInput, status: Status) -> bool:
    """Return whether a job that succeeded has no publisher any more that may publish its last model."""
    if status.phase != "Succeeded" or any(pod.phase in LIVE_PHASES for pod in observed.publishers):
        return False
    published = status.published
    missing = published is None or published.samples < status.progress.samples
    return observed.job.spec.publish is not None and missing and not is_unpublished(status, observed.now)


def _published(observed: ReconcileInput, status: Status) -> PublishedModel | None:
    """Return the newest published model, by the report or the termination message of a publisher."""
    found = [] if observed.publisher_report is None else [observed.publisher_report]
    for pod in observed.publishers:
        if pod.container is not None and pod.container.kind == "Terminated" and pod.container.message:
            try:
                found.append(from_json(PublisherReport, pod.container.message))
            except ContractError:
                continue  # a problem ended it
    models = [_model(each.published) for each in found if each.job_uid == observed.job.id.uid and each.published]
    known = [] if status.published is None else [status.published]
    return max((*known, *models), key=lambda model: model.sequence, default=None)


def _model(published: Published) -> PublishedModel:
    return PublishedModel(
        sequence=published.sequence,
        anchor=published.anchor,
        step=published.step,
        samples=published.samples,
        time=published.time_s,
    )
