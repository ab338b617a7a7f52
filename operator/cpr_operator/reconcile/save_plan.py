"""The plan of saves, and its inputs: failures and costs as the job has measured them."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from cpr_contract.choices import ReplayPolicy
from cpr_contract.reports import TrainerReport, TrainerState
from cpr_operator import policy
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.frozen_settings import replay_in_force
from cpr_operator.api.sizes import data_shards_of, rows_bytes
from cpr_operator.api.status import Counted, Plan, Policy, SparseUpdatesMode, Status
from cpr_operator.clocks import elapsed_s
from cpr_operator.cluster.protocol import Event
from cpr_operator.ledger import portion
from cpr_operator.reconcile.types import EventReason, ReconcileState
from cpr_operator.recovery.account import account_of

#: An interval that changed by less than this part is the same.
_SAME = 0.05


def planned(spec: CPRJobSpec, status: Status, *, renew: bool) -> Status:
    """Return the status with its plan: a new one if `renew`, or if its inputs have changed enough.

    If the new plan hardly differs, the interval stays, so that rosters do not change. Conditions use the new inputs.
    """
    choice, old = policy.plan(plan_inputs(spec, status)), status.plan
    # A rollback restores an anchor, so fresher rows would be of no use.
    priority = spec.snapshots.strategy != "Full" and choice.mode == "Partial"
    new = Plan(
        mode=choice.mode,
        interval_seconds=choice.interval_s,
        priority_interval_seconds=spec.snapshots.fraction * choice.interval_s if priority else 0.0,
        stored_bits=choice.stored_bits,
        expected_lost_samples=choice.expected_lost_samples,
        expected_overhead=choice.expected_overhead,
        inputs=choice.status_inputs(),
        reason=choice.reason,
    )
    if not renew and old is not None:
        if not policy.moved(old.inputs, new.inputs):
            return status
        if not _differs(old, new) and new.interval_seconds != old.interval_seconds:
            # The old one with the new inputs: its reason names its interval.
            lost, overhead = new.expected_lost_samples, new.expected_overhead
            new = old.evolve(inputs=new.inputs, expected_lost_samples=lost, expected_overhead=overhead)
    return status.evolve(plan=new)


def update_plan(state: ReconcileState) -> ReconcileState:
    """Make a new plan after a failure, or if its inputs have changed enough. During a recovery the plan stays."""
    if state.status.recovery is not None:
        return state
    renew = state.before.restarts != state.status.restarts or state.before.recovery is not None
    return state.to(planned(state.spec, state.status, renew=renew))


def plan_inputs(spec: CPRJobSpec, status: Status) -> policy.Inputs:
    """Return the inputs of the policy: the user's settings, the account, and measurements."""
    learnt, account = status.policy, account_of(status)
    interval, replay = spec.snapshots.interval, replay_in_force(spec, status)
    return policy.Inputs(
        mode=spec.recovery.mode,
        limit=spec.accuracy_budget.portion,
        shards=len(status.shards),
        estimate=failure_estimate(spec, status),
        spent=portion(account.ledger.spent, account.ledger),
        reserved=portion(account.set_aside, account.ledger),
        fixed_interval_s=float(interval.seconds) if interval.seconds else None,
        total_samples=status.ledger.total_samples,
        # As much as has arrived is expected to follow.
        saved_samples=status.anchors[-1].samples if status.anchors and not status.has_open_data else 0,
        samples_per_s=learnt.samples_per_second,
        costs=policy.Costs.measured(
            save_stall_s=learnt.save_stall_seconds,
            commit_s=learnt.commit_seconds,
            load_s=learnt.load_seconds,
            reschedule_s=learnt.reschedule_seconds,
            shard_bytes=rows_bytes(spec),
        ),
        basis=spec.accuracy_budget.basis,
        fixed_bits=32 if spec.snapshots.quantisation.mode == "Exact" else spec.snapshots.quantisation.bits,
        restored=_restored(status),
        replays=replay.enabled,
        replay_ratio=learnt.replay_ratio,
        data_shards=data_shards_of(spec, replay),
    )


