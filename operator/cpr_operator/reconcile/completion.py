"""Completion: the leader's result, success or failure of the job, and the removal of its pods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from cpr_contract.codec import ContractError, from_dict, from_json
from cpr_contract.reports import Result, ShardReport, ShardState
from cpr_contract.roster import AnchorRef
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.status import Anchor, BestModel, HeldOut, PinnedData, Segment, Shard, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.failures import RESULT_UNREADABLE, Failure, Kind
from cpr_operator.reconcile.apply_reports import restorable, with_total
from cpr_operator.reconcile.conditions import ConditionUpdate, set_conditions
from cpr_operator.reconcile.effects import live_pods, with_shown
from cpr_operator.reconcile.observe import is_current
from cpr_operator.reconcile.types import (
    Active,
    Done,
    EventReason,
    Fact,
    Lost,
    Outcome,
    PodDelete,
    ReconcileInput,
    ReconcileState,
)
from cpr_operator.recovery.account import account_of, is_overspent, with_account

#: Seconds in which trainers may exit by themselves after the job has succeeded.
LINGER_S = 30.0

#: The beginning of a `Result`: its keys are sorted.
_ANCHOR_FIRST = '{"anchor":'

#: Failures of members that have exited normally, or are healthy, but of no use to the job.
_UNDONE = Failure(Kind.UNDONE, "Undone", "its training ended, but the result does not count", ended=True, exit_code=0)
_UNREADABLE = replace(
    _UNDONE,
    reason=RESULT_UNREADABLE,
    message="its training ended, but its termination message is not a result, or was cut by the kubelet",
)
_TOO_LATE = Failure(
    Kind.UNDONE, "Late", "it restored a save older than the end of training, so nothing will update it", ended=False
)


def complete(state: ReconcileState) -> ReconcileState:
    """Let the job succeed if the leader has trained to the end. Otherwise mark the members that must be replaced.

    The result does not count if the losses exceed the budget. Then the recovery that follows rolls the job back.
    """
    status, result, refused = state.status, result_of(state.status, state.facts), False
    # Losses that a shard has not reported may exceed its reservation and the trainers' reports: if the end of its
    # predecessor was not observed, that process may have continued for a while. One that dies before is replaced.
    unreported = any(shard.lost_at is not None or shard.lost_row_updates is None for shard in status.shards)
    if result is not None and unreported:
        # The anchor has a save of every member. A shard that does not find its save reports that.
        shards = (s if s.state == "BelowFloor" else s.evolve(saved_samples=result.samples) for s in status.shards)
        dense = status.dense.evolve(saved_samples=result.samples)
        return with_late_shards_lost(state.to(status.evolve(result=result, shards=tuple(shards), dense=dense)))
    if result is not None:
        done = succeed(state, result)
        if not is_overspent(done.status):
            return done
        state, refused = state.to(state.status.evolve(ledger=done.status.ledger)), True
    return replace(state, facts=_without_result(state.status, state.facts, refused=refused))


def succeed(state: ReconcileState, result: Anchor) -> ReconcileState:
    """End the job with its final anchor, or with the best one. Losses that members have not reported are charged."""
    status = with_termination_message(state.spec, state.status, state.facts)
    status = with_account(status, account_of(status).charge_pending(result.samples))
    early = result.samples < status.known_samples
    percent = 100 * result.samples // status.known_samples if early else 100
    progress = status.progress.evolve(step=result.step, samples=result.samples, percent=percent, eta_seconds=0.0)
    model = result if status.best is None else status.best.anchor
    status = status.evolve(
        phase="Succeeded",
        completion_time=state.now,
        result=model,
        progress=progress,
        shards=tuple(_with_last_count(state, shard, result) for shard in status.shards),
        recovery=None,
        spares=(),
    )
    event = Event("Normal", EventReason.SUCCEEDED, f"the model is {model.key}", "succeeded")
    why = ConditionUpdate("Complete", "True", "Trained", model.key)
    if early:
        best, others = status.best, "evaluations were no better"
        if best is not None:
            reached = f"an evaluation of {best.value:.6g} reached the target"
            others = f"the last {best.since} {others} than {best.value:.6g}" if best.since else reached
        why = ConditionUpdate("Complete", "True", "EarlyStopped", f"{others}; the model is {model.key}")
    return _end(state.to(status, event), why)


def fail(state: ReconcileState, cause: str, reason: str) -> ReconcileState:
    """End the job without a model. Its saves stay in the store."""
    status = state.status.evolve(phase="Failed", completion_time=state.now, recovery=None, spares=())
    event = Event("Warning", EventReason.FAILED, f"{cause}: {reason}", "failed")
    return _end(state.to(status, event), ConditionUpdate("Failed", "True", cause, reason))


def clean_up(observed: ReconcileInput) -> Outcome:
    """Delete the pods of an ended job that still run, and after its time to live the job itself.

    The time to live of a job that MultiKueue has created is that of the job in its first cluster.
    """
    status, ttl = observed.before, observed.job.spec.ttl_seconds_after_finished
    if observed.queue is not None and observed.queue.prebuilt:
        ttl = None
    ended = status.completion_time or observed.now
    left = None if ttl is None else max(ended + ttl - observed.now, 0.0)
    lingering = live_pods(observed.pods)
    # A leader may wait until its last report is acknowledged.
    waiting = any(pod.role == "trainer" for pod in lingering)
    again_s = observed.timing.changing_s if waiting else observed.timing.running_s
    return Outcome(
        with_shown(status, observed.job.id.name),
        deletes=_superfluous(observed, status),
        delete_job=left == 0.0,
        wake_after_s=again_s if lingering else left,
    )


def result_of(status: Status, facts: Mapping[str, Fact]) -> Anchor | None:
    """Return the final anchor: from the leader's termination message, or from an earlier report.

    A result of an earlier generation does not count, unless this one began with it: trainers may train to the end
    before they read the roster of a rollback. A leader exits normally only after its final anchor is committed, so if
    its message cannot be read, a known anchor of the last sample is the final one.
    """
    end = facts.get(f"trainer/{status.leader or 0}")
    if not isinstance(end, Done):
        return status.result
    reported = _final_anchor(end.message)
    if reported is not None:
        return next(iter(restorable(status, (Anchor.of(reported),))), None)
    total, newest = 0 if status.has_open_data else status.known_samples, status.anchors[-1:]
    return status.result or next((anchor for anchor in newest if anchor.samples >= total > 0), None)


def with_termination_message(spec: CPRJobSpec, status: Status, facts: Mapping[str, Fact]) -> Status:
    """Return the status with the `Result` in the leader's termination message, which no report may have had."""
    leader = facts.get(f"trainer/{status.leader or 0}")
    if not isinstance(leader, Done) or not leader.message:
        return status
    try:
        result = from_json(Result, leader.message)
    except ContractError:
        return status
    # Images of 0.1.0 do not state the total, and end with the last sample.
    total = result.total_samples or status.ledger.total_samples or result.anchor.samples
    if spec.data.follow is not None:
        data = status.data or PinnedData(pins=0, pinned_samples=total, void_samples=0, lag_samples=0)
        data = data.evolve(pinned_samples=total, void_samples=result.voids, lag_samples=0, ended=True)
        status = status.evolve(data=data)
    status = with_total(spec, status, total)
    status = with_account(status, account_of(status).settle_dense(result.lost))
    metrics = dict(result.metrics)
    progress = status.progress.evolve(loss=result.loss, auc=result.auc, logloss=result.logloss, metrics=metrics)
    if result.evaluation is not None:
        last, known = HeldOut.of(result.evaluation), progress.held_out
        if known is not None and known.step == last.step:  # a termination message is too short for groups
            last = last.evolve(groups=known.groups, rest=known.rest)
        progress = progress.evolve(held_out=last)
    if result.segment is not None:
        progress = progress.evolve(segment=Segment.of(result.segment))
    best = BestModel.of(result.best) if result.best is not None else status.best
    return status.evolve(progress=progress, best=best)


