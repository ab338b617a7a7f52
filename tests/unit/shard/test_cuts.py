"""The cuts of a shard: the announcements that count, and the time when a cut is due."""

from __future__ import annotations

import pytest

from cpr_trainer.shard.state import Cuts


def test_a_cut_is_due_when_all_ranks_have_reached_it() -> None:
    cuts = Cuts().announced(6, (4, 5))
    assert cuts.pending == 6
    assert not cuts.due((6, 5))
    assert cuts.due((6, 6))
    assert cuts.holds(7)
    assert not cuts.holds(6)
    assert cuts.take() == Cuts(pending=0, taken=6)
    assert not cuts.take().holds(7)
    assert not Cuts().due((0, 0))


@pytest.mark.parametrize(
    ("cuts", "step", "applied", "pending"),
    [
        (Cuts(), 6, (6, 6), 6),  # complete when it is announced
        (Cuts(), 6, (7, 5), 0),  # passed already
        (Cuts(), 0, (1, 1), 0),
        (Cuts(taken=6), 6, (6, 6), 0),
        (Cuts(taken=6), 9, (6, 6), 9),
        (Cuts(pending=6), 9, (4, 5), 9),  # a new leader's
        (Cuts(pending=9), 6, (4, 5), 9),  # a slow trainer still announces the old one
        (Cuts(pending=9), 6, (6, 5), 9),
        (Cuts(pending=9), 6, (6, 6), 6),  # the job stops here
    ],
)
def test_announcements(cuts: Cuts, step: int, applied: tuple[int, ...], pending: int) -> None:
    assert cuts.announced(step, applied).pending == pending


@pytest.mark.parametrize(
    ("cuts", "step", "applied", "pending"),
    [
        (Cuts(loose=True), 6, (40, 5), 6),  # passed by a fast rank: it is in the save
        (Cuts(loose=True), 6, (40, 7), 6),  # passed by all: due at once
        (Cuts(pending=9, loose=True), 6, (40, 5), 6),  # a new leader has announced less
        (Cuts(pending=9, loose=True), 0, (40, 5), 9),  # followers announce none
        (Cuts(taken=6, loose=True), 6, (40, 5), 0),
    ],
)
def test_announcements_of_loose_cuts(cuts: Cuts, step: int, applied: tuple[int, ...], pending: int) -> None:
    announced = cuts.announced(step, applied)
    assert announced.pending == pending
    assert not announced.at_barrier


def test_job_stops_at_the_loose_cut_that_all_ranks_have_reached() -> None:
    assert Cuts(loose=True).announced(6, (6, 6)).at_barrier
    assert Cuts(pending=9, loose=True).announced(6, (6, 6)).at_barrier
    assert not Cuts(loose=True).announced(6, (6, 7)).at_barrier


def test_loose_cut_holds_no_rank_and_waits_for_the_slowest() -> None:
    cuts = Cuts(pending=6, loose=True)
    assert not cuts.holds(7)
    assert not cuts.due((40, 5))
    assert cuts.due((40, 6))
    assert not cuts.passed_over(8, before=4), "what was lost of a rank does not make it void"
    assert cuts.take() == Cuts(taken=6, loose=True)


def test_a_cut_that_a_rank_skips_is_void() -> None:
    assert Cuts(pending=6).passed_over(7, before=5)
    assert not Cuts(pending=6).passed_over(7, before=6)
    assert not Cuts(pending=6).passed_over(6, before=4)
    assert not Cuts().passed_over(7, before=5)
    assert Cuts(pending=6, taken=3).void() == Cuts(taken=3)
