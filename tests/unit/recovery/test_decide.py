"""The decision, line by line: who died, what is known, what is left of the budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_operator.api.status import Anchor
from cpr_operator.ledger import Ledger
from cpr_operator.recovery.account import Account
from cpr_operator.recovery.decide import (
    DenseGrant,
    Loss,
    RecoveryInput,
    Replace,
    RollBack,
    ShardGrant,
    WaitForReport,
    decide,
    next_attempt,
)

OLD = Anchor(key="old", digest="0", generation=1, step=4, samples=400)
NEW = Anchor(key="new", digest="1", generation=1, step=8, samples=800)


def situation(**changes: Any) -> RecoveryInput:
    """Shard 0 of two is lost at 1000 samples, its last save is at 900; 300 sample-shards may be lost."""
    base = RecoveryInput(
        mode="Partial",
        account=Account(Ledger(total=2000, limit=300, lost=((), ())), ((), ())),
        losses=(Loss(0, 900),),
        lost_trainers=(),
        survivors=(0, 1),
        leader=0,
        trainer_bound=1000,
        shard_bound=None,
        bound_exact=False,
        shard_state=True,
        dense_saved=950,
        anchors=(OLD, NEW),
    )
    return replace(base, **changes)


def test_lost_shard_is_replaced_within_the_budget() -> None:
    decision = decide(situation())
    assert isinstance(decision, Replace)
    assert decision.shards == (ShardGrant(0, floor=900, reserve=((900, 1000),)),)
    assert (decision.trainers, decision.leader, decision.dense) == ((), 0, None)
    assert "fits the budget" in decision.reason


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"losses": (Loss(0, 700),)}, True),
        ({"losses": (Loss(0, 699),)}, False),
        ({"losses": (Loss(0, 850), Loss(1, 850))}, True),
        ({"losses": (Loss(0, 850), Loss(1, 849))}, False),
        ({"losses": (Loss(0, 0, flushed=True), Loss(1, 700))}, True),
        ({"losses": (Loss(0, 1000),), "account": Account(Ledger(2000, 0, ((), ())), ((), ()))}, True),
    ],
)
def test_losses_fit_together_or_not_at_all(changes: dict[str, object], fits: bool) -> None:  # noqa: FBT001
    decision = decide(situation(**changes))
    assert isinstance(decision, Replace if fits else RollBack)


FLUSHED = (Loss(0, 900, flushed=True),)
ALL_TRAINERS = {"lost_trainers": (0, 1), "survivors": ()}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"mode": "Full", "losses": (Loss(0, 999),)}, RollBack, id="full recovery for any charge"),
        pytest.param({"mode": "Full", "losses": FLUSHED}, Replace, id="full recovery without a charge"),
        pytest.param({"trainer_bound": None, "shard_bound": 1000}, WaitForReport, id="a living trainer did not report"),
        pytest.param({"trainer_bound": None, "losses": FLUSHED}, Replace, id="a flush needs no report"),
        pytest.param(ALL_TRAINERS, WaitForReport, id="no trainer survived and no shard has answered"),
    ],
)
def test_decision_has_the_expected_kind(changes: dict[str, Any], expected: type) -> None:
    assert isinstance(decide(situation(**changes)), expected)


def test_lost_trainer_costs_nothing_while_another_survives() -> None:
    decision = decide(situation(losses=(), lost_trainers=(0,), survivors=(1,), trainer_bound=None))
    assert isinstance(decision, Replace)
    assert (decision.trainers, decision.leader, decision.dense) == ((0,), 1, None)


def test_leader_stays_while_it_is_active() -> None:
    decision = decide(situation(losses=(), lost_trainers=(0,), survivors=(1, 2), leader=2))
    assert isinstance(decision, Replace)
    assert decision.leader == 2


def test_dense_loss_is_charged_to_every_shard_without_survivors() -> None:
    decision = decide(situation(losses=(), lost_trainers=(0, 1), survivors=(), shard_bound=1000))
    assert isinstance(decision, Replace)
    assert decision.dense == DenseGrant(950, ((950, 1000),), pending_from=950)
    assert isinstance(decide(situation(losses=(), lost_trainers=(0, 1), survivors=(), shard_bound=1101)), RollBack)


@pytest.mark.parametrize(
    ("dense_saved", "bound_exact", "pending_from"), [(1000, False, 1000), (1000, True, None), (900, True, 900)]
)
def test_dense_grant_has_a_pending_loss_beyond_its_reservation(
    dense_saved: int,
    bound_exact: bool,  # noqa: FBT001
    pending_from: int | None,
) -> None:
    lost = situation(losses=(), lost_trainers=(0, 1), survivors=(), shard_bound=1000)
    decision = decide(replace(lost, dense_saved=dense_saved, bound_exact=bound_exact))
    assert isinstance(decision, Replace)
    assert decision.dense is not None
    assert decision.dense.pending_from == pending_from


def test_losses_of_a_shard_and_all_trainers_overlap() -> None:
    # shard 0 loses [900, 1000), the dense state [950, 1000) on both: 100 + 50.
    account = Account(Ledger(2000, 150, ((), ())), ((), ()))
    lost = situation(account=account, lost_trainers=(0, 1), survivors=(), shard_bound=1000)
    assert isinstance(decide(lost), Replace)
    assert isinstance(decide(replace(lost, account=Account(Ledger(2000, 149, ((), ())), ((), ())))), RollBack)


@pytest.mark.parametrize(
    ("changes", "anchor"),
    [
        pytest.param(
            {"account": Account(Ledger(2000, 300, ((), ())), ((), ((0, 250),)))}, NEW, id="reservations count"
        ),
        pytest.param({"losses": (Loss(0, 0),), "anchors": ()}, None, id="to step 0 without an anchor"),
        pytest.param({**ALL_TRAINERS, "shard_state": False}, NEW, id="nobody survived"),
    ],
)
def test_rollback_goes_to_the_newest_anchor_that_fits(changes: dict[str, Any], anchor: Anchor | None) -> None:
    decision = decide(situation(**changes))
    assert isinstance(decision, RollBack)
    assert decision.anchor == anchor


def test_newer_save_is_required_before_a_rollback() -> None:
    decision = decide(situation(losses=(Loss(0, 100, certain=False),)))
    assert isinstance(decision, Replace)
    assert decision.shards == (ShardGrant(0, floor=700, reserve=((700, 1000),)),)


def test_repeated_dense_training_is_not_charged() -> None:
    decision = decide(
        situation(losses=(), lost_trainers=(0, 1), survivors=(), shard_bound=1000, dense_saved=100, dense_charged=False)
    )
    assert isinstance(decision, Replace)
    assert decision.dense == DenseGrant(100, ())
    assert decision.lost == ()


def test_newer_dense_save_is_required_before_a_rollback() -> None:
    lost = situation(
        losses=(), lost_trainers=(0, 1), survivors=(), shard_bound=1000, dense_saved=100, dense_certain=False
    )
    decision = decide(lost)
    assert isinstance(decision, Replace)
    assert decision.dense == DenseGrant(850, ((850, 1000),), pending_from=850)


def test_newer_save_is_not_required_without_a_budget() -> None:
    account = Account(Ledger(2000, 300, (((0, 300),), ())), ((), ()))
    assert isinstance(decide(situation(account=account, losses=(Loss(0, 100, certain=False),))), RollBack)


NOTHING_ALLOWED = Account(Ledger(2000, 0, ((), ())), ((), ()))


def test_replayed_samples_are_not_reserved() -> None:
    decision = decide(situation(losses=(Loss(0, 900, replayed_after=900),), account=NOTHING_ALLOWED))
    assert isinstance(decision, Replace)
    assert decision.shards == (ShardGrant(0, floor=900, reserve=()),)


@pytest.mark.parametrize("mode", ["Partial", "Full"])
def test_replay_replaces_all_shards_with_a_budget_of_0(mode: str) -> None:
    losses = (Loss(0, 900, replayed_after=900), Loss(1, 850, replayed_after=800))
    decision = decide(situation(mode=mode, losses=losses, account=NOTHING_ALLOWED, shard_state=False))
    assert isinstance(decision, Replace)
    assert [grant.reserve for grant in decision.shards] == [(), ()]
    assert decision.lost == (0, 1)


def test_dropped_pushes_are_reserved() -> None:
    decision = decide(situation(losses=(Loss(0, 900, replayed_after=960),)))
    assert isinstance(decision, Replace)
    assert decision.shards == (ShardGrant(0, floor=900, reserve=((900, 960),)),)
    assert isinstance(decide(situation(losses=(Loss(0, 100, replayed_after=500),))), RollBack)


def test_replay_buffers_never_increase_a_loss() -> None:
    decision = decide(situation(losses=(Loss(0, 900, replayed_after=5000),)))
    assert isinstance(decision, Replace)
    assert decision.shards[0].reserve == ((900, 1000),)


def test_decision_awaits_unreported_trainers() -> None:
    decision = decide(situation(unreported=(1,)))
    assert isinstance(decision, WaitForReport)
    assert "trainer/1" in decision.reason
    flushed = decide(situation(losses=(Loss(0, 900, flushed=True),), unreported=(1,)))
    assert isinstance(flushed, Replace)
    assert isinstance(decide(situation(losses=(Loss(0, 1000),), unreported=(1,))), Replace), "there is nothing to lose"


def test_orphaned_shard_reserves_the_buffer_of_a_lost_trainer() -> None:
    lost = {"losses": (), "lost_trainers": (1,), "survivors": (0,), "orphaned": ((0, 900),)}
    decision = decide(situation(**lost))
    assert isinstance(decision, Replace)
    assert decision.reserves == {0: ((900, 1000),)}
    assert isinstance(decide(situation(**lost, account=NOTHING_ALLOWED)), RollBack)


@pytest.mark.parametrize(
    ("tried_for", "pause"),
    [(None, 5), (0, 5), (5, 5), (10, 10), (20, 20), (40, 40), (80, 60), (1e6, 60), (-3, 5)],
)
def test_store_pause_doubles_up_to_a_minute(tried_for: float | None, pause: float) -> None:
    lost_at = None if tried_for is None else 1000.0 - tried_for
    assert next_attempt(1000.0, lost_at) == 1000.0 + pause
