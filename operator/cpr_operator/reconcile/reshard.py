"""Another number of shards takes the place of those before: all begin with an anchor, which holds the rows of all.

The anchor is that of the suspension, and nothing is trained again. Where none was committed then, it is an earlier one,
and the job goes back to it. What was lost before the anchor stays charged, as a number (docs/adr/0013).
"""

from __future__ import annotations

from collections.abc import Mapping

from cpr_operator.api.status import Shard, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.ledger import limit_of
from cpr_operator.reconcile.act import roll_back
from cpr_operator.reconcile.edit import account_of, owed, with_account
from cpr_operator.reconcile.learning import after_resharding
from cpr_operator.reconcile.observe import Fact
from cpr_operator.reconcile.world import EventReason, Step, World, change
from cpr_operator.recovery.account import Account
from cpr_operator.recovery.decide import roll_back as back_to


def reshard(world: World, nobody: Mapping[str, Fact]) -> Step:
    """The status of a suspended job whose spec names another number of shards: a new generation of so many.

    `nobody`: the facts of members without pods.
    """
    status, wanted = world.job.status, world.job.spec.shards.replicas
    before, stands_at = len(status.shards), _stands_at(status)
    reason = f"{before} shards become {wanted}"
    owing = with_account(status, _with_all_that_is_owed(status))
    decision = back_to(account_of(owing), status.anchors, reason)
    step, samples = (decision.anchor.step, decision.anchor.samples) if decision.anchor else (0, 0)
    rollbacks = status.budget.rollbacks if status.budget else 0
    status = roll_back(world, Step(owing), nobody, decision).status
    newest = max(shard.incarnation for shard in status.shards)  # no pod's name comes twice, whatever shards there were
    limit = limit_of(world.job.spec.accuracy_budget.portion, status.ledger.total_samples, wanted)
    account = account_of(status).reshard(wanted, limit)
    shards = tuple(
        Shard(index=i, incarnation=newest, floor_samples=samples, saved_samples=samples) for i in range(wanted)
    )
    status = change(status, shards=shards, policy=after_resharding(status.policy, before, wanted))
    status = with_account(status, account)
    said = f"{reason}, all from the anchor of step {step}"
    if samples == stands_at:
        status = change(status, budget=change(status.budget, rollbacks=rollbacks))
    else:
        said += "; what was trained since then is trained again, because it was not saved as one anchor"
    return Step(status, (Event("Normal", EventReason.RESUMED, said, f"resharded-{status.counters.generation}"),))


def _stands_at(status: Status) -> int:
    """How many samples the job was trained when it was suspended, as far as anybody told."""
    return max(status.progress.samples, status.dense.saved_samples, *(shard.saved_samples for shard in status.shards))


def _with_all_that_is_owed(status: Status) -> Account:
    """The account with the worst of what members have not told yet as set aside: nobody asks them any more.

    From the save that it was given leave to restore, a member may have missed everything up to the anchor, whichever
    that will be.
    """
    end = status.ledger.total_samples
    dense = ((status.dense.floor_samples, end),) if status.dense.reserved else ()
    return account_of(status).reserve(owed(status, end), dense)
