from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.limits import MAX_RANGES
from cpr_operator import ledger
from cpr_operator.api.base import EXACT
from cpr_operator.ledger import Ledger, Ranges

TOTAL = 60
RANGE = st.tuples(st.integers(0, TOTAL), st.integers(0, TOTAL))
SETS = st.lists(RANGE, max_size=6).map(tuple)


def opened(total: int, shards: int, portion: float) -> Ledger:
    """An empty account for a budget of `portion` of all samples."""
    return Ledger(total=total, limit=ledger.limit_of(portion, total, shards), lost=((),) * shards)


def samples(ranges: Ranges) -> set[int]:
    """The plain meaning of ranges: the samples in them."""
    return {sample for first, end in ranges for sample in range(first, end)}


@given(SETS, SETS)
def test_union_is_that_of_the_samples_in_canonical_form(left: Ranges, right: Ranges) -> None:
    united = ledger.union(left, right)
    assert samples(united) == samples(left) | samples(right)
    assert united == ledger.union(right, left) == ledger.union(united)
    assert all(first < end for first, end in united)
    assert all(end < first for (_, end), (first, _) in itertools.pairwise(united))


@given(SETS, st.integers(0, TOTAL))
def test_clip_leaves_the_samples_before(ranges: Ranges, end: int) -> None:
    assert samples(ledger.clip(ranges, end)) == {sample for sample in samples(ranges) if sample < end}


@given(SETS)
def test_length_counts_each_sample_once(ranges: Ranges) -> None:
    assert ledger.length(ranges) == len(samples(ranges))


@given(st.lists(st.tuples(st.integers(0, 2), SETS), max_size=5), st.randoms(use_true_random=False))
def test_losses_count_once_in_any_order(losses: list[tuple[int, Ranges]], random: object) -> None:
    def booked(order: list[tuple[int, Ranges]]) -> Ledger:
        book = opened(TOTAL, 3, 0.5)
        for shard, ranges in order:
            book = ledger.add(book, {shard: ranges})
        return book

    shuffled = list(losses) * 2
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert booked(losses) == booked(shuffled)
    by_hand = {(shard, sample) for shard, ranges in losses for sample in samples(ranges)}
    assert booked(losses).spent == len(by_hand)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, TOTAL), st.integers(0, TOTAL)), max_size=12),
    st.floats(0, 0.99),
)
def test_spent_never_exceeds_the_limit_when_only_fitting_losses_are_taken(
    losses: list[tuple[int, int, int]], portion: float
) -> None:
    book = opened(TOTAL, 3, portion)
    for shard, now, saved in losses:
        charge = max(now - saved, 0)
        if ledger.fits(book, 0, charge).fits:
            book = ledger.add(book, {shard: ((saved, now),)})
        else:
            book = ledger.rolled_back(book, saved)
        assert book.spent <= book.limit
        assert ledger.portion(book.spent, book) <= portion


@given(SETS, st.integers(0, TOTAL))
def test_rollback_takes_back_samples_trained_again(ranges: Ranges, anchor: int) -> None:
    book = ledger.add_everywhere(opened(TOTAL, 2, 0.5), ranges)
    after = ledger.rolled_back(book, anchor)
    assert after.spent == 2 * len([sample for sample in samples(ranges) if sample < anchor])
    assert (after.total, after.limit) == (book.total, book.limit)


@pytest.mark.parametrize(
    ("portion", "total", "shards", "limit"),
    [
        (0.1, 30, 1, 3),
        (0.29, 100, 1, 29),
        (0.1, 99, 1, 9),
        (0.07, 100, 4, 28),
        (0, 100, 4, 0),
        (1e-3, 10**9, 1024, 1024 * 10**6),
    ],
)
def test_the_limit_is_that_of_the_decimal_the_user_wrote(portion: float, total: int, shards: int, limit: int) -> None:
    assert ledger.limit_of(portion, total, shards) == limit


@pytest.mark.parametrize(
    ("spent", "reserved", "charge", "fits"),
    [(0, 0, 20, True), (0, 0, 21, False), (10, 5, 5, True), (10, 5, 6, False), (20, 0, 0, True), (20, 0, 1, False)],
)
def test_a_charge_fits_up_to_the_last_sample(spent: int, reserved: int, charge: int, *, fits: bool) -> None:
    book = ledger.add(opened(100, 2, 0.1), {1: ((0, spent),)})
    check = ledger.fits(book, reserved, charge)
    assert check.fits is fits
    assert check.reason


def test_a_full_ledger_takes_no_more_charges() -> None:
    book = ledger.add(opened(10**6, 1, 0.5), {0: scattered(ledger.MAX_RANGES)})
    assert not ledger.fits(book, 0, 1).fits
    assert "ranges" in ledger.fits(book, 0, 1).reason
    assert ledger.fits(ledger.rolled_back(book, 10), 0, 1).fits


def scattered(count: int) -> ledger.Ranges:
    return tuple((2 * i, 2 * i + 1) for i in range(count))


