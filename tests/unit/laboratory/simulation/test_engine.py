"""The engine against a clock that ticks, against the operator's ledger, and against what it promises."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cpr_operator import ledger as ledgers
from cpr_operator.api.sizes import recoverable
from cpr_operator.policy import Costs
from cpr_operator.policy.equations import uncovered
from cprjob_bench.simulation import engine
from cprjob_bench.simulation.engine import Decision, Outcome, Strategy, _Training, is_covered, run
from cprjob_bench.simulation.job import FLUSH_AGE_S, Failure, Job
from cprjob_bench.simulation.strategies import STRATEGIES, ClosedLoop, OpenLoop

HOUR = 3600.0
JOB = Job(100.0, 4, 2, 50.0, 0.2, Costs(1.0, 3.0, 2.0, 2.0), 50.0, 2.0)

GAPS = st.lists(st.integers(0, 60), max_size=12)


def fails(*failures: tuple[float, int]) -> Iterator[Failure]:
    return iter([Failure(gap, lost) for gap, lost in failures])


def ticking(job: Job, decision: Decision, gaps: list[int]) -> Outcome:
    """One second after the other: failures of all shards, whose loss is charged or rolled back as `decision` says."""
    now = cut = saved = trained = lost_from = 0
    pending, waiting, out = False, list(gaps), Outcome()
    at = waiting.pop(0) if waiting else None
    while True:
        if pending and now >= cut + job.costs.commit_s:
            saved, pending = cut, False
        if now >= job.total_s:
            return out
        if trained == at:
            at = trained + waiting.pop(0) if waiting else None
            out.recoveries, pending = out.recoveries + 1, False
            if decision.full:
                out.rollbacks, out.lost_s = out.rollbacks + 1, out.lost_s + now - saved
                now = cut = saved
            else:
                out.spent_s += job.shards * (now - max(saved, lost_from))
                lost_from = now
            continue
        if now >= cut + decision.interval_s:
            out.saves, cut, pending = out.saves + 1, now, True
        now, trained = now + 1, trained + 1


@given(gaps=GAPS, interval=st.integers(3, 120), holds=st.integers(1, 120), full=st.booleans())
@example(gaps=[30], interval=10, holds=100, full=True)
@example(gaps=[12, 0, 2, 20], interval=10, holds=100, full=False)
@example(gaps=[21], interval=10, holds=11, full=False)
def test_leaps_end_where_ticks_do(*, gaps: list[int], interval: int, holds: int, full: bool) -> None:
    decision = Decision(full=full, interval_s=float(interval), holds_s=float(holds))
    failures = fails(*((gap, JOB.shards) for gap in gaps))
    assert run(JOB, OpenLoop(decision), failures, random.Random(0)) == ticking(JOB, decision, gaps)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(0, 40), st.integers(3, 40)),
        st.tuples(st.just("fail"), st.integers(1, 4), st.integers(0, 1)),
    ),
    max_size=30,
)


class Told(random.Random):
    """Says which shards it drew."""

    last: list[int]

    def sample(self, population: range, k: int) -> list[int]:  # type: ignore[override]
        self.last = super().sample(population, k)
        return self.last


@given(STEPS)
@example([("train", 10, 5), ("fail", 2, 0), ("train", 1, 5), ("fail", 3, 0), ("train", 20, 5), ("fail", 4, 1)])
@example([("train", 9, 40), ("fail", 2, 0), ("train", 3, 40), ("fail", 2, 0), ("fail", 1, 1)])
def test_the_account_is_the_ledgers(steps: list[tuple[str, int, int]]) -> None:
    """Charges, what fits, and what a rollback takes back, as the operator's own ledger counts them."""
    job, rng = replace(JOB, total_s=1000.0, limit=0.02), Told(1)
    training = _Training(job)
    limit = ledgers.limit_of(job.limit, 1000, job.shards)
    book = ledgers.Ledger(total=1000, limit=limit, lost=((),) * job.shards)
    for kind, first, second in steps:
        if kind == "train":
            training.advance(float(first), float(second))
            continue
        rng.last = list(range(first))
        now, saved, before = int(training.now), int(training.saved), training.out.rollbacks
        training.fail(first, rng, rolls_back=bool(second), promise=True)
        after = book
        for shard in rng.last:
            after = ledgers.add(after, shard, ((saved, now),))
        verdict = ledgers.fits(book, 0, after.spent - book.spent)
        rolls_back = bool(second) or not verdict.fits
        assert training.out.rollbacks - before == rolls_back
        book = ledgers.rolled_back(book, saved) if rolls_back else after
        assert training.out.spent_s == pytest.approx(book.spent)


