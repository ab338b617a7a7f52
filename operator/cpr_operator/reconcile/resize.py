"""Another number of shards or trainers takes the place of those before: all begin with an anchor.

It holds the rows of all shards, and the one step that all trainers have completed. The anchor is that of the
suspension, and nothing is trained again. Where none was committed then, it is an earlier one, and the job goes back to
it. What other shards lost before the anchor stays charged, as a number (docs/adr/0013, 0019).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.ledger import limit_of
from cpr_operator.reconcile.act import roll_back
from cpr_operator.reconcile.edit import account_of, with_account, with_all_owed
from cpr_operator.reconcile.learning import after_resharding
from cpr_operator.reconcile.observe import Fact
from cpr_operator.reconcile.world import EventReason, Step, World, change
from cpr_operator.recovery.decide import roll_back as back_to


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


def resize(world: World, nobody: Mapping[str, Fact]) -> Step:
    """The status of a suspended job whose spec names other numbers of members: a new generation of so many.

    `nobody`: the facts of members without pods.
    """
    status = world.job.status
    stands_at, reason = _stands_at(status), resizing(world.job.spec, status)
    owing = with_all_owed(status)
    decision = back_to(account_of(owing), status.anchors, reason)
    step, samples = (decision.anchor.step, decision.anchor.samples) if decision.anchor else (0, 0)
    rollbacks = status.budget.rollbacks if status.budget else 0
    status = roll_back(world, Step(owing), nobody, decision).status
    status = _with_trainers(_with_shards(world.job.spec, status, samples), world.job.spec.trainers.replicas)
    said = f"{reason}, all from the anchor of step {step}"
    if samples == stands_at:
        status = change(status, budget=change(status.budget, rollbacks=rollbacks))
    else:
        said += "; what was trained since then is trained again, because it was not saved as one anchor"
    return Step(status, (Event("Normal", EventReason.RESUMED, said, f"resized-{status.counters.generation}"),))


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
    status = change(status, shards=shards, policy=after_resharding(status.policy, before, wanted))
    return with_account(status, account)


def _with_trainers(status: Status, wanted: int) -> Status:
    if len(status.trainers) == wanted:
        return status
    newest = max(trainer.incarnation for trainer in status.trainers)
    trainers = tuple(Trainer(index=i, incarnation=newest) for i in range(wanted))
    return change(status, trainers=trainers, leader=0)  # type: ignore[no-any-return]


def _stands_at(status: Status) -> int:
    """How many samples the job was trained when it was suspended, as far as anybody told."""
    return max(status.progress.samples, status.dense.saved_samples, *(shard.saved_samples for shard in status.shards))
