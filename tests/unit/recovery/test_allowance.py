"""The extent of training without lost shards, and its reservation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_operator.api.status import Anchor
from cpr_operator.ledger import Ledger
from cpr_operator.recovery.account import Account
from cpr_operator.recovery.decide import Loss, RecoveryInput, Replace, RollBack, decide, extent


def account(limit: int, *, lost: int = 0, reserved: int = 0) -> Account:
    """Return an account of 2000 samples and two shards, with losses and reservations at the beginning of shard 1."""
    spent = ((0, lost),) if lost else ()
    aside = ((lost, lost + reserved),) if reserved else ()
    return Account(Ledger(total=2000, limit=limit, lost=((), spent)), ((), aside))


@pytest.mark.parametrize(
    ("left", "shards", "until"),
    [
        (300, 1, 1150),  # half of it
        (300, 2, 1075),  # for both together
        (3, 1, 1001),
        (2, 1, 1001),
        (1, 1, 0),
        (3, 2, 0),
        (0, 1, 0),
        (-1, 1, 0),
        (4000, 1, 2000),  # there are no more samples
    ],
)
def test_extent_shares_half_of_the_remaining_budget(left: int, shards: int, until: int) -> None:
    found, reason = extent(account(left), shards, 1000)
    assert found == until
    assert ("waits" in reason) == (not until)
    assert extent(account(300, lost=100, reserved=50), 1, 1000)[0] == 1075


def situation(**changes: Any) -> RecoveryInput:
    """Shard 0 of two is lost at 1000 samples, its last save is at 900; 300 sample-shards may be lost."""
    base = RecoveryInput(
        mode="Partial",
        account=account(300),
        losses=(Loss(0, 900),),
        lost_trainers=(),
        survivors=(0,),
        leader=0,
        trainer_bound=1000,
        shard_bound=None,
        bound_exact=False,
        shard_state=True,
        dense_saved=950,
        anchors=(Anchor(key="a", digest="0", generation=1, step=8, samples=800),),
        degrade=True,
    )
    return replace(base, **changes)


def test_grant_reserves_the_worst_loss_and_the_allowance() -> None:
    decision = decide(situation())
    assert isinstance(decision, Replace)
    (grant,) = decision.shards
    assert grant.allowance == 1000 + (300 - 100) // 2
    assert grant.reserve == ((900, grant.allowance),)
    assert f"up to sample {grant.allowance}" in decision.reason


def test_allowance_of_another_loss_uses_the_other_half() -> None:
    """Shard 0 has its allowance; shard 1 is lost as well, and what it can lose still fits."""
    first = decide(situation())
    assert isinstance(first, Replace)
    after = account(300).reserve({grant.index: grant.reserve for grant in first.shards})
    both = situation(account=after, losses=(Loss(1, 900),), degrade=False)
    assert isinstance(decide(both), Replace)
    greedy = account(300).reserve({0: ((900, 1200),)})
    assert isinstance(decide(replace(both, account=greedy)), RollBack)


def test_allowance_of_a_shard_lost_again_reuses_its_reservation() -> None:
    """Its first replacement died unreported at 1050: no sample is charged twice, and half of the remainder is added."""
    before = account(300).reserve({0: ((900, 1100),)})
    decision = decide(situation(account=before, trainer_bound=1050))
    assert isinstance(decision, Replace)
    assert decision.shards[0].allowance == 1050 + (300 - 200) // 2


@pytest.mark.parametrize(
    "changes",
    [
        {"degrade": False},
        {"mode": "Full", "losses": (Loss(0, 1000),)},
        {"losses": (Loss(0, 900, flushed=True),)},
        {"lost_trainers": (1,)},
        {"survivors": (), "shard_bound": 1000, "account": account(4000)},
        {"account": account(100)},
    ],
)
def test_training_waits_without_an_allowance(changes: dict[str, object]) -> None:
    decision = decide(situation(**changes))
    assert isinstance(decision, Replace)
    (grant,) = decision.shards
    assert grant.allowance == 0
    assert all(end <= 1000 for _, end in grant.reserve)


def test_drained_shard_has_no_allowance() -> None:
    decision = decide(situation(losses=(Loss(0, 900), Loss(1, 950, flushed=True))))
    assert isinstance(decision, Replace)
    lost, drained = decision.shards
    assert lost.allowance == 1100
    assert (drained.allowance, drained.reserve) == (0, ())
