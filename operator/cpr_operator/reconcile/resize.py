"""Another number of shards or trainers takes the place of those before: all begin with an anchor.

It holds the rows of all shards, and the one step that all trainers have completed. The anchor is that of the
suspension, and nothing is trained again. Where none was committed then, it is an earlier one, and the job goes back to
it. What other shards lost before the anchor stays charged, as a number (docs/adr/0013, 0019).

Without lockstep only an anchor where all trainers had met is of one step: the others hold more of some ranks. So all
meet before the job stops; if they have not, or the budget forbids that anchor, the job resumes as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.ledger import limit_of
from cpr_operator.reconcile.apply_reports import restorable
from cpr_operator.reconcile.members import account_of, with_account, with_all_owed
from cpr_operator.reconcile.observe import is_current, leader_report
from cpr_operator.reconcile.pass_ import EventReason, Fact, PassInput, Step
from cpr_operator.reconcile.plan import after_resharding
from cpr_operator.reconcile.recover import apply_rollback
from cpr_operator.recovery.decide import roll_back


def resizing(spec: CPRJobSpec, status: Status) -> str:
    """What becomes of the members of a started job, in words; empty if the spec wants as many as there are."""
    return " and ".join(_changes(spec, status))


def _changes(spec: CPRJobSpec, status: Status) -> Iterator[str]:
    for members, wanted, name in (
        (status.shards, spec.shards.replicas, "shards"),
        (status.trainers, spec.trainers.replicas, "trainers"),
    ):
        if len(members) != wanted:
            yield f"{len(members)} {name} become {wanted}"


def trainers_aligned(world: PassInput) -> bool:
    """Whether all trainers stand at one step, the newest anchor, or will when they are told to stop."""
    if _is_synchronous(world):
        return True
    leader, status = leader_report(world), world.job.status
    met = leader.met if leader is not None and is_current(status, leader) else None
    return met is not None and bool(status.anchors) and status.anchors[-1].key == met.key


def resize(world: PassInput, no_pods: Mapping[str, Fact]) -> Step | None:
    """The status of a suspended job whose spec names other numbers of members: a new generation of so many.

    None if the job is to resume as it is. `no_pods`: the facts of members without pods.
    """
    status, lockstep = world.job.status, _is_synchronous(world)
    reason = resizing(world.job.spec, status)
    if not reason or not (lockstep or status.meeting):
        return None
    stands_at, owing = _stands_at(status), with_all_owed(status)
    even = status.anchors if lockstep else status.anchors[-1:]
    decision = roll_back(account_of(owing), even, reason)
    if decision.anchor is None and not lockstep:
        return None
    step, samples = (decision.anchor.step, decision.anchor.samples) if decision.anchor else (0, 0)
    rollbacks = status.budget.rollbacks if status.budget else 0
    status = apply_rollback(world, Step(owing), no_pods, decision).status
    status = _with_shards(world.job.spec, status, samples).evolve(anchors=restorable(status, even))
    status = _with_trainers(status, world.job.spec.trainers.replicas)
    said = f"{reason}, all from the anchor of step {step}"
    if samples != stands_at:
        said += "; what was trained since then is trained again, because it was not saved as one anchor"
    elif status.budget is not None:
        status = status.evolve(budget=status.budget.evolve(rollbacks=rollbacks))
    return Step(status, (Event("Normal", EventReason.RESUMED, said, f"resized-{status.counters.generation}"),))


def _is_synchronous(world: PassInput) -> bool:
    return world.job.spec.trainers.dense_sync == "AllReduce"


def _with_shards(spec: CPRJobSpec, status: Status, samples: int) -> Status:
    """The status with so many shards as the spec wants, at an anchor of so many samples."""
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
    """How many samples the job was trained when it was suspended, as far as anybody told."""
    return max(status.progress.samples, status.dense.saved_samples, *(shard.saved_samples for shard in status.shards))