def with_late_shards_lost(state: ReconcileState) -> ReconcileState:
    """With a final anchor, count lost trainers as done, and shards that restored an older save as lost.

    The anchor has the state of the trainers. It also has the rows of a shard that was cut off and trained to the end
    while its replacement restored an older save. Only another replacement will restore the anchor.
    """
    facts = state.facts.items()
    found = {n: Done("") if n.startswith("trainer/") and isinstance(f, Lost) else f for n, f in facts}
    for shard in state.status.shards:
        fact, report = found[shard.name], state.report_of(shard)
        if not (isinstance(fact, Active) and isinstance(report, ShardReport) and is_current(state.status, report)):
            continue
        # A replacement that is ready waits for pushes that no trainer will send. Others have reported by now.
        if report.state is ShardState.READY and shard.lost_at is not None:
            found[shard.name] = Lost(fact.pod, _TOO_LATE)
    return replace(state, facts=found)


def _without_result(status: Status, facts: Mapping[str, Fact], *, refused: bool) -> Mapping[str, Fact]:
    """Count trainers that exited normally as lost if the job has not ended with them.

    While the leader is active, the others may exit before it. Once it has exited without a valid result, all trainers
    must be replaced.
    """
    leader = f"trainer/{status.leader or 0}"
    end = facts.get(leader)
    if not isinstance(end, Done | Lost):
        return facts
    undone = _UNDONE
    if refused:
        undone = replace(undone, message="it trained to the end, but the losses exceed the budget")
    elif isinstance(end, Done) and _final_anchor(end.message) is None:
        undone = _UNREADABLE
    found = {name: Lost(None, undone) if isinstance(fact, Done) else fact for name, fact in facts.items()}
    if isinstance(end, Done) and not end.message:
        nothing = Failure(Kind.CRASHED, "NoResult", "the leader ended without a result", ended=True, exit_code=0)
        found[leader] = Lost(None, nothing)
    return found


