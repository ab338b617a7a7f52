from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from cpr_contract.pinned_data import SegmentScores
from cpr_contract.spec import DataSpec
from cpr_trainer.data.dataset import Layout
from cpr_trainer.data.stream_order import StreamOrder
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.trainer.scores import BOUNDARY_NUMBERS, MERGE_STEPS, ScoredSlice, Scores, SegmentBoundary

_TOTAL = 100


def _scores() -> Scores:
    return Scores(ProgressiveValidation(_TOTAL))


def _slice(step: int, *, trainers: int = 1, first_sample: int = 20) -> ScoredSlice:
    logits, labels = torch.tensor([-1.0, 2.0]), torch.tensor([0.0, 1.0])
    return ScoredSlice(step, trainers, first_sample, logits, labels, loss_share=0.5)


def test_two_trainers_merge_to_the_same_scores() -> None:
    trainers = _scores(), _scores()
    for scores in trainers:
        scores.add(_slice(1, trainers=2))
        scores.add(_slice(2, trainers=2))
    counters, losses = (sum(parts) for parts in zip(*(scores.to_merge() for scores in trainers), strict=True))
    for scores in trainers:
        scores.merge(counters, losses)

    assert [scores.validation.samples for scores in trainers] == [8, 8]
    assert [scores.loss for scores in trainers] == [pytest.approx(1.0)] * 2, "shares of a step's loss add up"
    assert torch.equal(trainers[0].merged(), trainers[1].merged())


def test_step_that_is_computed_again_is_scored_once() -> None:
    scores = _scores()
    scores.add(_slice(1))
    scores.to_merge()  # the all-reduce that follows fails
    scores.add(_slice(1))
    scores.merge(*scores.to_merge())

    assert scores.validation.samples == 2
    assert scores.loss == pytest.approx(0.5)


def test_copied_scores_replace_unmerged_ones() -> None:
    merged, loaded = _scores(), _scores()
    for scores in (merged, loaded):
        scores.add(_slice(1))
    merged.merge(*merged.to_merge())
    loaded.load(merged.merged(), 1)
    loaded.merge(*loaded.to_merge())

    assert loaded.validation.samples == 2


BATCH = 4
#: The ends of pins by their numbers from 1, in steps: tiny ones, long ones, and several in one batch.
PINS = (10, 31, 33, 34, 34, 80, 81, 200, 201, 240)


class Trainers:
    """Two trainers in lockstep that follow data with these pins."""

    def __init__(self) -> None:
        self.order = StreamOrder(DataSpec("CSV", "x", 1, None, BATCH, 1, 0))
        for start, stop in pairwise((0, *PINS)):
            rows = (stop - start) * BATCH
            self.order = self.order.followed_by(Layout.of([rows], [0]) if rows else None)
        self.scores = self._begin()
        self.found: list[SegmentScores] = []

    def train(self, first: int, last: int, cuts: frozenset[int] = frozenset()) -> None:
        """Train steps as a `Stepper` does; cuts merge as well."""
        for step in range(first, last + 1):
            for rank, scores in enumerate(self.scores):
                scores.add(slice_of(step, rank))
            pin = self.order.ended_pin(step) if self.scores[0].may_end_segment(step) else 0
            if step % MERGE_STEPS == 0 or step in cuts or pin:
                (counters, losses), others = (scores.to_merge() for scores in self.scores)
                for scores in self.scores:
                    scores.merge(counters + others[0], losses + others[1])
                    if pin:
                        scores.end_segment(step, pin, BATCH)
            if pin:
                reported, other = (scores.report_fields()["segment"] for scores in self.scores)
                assert reported == other
                self.found.append(reported)

    def restore(self, step: int) -> None:
        """Begin anew from the state of the first one after `step`, as both load it from an anchor."""
        merged, boundary = self.scores[0].merged(), self.scores[0].boundary
        assert boundary is not None
        self.scores = self._begin()
        for scores in self.scores:
            scores.load(merged, step, SegmentBoundary.of(boundary.numbers(), boundary.counters.clone()))

    def _begin(self) -> tuple[Scores, Scores]:
        first, second = (Scores(ProgressiveValidation(0), by_segment=True) for _ in range(2))
        return first, second


def slice_of(step: int, rank: int) -> ScoredSlice:
    generator = torch.Generator().manual_seed(2 * step + rank)
    labels = (torch.rand(BATCH // 2, generator=generator) < 0.5).float()
    first_sample = (step - 1) * BATCH + rank * BATCH // 2
    return ScoredSlice(step, 2, first_sample, torch.randn(BATCH // 2, generator=generator), labels, 0.5)


def test_segments_have_the_scores_of_their_own_samples_and_tiny_ones_are_joined() -> None:
    trainers = Trainers()
    trainers.train(1, PINS[-1])
    # The first end after 32 steps, and the next one after 32 more. Both pins that end with step 34 are in the second.
    assert [(each.pin, each.first_sample, each.stop) for each in trainers.found] == [
        (3, 0, 33 * BATCH), (6, 33 * BATCH, 80 * BATCH), (8, 80 * BATCH, 200 * BATCH), (10, 200 * BATCH, 240 * BATCH),
    ]  # fmt: skip
    for each in trainers.found:
        alone = ProgressiveValidation(0)
        for step in range(each.first_sample // BATCH + 1, each.stop // BATCH + 1):
            for rank in range(2):
                part = slice_of(step, rank)
                alone.add(part.logits, part.labels, part.first_sample)
        alone.merge(alone.take_delta())
        assert each.scored == alone.samples == each.stop - each.first_sample
        own = alone.auc(), alone.log_loss(), alone.normalised_entropy(), alone.calibration()
        assert (each.auc, each.logloss, each.normalised_entropy, each.calibration) == own


@pytest.mark.parametrize("cut", [1, 33, 60, 80, 199, 202])
def test_restored_trainers_have_the_same_scores_by_segment(cut: int) -> None:
    calm, restored = Trainers(), Trainers()
    calm.train(1, PINS[-1])
    restored.train(1, cut, frozenset({cut}))
    restored.restore(cut)
    if cut >= PINS[2]:
        assert restored.scores[0].report_fields()["segment"] == restored.found[-1]
    restored.train(cut + 1, PINS[-1])
    assert restored.found == calm.found


def test_state_without_a_boundary_begins_a_segment_there() -> None:
    old, trainers = Scores(ProgressiveValidation(0)), Trainers()
    for step in range(1, 51):
        old.add(replace(slice_of(step, 0), trainers=1))
    old.merge(*old.to_merge())
    for scores in trainers.scores:
        scores.load(old.merged(), 50)
    assert trainers.scores[0].report_fields()["segment"] is None
    trainers.train(51, 200)
    assert [(each.pin, each.first_sample, each.scored) for each in trainers.found] == [(8, 50 * BATCH, 150 * BATCH)]


@pytest.mark.parametrize(
    "scores",
    [
        None,
        SegmentScores(7, 2**52 + 1, 2**52 + 3, 2, 0.1 + 0.2, None, 0.1, 1 / 3),
        SegmentScores(1, 0, 4, 0, *[None] * 4),
    ],
)
def test_boundary_is_saved_exactly(scores: SegmentScores | None) -> None:
    counters = torch.arange(3)
    boundary = SegmentBoundary(2**40 + 1, counters, scores)
    assert boundary.numbers().shape == (BOUNDARY_NUMBERS,)
    read = SegmentBoundary.of(boundary.numbers(), counters)
    assert (read.step, read.scores) == (boundary.step, scores)
