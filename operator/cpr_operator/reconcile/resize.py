"""Changes the number of shards or trainers. All new members start from an anchor.

The anchor has the rows of all shards, and a step that all trainers have completed. Usually it is the anchor of the
suspension, and nothing is trained again. If none was committed then, the job goes back to an earlier one. Losses of
the old shards before the anchor stay charged, as a number (docs/adr/0013, 0019).

In a shadow mode, an anchor is aligned (all ranks are at the same step) only if all trainers have reached
a common step. So they do that before the job stops. If they have not, or the budget forbids that
anchor, the job resumes with its old numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.ledger import limit_of
from cpr_operator.reconcile.observe import is_current
from cpr_operator.reconcile.plan import after_resharding
from cpr_operator.reconcile.recover import apply_rollback
from cpr_operator.reconcile.reports import restorable
from cpr_operator.reconcile.types import EventReason, ReconcileInput, ReconcileState
from cpr_operator.recovery.account import account_of, with_account
from cpr_operator.recovery.decide import roll_back


def resizing(spec: CPRJobSpec, status: Status) -> str:
    """The change of the numbers of members of a started job, in words; empty if there is none."""
    return " and ".join(_changes(spec, status))


def _changes(spec: CPRJobSpec, status: Status) -> Iterator[str]:
    for members, wanted, name in (
        (status.shards, spec.shards.replicas, "shards"),
        (status.trainers, spec.trainers.replicas, "trainers"),
    ):
        if len(members) != wanted:
            yield f"{len(members)} {name} become {wanted}"


def wants_other_trainers(spec: CPRJobSpec, status: Status) -> bool:
    """Whether a job with pods is to stop and resume with another number of trainers."""
    return status.phase not in {"Pending", "Suspended"} and len(status.trainers) != spec.trainers.replicas


def align_trainers(state: ReconcileState) -> ReconcileState:
    """Let trainers in a shadow mode advance to a common step before their number changes.

    First every shard must have reported its losses, which takes pushes. Its worst-case loss may exceed
    the budget, and then no anchor would be acceptable.
    """
    reported = all(shard.lost_at is None for shard in state.status.shards)
    status = state.status.evolve(meeting=reported and wants_other_trainers(state.spec, state.status))
    if not status.meeting or state.status.meeting:
        return state.to(status)
    message = f"{resizing(state.spec, status)}: all trainers first advance to a common step and save there"
    key = f"meeting-{state.observed.job.spec_generation}"
    return state.to(status, Event("Normal", EventReason.MEETING, message, key))


def trainers_aligned(observed: ReconcileInput) -> bool:
    """Whether all trainers are at the step of the newest anchor, or will be when they stop."""
    if _is_synchronous(observed.job.spec):
        return True
    leader, status = observed.leader_report, observed.before
    met = leader.met if leader is not None and is_current(status, leader) else None
    return met is not None and bool(status.anchors) and status.anchors[-1].key == met.key


def resize(state: ReconcileState) -> ReconcileState | None:
    """A new generation of a suspended job whose spec has other numbers of members.

    None if the job resumes with its old numbers.
    """
    spec, status, synchronous = state.spec, state.status, _is_synchronous(state.spec)
    reason = resizing(spec, status)
    if not reason or not (synchronous or status.meeting):
        return None
    stands_at = _stands_at(status)
    aligned = status.anchors if synchronous else status.anchors[-1:]
    decision = roll_back(account_of(status), aligned, reason)
    if decision.anchor is None and not synchronous:
        return None
    step, samples = (decision.anchor.step, decision.anchor.samples) if decision.anchor else (0, 0)
    rollbacks = status.budget.rollbacks if status.budget else 0
    status = apply_rollback(state, decision).status
    status = _with_shards(spec, status, samples).evolve(anchors=restorable(status, aligned))
    status = _with_trainers(status, spec.trainers.replicas)
    message = f"{reason}; all members continue from the anchor of step {step}"
    if samples != stands_at:
        message += "; what was trained since then is trained again, because it was not saved as one anchor"
    elif status.budget is not None:
        status = status.evolve(budget=status.budget.evolve(rollbacks=rollbacks))
    return state.to(status, Event("Normal", EventReason.RESUMED, message, f"resized-{status.counters.generation}"))


def _is_synchronous(spec: CPRJobSpec) -> bool:
    return spec.trainers.dense_sync == "AllReduce"


def _with_shards(spec: CPRJobSpec, status: Status, samples: int) -> Status:
    """The status with the shards that the spec wants, at an anchor of `samples` samples."""
    before, wanted = len(status.shards), spec.shards.replicas
    if before == wanted:
        return status
    newest = max(shard.incarnation for shard in status.shards)  # no pod's name comes twice, whatever shards there were
    limit = limit_of(spec.accuracy_budget.portion, status.ledger.total_samples, wanted)
    account = account_of(status).reshard(wanted, limit)
    shards = tuple(
        Shard(index=i, incarnation=newest, floor_samples=samples, saved_samples=samples) for i in range(wanted)
    )
    status = status.evolve(shards=shards, policy=after_resharding(status.policy, before, wanted))
    return with_account(status, account)


def _with_trainers(status: Status, wanted: int) -> Status:
    if len(status.trainers) == wanted:
        return status
    newest = max(trainer.incarnation for trainer in status.trainers)
    trainers = tuple(Trainer(index=i, incarnation=newest) for i in range(wanted))
    return status.evolve(trainers=trainers, leader=0)


def _stands_at(status: Status) -> int:
    """The samples that the job had trained when it was suspended, as far as reported."""
    return max(status.progress.samples, status.dense.saved_samples, *(shard.saved_samples for shard in status.shards))