def _final_anchor(message: str) -> AnchorRef | None:
    """Return the anchor in the termination message of a leader that trained to the end; None if it cannot be read.

    A kubelet cuts long messages, and the anchor is the first field of a result.
    """
    try:
        return from_json(Result, message).anchor
    except ContractError:
        pass
    if not message.startswith(_ANCHOR_FIRST):
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(message, len(_ANCHOR_FIRST))
        return from_dict(AnchorRef, value)
    except ValueError:  # ContractError is one
        return None


def _with_last_count(state: ReconcileState, shard: Shard, result: Anchor) -> Shard:
    """Return the shard with its final count of lost row updates, which is unknown if it never reported one.

    Trainers that went back may have pushed some of them again since its last report. The count is therefore an upper
    bound, unless the shard reports now that it has applied the last step.
    """
    if shard.lost_at is not None:
        return shard.evolve(lost_row_updates=None, allowance=0)
    report = state.report_of(shard)
    if not shard.lost_row_updates or (
        isinstance(report, ShardReport) and min(report.applied, default=0) >= result.step
    ):
        return shard
    return shard.evolve(lost_row_updates_exact=False)


def _end(state: ReconcileState, why: ConditionUpdate) -> ReconcileState:
    """Set the last conditions of a job, and delete its pods."""
    phase = state.status.phase
    ready, recovering = ConditionUpdate("PodsReady", "False", phase), ConditionUpdate("Recovering", "False", phase)
    state = set_conditions(state, why, ready, recovering)
    if phase == "Succeeded":  # its last anchor is in the store
        state = set_conditions(state, ConditionUpdate("SnapshotsDegraded", "False", "Healthy"))
    return replace(state, deletes=_superfluous(state.observed, state.status))


def _superfluous(observed: ReconcileInput, ended: Status) -> tuple[PodDelete, ...]:
    """Return pods that may still run. After success, trainers get time to exit by themselves."""
    lingers = ended.phase == "Succeeded" and observed.now < (ended.completion_time or 0.0) + LINGER_S
    return tuple(
        PodDelete(pod.name, pod.uid, f"the job has {ended.phase.lower()}")
        for pod in live_pods(observed.pods)
        if pod.deleting_until is None and not (lingers and pod.role == "trainer")
    )
