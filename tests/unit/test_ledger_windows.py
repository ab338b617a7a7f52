"""Ledgers of data that arrives: the limit of any window, and losses that become a count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator import ledger
from cpr_operator.ledger import Ledger, Ranges
from cpr_operator.recovery.account import Account
from cpr_operator.recovery.decide import Loss, RecoveryInput, Replace, RollBack, decide, extent

RANGE = st.tuples(st.integers(0, 40), st.integers(0, 40))
SETS = st.lists(RANGE, max_size=4).map(ledger.union)
LOST = st.lists(SETS, min_size=1, max_size=3)


@given(LOST, st.integers(1, 50))
def test_most_in_window_is_that_of_every_place_of_the_window(lost: list[Ranges], window: int) -> None:
    def within(first: int) -> int:
        return sum(ledger.length(ledger.clip(ranges, first + window, start=max(first, 0))) for ranges in lost)

    assert ledger.most_in_window(lost, window) == max(within(first) for first in range(-window, 41))


@given(LOST, st.integers(0, 45), LOST)
def test_folded_losses_count_once_however_often_they_are_reported(
    lost: list[Ranges], samples: int, more: list[Ranges]
) -> None:
    shards = len(lost)
    later = dict(enumerate(more[:shards]))
    plain = Ledger(total=10, limit=0, lost=tuple(lost), open=True)
    folded = ledger.fold(plain, samples)
    assert folded.spent == plain.spent
    assert all(first >= samples for ranges in folded.lost for first, _ in ranges)
    again = ledger.add(ledger.add(folded, dict(enumerate(lost))), later)
    cut = {index: ledger.clip(ranges, 100, start=folded.folded) for index, ranges in later.items()}
    assert again.spent == ledger.add(plain, cut).spent


def test_open_ledger_charges_samples_above_its_total() -> None:
    """A shard may report a loss before the leader's report of the pin that it is in."""
    book = Ledger(total=100, limit=50, lost=((),), open=True)
    assert ledger.add(book, {0: ((90, 120),)}).spent == 30
    assert ledger.add(replace(book, open=False), {0: ((90, 120),)}).spent == 10


def account(lost: Ranges, *, limit: int = 1000, window: int = 100, most: int = 30) -> Account:
    books = Ledger(total=10_000, limit=limit, lost=(lost, ()), open=True, window=window, window_limit=most)
    return Account(books, ((), ()))


@pytest.mark.parametrize(
    ("lost", "fits"),
    [((), True), (((960, 970),), True), (((955, 970),), False), (((850, 870),), True), (((900, 915),), False)],
)
def test_loss_that_does_not_fit_a_window_rolls_back(lost: Ranges, *, fits: bool) -> None:
    given = RecoveryInput(
        mode="Partial",
        account=account(lost),
        losses=(Loss(1, saved=980),),
        lost_trainers=(),
        survivors=(0,),
        leader=0,
        trainer_bound=1000,
        shard_bound=None,
        bound_exact=False,
        shard_state=True,
        dense_saved=980,
    )
    found = decide(given)
    assert isinstance(found, Replace if fits else RollBack)
    assert ("window" in found.reason) is not fits


def test_training_without_a_shard_keeps_to_the_window() -> None:
    assert extent(account(((960, 980),)), 1, 1000)[0] == 1005
    assert extent(account(((960, 980),), window=0), 1, 1000)[0] == 1490
    assert extent(account(((960, 990),)), 1, 1000)[0] == 0


def test_fold_keeps_what_a_window_an_anchor_or_an_open_loss_needs() -> None:
    books = account(((100, 110), (300, 310), (860, 870)))
    assert books.fold(1000).ledger.lost == ((), ())
    assert books.fold(960).ledger.lost == (((860, 870),), ())
    assert books.reserve({1: ((250, 260),)}).fold(960).ledger.lost == (((300, 310), (860, 870)), ())
    assert books.note_pending_dense(250).fold(960).ledger.folded == 150
    assert books.fold(960).is_overspent is books.is_overspent is False