def plan_events(before: Status, after: Status) -> tuple[Event, ...]:
    """Return the event of a plan that differs from the one before, with the reason of the plan."""
    old, new = before.plan, after.plan
    if new is None or (old is not None and not _differs(old, new)):
        return ()
    key = f"planned-{before.counters.roster}-{new.mode}-{new.interval_seconds:.6g}"
    return (Event("Normal", EventReason.PLANNED, new.reason, key),)


def failure_estimate(spec: CPRJobSpec, status: Status) -> policy.FailureEstimate:
    """Return the estimate of failures: the observed one, or the user's own before the first observation.

    The first estimate of lost shards is the node that most shards share: too low an estimate costs more than too high
    a one. A job's only node does not count, because its loss leaves nothing to recover.
    """
    learnt = status.policy
    alpha, beta_s, lost = learnt.alpha, learnt.beta_seconds, learnt.lost_per_failure
    if alpha is not None and beta_s is not None and lost is not None:
        return policy.FailureEstimate(alpha, beta_s, lost)
    on_nodes = Counter(shard.node for shard in status.shards if shard.node)
    several = len({member.node for member in status.members}) > 1
    together = max(on_nodes.values(), default=1) if several else 1
    return policy.prior(float(spec.failure_policy.expected_job_mtbf_seconds), float(together))


def after_report(spec: CPRJobSpec, status: Status, report: TrainerReport, now: float) -> Status:
    """Apply the measurements in a current report of the leader, before `status.progress` is set from it."""
    status = _with_saves(_with_degraded(status, report), report)
    learnt = status.policy
    # By samples: without pauses, with an operator's absence.
    rate, trained = report.samples_per_s or learnt.samples_per_second, report.samples - status.progress.samples
    if rate and trained > 0:
        learnt = _with_estimate(learnt, policy.after_quiet(failure_estimate(spec, status), trained / rate), now)
    if learnt.samples_per_second is None:
        learnt = learnt.evolve(samples_per_second=report.samples_per_s)
    return status.evolve(policy=learnt)


def with_reported_settings(status: Status, leader: TrainerReport) -> Status:
    """Return the status with the settings that a leader that trains reports, if its image is of an earlier release.

    Without its buffer for pushes there is no replay, and the plan must expect losses. Without updates per step shards
    apply each push by itself.
    """
    runtime = status.runtime
    if runtime is None or leader.state is not TrainerState.TRAINING:
        return status
    if runtime.replay.enabled and not leader.forgotten:
        runtime = runtime.evolve(replay=ReplayPolicy(reason="the trainer image predates replay support"))
    updates = runtime.sparse_updates
    if updates is not None and updates.mode == "PerStep" and leader.sparse_updates == "PerPush":
        each = SparseUpdatesMode(mode="PerPush", reason="the trainer image predates updates per step")
        runtime = runtime.evolve(sparse_updates=each)
    return status.evolve(runtime=runtime)


def after_failure(spec: CPRJobSpec, status: Status, now: float) -> Status:
    """Count one failure after the recovery under way, if it lost the state of any shard."""
    if status.recovery is None or not status.recovery.lost_shards:
        return status
    estimate = policy.after_failure(failure_estimate(spec, status), len(status.recovery.lost_shards))
    return status.evolve(policy=_with_estimate(status.policy, estimate, now))


def after_recovery(spec: CPRJobSpec, status: Status, now: float) -> Status:
    """Count the failure, and the costs of the recovery that ends at `now`."""
    recovery = status.recovery
    if recovery is None:
        return status
    status = after_failure(spec, status, now)
    rate = status.policy.samples_per_second
    trained_s = (status.progress.degraded_samples - recovery.degraded_before) / rate if rate else 0.0
    took_s = max(elapsed_s(recovery.since, now) - trained_s, 0.0)
    load_s = min(recovery.load_seconds, took_s)
    overhead = status.overhead.evolve(
        load_seconds=status.overhead.load_seconds + load_s,
        reschedule_seconds=status.overhead.reschedule_seconds + took_s - load_s,
    )
    learnt = status.policy
    if recovery.lost_shards:
        learnt = learnt.evolve(
            load_seconds=policy.running(learnt.load_seconds, load_s),
            reschedule_seconds=policy.running(learnt.reschedule_seconds, took_s - load_s),
        )
    return status.evolve(overhead=overhead, policy=learnt)


