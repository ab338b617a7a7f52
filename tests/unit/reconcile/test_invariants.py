"""Assertions of a reconciliation: it ends where its status would rewrite the job's history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cpr_operator.api.status import Status
from cpr_operator.reconcile.effects import outcome
from cpr_operator.reconcile.types import ReconcileState
from simulation.control_plane.run import input_in_mid_training
from support.reconcile_inputs import with_status


def with_older_shard(status: Status) -> Status:
    first, *others = status.shards
    return status.evolve(shards=(first.evolve(incarnation=first.incarnation - 1), *others))


def with_losses(status: Status, end: int) -> Status:
    return status.evolve(ledger=status.ledger.evolve(ranges=(((0, end),), (), ())))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (with_older_shard, "shard/0 fell from incarnation 1 to 0"),
        (
            lambda status: status.evolve(counters=status.counters.evolve(generation=0)),
            "the generation fell from 1 to 0",
        ),
        (lambda status: status.evolve(counters=status.counters.evolve(group=0)), "the group fell from 1 to 0"),
        (lambda status: with_losses(status, 100), "losses fell from 200 to 100 sample-shards in a generation"),
    ],
)
async def test_outcome_asserts_the_order_of_history(change: Callable[[Status], Status], text: str) -> None:
    observed = await input_in_mid_training(1)
    before = with_losses(observed.before, 200)
    observed = with_status(observed, before)
    with pytest.raises(AssertionError, match=text):
        outcome(ReconcileState(observed, change(before)))


async def test_outcome_allows_fewer_losses_after_a_rollback() -> None:
    observed = await input_in_mid_training(1)
    observed = with_status(observed, with_losses(observed.before, 200))
    later = observed.before.counters.evolve(generation=2)
    outcome(ReconcileState(observed, with_losses(observed.before, 100).evolve(counters=later)))