@dataclass
class Watched:
    """A strategy whose budget is looked at whenever it is asked."""

    inner: Strategy
    least_s: float = 0.0
    promise: bool = True

    def decide(self, budget_s: float, left_s: float) -> Decision:
        self.least_s = min(self.least_s, budget_s)
        decision = self.inner.decide(budget_s, left_s)
        assert decision.holds_s > 0
        return decision

    def quiet(self, seconds: float) -> None:
        self.inner.quiet(seconds)

    def failed(self, shards: int) -> None:
        self.inner.failed(shards)


JOBS = st.builds(
    Job,
    total_s=st.floats(HOUR, 1000 * HOUR),
    shards=st.integers(4, 64),
    lost=st.integers(1, 4),
    mtbf_s=st.floats(60, 1000 * HOUR),
    limit=st.floats(0, 0.9),
    costs=st.builds(Costs, st.floats(0, 600), st.floats(0, 600), st.floats(0, 600), st.floats(0, 600)),
    told_mtbf_s=st.floats(60, 1000 * HOUR),
    told_lost=st.floats(1, 100),
)


@given(JOBS, st.lists(st.tuples(st.floats(0, 100 * HOUR), st.integers(1, 4)), max_size=40), st.integers(0, 99))
def test_the_closed_loop_never_overspends(job: Job, gaps: list[tuple[float, int]], seed: int) -> None:
    """Any failures, any budget, any costs, right or wrong beliefs: never, at no moment."""
    watched = Watched(ClosedLoop(job))
    out = run(job, watched, fails(*gaps), random.Random(seed))
    assert out.spent_s <= job.budget_s * (1 + 1e-9)
    assert watched.least_s >= -1e-9 * job.budget_s
    assert out.spent_s >= -1e-6


@given(JOBS)
def test_no_failures_cost_exactly_the_saves(job: Job) -> None:
    for name, make in STRATEGIES.items():
        out = run(job, make(job), iter(()), random.Random(0))
        assert out == Outcome(saves=out.saves, flushing_s=out.flushing_s)
        assert out.flushing_s == pytest.approx(job.total_s if "parity" in name else 0.0)


@pytest.mark.parametrize(("interval", "saves"), [(100.0, 0), (99.0, 1), (50.0, 1), (10.0, 9), (3.0, 33), (1e9, 0)])
def test_the_last_save_is_the_model(interval: float, saves: int) -> None:
    out = run(JOB, OpenLoop(Decision(full=True, interval_s=interval)), iter(()), random.Random(0))
    assert out.saves == saves


def test_a_failure_costs_the_age_of_the_last_committed_save() -> None:
    """A cut at 20 that is not committed at 22 is void: the save of 10 counts."""
    job = replace(JOB, limit=0.9)
    keep = OpenLoop(Decision(full=False, interval_s=10.0))
    assert run(job, keep, fails((22.0, 3)), random.Random(0)).spent_s == 3 * 12
    assert run(job, keep, fails((23.0, 3)), random.Random(0)).spent_s == 3 * 3


def test_a_cut_that_a_failure_falls_into_is_void() -> None:
    training = _Training(replace(JOB, limit=0.9))
    training.advance(12.0, 10.0)
    training.fail(2, random.Random(0), rolls_back=False, promise=True)
    training.advance(2.0, 10.0)
    assert (training.now, training.cut, training.saved) == (14.0, 10.0, 0.0)
    training.advance(10.0, 10.0)
    assert (training.cut, training.saved) == (20.0, 20.0)