def after_replay(learnt: Policy, samples: int, took_s: float) -> Policy:
    """Average the speed of a replay of `samples`. Less than a second of training would be too short a measurement."""
    speed = learnt.samples_per_second
    if not speed or samples < speed:
        return learnt
    return learnt.evolve(replay_ratio=policy.running(learnt.replay_ratio, took_s * speed / samples))


def after_resharding(learnt: Policy, before: int, after: int) -> Policy:
    """Scale the measurements from `before` shards to `after` shards, until new ones replace them.

    A failure loses the same portion of all rows as before, but at least one shard. The durations of a save and of a
    load are proportional to a shard's rows.
    """
    larger = before / after

    def scaled(value: float | None) -> float | None:
        return None if value is None else value * larger

    lost = learnt.lost_per_failure
    return learnt.evolve(
        lost_per_failure=None if lost is None else min(max(lost / larger, 1.0), float(after)),
        save_stall_seconds=scaled(learnt.save_stall_seconds),
        commit_seconds=scaled(learnt.commit_seconds),
        load_seconds=scaled(learnt.load_seconds),
        replay_ratio=scaled(learnt.replay_ratio),
    )


def _restored(status: Status) -> float:
    """Return the maximum of a row's restores so far. A restored flush counts, though it is exact."""
    incarnations = [shard.incarnation - 1 for shard in status.shards]
    return max(status.counters.generation - 1, 0) + (fmean(incarnations) if incarnations else 0.0)


def _differs(old: Plan, new: Plan) -> bool:
    if (old.mode, old.stored_bits) != (new.mode, new.stored_bits):
        return True
    return abs(new.interval_seconds - old.interval_seconds) > _SAME * old.interval_seconds


def _with_estimate(learnt: Policy, estimate: policy.FailureEstimate, now: float) -> Policy:
    return learnt.evolve(
        alpha=estimate.alpha,
        beta_seconds=estimate.beta_s,
        lost_per_failure=estimate.lost_per_failure,
        updated=now,
    )


def _with_degraded(status: Status, report: TrainerReport) -> Status:
    """Add the samples that were trained without a shard since. The counters of a new leader begin at 0."""
    leader = f"trainer/{report.index}-{report.incarnation} gen {report.counters.generation}"
    counted, progress = status.policy.counted, status.progress
    if counted.leader != leader or report.saves < counted.saves or report.save_stall_s < counted.save_seconds:
        # A trainer counts its samples without shards even while it does not lead.
        degraded = counted.degraded_samples if counted.leader == leader else report.degraded_samples
        counted = Counted(leader=leader, degraded_samples=degraded)
    if (more := report.degraded_samples - counted.degraded_samples) > 0:
        counted = counted.evolve(degraded_samples=report.degraded_samples)
        progress = progress.evolve(degraded_samples=progress.degraded_samples + more)
    return status.evolve(policy=status.policy.evolve(counted=counted), progress=progress)


def _with_saves(status: Status, report: TrainerReport) -> Status:
    """Add the saves that were committed since. A stall counts with its save."""
    learnt = status.policy
    known = learnt.counted
    saves, stall_s = report.saves - known.saves, report.save_stall_s - known.save_seconds
    if not saves:
        return status
    each_s, speed = learnt.save_stall_seconds, learnt.samples_per_second
    for _ in range(saves):
        each_s = policy.running(each_s, stall_s / saves)
    if report.samples_per_s:
        speed = policy.running(speed, report.samples_per_s)
    commit_s = (
        learnt.commit_seconds if report.commit_s is None else policy.running(learnt.commit_seconds, report.commit_s)
    )
    learnt = learnt.evolve(
        save_stall_seconds=each_s,
        commit_seconds=commit_s,
        samples_per_second=speed,
        counted=known.evolve(saves=report.saves, save_seconds=report.save_stall_s),
    )
    overhead = status.overhead.evolve(save_seconds=status.overhead.save_seconds + stall_s)
    return status.evolve(policy=learnt, overhead=overhead)