@pytest.mark.parametrize("shards", [1, 3, 64])
def test_ranges_are_bounded_and_cover_all_losses(shards: int) -> None:
    book = ledger.add(opened(10**6, shards, 0.5), {0: ((20_000, 20_001),)})
    reported = {index: scattered(8000 if index % 2 == 0 else 2) for index in range(shards)}
    for held in (ledger.add(book, reported), ledger.add_everywhere(book, scattered(8000))):
        assert sum(map(len, held.lost)) <= MAX_RANGES
        assert all(ledger.length((*now, (0, 1))) == ledger.length(now) for now in held.lost)
        assert ledger.union(held.lost[0], scattered(8000), book.lost[0]) == held.lost[0]
    if shards > 1:
        assert ledger.add(book, reported).lost[1] == scattered(2), "a short report is charged exactly"


def test_samples_outside_of_the_job_are_not_charged() -> None:
    reported = ((-5, 10), (90, 2**60), (7, 3))
    book = opened(100, 2, 0.5)
    assert ledger.add(book, {0: reported}).lost == (((0, 10), (90, 100)), ())
    assert ledger.add_everywhere(book, reported).spent == 40
    assert ledger.add(opened(0, 1, 0.5), {0: reported}).lost == (((0, 10), (90, EXACT)),), "no total is known yet"


def test_ranges_that_fit_a_status_are_exact() -> None:
    book = ledger.add(opened(10**6, 2, 0.5), {0: scattered(MAX_RANGES)})
    assert book.spent == MAX_RANGES
    assert ledger.add(book, {1: ((5, 6),)}).lost == (((0, 2 * MAX_RANGES - 1),), ((5, 6),))


def test_portions_are_0_while_the_total_is_unknown() -> None:
    assert ledger.portion(7, opened(0, 4, 0.1)) == 0.0
    assert ledger.portion(30, opened(100, 3, 0.5)) == 0.1


@given(st.integers(1, 10**12), st.integers(1, 1024), st.fractions(0, 1), st.fractions(0, 1))
def test_limit_equal_to_the_shown_loss_allows_it(total: int, shards: int, spent: Fraction, other: Fraction) -> None:
    book = Ledger(total, 0, ((),) * shards)
    lost, more = sorted((int(spent * total * shards), int(other * total * shards)))
    shown = ledger.shown(lost, book)
    assert ledger.limit_of(shown, total, shards) >= lost
    assert shown <= ledger.shown(more, book), "in the order of what they stand for"
    assert abs(Fraction(shown) * total * shards - lost) <= Fraction(lost, 10**7) + Fraction(1, 10**3)


def test_running_sum_counts_repeated_losses() -> None:
    book = opened(100, 2, 0.5)
    for _ in range(2):
        book = ledger.recovered(ledger.add(book, {0: ((60, 80),)}), 20)
    book = ledger.rolled_back(book, 50)
    assert (book.spent, book.running) == (0, 40)


def test_losses_of_other_shards_are_carried_over_rounded_up() -> None:
    book = ledger.recovered(ledger.add(opened(1000, 3, 0.5), {1: ((0, 100), (300, 400))}), 230)
    fewer = ledger.resharded(book, 2, ledger.limit_of(0.5, 1000, 2))
    assert fewer == Ledger(total=1000, limit=1000, lost=((), ()), running=154, carried=134)
    assert (fewer.spent, fewer.left) == (134, 866)
    assert ledger.rolled_back(ledger.add(fewer, {0: ((600, 700),)}), 0).spent == 134


def test_carried_loss_above_the_limit_by_rounding_fits() -> None:
    """A seventh of a sample may be lost: 1 sample-shard of 7, and of 2 none, though 2 / 7 are lost."""
    book = ledger.add(opened(10, 7, 0.0143), {0: ((0, 1),)})
    fewer = ledger.resharded(book, 2, ledger.limit_of(0.0143, 10, 2))
    assert (fewer.limit, fewer.carried, fewer.left) == (1, 1, 0), "the limit is rounded up as well"
    assert ledger.shown(fewer.spent, fewer) <= ledger.shown(fewer.limit, fewer)
    assert not ledger.fits(fewer, 0, 1).fits
    assert ledger.fits(fewer, 0, 0).fits


@given(
    st.lists(
        st.tuples(st.integers(1, 7), st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=4)), max_size=6
    ),
    st.integers(0, 99).map(lambda percent: percent / 100),
)
def test_resharded_ledger_never_understates_losses_and_respects_the_limit(
    layouts: list[tuple[int, list[tuple[int, int]]]], portion: float
) -> None:
    book, lost, now = opened(TOTAL, 3, portion), Fraction(0), 0
    for shards, losses in layouts:
        book = ledger.resharded(book, shards, ledger.limit_of(portion, TOTAL, shards))
        for shard, samples in losses:
            if ledger.fits(book, 0, samples).fits and now + samples <= TOTAL:
                book = ledger.add(book, {shard % shards: ((now, now + samples),)})
                now, lost = now + samples, lost + Fraction(samples, shards)
        assert lost <= Fraction(book.spent, shards)
        assert lost <= Fraction(str(portion)) * TOTAL
        assert book.left >= 0