def test_a_loss_that_does_not_fit_rolls_back_if_there_is_a_promise() -> None:
    decision = Decision(full=False, interval_s=50.0)
    kept = run(JOB, OpenLoop(decision, promise=True), fails((45.0, 2)), random.Random(0))
    assert (kept.rollbacks, kept.lost_s, kept.spent_s) == (1, 45.0, 0.0)
    broken = run(JOB, OpenLoop(decision), fails((45.0, 2)), random.Random(0))
    assert (broken.rollbacks, broken.lost_s, broken.spent_s) == (0, 0.0, 90.0)


def test_replay_loses_nothing_and_waits_for_what_is_pushed_again() -> None:
    """A cut at 20 that is committed at 23; the failure at 36 waits for a quarter of the 6 s since the cut at 30."""
    job = replace(JOB, limit=0.0, replay=0.25)
    out = run(job, OpenLoop(Decision(full=False, interval_s=10.0, replays=True)), fails((36.0, 2)), random.Random(0))
    assert out == Outcome(saves=out.saves, recoveries=1, lost_s=1.5)


def test_a_job_that_always_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PATIENCE", 50)
    endless = fails(*((1.0, 1) for _ in range(100)))
    out = run(JOB, OpenLoop(Decision(full=True, interval_s=10.0)), endless, random.Random(0))
    assert not out.finished
    assert out.recoveries == 50


PARITY = Decision(full=False, interval_s=10.0, parity=True)


def test_parity_loses_what_came_after_the_last_flush() -> None:
    out = run(JOB, OpenLoop(PARITY), fails((36.0, 1)), random.Random(0))
    assert (out.recoveries, out.rollbacks, out.lost_s, out.flushing_s) == (1, 0, 0.0, JOB.total_s)
    assert out.spent_s == FLUSH_AGE_S


def test_with_replay_that_is_pushed_again_and_nothing_is_lost() -> None:
    job = replace(JOB, limit=0.0, replay=0.25)
    out = run(job, OpenLoop(PARITY._replace(replays=True)), fails((36.0, 1)), random.Random(0))
    assert (out.lost_s, out.spent_s, out.recoveries) == (0.25 * FLUSH_AGE_S, 0.0, 1)


def test_shards_that_are_close_go_back_to_their_save() -> None:
    """All four of a ring are lost at once, whatever k is."""
    both = run(JOB, OpenLoop(PARITY._replace(replays=True)), fails((36.0, 4)), random.Random(0))
    replayed = run(
        JOB, OpenLoop(Decision(full=False, interval_s=10.0, replays=True)), fails((36.0, 4)), random.Random(0)
    )
    assert both.lost_s == replayed.lost_s > JOB.replay * FLUSH_AGE_S
    alone = run(JOB, OpenLoop(PARITY), fails((36.0, 4)), random.Random(0))
    without = run(JOB, OpenLoop(Decision(full=False, interval_s=10.0)), fails((36.0, 4)), random.Random(0))
    assert alone.spent_s == without.spent_s > 4 * FLUSH_AGE_S


def test_parity_alone_rolls_back_where_nothing_may_be_lost() -> None:
    out = run(replace(JOB, limit=0.0), OpenLoop(PARITY, promise=True), fails((36.0, 1)), random.Random(0))
    assert (out.rollbacks, out.spent_s) == (1, 0.0)
    assert out.lost_s > 0


@pytest.mark.parametrize(("shards", "k", "lost"), [(8, 1, 2), (8, 1, 4), (18, 4, 2), (9, 2, 3), (4, 3, 1), (8, 4, 2)])
def test_whether_parity_covers_a_failure_is_the_operators_answer(shards: int, k: int, lost: int) -> None:
    job = replace(JOB, shards=shards, data_shards=k)
    for seed in range(200):
        drawn = random.Random(seed).sample(range(shards), lost)
        given_back = all(recoverable(shard, {*drawn} - {shard}, shards, k) for shard in drawn)
        assert is_covered(job, lost, random.Random(seed)) == given_back, drawn


def test_a_pair_is_covered_as_often_as_the_law_believes() -> None:
    """Of two lost among eight with k = 1 those next to each other are not given back: 2 / 7 of all pairs."""
    job, rng = replace(JOB, shards=8, data_shards=1), random.Random(1)
    covered = sum(is_covered(job, 2, rng) for _ in range(4000)) / 4000
    assert covered == pytest.approx(1 - uncovered(8, 1, 2), abs=0.03)
