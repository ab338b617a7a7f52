"""`reconcile`, a pure function from observed inputs to an outcome. It may run at any moment, after any crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cpr_operator.api.status import TERMINAL_PHASES
from cpr_operator.desired.rosters import is_supported, version_of
from cpr_operator.reconcile.admission import (
    await_quota,
    must_stop,
    must_wait,
    with_quota,
    without_quota,
    workload_change,
)
from cpr_operator.reconcile.apply_reports import apply_reports
from cpr_operator.reconcile.completion import clean_up, complete
from cpr_operator.reconcile.conditions import record_events, update_conditions
from cpr_operator.reconcile.deletion import delete
from cpr_operator.reconcile.effects import live_pods, outcome
from cpr_operator.reconcile.issuance import awaits_certificate, with_certificate
from cpr_operator.reconcile.members import record_restarts
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.phases import leave_alone, refuse_pods, settle_phase, start, stop_at_gate
from cpr_operator.reconcile.publishing import with_publisher
from cpr_operator.reconcile.recording import with_recorder
from cpr_operator.reconcile.recover import recover
from cpr_operator.reconcile.restore_source import REFUSED, NoSource, RestoreSource, restore_source
from cpr_operator.reconcile.save_plan import update_plan
from cpr_operator.reconcile.spares import maintain_spares, observe_spares, promote
from cpr_operator.reconcile.suspend import (
    KEY_LOST,
    align_trainers,
    needs_new_key,
    resume,
    suspend,
    trainers_aligned,
    waits_to_resume,
    wants_other_trainers,
    with_new_key,
)
from cpr_operator.reconcile.types import Outcome, ReconcileInput, ReconcileState

#: The phases of the reconciliation of a job that has pods, in this order.
PHASES: tuple[Callable[[ReconcileState], ReconcileState], ...] = (
    # First, because every other phase decides on the members' reports.
    apply_reports,
    observe_spares,
    # Before the recovery, which counts incidents of the restart limit.
    record_restarts,
    # After the reports: trainers align only once every shard has reported its losses.
    align_trainers,
    # Before the recovery: once the model is in the store, no lost trainer is replaced. If the result
    # does not count, trainers that have ended become lost here.
    complete,
    # One decision over all members that are lost.
    recover,
    # After the recovery, which decides on the next incarnations.
    promote,
    # After the recovery, which settles the failures and costs that the plan depends on.
    update_plan,
    # After the recovery, which the phase names. A start that is past its deadline ends here.
    settle_phase,
    # After the phase: a job that recovers needs its nodes for members.
    maintain_spares,
    # After the phase and the plan, because conditions contain both.
    update_conditions,
    # Last: events compare the conditions with those of the status as it was read.
    record_events,
)


def reconcile(observed: ReconcileInput) -> Outcome:
    """Return the status and the effects that the inputs require."""
    result = with_recorder(observed, with_publisher(observed, with_certificate(observed, _decide(observed))))
    if observed.queue is None:
        return result
    idle = observed.job.spec.suspend or _blocked(observed) is not None
    # By the new status: a job that starts keeps its quota, and one that has ended releases it.
    return replace(result, workload=workload_change(observed, result.status, idle=idle))


def _decide(observed: ReconcileInput) -> Outcome:
    before = observed.before
    # A job that is being deleted needs no pods, and an ended one stays ended.
    if observed.job.deleting:
        return delete(replace(observed, pods=(*observed.pods, *observed.publishers, *observed.recorders)))
    if before.phase in TERMINAL_PHASES:
        return clean_up(observed)
    # Reports of pods with another contract would be misread, so nothing is decided on them.
    if before.phase not in {"Pending", "Suspended"} and not is_supported(version_of(before)):
        return leave_alone(observed)
    return _live(observed)


def _live(observed: ReconcileInput) -> Outcome:
    """Decide on a job that has not ended, with a supported contract."""
    before, spec = observed.before, observed.job.spec
    # First of all, because pods with different keys reject each other.
    if needs_new_key(observed):
        observed = with_new_key(observed)
        # A CA that an issuer signs has to be issued before the job continues.
        issued = before.runtime is not None and before.runtime.issued is not None
        if before.phase not in {"Suspending", "Suspended"} and (issued or live_pods(observed.pods)):
            return _stop(observed, KEY_LOST)
    # Before any recovery: a job that stops needs no replacements.
    resizes = wants_other_trainers(spec, before) and trainers_aligned(observed)
    if spec.suspend or before.phase == "Suspending" or resizes:
        return _stop(observed)
    if before.start_time is not None and before.phase != "Suspended":
        if why := must_stop(observed):
            return _stop(observed, why)
        state = begin(observed)
        for phase in PHASES:
            state = phase(state)
            if state.status.phase in TERMINAL_PHASES or state.status.phase == "Suspending":
                break  # it has ended, or releases its pods: no further phase is due
        return outcome(state)
    return _without_pods(observed)


def _stop(observed: ReconcileInput, why: str = "") -> Outcome:
    return outcome(without_quota(suspend(observed, why)))


def _without_pods(observed: ReconcileInput) -> Outcome:
    """Start or resume a new or suspended job, unless something blocks it, or quota or its certificate is missing."""
    if (blocked := _blocked(observed)) is not None:
        return blocked
    if (waits := must_wait(observed)) is not None:
        return await_quota(observed, waits)
    if awaits_certificate(observed):
        return outcome(ReconcileState(observed, observed.before))
    if observed.before.start_time is not None:
        return outcome(with_quota(resume(observed)))
    source = restore_source(observed.job, observed.source_jobs)
    assert isinstance(source, RestoreSource), "a job without the anchor of its source does not start"
    return outcome(with_quota(start(observed, source)))


def _blocked(observed: ReconcileInput) -> Outcome | None:
    """Return the outcome of a job without pods that may not start or resume, even with quota; None if it may."""
    job, before = observed.job, observed.before
    if observed.restriction is not None and (refusal := observed.restriction.refuses(job.spec)):
        return refuse_pods(observed, "TemplateRefused", str(refusal))
    if before.start_time is not None:
        return outcome(ReconcileState(observed, before)) if waits_to_resume(observed) else None
    if observed.admission_gate is not None:
        return stop_at_gate(observed, observed.admission_gate)
    source = restore_source(job, observed.source_jobs)
    if isinstance(source, NoSource):
        return refuse_pods(observed, source.reason, source.message, warn=source.reason == REFUSED)
    return None
